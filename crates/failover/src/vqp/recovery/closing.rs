//! The closing of the vQP.

use super::Recovery;
use crate::completion::UnresolvedError;
use crate::negotiation::CloseReason;
use crate::vqp::datapath::Datapath;

/// The maximum number of completions taken at once from a rail.
const DRAIN_BATCH: usize = 64;

impl Recovery {
    /// Closes the vQP and sends the peer a Closed message. Does nothing before the vQP is connected.
    pub(in crate::vqp) fn close(&mut self, dp: &mut Datapath, reason: CloseReason) {
        if let Some(control) = &mut self.control {
            control.negotiation_mut().close(reason);
        }
        self.run_actions(dp);
    }

    pub(super) fn on_close(&mut self, dp: &mut Datapath, reason: CloseReason) {
        if self.is_closed() {
            return;
        }
        // The peer may have moved before this end did, and its request may have been refused on the new rail.
        (0..dp.rails().len()).for_each(|rail| self.keep_qp_error(dp, rail));
        // During a move, the peer may have posted requests on the rail of the receives, for which it has this end's evidence.
        let reason = dp.rails().stop_all([self.active_rail(), dp.recv().rail()], reason);
        dp.leave_home();
        (0..dp.rails().len()).for_each(|rail| dp.windows_mut().cut_off(rail));
        self.termination.close(reason);
        self.report.discard();
        self.flush_if_closed(dp);
    }

    /// Completes every outstanding request after the vQP has closed. Does nothing while a batch of completions is being handled. Operations
    /// whose successful completions are still in the completion queue end in success, because the peer has acknowledged them.
    pub(super) fn flush_if_closed(&mut self, dp: &mut Datapath) {
        let Some(reason) = self.termination.take_flush() else { return };
        let active = self.active_rail();
        if !self.fence.is_done() {
            self.drain_rail(dp, active);
        }
        self.fence.clear();
        let recv_rail = dp.recv().rail();
        if recv_rail != active {
            // The peer may have moved to the rail of the receives and sent messages there. Its Resume, which states how many bytes earlier
            // rails placed, will not arrive.
            dp.release_held_recvs(None);
            dp.recv_mut().hold();
            self.drain_rail(dp, recv_rail);
        }
        dp.abandon_sends(UnresolvedError::Undecided(reason));
        dp.flush_recvs();
    }

    /// Handles all completions that are in the completion queue of a rail.
    fn drain_rail(&mut self, dp: &mut Datapath, rail: usize) {
        let mut wcs = Vec::new();
        while dp.rails().get(rail).poll_cq(DRAIN_BATCH, &mut wcs).is_ok() && !wcs.is_empty() {
            for wc in wcs.drain(..) {
                self.on_completion(dp, rail, &wc);
            }
        }
    }
}
