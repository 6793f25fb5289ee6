//! What a responder still has to answer to READs and atomics: bounded, in PSN order, produced when it is sent.

use std::collections::VecDeque;

use mitra_verbs::{Access, Key, Psn};
use mitra_wire::{Aeth, Message, NakCode, Packet, Syndrome, Transport};

use crate::Memory;
use crate::emit::Out;
use crate::host::Host;
use crate::qp::Common;

/// An answer that is due.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Response {
    /// PSN of its next packet.
    pub(crate) psn: Psn,
    /// PSN after its last.
    pub(crate) end: Psn,
    /// As the AETH tells it.
    pub(crate) msn: u32,
    /// To a request that was executed before: the requester may have got everything else by now.
    pub(crate) duplicate: bool,
    pub(crate) what: Answer,
}

/// The content of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Answer {
    /// The rest of a READ.
    Read { va: u64, key: Key, left: u32, first: bool },
    /// The old value of an atomic.
    Atomic { value: u64 },
}

/// Answers that are due, in PSN order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Responses {
    queue: VecDeque<Response>,
}

impl Responses {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Whether fewer than `most` answers are due, as the requester promised. Those to duplicates do not count, since it
    /// may have got them in time.
    pub(crate) fn has_room(&self, most: u8) -> bool {
        self.queue.iter().filter(|r| !r.duplicate).count() < usize::from(most)
    }

    /// Adds the answer to a new request; `has_room` said yes.
    pub(crate) fn push(&mut self, response: Response, most: u8) {
        while self.queue.len() >= usize::from(most) {
            let Some(at) = self.queue.iter().position(|r| r.duplicate) else { break };
            self.queue.remove(at);
        }
        self.queue.push_back(response);
    }

    /// Adds the answer to a duplicate request in place of those that it overlaps: the requester asks anew for all that
    /// it did not get. Dropped if `most` others are due.
    pub(crate) fn push_duplicate(&mut self, response: Response, most: u8) -> bool {
        let apart = |r: &Response| !r.end.is_after(response.psn) || !response.end.is_after(r.psn);
        self.queue.retain(apart);
        if self.queue.len() >= usize::from(most) {
            return false;
        }
        let at = self.queue.iter().position(|r| r.psn.is_after(response.psn)).unwrap_or(self.queue.len());
        self.queue.insert(at, response);
        true
    }

    /// Sends packets of the answers due, at most `most`, while `budget` bytes last, and says how many. An answer whose
    /// memory may not be read any more ends with the NAK to send instead.
    pub(crate) fn transmit(
        &mut self,
        c: &Common,
        host: &mut Host,
        memory: &mut dyn Memory,
        out: &mut Out<'_>,
        most: usize,
        budget: &mut u32,
    ) -> Result<usize, (Psn, NakCode)> {
        let mut n = 0;
        while let Some(response) = self.queue.front_mut()
            && n < most
            && *budget > 0
            && out.has_room(c.mtu)
        {
            match response.transmit(c, host, memory, out) {
                Ok(bytes) => {
                    n += 1;
                    *budget = budget.saturating_sub(bytes);
                }
                // The requester lacks this answer, and fails; or it has it, and ignores this (its PSN is answered).
                // Since that is not known here, the queue pair lives on.
                Err(code) if response.duplicate => {
                    let aeth = Aeth { syndrome: Syndrome::Nak(code), msn: response.msn };
                    out.bare(&response.packet(c, Message::Ack(aeth)));
                    n += 1;
                    host.counters.fatal_naks_sent += 1;
                    response.end = response.psn.next();
                }
                Err(code) => return Err((response.psn, code)),
            }
            response.psn = response.psn.next();
            if response.psn == response.end {
                self.queue.pop_front();
            }
        }
        Ok(n)
    }
}

impl Response {
    fn packet(&self, c: &Common, message: Message) -> Packet<'static> {
        Packet { mig_req: true, ..Packet::new(Transport::Rc, c.dest_qpn, self.psn, message, &[]) }
    }

    /// Sends its next packet and says how many bytes that carries.
    fn transmit(
        &mut self,
        c: &Common,
        host: &mut Host,
        memory: &mut dyn Memory,
        out: &mut Out<'_>,
    ) -> Result<u32, NakCode> {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.msn };
        let last = self.psn.next() == self.end;
        match self.what {
            Answer::Atomic { value } => {
                out.bare(&self.packet(c, Message::AtomicAck(aeth, value)));
                Ok(0)
            }
            Answer::Read { va, key, left, first } => {
                let n = (left as usize).min(c.mtu);
                let message = match (first, last) {
                    (true, true) => Message::ReadOnly(aeth),
                    (true, false) => Message::ReadFirst(aeth),
                    (false, false) => Message::ReadMiddle,
                    (false, true) => Message::ReadLast(aeth),
                };
                out.packet(&self.packet(c, message), n, |bytes| {
                    if n == 0 {
                        return Ok(());
                    }
                    // Rights may have been revoked since the request was accepted.
                    if !c.access().contains(Access::REMOTE_READ) {
                        return Err(NakCode::RemoteAccess);
                    }
                    let span = host
                        .keys
                        .remote(c.qpn, c.init.pd, key, va, n as u64, Access::REMOTE_READ)
                        .map_err(|_| NakCode::RemoteAccess)?;
                    memory.fetch(span.region, span.offset, bytes).map_err(|_| NakCode::RemoteOperational)
                })?;
                let (va, left) = (va.wrapping_add(n as u64), left - n as u32);
                self.what = Answer::Read { va, key, left, first: false };
                Ok(n as u32)
            }
        }
    }
}
