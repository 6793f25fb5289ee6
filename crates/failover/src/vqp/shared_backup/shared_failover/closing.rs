use super::super::state::State;
use super::completions::{Fenced, POLL_BATCH};
use super::{MemberPath, SharedFailover};
use crate::close_reason::CloseReason;
use crate::completion::UnresolvedError;
use crate::evidence::Evidence;
use crate::vqp::fence::Fence;
use crate::vqp::shared_backup::own_qp::OwnQp;

impl SharedFailover {
    pub(super) fn close_locked(&mut self, dp: &mut MemberPath, state: &mut State, reason: CloseReason) {
        if dp.termination.is_closed() {
            return;
        }
        let own = dp.rails.own.as_ref();
        let is_stopped = own.is_none_or(OwnQp::stop) & dp.domain.revoke_grants_of(dp.home.id).is_ok();
        dp.termination.close(if is_stopped { reason } else { CloseReason::Unfenced });
        self.counted = None;
        self.uses_own = false;
        let evidence = self.final_evidence(dp);
        if let Some(own) = dp.rails.own.as_ref().filter(|_| is_stopped) {
            // A queue pair that may still execute requests keeps the home on its rail.
            if self.fence.is_done() || own.end() {
                dp.domain.unbind_at_home(dp.home.id, own.rail as u8);
            } else {
                dp.termination.close(CloseReason::Unfenced);
            }
        }
        state.with_core(self.id, |core| core.closed(evidence));
    }

    /// Drains the stopped own queue pair, and returns its epoch and its evidence. `None` if the
    /// peer has the evidence already, or if the NIC does not flush the queues at once.
    fn final_evidence(&mut self, dp: &mut MemberPath) -> Option<(u16, Evidence)> {
        let (rail, epoch) = dp.rails.own.as_ref().map(|own| (own.rail, own.epoch))?;
        if dp.termination.reason() == Some(CloseReason::Unfenced) || self.fence.is_done() {
            return None;
        }
        let (mut polls, began) = (0, dp.now());
        while Fence::waits_to_close(polls, began, dp.now()) {
            polls += 1;
            if let Fenced::Done { nic_alive } = self.drive_fence(dp) {
                self.fence.finish(nic_alive);
                return Some((epoch, dp.collect_evidence(rail, epoch, nic_alive)));
            }
            while self.poll_batch(dp) {}
        }
        None
    }

    /// Completes every outstanding request of a closed queue pair. Does nothing while operations on
    /// the backup are in flight, because the backup may still access the memory of these requests.
    /// A later poll calls this function again.
    pub(super) fn flush_if_closed(&mut self, dp: &mut MemberPath) {
        if self.on_backup > 0 {
            return;
        }
        let Some(reason) = dp.termination.take_flush() else { return };
        let mut wcs = Vec::new();
        while !self.fence.is_done()
            && let Some((rail, qp)) = dp.rails.own.as_ref().map(|own| (own.rail, own.qp()))
            && qp.poll_cq(POLL_BATCH, &mut wcs).is_ok()
            && !wcs.is_empty()
        {
            for wc in wcs.drain(..) {
                let _ = dp.on_completion(rail, &wc, &mut self.fence); // the vQP has closed
            }
        }
        (dp.rails.own, self.failure) = (None, None);
        dp.windows.release(&dp.domain);
        dp.abandon_sends(UnresolvedError::Undecided(reason));
        dp.flush_recvs();
    }
}
