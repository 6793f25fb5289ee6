use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;

/// A vQP of the poll group, as far as other threads wake it.
#[derive(Debug)]
pub(crate) struct Member {
    waker: Waker,
    /// Whether the next poll of the vQP runs maintenance.
    needs_maintenance: AtomicBool,
    /// Whether heartbeats of the peer wake the vQP, too.
    awaits_heartbeats: AtomicBool,
}

impl Member {
    pub(crate) fn new(waker: Waker) -> Member {
        Member { waker, needs_maintenance: AtomicBool::new(false), awaits_heartbeats: AtomicBool::new(true) }
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Wakes the vQP, whose next poll then runs maintenance.
    pub(crate) fn request_maintenance(&self) {
        self.needs_maintenance.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }

    pub(crate) fn needs_maintenance(&self) -> bool {
        self.needs_maintenance.load(Ordering::Acquire)
    }

    /// To be called before the maintenance, so that a later request is not lost.
    pub(crate) fn take_maintenance_request(&self) {
        self.needs_maintenance.swap(false, Ordering::AcqRel);
    }

    pub(crate) fn set_awaits_heartbeats(&self, awaits: bool) {
        self.awaits_heartbeats.store(awaits, Ordering::Release);
    }

    /// Wakes the vQP after a control message has arrived.
    pub(crate) fn on_message(&self, is_solicited: bool) {
        if is_solicited || self.awaits_heartbeats.load(Ordering::Acquire) {
            self.request_maintenance();
        }
    }
}
