//! What goes to and comes from a vQP's rails: posting, completions, receives, and whose fault an error is.

use mitra_verbs::{Error, RecvWr, Wc, WcOpcode, WcStatus};
use smallvec::SmallVec;

use crate::agreement::CloseReason;
use crate::log;
use crate::outcome::{Completion, Outcome, Resolution, UnresolvedError};
use crate::recovery::{Cause, Fence};
use crate::translate;
use crate::vqp::VirtualQp;

/// Marks in a rail's `wr_id`s; an operation's is its bare sequence number.
pub(crate) const LOG: u64 = 1 << 62;
pub(crate) const RECV: u64 = 1 << 63;
pub(crate) const DRAIN: u64 = 1 << 61;
/// Work requests that are posted as one list: enough for the NIC to send several packets in one piece, few enough that
/// the first completion is not kept waiting.
pub(crate) const BURST: usize = 16;

impl VirtualQp {
    /// Takes completions, and posts what they make room for.
    pub(crate) fn poll_rail(&mut self) {
        let rail = self.active_rail();
        let mut wcs = core::mem::take(&mut self.wcs);
        wcs.clear();
        let result = self.rails[rail].provider().poll_cq(self.rails[rail].cq, 32, &mut wcs);
        self.polling = true;
        for wc in &wcs {
            self.on_completion(rail, wc);
        }
        self.polling = false;
        let empty = wcs.is_empty();
        self.wcs = wcs;
        if self.ending {
            self.finish_end();
        }
        if empty {
            match &mut self.fence {
                &mut Fence::Emptying { live } => self.fence_done(live),
                fence => fence.polled_in_vain(),
            }
        }
        if result.is_err() {
            self.rail_failed(rail, Cause::Device);
        }
        if self.ledger.has_done() {
            while let Some(completion) = self.ledger.pop() {
                self.ready.push_back(completion);
            }
        }
        if let Some((report, below)) = &mut self.last
            && report.completed_at.is_none()
            && self.ledger.first_seq() >= *below
        {
            report.completed_at = Some(self.rails[0].provider().now());
        }
        if self.ledger.to_post() > 0 {
            self.pump();
        }
    }

    #[inline]
    pub(crate) fn on_completion(&mut self, rail: usize, wc: &Wc) {
        if wc.wr_id & DRAIN != 0 {
            self.fence.marker_came_back(wc.wr_id & RECV != 0);
        } else if wc.wr_id & RECV != 0 {
            self.on_recv(rail, wc);
        } else if wc.status == WcStatus::Success {
            if wc.wr_id & LOG == 0 {
                self.ledger.succeeded(wc.wr_id, wc.byte_len);
            }
        } else if self.fence == Fence::None && self.ended.is_none() {
            self.on_send_error(rail, wc);
        }
    }

    fn on_recv(&mut self, rail: usize, wc: &Wc) {
        match wc.status {
            // Only without a fence: this end has left the rail, and its receives are posted on the next. Taking one away
            // would pair every later message with another's buffer.
            WcStatus::Success if matches!(self.fence, Fence::Done { .. }) => {}
            WcStatus::Success => {
                let Some(wr) = self.recvs.pop_front() else { return };
                self.posted_recvs = self.posted_recvs.saturating_sub(1);
                self.received += 1;
                let completion = self.recv_completion(&wr, wc, Outcome::Success);
                self.received_total += 1;
                self.deliver(completion);
            }
            WcStatus::Flushed => {
                if self.fence == Fence::None && self.ended.is_none() {
                    self.on_send_error(rail, wc);
                }
            }
            status => {
                if let Some(wr) = self.recvs.pop_front() {
                    self.ready.push_back(self.recv_completion(&wr, wc, Outcome::Failed(status)));
                }
                self.end(CloseReason::RequestError);
            }
        }
    }

    /// Posts what may be posted now, or as much of it as one look at the completions is worth.
    pub(crate) fn pump(&mut self) {
        let Some(peer) = &self.peer else { return };
        if !peer.agreement.is_active() {
            return;
        }
        let (index, epoch) = (peer.agreement.active(), peer.agreement.ballot().epoch);
        let rail = &self.rails[index];
        let mut failed = None;
        let posted = if index == 0 && !self.config.completion_log && self.ledger.to_post() == 1 {
            // The usual case: one request, by the names that it has.
            self.ledger.next_posting().map_or(Ok(()), |posting| {
                let one = core::slice::from_ref(posting.wr);
                rail.post(one).map_err(|e| (posting.wr.wr_id, e.error))
            })
        } else {
            self.burst.clear();
            while self.burst.len() < BURST
                && let Some(posting) = self.ledger.next_posting()
            {
                match translate::request(posting.wr, index, &self.domain, &peer.keys) {
                    Ok(wr) => self.burst.push(wr),
                    Err(error) => {
                        failed = Some((posting.wr.wr_id, error));
                        break;
                    }
                }
                if let Some((seq, region)) = posting.log.zip(peer.log_region.as_ref()) {
                    self.burst.push(log::entry(region, index, LOG | seq, epoch, seq));
                }
            }
            match self.burst.is_empty() {
                true => Ok(()),
                false => rail.post(&self.burst).map_err(|e| (self.burst[e.index].wr_id, e.error)),
            }
        };
        match posted {
            // In ERR already: the completion that says why is still to be polled, and what was not sent is replayed.
            Ok(()) | Err((_, Error::WrongState { .. })) => {}
            Err(refused) => failed = Some(refused),
        }
        match failed {
            None => {}
            Some((_, Error::DeviceFatal)) => self.rail_failed(index, Cause::Device),
            Some((wr_id, _)) => {
                if wr_id & LOG == 0 {
                    // The limits were checked when it was accepted, so this is a key that was revoked since.
                    self.ledger.unpostable(wr_id, WcStatus::LocalProtection);
                } else {
                    self.ledger.unposted_behind(wr_id & !LOG);
                }
                self.end(CloseReason::RequestError);
            }
        }
    }

    /// Posts the receives that the rail does not have yet; those that another has already, it may not keep.
    pub(crate) fn post_recvs_on(&mut self, rail: usize) {
        if self.recv_rail != rail {
            let old = core::mem::replace(&mut self.recv_rail, rail);
            // The active rail is fenced: its queue pair is in ERR, and has given them back.
            if self.posted_recvs > 0
                && old != self.active_rail()
                && self.rails[old].rearm(&self.config).is_err()
            {
                self.rail_failed(old, Cause::Device);
            }
            self.posted_recvs = 0;
        }
        let mut wrs: SmallVec<[RecvWr; 1]> = SmallVec::new();
        for (i, wr) in self.recvs.iter().enumerate().skip(self.posted_recvs) {
            match translate::entries(&wr.sges, rail, &self.domain) {
                Ok(sges) => wrs.push(RecvWr { wr_id: RECV, sges }),
                // Its memory was deregistered: the sender would knock for ever.
                Err(_) => {
                    let gone = self.recvs.remove(i);
                    self.ready.extend(gone.map(|wr| self.unreceived(&wr, 0, WcStatus::LocalProtection)));
                    return self.end(CloseReason::RequestError);
                }
            }
        }
        self.posted_recvs += match self.rails[rail].provider().post_recv(self.rails[rail].qpn, &wrs) {
            Ok(()) => wrs.len(),
            Err(e) => e.index, // the rail is failing: the others are posted on the next
        };
    }

    /// A receive that ended without a message.
    pub(crate) fn unreceived(&self, wr: &RecvWr, behind: u64, status: WcStatus) -> Completion {
        Completion {
            wr_id: wr.wr_id,
            seq: self.received_total + behind,
            opcode: WcOpcode::Recv,
            outcome: Outcome::Failed(status),
            resolution: Resolution::Direct,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
        }
    }

    fn recv_completion(&self, wr: &RecvWr, wc: &Wc, outcome: Outcome) -> Completion {
        Completion {
            wr_id: wr.wr_id,
            seq: self.received_total,
            opcode: wc.opcode,
            outcome,
            resolution: Resolution::Direct,
            byte_len: wc.byte_len,
            imm: wc.imm,
            invalidated: wc.invalidated,
            solicited: wc.solicited,
        }
    }

    /// Tells a failure of the rail from one of the request.
    fn on_send_error(&mut self, rail: usize, wc: &Wc) {
        match wc.status {
            WcStatus::RetryExceeded | WcStatus::LocalQpOperation => {
                self.rail_failed(rail, Cause::Completion(wc.status));
            }
            WcStatus::Flushed => {
                // Flushed without an error before it: either the peer's request broke a rule, or the device gave up.
                let _ = self.domain.rail_down(rail); // takes the events
                if !self.ends_by_event(rail) {
                    self.rail_failed(rail, Cause::Completion(wc.status));
                }
            }
            status => {
                let seq = wc.wr_id & !LOG;
                if wc.wr_id & LOG == 0 {
                    self.ledger.failed(seq, status, UnresolvedError::Undecided(CloseReason::RequestError));
                }
                self.end(CloseReason::RequestError);
            }
        }
    }
}
