use mitra_mutants::Mutant;

use super::Recovery;
use crate::completion::UnresolvedError;
use crate::evidence::Evidence;
use crate::ledger::RecoveryInput;
use crate::negotiation::{CloseReason, RailNegotiation};
use crate::vqp::datapath::Datapath;
use crate::vqp::failure::Failure;
use crate::vqp::fence::{Fence, FenceStep};
use crate::vqp::wr_id_flags;

const DRAIN_BATCH: usize = 64;

impl Recovery {
    pub(in crate::vqp) fn close(&mut self, dp: &mut Datapath, reason: CloseReason) {
        self.fail(dp, Failure::Close(reason));
    }

    /// Makes the negotiation close the vQP. A vQP that is not connected has no peer, and only
    /// flushes its receives.
    pub(super) fn begin_close(&mut self, dp: &mut Datapath, reason: CloseReason) {
        if let Some(negotiation) = self.negotiation_mut() {
            negotiation.close(reason);
        } else if !dp.termination.is_closed() {
            dp.termination.close_unconnected(reason);
            dp.flush_recvs();
        }
    }

    pub(super) fn on_close(
        &mut self,
        dp: &mut Datapath,
        reason: CloseReason,
        peer_evidence: Option<Evidence>,
    ) {
        if dp.termination.is_closed() {
            return;
        }
        // The error of every rail is kept, not only of the active one: the peer may have moved
        // before this end, and the new rail may have refused a request of the peer.
        (0..dp.rails.len()).for_each(|rail| Recovery::keep_qp_error(dp, rail));
        if reason == CloseReason::PeerClosed && self.fence.is_idle() {
            // The completions are polled before the queue pair enters ERR, which drops the
            // responses that wait in the NIC.
            self.poll_all(dp, self.active_rail(), None);
        }
        // The rail of the receives counts as used: during a move, the peer may have posted requests
        // there after receiving this end's evidence.
        let reason = dp.rails.stop_all([self.active_rail(), dp.recv.rail()], reason);
        (0..dp.rails.len()).for_each(|rail| dp.windows.cut_off(rail));
        dp.termination.close(reason);
        dp.termination.peer_evidence = peer_evidence;
        self.end_failover();
    }

    /// Completes every outstanding request of a closed vQP, and sends the peer the final evidence.
    /// Operations whose successful completions are still in the completion queue end in success,
    /// because the peer has acknowledged them. The peer's final evidence decides the other
    /// operations.
    pub(super) fn flush(&mut self, dp: &mut Datapath, reason: CloseReason) {
        let active = self.active_rail();
        let is_fenced = self.fence.is_done();
        let has_sent_evidence = is_fenced && !self.is_fence_early;
        let mut drained =
            if is_fenced { Some(self.fence.is_done_with_live_nic()) } else { self.drain_rail(dp, active) };
        let local_placed = drained == Some(true);
        let is_decidable = drained.is_some() && reason != CloseReason::Unfenced;
        self.fence.clear();
        let mut evidence = None;
        if !has_sent_evidence {
            evidence = self.final_evidence(dp, active, drained, reason);
        }
        let recv_rail = dp.recv.rail();
        self.standby_fence.on_moved(recv_rail);
        if recv_rail != active {
            // The peer may have moved to the rail of the receives and sent messages there. The
            // peer's Resume, which states how many bytes earlier rails placed, will not arrive.
            dp.release_held_recvs(None);
            dp.recv.begin_epoch();
            drained = self.drain_rail(dp, recv_rail);
            if has_sent_evidence {
                evidence = self.final_evidence(dp, recv_rail, drained, reason);
            }
        }
        // Another vQP may move the home as soon as this one has left, so the rails are fenced
        // first.
        let is_unfenced = dp.termination.reason() == Some(CloseReason::Unfenced);
        dp.home.leave(&dp.domain, &dp.rails, is_unfenced);
        if let Some(negotiation) = self.negotiation_mut() {
            negotiation.closed(evidence);
        }
        if let Some(peer_evidence) = dp.termination.peer_evidence.take().filter(|_| is_decidable) {
            let input = RecoveryInput {
                policy: dp.config().policy,
                evidence: &peer_evidence,
                local_placed,
                acks_after_placement: dp.acks_after_placement(active),
                first_psn: dp.rails.get(active).first_psn(), // nothing is posted any more
                durable: dp.is_durable(active),
            };
            if let Err(contradiction) = dp.decide(&input) {
                dp.termination.set_contradiction(contradiction);
            }
        }
        let reason = dp.termination.reason().unwrap_or(reason);
        dp.abandon_sends(UnresolvedError::Undecided(reason));
        dp.flush_recvs();
    }

    /// The evidence of what this end executed for the peer on `rail`. `drained` is the result of
    /// [`Recovery::drain_rail`]. `None` if the evidence is not complete, or if the policy does not
    /// decide by evidence.
    fn final_evidence(
        &self,
        dp: &Datapath,
        rail: usize,
        drained: Option<bool>,
        reason: CloseReason,
    ) -> Option<Evidence> {
        let ballot = self.negotiation().and_then(RailNegotiation::final_ballot)?;
        let is_readable = drained? && !self.is_qp_missing(rail);
        (dp.config().decides_by_evidence() && reason != CloseReason::Unfenced)
            .then(|| dp.collect_evidence(rail, ballot.epoch, is_readable))
    }

    /// Fences the queue pair of a rail and handles all its completions. A queue pair that the NIC
    /// does not flush at once is destroyed, because this process cannot wait longer: it may be
    /// about to exit. Returns whether the NIC is alive. `None` if the queue pair was not flushed,
    /// so that completions may be missing.
    fn drain_rail(&mut self, dp: &mut Datapath, rail: usize) -> Option<bool> {
        let mut fence = Fence::default();
        let began = dp.now();
        let mut step = fence.start(dp.rails.get(rail).data(), began, [true; 2]);
        let mut polls = 0;
        while Fence::waits_to_close(polls, began, dp.now()) {
            polls += 1;
            if step == FenceStep::Reset && !fence.reset_nic(dp.rails.get(rail).data()) {
                break;
            }
            self.poll_all(dp, rail, Some(&mut fence));
            if let Some(nic_alive) = fence.on_empty_poll() {
                return Some(nic_alive);
            }
            step = fence.drive(dp.rails.get(rail).data(), dp.now());
            if step == FenceStep::Drained {
                return Some(true);
            }
        }
        if !Mutant::ClosedWithoutMarker.is_on() {
            let data = dp.rails.get(rail).data();
            if !fence.destroy_qp(data) && !fence.reset_nic(data) {
                dp.termination.set_unfenced();
            }
        }
        self.poll_all(dp, rail, None);
        None
    }

    /// Ends all access of the active rail to memory, also by responses that have begun to arrive.
    /// If the rail can be neither fenced nor reset, the next move fails.
    pub(in crate::vqp) fn stop_active_rail(&mut self, dp: &mut Datapath) {
        let rail = self.active_rail();
        if self.fence.is_idle() {
            self.drain_rail(dp, rail);
        } else if !self.fence.is_done() {
            // The markers of the fence in progress cannot be awaited here.
            let data = dp.rails.get(rail).data();
            let _ = self.fence.destroy_qp(data) || self.fence.reset_nic(data);
        }
    }

    /// Handles the completions in the completion queue of a rail. `fence` gets the completions of
    /// its markers.
    fn poll_all(&mut self, dp: &mut Datapath, rail: usize, mut fence: Option<&mut Fence>) {
        let mut wcs = Vec::new();
        self.standby_fence.take_completions(rail, &mut wcs);
        loop {
            let polled = dp.rails.get(rail).poll_cq(DRAIN_BATCH, &mut wcs);
            let is_last = polled.is_err() || wcs.is_empty();
            for wc in wcs.drain(..) {
                match &mut fence {
                    Some(fence) if wc.wr_id & wr_id_flags::MARKER != 0 => {
                        fence.on_marker(wc.wr_id & wr_id_flags::RECV != 0);
                    }
                    _ => self.failures.extend(dp.on_completion(rail, &wc, &mut self.fence)),
                }
            }
            if is_last {
                return;
            }
        }
    }
}
