//! The messages of an XRC connection over the RC queue pairs of a vQP.
//!
//! An RC packet has no XRCETH, so the immediate data of a SEND contain the 24-bit number of the
//! shared receive queue and a [`Kind`]. A SEND without immediate data becomes a SEND with such
//! data. Before any other message that takes a receive, the sender posts a *header*: a SEND whose
//! immediate data name the queue of the next message. A SEND with immediate data becomes a SEND
//! without such data, and its header carries the data as payload.
//!
//! | request of the application | messages |
//! |---|---|
//! | SEND | SEND with immediate data ⟨[`Kind::Message`], queue⟩ |
//! | SEND with immediate data | header ⟨[`Kind::HeaderWithImm`], queue⟩ with the data as payload, SEND |
//! | SEND with invalidate, WRITE with immediate data | header ⟨[`Kind::Header`], queue⟩, the request |
//! | WRITE, READ, atomic, bind, invalidation | the request |
//!
//! A vQP delivers messages once and in order, also across failovers, so a header belongs to the
//! next message. An error of the sender may leave a header without its message. Such a header
//! changes no later message, because every message that takes a receive begins with a SEND with
//! immediate data, which replaces the stale header.

use std::collections::VecDeque;

use mitra_verbs::{Data, Error, Result, SendFlags, SendOp, SendWr, Srqn, WcOpcode, WcStatus};

use crate::completion::{Completion, Outcome, UnresolvedError};

const NUMBER_BITS: u32 = 24;
/// The payload of a header with immediate data, in bytes.
pub(crate) const HEADER_BYTES: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A SEND of the application without immediate data.
    Message = 0,
    Header = 1,
    /// A header whose payload is the immediate data of the next message.
    HeaderWithImm = 2,
}

fn tag(kind: Kind, queue: Srqn) -> u32 {
    (kind as u32) << NUMBER_BITS | queue.value()
}

fn parse_tag(imm: u32) -> Option<(Kind, Srqn)> {
    let kind = match imm >> NUMBER_BITS {
        0 => Kind::Message,
        1 => Kind::Header,
        2 => Kind::HeaderWithImm,
        _ => return None,
    };
    Some((kind, Srqn::new(imm & ((1 << NUMBER_BITS) - 1))))
}

/// Returns the header of a request, if the request needs one, and the request.
///
/// # Errors
/// [`Error::Invalid`] if a message names no queue.
pub(super) fn messages(mut wr: SendWr) -> Result<(Option<SendWr>, SendWr)> {
    let queue = core::mem::take(&mut wr.remote_srq);
    let takes_receive = matches!(
        wr.op,
        SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_) | SendOp::WriteWithImm(..)
    );
    if takes_receive && queue == Srqn::default() {
        return Err(Error::Invalid("an XRC message names a shared receive queue; set `SendWr::remote_srq`"));
    }
    let header = match wr.op {
        SendOp::Send => {
            wr.op = SendOp::SendWithImm(tag(Kind::Message, queue));
            None
        }
        SendOp::SendWithImm(imm) => {
            wr.op = SendOp::Send;
            Some((Kind::HeaderWithImm, Data::inline(&imm.to_le_bytes())))
        }
        SendOp::SendWithInvalidate(_) | SendOp::WriteWithImm(..) => Some((Kind::Header, Data::empty())),
        _ => None,
    };
    let header = header.map(|(kind, data)| {
        SendWr::new(wr.wr_id, SendOp::SendWithImm(tag(kind, queue)), data).with_flags(SendFlags::empty())
    });
    Ok((header, wr))
}

#[derive(Debug, Default)]
pub(super) struct SentHeaders {
    /// The sequence numbers of the headers that have not completed, and of some completed headers,
    /// oldest first. Each header's message has the next sequence number.
    seqs: VecDeque<u64>,
    /// The sequence number of the message whose header has failed, and the header's outcome.
    failed: Option<(u64, Outcome)>,
}

impl SentHeaders {
    /// Records the header of the message with sequence number `message`. All completions before
    /// `oldest` have been delivered.
    pub(super) fn push(&mut self, message: u64, oldest: u64) {
        self.forget_before(oldest);
        self.seqs.push_back(message - 1);
    }

    pub(super) fn count_from(&self, seq: u64) -> usize {
        self.seqs.len() - self.seqs.partition_point(|&header| header < seq)
    }

    /// None of the removed headers was posted.
    pub(super) fn truncate(&mut self, from: u64) {
        self.seqs.truncate(self.seqs.partition_point(|&header| header < from));
    }

    fn forget_before(&mut self, seq: u64) {
        while self.seqs.front().is_some_and(|&header| header < seq) {
            self.seqs.pop_front();
        }
    }

    /// Removes the completions of failed headers from `out[from..]`. The message of a failed header
    /// gets the outcome of the header instead of `Flushed`. If the header was executed behind an
    /// error, its message stays flushed, because the message was not executed.
    pub(super) fn remove_from(&mut self, out: &mut Vec<Completion>, from: usize) {
        let mut kept = from;
        for at in from..out.len() {
            let mut completion = out[at];
            let seq = completion.seq;
            self.forget_before(seq);
            if self.seqs.front() == Some(&seq) {
                self.seqs.pop_front();
                let was_executed =
                    completion.outcome == Outcome::Unresolved(UnresolvedError::ExecutedBehindError);
                self.failed = (!was_executed).then_some((seq + 1, completion.outcome));
                continue;
            }
            if let Some((_, outcome)) = self.failed.take_if(|&mut (message, _)| message <= seq)
                && completion.outcome == Outcome::Failed(WcStatus::Flushed)
            {
                completion.outcome = outcome;
            }
            out[kept] = completion;
            kept += 1;
        }
        out.truncate(kept);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// A message for this queue.
    Message(Srqn),
    Header,
    /// Not a message of an XRC connection.
    Invalid,
}

/// The last header at a receiving end, if its message has not arrived: the queue, and the immediate
/// data from the header's payload.
#[derive(Debug, Default)]
pub(super) struct ReceivedHeader(Option<(Srqn, Option<u32>)>);

impl ReceivedHeader {
    /// Classifies a received message. `payload` reads a payload of [`HEADER_BYTES`]. If the message
    /// is not a header, `completion` becomes the completion that the application gets.
    pub(super) fn on_message(
        &mut self,
        completion: &mut Completion,
        payload: impl FnOnce() -> [u8; HEADER_BYTES as usize],
    ) -> Arrival {
        let is_write = completion.opcode == WcOpcode::RecvWithImm;
        let Some(imm) = completion.imm.filter(|_| !is_write) else {
            // The message of a header.
            return match self.0.take() {
                Some((queue, Some(imm))) if !is_write && completion.invalidated.is_none() => {
                    completion.imm = Some(imm);
                    Arrival::Message(queue)
                }
                Some((queue, None)) if is_write || completion.invalidated.is_some() => {
                    Arrival::Message(queue)
                }
                _ => Arrival::Invalid,
            };
        };
        match (parse_tag(imm), completion.byte_len) {
            (Some((Kind::Message, queue)), _) => {
                self.0 = None;
                completion.imm = None;
                Arrival::Message(queue)
            }
            (Some((Kind::Header, queue)), 0) => {
                self.0 = Some((queue, None));
                Arrival::Header
            }
            (Some((Kind::HeaderWithImm, queue)), HEADER_BYTES) => {
                self.0 = Some((queue, Some(u32::from_le_bytes(payload()))));
                Arrival::Header
            }
            _ => Arrival::Invalid,
        }
    }
}

#[cfg(test)]
mod tests;
