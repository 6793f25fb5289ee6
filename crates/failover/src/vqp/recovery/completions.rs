use mitra_verbs::SendWr;

use super::Recovery;
use crate::cause::Cause;
use crate::config::Service;
use crate::vqp::datapath::Datapath;
use crate::vqp::failure::Failure;
use crate::vqp::replay::PostLimit;
use crate::vqp::send_queue::PostPath;

const POLL_BATCH: usize = 32;

impl Recovery {
    /// Like [`Recovery::poll_active_rail`]. During a fence, takes all flushed requests, because the
    /// peer waits for the fence.
    #[inline]
    pub(in crate::vqp) fn drive_active_rail(&mut self, dp: &mut Datapath) {
        while self.poll_active_rail(dp) && self.fence.is_draining() {}
    }

    /// Handles the completions of the active rail, and posts pending sends into the freed queue
    /// slots. Returns whether the completion queue may have more completions.
    pub(in crate::vqp) fn poll_active_rail(&mut self, dp: &mut Datapath) -> bool {
        dp.stop_short_slots();
        let rail = self.active_rail();
        let mut wcs = core::mem::take(&mut self.wcs);
        wcs.clear();
        self.standby_fence.take_completions(rail, &mut wcs);
        let result = dp.rails.get(rail).poll_cq(POLL_BATCH, &mut wcs);
        let is_full_batch = wcs.len() >= POLL_BATCH;
        if wcs.is_empty() {
            self.wcs = wcs;
            if let Some(nic_alive) = self.fence.on_empty_poll() {
                self.finish_fence(dp, nic_alive);
                self.settle(dp);
            }
        } else {
            for wc in &wcs {
                if let Some(failure) = dp.on_completion(rail, wc, &mut self.fence) {
                    self.failures.push_back(failure);
                    self.settle_in_batch(dp);
                }
            }
            self.wcs = wcs;
            if dp.termination.is_closed() {
                self.settle(dp);
            }
        }
        if result.is_err() {
            self.failures.push_back(Failure::Rail { rail, cause: Cause::Device });
        }
        self.settle_failures(dp);
        if dp.windows.is_busy
            && let Some(failure) = dp.drive_windows(self.active_rail())
        {
            self.fail(dp, failure);
        }
        dp.take_send_completions();
        if self.replay.on_progress(dp.send.ledger.first_seq()) {
            self.report.on_recovered(dp.now());
        }
        if dp.send.ledger.unposted() > 0 {
            self.post_sends(dp);
        }
        is_full_batch
    }

    #[inline]
    pub(in crate::vqp) fn settle_failures(&mut self, dp: &mut Datapath) {
        if !self.failures.is_empty() {
            self.settle(dp);
        }
    }

    /// Posts one list of pending sends.
    pub(in crate::vqp) fn post_sends(&mut self, dp: &mut Datapath) {
        self.post_list(dp);
        self.settle_failures(dp);
    }

    pub(super) fn post_list(&mut self, dp: &mut Datapath) {
        if let Some(path) = self.post_path(dp, None, self.replay.limit_of_poll()) {
            self.failures.extend(dp.post_sends(path));
        }
    }

    /// Returns where sends may be posted. `new` is a send that is not recorded yet.
    #[inline]
    pub(in crate::vqp) fn post_path(
        &self,
        dp: &Datapath,
        new: Option<&SendWr>,
        limit: PostLimit,
    ) -> Option<PostPath> {
        let negotiation = self.negotiation().filter(|n| n.may_post())?;
        let rail = negotiation.active();
        if dp.config().service == Service::Unreliable
            && !carries_messages(dp, rail)
            && !dp.send.next_is_local(new)
        {
            return None; // messages on this rail would be lost
        }
        if !dp.windows.is_in_step(rail) {
            return None; // the next poll posts sends behind the rail's binds and invalidations
        }
        Some(PostPath { rail, epoch: negotiation.ballot().epoch, limit })
    }

    /// Posts the receives on `rail`, and discards them on the rail where they were posted before.
    pub(in crate::vqp) fn post_recvs(&mut self, dp: &mut Datapath, rail: usize) {
        if self.is_qp_missing(rail) {
            return; // `rail_rejoin` posts the receives on the rail's new queue pair
        }
        // On the active rail, nothing is discarded: its queue pair is fenced and has flushed the
        // receives.
        if let Some(old) = dp.recv.switch_rail(rail)
            && old != self.active_rail()
            && self.reconnect_unused(dp, old).is_err()
        {
            self.failures.push_back(Failure::Rail { rail: old, cause: Cause::Device });
        }
        dp.post_recvs();
    }

    /// Posts the receives that the application has added. Before the fence, the peer may still send
    /// on the active rail, so the receives go there. After the fence, the peer may have moved
    /// already, so the receives go to the new rail.
    pub(in crate::vqp) fn post_added_recvs(&mut self, dp: &mut Datapath) {
        let active = self.active_rail();
        if self.is_active() || !dp.termination.is_closed() && self.fence.is_idle() {
            self.post_recvs(dp, active);
        } else if self.fence.is_done() && dp.recv.rail() != active {
            dp.post_recvs();
        }
        self.settle_failures(dp);
    }
}

/// Returns whether messages of an unreliable connection are sent on a rail. The rail must be up at
/// this end. The peer must have been heard there, with two exceptions:
///
/// - Without heartbeats, the peer need not be heard, because a connected peer may be silent.
/// - A peer that is known not to be connected ([`VirtualQp::send_to_unheard_peer`]) need not be
///   heard.
///
/// [`VirtualQp::send_to_unheard_peer`]: crate::VirtualQp::send_to_unheard_peer
fn carries_messages(dp: &Datapath, rail: usize) -> bool {
    let rails = &dp.rails;
    let needs_no_hearing = !dp.has_heartbeats() || rails.sends_unheard && !rails.is_peer_heard();
    !rails.is_down(rail) && (rails.was_heard(rail) || needs_no_hearing)
}
