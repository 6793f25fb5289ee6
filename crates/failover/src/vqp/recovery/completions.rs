//! The completions of the active rail, and the posts for which they make room.

use mitra_verbs::{SendWr, Wc, WcStatus};

use super::Recovery;
use crate::completion::UnresolvedError;
use crate::config::{Service, WritePolicy};
use crate::negotiation::CloseReason;
use crate::vqp::datapath::Datapath;
use crate::vqp::failure::{Cause, Failure};
use crate::vqp::wr_id_flags;

/// The maximum number of completions taken from the active rail in one poll.
const POLL_BATCH: usize = 32;

impl Recovery {
    /// Drives the active rail as [`Recovery::poll_active_rail`] does. Takes all flushed requests of a rail that is being fenced, because the peer
    /// waits for the fence.
    #[inline]
    pub(in crate::vqp) fn drive_active_rail(&mut self, dp: &mut Datapath) {
        while self.poll_active_rail(dp) && self.fence.is_draining() {}
    }

    /// Handles the completions of the active rail, and posts the pending sends for which they free queue slots. Returns whether more
    /// completions may be in its completion queue.
    pub(in crate::vqp) fn poll_active_rail(&mut self, dp: &mut Datapath) -> bool {
        let rail = self.active_rail();
        let mut wcs = core::mem::take(&mut self.wcs);
        wcs.clear();
        let result = dp.rails().get(rail).poll_cq(POLL_BATCH, &mut wcs);
        let is_full_batch = wcs.len() == POLL_BATCH;
        if wcs.is_empty() {
            self.wcs = wcs;
            if let Some(nic_alive) = self.fence.on_empty_poll() {
                self.finish_fence(dp, nic_alive);
                self.settle(dp);
            }
        } else {
            self.termination.begin_batch();
            for wc in &wcs {
                if let Some(failure) = self.on_completion(dp, rail, wc) {
                    self.fail(dp, failure);
                }
            }
            self.termination.end_batch();
            self.wcs = wcs;
            self.flush_if_closed(dp);
            self.settle(dp);
        }
        if result.is_err() {
            self.failures.push_back(Failure::Rail { rail, cause: Cause::Device });
        }
        self.settle_failures(dp);
        self.drive_windows(dp);
        dp.take_send_completions();
        self.report.on_progress(dp.send().ledger().first_seq(), || dp.now());
        if dp.send().ledger().unposted() > 0 {
            self.post_sends(dp);
        }
        is_full_batch
    }

    /// Runs [`Recovery::settle`] if a failure was noticed.
    #[inline]
    pub(in crate::vqp) fn settle_failures(&mut self, dp: &mut Datapath) {
        if !self.failures.is_empty() {
            self.settle(dp);
        }
    }

    /// Handles a completion of a rail, and returns the failure that it reports.
    #[inline]
    pub(super) fn on_completion(&mut self, dp: &mut Datapath, rail: usize, wc: &Wc) -> Option<Failure> {
        if wc.wr_id & wr_id_flags::MARKER != 0 {
            self.fence.on_marker(wc.wr_id & wr_id_flags::RECV != 0);
            None
        } else if wc.wr_id & wr_id_flags::RECV != 0 {
            self.on_recv(dp, rail, wc)
        } else if wc.wr_id & wr_id_flags::WINDOW != 0 {
            dp.windows_mut().on_completion(rail, wc)
        } else if wc.status == WcStatus::Success {
            dp.on_send_success(rail, wc);
            None
        } else {
            self.on_flush_or_error(dp, rail, wc)
        }
    }

    /// Keeps the windows of the rails in step.
    #[inline]
    fn drive_windows(&mut self, dp: &mut Datapath) {
        if dp.windows().is_busy()
            && let Some(failure) = dp.drive_windows(self.active_rail())
        {
            self.fail(dp, failure);
        }
    }

    fn on_recv(&mut self, dp: &mut Datapath, rail: usize, wc: &Wc) -> Option<Failure> {
        match wc.status {
            // Without a fence, the old rail can receive a message after the receives were posted on the new rail. If that message completed
            // the oldest receive, every later message would be matched with the wrong buffer.
            WcStatus::Success if self.fence.is_done() => None,
            WcStatus::Success => {
                dp.complete_recv(rail, wc);
                None
            }
            WcStatus::Flushed => self.on_flush_or_error(dp, rail, wc),
            _ => {
                dp.complete_recv(rail, wc);
                Some(Failure::Close(CloseReason::RequestError))
            }
        }
    }

    /// Handles a failed send or a flushed receive, which results from a failure of the rail or of a single request.
    fn on_flush_or_error(&mut self, dp: &mut Datapath, rail: usize, wc: &Wc) -> Option<Failure> {
        if dp.config().service == Service::Unreliable && Self::on_unreliable_error(dp, wc) {
            return None;
        }
        // An error that the responder or the local NIC reported for this request decides it, even if the vQP has closed or fences the rail
        // before the completion is polled. Errors of the other kinds result from the closing and the fence.
        let is_decided =
            !matches!(wc.status, WcStatus::Flushed | WcStatus::RetryExceeded | WcStatus::LocalQpOperation);
        if let Some(reason) = self.close_reason() {
            if is_decided {
                dp.send_mut().on_request_error(wc.wr_id, wc.status, UnresolvedError::Undecided(reason));
            }
            return None;
        }
        if !self.fence.is_idle() && !is_decided {
            return None;
        }
        let rail_failed = Failure::Rail { rail, cause: Cause::Completion(wc.status) };
        match wc.status {
            WcStatus::RetryExceeded | WcStatus::LocalQpOperation
                // The NIC refuses an invalidation with this status.
                if !(wc.status == WcStatus::LocalQpOperation && dp.send().ledger().is_local(wc.wr_id)) =>
            {
                Some(rail_failed)
            }
            WcStatus::Flushed => {
                // No error completion came first, so a request of the peer was invalid or the device failed. The event of an invalid request
                // names the queue pair.
                let _ = dp.domain().poll_rail_down(rail);
                self.take_qp_error(dp, rail).or(Some(rail_failed))
            }
            status if self.survives_refusals => {
                dp.send_mut().refuse(wc.wr_id, status);
                Some(rail_failed)
            }
            status => {
                let undecided = UnresolvedError::Undecided(CloseReason::RequestError);
                dp.send_mut().on_request_error(wc.wr_id, status, undecided);
                Some(Failure::Close(CloseReason::RequestError))
            }
        }
    }

    /// Handles a failed send of an unreliable connection. A request that its NIC cannot execute stops the send queue, not the connection. No
    /// other error shows a failure of the rail, since nothing is acknowledged. Returns false if the completion is of another kind.
    fn on_unreliable_error(dp: &mut Datapath, wc: &Wc) -> bool {
        let is_send = wc.wr_id & wr_id_flags::RECV == 0;
        if is_send && !dp.send().ledger().is_in_flight(wc.wr_id) {
            return true; // it ended with the request that failed before it
        }
        let is_failed = is_send && wc.status != WcStatus::Flushed;
        if is_failed {
            let undecided = UnresolvedError::Undecided(CloseReason::RequestError);
            dp.send_mut().on_request_error(wc.wr_id, wc.status, undecided);
        }
        is_failed
    }

    /// Posts a burst of pending sends, unless a move is in progress.
    pub(in crate::vqp) fn post_sends(&mut self, dp: &mut Datapath) {
        self.post_burst(dp);
        self.settle_failures(dp);
    }

    pub(super) fn post_burst(&mut self, dp: &mut Datapath) {
        if let Some((rail, epoch)) = self.posting_rail(dp) {
            self.failures.extend(dp.post_sends(rail, epoch, self.is_replaying()));
        }
    }

    /// Records a send, which the caller has checked, and returns its sequence number. If `at_once`, posts it first if nothing waits before it.
    #[inline]
    pub(in crate::vqp) fn submit(
        &mut self,
        dp: &mut Datapath,
        wr: SendWr,
        write_policy: WritePolicy,
        at_once: bool,
    ) -> u64 {
        // Until the operations that were in flight at a failure have completed, only polls post sends.
        let on = if at_once && !self.is_replaying() { self.posting_rail(dp) } else { None };
        let (seq, failure) = dp.submit(wr, write_policy, on.map(|(rail, _)| rail));
        self.failures.extend(failure);
        seq
    }

    /// Returns the rail on which sends may be posted, and its epoch.
    #[inline]
    fn posting_rail(&self, dp: &Datapath) -> Option<(usize, u16)> {
        let negotiation = self.negotiation().filter(|n| n.may_post())?;
        let rail = negotiation.active();
        if dp.config().service == Service::Unreliable
            && !carries_messages(dp, rail)
            && !dp.send().next_is_local()
        {
            return None; // the messages would be lost; they wait for the next rail, or for this one
        }
        if !dp.windows().is_in_step(rail) {
            return None; // the next poll posts them behind the binds and invalidations of the rail
        }
        Some((rail, negotiation.ballot().epoch))
    }

    /// Posts the receives on `rail`. If they are already posted on another rail, discards them there.
    pub(in crate::vqp) fn post_recvs(&mut self, dp: &mut Datapath, rail: usize) {
        if self.is_qp_missing(rail) {
            return; // they are posted as soon as the rail's new queue pair is connected
        }
        // The active rail needs no discarding: its queue pair is fenced and has flushed its receives.
        if let Some(old) = dp.recv_mut().switch_rail(rail)
            && old != self.active_rail()
        {
            match dp.rails().get(old).reconnect_unused(dp.config()) {
                Ok(()) => dp.on_qp_connected(old),
                Err(_) => self.failures.push_back(Failure::Rail { rail: old, cause: Cause::Device }),
            }
        }
        dp.post_recvs();
    }

    /// Posts the receives that the application has added: on the active rail as long as it is not being fenced, because the peer may still send
    /// there, and on the new rail of a move after the fence, because the peer may have moved already.
    pub(in crate::vqp) fn post_added_recvs(&mut self, dp: &mut Datapath) {
        let active = self.active_rail();
        if self.is_active() || !self.is_closed() && self.fence.is_idle() {
            self.post_recvs(dp, active);
        } else if self.fence.is_done() && dp.recv().rail() != active {
            dp.post_recvs();
        }
        self.settle_failures(dp);
    }
}

/// Returns whether messages of an unreliable connection are sent on a rail: it is up at this end, and the peer was heard there. Without
/// heartbeats, the peer may be silent. A peer that is known not to be connected ([`VirtualQp::send_to_unheard_peer`]) need not be heard.
///
/// [`VirtualQp::send_to_unheard_peer`]: crate::VirtualQp::send_to_unheard_peer
fn carries_messages(dp: &Datapath, rail: usize) -> bool {
    let rails = dp.rails();
    let has_heartbeats = dp.detector().max_missed_heartbeats > 0;
    let needs_no_hearing = !has_heartbeats || rails.sends_unheard() && !rails.is_peer_heard();
    !rails.is_down(rail) && (rails.was_heard(rail) || needs_no_hearing)
}
