use mitra_verbs::{AsyncEvent, Qpn};

use crate::close_reason::CloseReason;
use crate::evidence::{Contradiction, Evidence};

/// Why and how far a vQP has closed.
#[derive(Debug, Default)]
pub struct Termination {
    reason: Option<CloseReason>,
    pub(super) qp_error_event: Option<AsyncEvent>,
    pub(super) contradiction: Option<Contradiction>,
    /// The peer's final evidence, until the flush.
    pub(super) peer_evidence: Option<Evidence>,
    /// Whether the vQP has closed, and still has to complete its outstanding requests.
    flush_pending: bool,
}

impl Termination {
    pub(super) fn reason(&self) -> Option<CloseReason> {
        self.reason
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.reason.is_some()
    }

    pub(super) fn close(&mut self, reason: CloseReason) {
        self.reason = Some(reason);
        self.flush_pending = true;
    }

    /// Records that a rail of a closed vQP can be neither fenced nor reset.
    pub(super) fn set_unfenced(&mut self) {
        self.reason = self.reason.and(Some(CloseReason::Unfenced));
    }

    /// Closes a vQP that was never connected. No rail has requests to flush.
    pub(super) fn close_unconnected(&mut self, reason: CloseReason) {
        self.reason = Some(reason);
    }

    /// Returns the reason for closing once, when the outstanding requests are to be flushed.
    pub(super) fn take_flush(&mut self) -> Option<CloseReason> {
        self.reason.filter(|_| core::mem::take(&mut self.flush_pending))
    }

    /// Records the event of a rail's queue pair. The vQP's number `qpn` replaces the number in the
    /// event.
    pub(super) fn set_qp_error_event(&mut self, event: AsyncEvent, qpn: Qpn) {
        self.qp_error_event = Some(match event {
            AsyncEvent::QpAccessError(_) => AsyncEvent::QpAccessError(qpn),
            AsyncEvent::QpRequestError(_) => AsyncEvent::QpRequestError(qpn),
            _ => AsyncEvent::QpFatal(qpn),
        });
    }

    /// Records a contradiction in the evidence. If the vQP has closed already, the contradiction
    /// replaces the reason for closing.
    pub(super) fn set_contradiction(&mut self, contradiction: Contradiction) {
        self.contradiction = Some(contradiction);
        self.reason = self.reason.and(Some(CloseReason::Contradiction));
    }
}
