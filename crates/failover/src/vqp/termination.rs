use mitra_verbs::{AsyncEvent, Qpn};

use crate::evidence::Contradiction;
use crate::negotiation::CloseReason;

/// The reason for which a vQP closed, and the steps of closing that are left.
#[derive(Debug, Default)]
pub(super) struct Termination {
    reason: Option<CloseReason>,
    qp_error_event: Option<AsyncEvent>,
    contradiction: Option<Contradiction>,
    /// Whether the outstanding requests are still to be completed.
    flush_pending: bool,
    /// Whether a batch of polled completions is being handled. Requests that complete later in the batch must not be flushed.
    in_batch: bool,
}

impl Termination {
    pub(super) fn reason(&self) -> Option<CloseReason> {
        self.reason
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.reason.is_some()
    }

    /// Closes. The outstanding requests are to be flushed.
    pub(super) fn close(&mut self, reason: CloseReason) {
        self.reason = Some(reason);
        self.flush_pending = true;
    }

    #[inline]
    pub(super) fn begin_batch(&mut self) {
        self.in_batch = true;
    }

    #[inline]
    pub(super) fn end_batch(&mut self) {
        self.in_batch = false;
    }

    /// Returns the reason for closing if the outstanding requests are to be flushed now. The next call returns `None`.
    pub(super) fn take_flush(&mut self) -> Option<CloseReason> {
        if self.in_batch || !core::mem::take(&mut self.flush_pending) {
            return None;
        }
        self.reason
    }

    /// The device's event that caused the closing, under the vQP's number.
    pub(super) fn qp_error_event(&self) -> Option<AsyncEvent> {
        self.qp_error_event
    }

    /// Records the event of a rail's queue pair, renumbered to the vQP's number.
    pub(super) fn set_qp_error_event(&mut self, event: AsyncEvent, qpn: Qpn) {
        self.qp_error_event = Some(match event {
            AsyncEvent::QpAccessError(_) => AsyncEvent::QpAccessError(qpn),
            AsyncEvent::QpRequestError(_) => AsyncEvent::QpRequestError(qpn),
            _ => AsyncEvent::QpFatal(qpn),
        });
    }

    pub(super) fn contradiction(&self) -> Option<Contradiction> {
        self.contradiction
    }

    pub(super) fn set_contradiction(&mut self, contradiction: Contradiction) {
        self.contradiction = Some(contradiction);
    }
}
