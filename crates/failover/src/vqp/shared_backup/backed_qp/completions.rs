//! The completions and failures of a member's own queue pair.

use std::sync::Arc;

use mitra_verbs::{Wc, WcStatus};

use super::super::state::State;
use super::{BackedQp, POLL_BATCH};
use crate::close_reason::CloseReason;
use crate::completion::UnresolvedError;
use crate::vqp::failure::{Cause, Failure};
use crate::vqp::wr_id_flags;

const REFUSED: Failure = Failure::Close(CloseReason::RequestError);

impl BackedQp {
    /// Handles the completions of the own queue pair: one batch, or all while it is fenced, because the peer waits for the fence.
    pub(super) fn poll_own(&mut self) {
        while self.poll_batch() && self.own.as_ref().is_some_and(|own| own.fence.is_draining()) {}
        self.drive_windows();
        if self.failure.is_some() {
            let backup = Arc::clone(&self.backup);
            self.handle_failure(&mut backup.lock());
        }
        self.flush_if_closed();
    }

    /// Closes the queue pair if its NIC has reported that it refused a request of the peer. Without a receive, no completion tells that.
    pub(super) fn notice_refused_request(&mut self) {
        if let Some(own) = self.own.as_ref().filter(|own| own.fence.is_idle() && !own.is_failure_reported)
            && let Some(event) = own.take_refusal(&self.domain)
        {
            self.termination.set_qp_error_event(event, own.qp().qpn());
            self.failure.get_or_insert(REFUSED);
        }
    }

    /// Handles a batch of completions of the own queue pair, unless it is fenced and drained. Returns whether there may be more.
    pub(super) fn poll_batch(&mut self) -> bool {
        let Some(own) = self.own.as_mut().filter(|own| !own.fence.is_done()) else { return false };
        let mut wcs = core::mem::take(&mut self.wcs);
        wcs.clear();
        let polled = own.poll(POLL_BATCH, &mut wcs);
        if wcs.is_empty() {
            own.is_emptied = own.is_emptied.or(own.fence.on_empty_poll());
        }
        let (is_full_batch, rail) = (wcs.len() == POLL_BATCH, own.rail);
        wcs.iter().for_each(|wc| self.on_completion(wc));
        self.wcs = wcs;
        if polled.is_err() {
            self.failure.get_or_insert(Failure::Rail { rail, cause: Cause::Device });
        }
        is_full_batch
    }

    pub(super) fn on_completion(&mut self, wc: &Wc) {
        let is_recv = wc.wr_id & wr_id_flags::RECV != 0;
        let Some(own) = &mut self.own else { return };
        let rail = own.rail;
        if is_recv {
            self.send.take_completions(&mut self.ready); // before the completion of an answer, as on a NIC
        }
        match wc.status {
            _ if wc.wr_id & wr_id_flags::MARKER != 0 => own.fence.on_marker(is_recv),
            WcStatus::Success if is_recv && wc.invalidated.is_some() => {
                let wc = self.translate_invalidated(rail, wc);
                self.recv.on_success(&wc, &mut self.ready);
            }
            WcStatus::Success if is_recv => self.recv.on_success(wc, &mut self.ready),
            _ if !is_recv && wc.wr_id & wr_id_flags::WINDOW != 0 => self.on_rebound(rail, wc),
            WcStatus::Success => {
                if let Some(op) = self.send.on_success(wc.wr_id, wc.byte_len) {
                    self.on_window_op(wc.wr_id, op, rail);
                }
            }
            status if is_recv && status != WcStatus::Flushed => {
                self.recv.on_error(wc, &mut self.ready);
                self.failure.get_or_insert(REFUSED);
            }
            status => self.on_flush_or_error(wc, status),
        }
    }

    /// Handles a failed send or a flushed receive.
    fn on_flush_or_error(&mut self, wc: &Wc, status: WcStatus) {
        let Some(own) = &self.own else { return };
        // The other errors result from the fence and the closing. But a NIC refuses an invalidation with a status of these.
        let is_refused_locally = status == WcStatus::LocalQpOperation
            && own.fence.is_idle()
            && self.send.ledger().is_local(wc.wr_id);
        let is_decided = is_refused_locally
            || !matches!(status, WcStatus::Flushed | WcStatus::RetryExceeded | WcStatus::LocalQpOperation);
        if is_decided {
            let reason = self.termination.reason().unwrap_or(CloseReason::RequestError);
            self.send.on_request_error(wc.wr_id, status, UnresolvedError::Undecided(reason));
            self.failure.get_or_insert(REFUSED);
        } else if own.fence.is_idle() {
            // A flush without another error: a request of the peer was invalid, or the device failed.
            let event = own.take_error(&self.domain).filter(|_| status == WcStatus::Flushed);
            if let Some(event) = event {
                self.termination.set_qp_error_event(event, own.qp().qpn());
            }
            let failed = Failure::Rail { rail: own.rail, cause: Cause::Completion(status) };
            self.failure.get_or_insert(if event.is_some() { REFUSED } else { failed });
        }
    }

    /// Closes the queue pair because of an invalid request, or reports to the backup that the own queue pair failed, so that the backup moves.
    fn handle_failure(&mut self, state: &mut State) {
        match self.failure.take() {
            Some(Failure::Close(reason)) => self.close_locked(state, reason),
            Some(Failure::Rail { cause, .. }) => {
                if let Some(own) = self.own.as_mut().filter(|own| own.fence.is_idle())
                    && !core::mem::replace(&mut own.is_failure_reported, true)
                {
                    state.report_failure(own.epoch, cause);
                }
            }
            None => {}
        }
    }
}
