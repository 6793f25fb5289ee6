use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::{RecvWr, Result, Wc, WcOpcode, WcStatus};

use crate::completion::{Completion, Outcome, Resolution, UnresolvedError};
use crate::config::Service;
use crate::data_qp::DataQp;
use crate::domain::Domain;
use crate::key_translation;
use crate::vqp::wr_id_flags;

#[derive(Debug)]
struct Receive {
    /// The application's receive with the `wr_id` for the rail.
    wr: RecvWr,
    app_wr_id: u64,
}

/// The receive queue of a vQP. During a move, the outstanding receives are posted on the new rail.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    /// Oldest first.
    wrs: VecDeque<Receive>,
    /// The number of receives, from the front of `wrs`, that are posted on `rail`.
    posted: usize,
    /// The rail on which receives are posted: the active rail or, late in a move, the new rail.
    rail: usize,
    /// The receiver record of the evidence: the number of successful receives in this epoch.
    pub(super) received_in_epoch: u64,
    /// The number of receives that have taken a message, over all epochs.
    received: u64,
    /// After a move, the completions that wait for the peer's Resume message. `None` if completions
    /// do not wait.
    held: Option<VecDeque<Completion>>,
    /// Added to the length of the next receive, if it is a receive of a WRITE with immediate.
    /// Earlier rails placed these bytes in memory, and the peer does not send them again.
    partial_imm_bytes: u32,
    /// The longest message that every rail accepts, in bytes.
    max_message: u64,
    service: Service,
}

impl ReceiveQueue {
    pub(super) fn new(max_message: u64, service: Service) -> ReceiveQueue {
        ReceiveQueue {
            wrs: VecDeque::new(),
            posted: 0,
            rail: 0,
            received_in_epoch: 0,
            received: 0,
            held: None,
            partial_imm_bytes: 0,
            max_message,
            service,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.wrs.len()
    }

    /// The number of completions that wait for the peer's Resume.
    pub(super) fn held(&self) -> usize {
        self.held.as_ref().map_or(0, VecDeque::len)
    }

    pub(super) fn has_unposted(&self) -> bool {
        self.posted < self.wrs.len()
    }

    pub(super) fn is_posted(&self) -> bool {
        self.posted > 0
    }

    pub(super) fn rail(&self) -> usize {
        self.rail
    }

    /// Checks a receive and appends it. The caller has checked that the vQP is open and has room.
    pub(super) fn push(&mut self, wr: RecvWr, max_sges: u32) -> Result<()> {
        let sges = wr.sges.len() as u64;
        key_translation::check_limit("scatter entries", sges, max_sges.into())?;
        let bytes = wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        key_translation::check_limit("bytes of a receive", bytes, self.max_message)?;
        let app_wr_id = wr.wr_id;
        self.wrs.push_back(Receive { wr: RecvWr { wr_id: wr_id_flags::RECV, ..wr }, app_wr_id });
        Ok(())
    }

    /// Sets the rail on which receives are posted. Returns the old rail if it differs and receives
    /// are posted there.
    pub(super) fn switch_rail(&mut self, rail: usize) -> Option<usize> {
        if self.rail == rail {
            return None;
        }
        let old = core::mem::replace(&mut self.rail, rail);
        (core::mem::take(&mut self.posted) > 0).then_some(old)
    }

    /// Records that `rail` has flushed every receive. Receives that are posted on another rail stay
    /// there.
    pub(super) fn on_flushed(&mut self, rail: usize) {
        if rail == self.rail {
            self.posted = 0;
        }
    }

    /// Removes the receives, none of which is posted on a rail, and returns their number.
    pub(super) fn clear_unposted(&mut self) -> usize {
        debug_assert_eq!(self.posted, 0);
        core::mem::take(&mut self.wrs).len()
    }

    pub(super) fn post(&mut self, qp: &DataQp, domain: &Domain) {
        if self.rail == 0
            && self.posted + 1 == self.wrs.len()
            && let Some(added) = self.wrs.back()
        {
            // The common case: the keys of a single receive on rail 0 need no translation.
            let posted = qp.post_recv(core::slice::from_ref(&added.wr));
            self.posted += usize::from(posted.is_ok()); // a refused receive is posted on the next rail
            return;
        }
        let wrs: Vec<RecvWr> = (self.wrs.iter().skip(self.posted))
            .map(|Receive { wr, .. }| RecvWr {
                wr_id: wr.wr_id,
                sges: key_translation::translate_sges(&wr.sges, self.rail, domain),
            })
            .collect();
        self.posted += match qp.post_recv(&wrs) {
            Ok(()) => wrs.len(),
            Err(e) => e.index, // the rail has failed; the other receives are posted on the next rail
        };
    }

    #[inline]
    pub(super) fn on_success(&mut self, wc: &Wc, ready: &mut VecDeque<Completion>) {
        let Some(Receive { app_wr_id, .. }) = self.wrs.pop_front() else { return };
        self.posted = self.posted.saturating_sub(1);
        self.received_in_epoch += 1;
        let completion = self.completion(app_wr_id, wc, Outcome::Success);
        self.received += 1;
        self.deliver(completion, ready);
    }

    /// Completes the oldest receive with an error, behind the completions that wait for the peer's
    /// Resume. The caller must close the vQP.
    pub(super) fn on_error(&mut self, wc: &Wc, ready: &mut VecDeque<Completion>) {
        let Some(Receive { app_wr_id, .. }) = self.wrs.pop_front() else { return };
        let completion = self.completion(app_wr_id, wc, Outcome::Failed(wc.status));
        self.received += 1;
        match &mut self.held {
            Some(held) if !held.is_empty() => held.push_back(completion),
            _ => ready.push_back(completion),
        }
    }

    /// Moves a completion to `ready`, unless the completion must wait for the peer's Resume.
    fn deliver(&mut self, mut completion: Completion, ready: &mut VecDeque<Completion>) {
        let with_imm = completion.opcode == WcOpcode::RecvWithImm;
        if let Some(held) = &mut self.held {
            if with_imm || !held.is_empty() {
                return held.push_back(completion);
            }
            self.held = None; // the peer replays a torn WRITE with immediate before any SEND, so no WRITE was torn
        }
        let partial = core::mem::take(&mut self.partial_imm_bytes);
        if with_imm {
            completion.byte_len = completion.byte_len.saturating_add(partial);
        }
        ready.push_back(completion);
    }

    /// Begins an epoch. If a WRITE with immediate takes the first receive of the epoch, the
    /// completion waits for the peer's Resume, which states how many bytes of the WRITE earlier
    /// rails placed.
    pub(super) fn begin_epoch(&mut self) {
        self.received_in_epoch = 0;
        if !Mutant::LengthNotAwaited.is_on() {
            self.hold();
        }
    }

    /// Makes completions wait for the peer's Resume. On an unreliable connection nothing waits,
    /// because the peer never sends the rest of a torn WRITE.
    pub(super) fn hold(&mut self) {
        if self.service.is_reliable() {
            (self.held, self.partial_imm_bytes) = (Some(VecDeque::new()), 0);
        }
    }

    /// Moves the completions that waited for the peer's Resume to `ready`. The Resume states
    /// `partial_imm_bytes`. The peer replays a torn WRITE with immediate first, so these bytes
    /// count for the first of these completions.
    ///
    /// If `partial_imm_bytes` is `None`, no Resume will arrive. The first of these completions then
    /// has an unknown length, and ends in [`UnresolvedError::ValueLost`].
    pub(super) fn release_held(&mut self, partial_imm_bytes: Option<u32>, ready: &mut VecDeque<Completion>) {
        let Some(mut held) = self.held.take() else { return };
        match (held.front_mut(), partial_imm_bytes) {
            (Some(_), Some(_)) if Mutant::EarlierBytesNotCounted.is_on() => {}
            (Some(first), Some(bytes)) => first.byte_len = first.byte_len.saturating_add(bytes),
            (Some(first), None) => first.outcome = Outcome::Unresolved(UnresolvedError::ValueLost),
            (None, bytes) => self.partial_imm_bytes = bytes.unwrap_or(0),
        }
        ready.append(&mut held);
    }

    pub(super) fn flush(&mut self, ready: &mut VecDeque<Completion>) {
        let outstanding = core::mem::take(&mut self.wrs);
        for (i, receive) in (self.received..).zip(&outstanding) {
            ready.push_back(Completion::failed_receive(receive.app_wr_id, i, WcStatus::Flushed));
        }
    }

    fn completion(&self, wr_id: u64, wc: &Wc, outcome: Outcome) -> Completion {
        Completion {
            wr_id,
            seq: self.received,
            opcode: wc.opcode,
            outcome,
            resolution: Resolution::Direct,
            byte_len: wc.byte_len,
            imm: wc.imm,
            invalidated: wc.invalidated,
            solicited: wc.solicited,
            srq: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mitra_verbs::Qpn;

    /// The lengths in the completions before and after the peer's Resume. The new rail delivers the
    /// last 64 bytes of a WRITE with immediate, whose first 100 bytes an earlier rail placed.
    fn lengths_after_move(service: Service) -> [Vec<u32>; 2] {
        let (mut queue, mut ready) = (ReceiveQueue::new(1 << 20, service), VecDeque::new());
        queue.push(RecvWr { wr_id: 1, sges: Default::default() }, 1).expect("it has no entries");
        queue.begin_epoch();
        let wc = Wc::new(1, WcStatus::Success, WcOpcode::RecvWithImm, Qpn::new(1));
        let wc = Wc { byte_len: 64, ..wc };
        queue.on_success(&wc, &mut ready);
        let before = ready.iter().map(|completion| completion.byte_len).collect();
        queue.release_held(Some(100), &mut ready);
        [before, ready.iter().map(|completion| completion.byte_len).collect()]
    }

    /// A reliable peer sends only the rest of a torn WRITE, and its Resume states the length of the
    /// first part. An unreliable peer sends only whole messages, and its Resume may be lost, so
    /// nothing waits for the Resume.
    #[test]
    fn only_messages_of_a_reliable_peer_wait_for_its_resume() {
        assert_eq!(lengths_after_move(Service::Reliable), [vec![], vec![164]]);
        assert_eq!(lengths_after_move(Service::Unreliable), [vec![64], vec![64]]);
    }
}
