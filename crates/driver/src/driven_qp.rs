use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use mitra_failover::{CloseReason, Completion, VirtualQp};

use crate::background::Inner;
use crate::pollable_qp::PollableQp;
use crate::slot::{Driven, Slot, SlotGuard};

/// A vQP that a [`Driver`](crate::Driver) drives. Any thread may use it.
///
/// An end that only lends its memory needs no call after [`VirtualQp::connect`]. The drop of a
/// `DrivenQp` closes the vQP and tells the peer.
#[derive(Debug)]
pub struct DrivenQp {
    driver: Arc<Inner>,
    key: u64,
    slot: Arc<Slot<PollableQp>>,
}

impl DrivenQp {
    pub(crate) fn new(driver: Arc<Inner>, key: u64, slot: Arc<Slot<PollableQp>>) -> DrivenQp {
        DrivenQp { driver, key, slot }
    }

    /// Locks the vQP, to connect it and to post requests. The driver waits meanwhile, so the guard
    /// should be dropped soon.
    pub fn lock(&self) -> DrivenQpGuard<'_> {
        DrivenQpGuard(self.slot.lock_to_change())
    }

    /// Waits until there are completions, appends all of them to `out` and returns their number.
    ///
    /// # Errors
    /// The reason, if the vQP has closed and all its completions have been taken.
    pub fn wait(&self, out: &mut Vec<Completion>) -> Result<usize, CloseReason> {
        self.wait_until(None, |vqp| take(vqp, out)).unwrap_or(Ok(0))
    }

    /// As [`DrivenQp::wait`], but returns 0 after `timeout` without a completion.
    ///
    /// # Errors
    /// As [`DrivenQp::wait`].
    pub fn wait_timeout(&self, out: &mut Vec<Completion>, timeout: Duration) -> Result<usize, CloseReason> {
        self.wait_until(Instant::now().checked_add(timeout), |vqp| take(vqp, out)).unwrap_or(Ok(0))
    }

    /// Waits until the vQP has closed, and returns the reason. The call takes no completions.
    pub fn wait_closed(&self) -> CloseReason {
        self.wait_until(None, |vqp| vqp.close_reason()).unwrap_or(CloseReason::Closed)
    }

    fn wait_until<T>(
        &self,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut VirtualQp) -> Option<T>,
    ) -> Option<T> {
        self.slot.wait_until(deadline, |qp| ready(qp.vqp_unguarded()))
    }
}

/// Takes the completions of a vQP. Returns `None` if there are none and the vQP is open.
fn take(vqp: &mut VirtualQp, out: &mut Vec<Completion>) -> Option<Result<usize, CloseReason>> {
    match vqp.take_completions(out) {
        0 => vqp.close_reason().map(Err),
        count => Some(Ok(count)),
    }
}

impl Drop for DrivenQp {
    fn drop(&mut self) {
        self.driver.remove(self.key, &self.slot);
        // The thread may keep the slot for a moment. A NIC that does not confirm the close is dead
        // or hung.
        let _ = self.slot.lock().vqp_unguarded().close();
    }
}

/// The locked vQP of a [`DrivenQp`].
#[derive(Debug)]
pub struct DrivenQpGuard<'a>(SlotGuard<'a, PollableQp>);

impl Deref for DrivenQpGuard<'_> {
    type Target = VirtualQp;

    fn deref(&self) -> &VirtualQp {
        self.0.vqp()
    }
}

impl DerefMut for DrivenQpGuard<'_> {
    fn deref_mut(&mut self) -> &mut VirtualQp {
        self.0.vqp_unguarded()
    }
}

impl Driven for PollableQp {
    fn drive(&mut self) {
        if PollableQp::drive(self).is_err() {
            // Without events of a NIC or a timer, the vQP would hang silently.
            self.vqp_unguarded().shutdown();
        }
    }

    fn after_change(&mut self) {
        self.update_timer(false);
    }

    fn has_news(&self) -> bool {
        self.vqp().has_completions() || self.vqp().close_reason().is_some()
    }
}
