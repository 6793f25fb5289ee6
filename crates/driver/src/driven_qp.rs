use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mitra_failover::{CloseReason, Completion, VirtualQp};

use crate::background::Inner;
use crate::pollable_qp::PollableQp;

/// A vQP that a [`Driver`](crate::Driver) drives. Any thread may use it.
///
/// An end that only lends its memory needs no call after [`VirtualQp::connect`]. The vQP closes when this is dropped, which tells the peer.
#[derive(Debug)]
pub struct DrivenQp {
    driver: Arc<Inner>,
    key: u64,
    slot: Arc<Slot>,
}

/// A vQP that the thread and the program share.
#[derive(Debug)]
pub(crate) struct Slot {
    qp: Mutex<PollableQp>,
    /// Signalled when there are completions or the vQP has closed.
    changed: Condvar,
}

impl Slot {
    pub(crate) fn new(qp: PollableQp) -> Slot {
        Slot { qp: Mutex::new(qp), changed: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, PollableQp> {
        // A vQP is consistent between two calls, and a panic in one of them is reported by its thread.
        self.qp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives the vQP and wakes those who wait for it.
    pub(crate) fn drive(&self) {
        let mut qp = self.lock();
        if qp.drive().is_err() {
            // Without events of a NIC or a timer, the vQP would hang silently.
            qp.vqp_unguarded().shutdown();
        }
        self.notify(&qp);
    }

    fn notify(&self, qp: &PollableQp) {
        if qp.vqp().has_completions() || qp.vqp().close_reason().is_some() {
            self.changed.notify_all();
        }
    }
}

impl DrivenQp {
    pub(crate) fn new(driver: Arc<Inner>, key: u64, slot: Arc<Slot>) -> DrivenQp {
        DrivenQp { driver, key, slot }
    }

    /// Locks the vQP, to connect it and to post requests. The driver waits meanwhile, so the guard should be dropped soon.
    pub fn lock(&self) -> DrivenQpGuard<'_> {
        DrivenQpGuard { qp: self.slot.lock(), slot: &self.slot }
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

    /// Waits until the vQP has closed, and returns the reason. It does not take completions.
    pub fn wait_closed(&self) -> CloseReason {
        self.wait_until(None, |vqp| vqp.close_reason()).unwrap_or(CloseReason::Closed)
    }

    /// Waits until `ready` returns a value. Returns `None` at `deadline`, if there is one.
    fn wait_until<T>(
        &self,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut VirtualQp) -> Option<T>,
    ) -> Option<T> {
        let mut qp = self.slot.lock();
        loop {
            if let Some(value) = ready(qp.vqp_unguarded()) {
                return Some(value);
            }
            let changed = &self.slot.changed;
            qp = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => changed.wait(qp).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(rest) => changed.wait_timeout(qp, rest).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
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
        // The thread may keep the slot for a moment. A NIC that does not confirm is dead or hung.
        let _ = self.slot.lock().vqp_unguarded().close();
    }
}

/// The locked vQP of a [`DrivenQp`].
#[derive(Debug)]
pub struct DrivenQpGuard<'a> {
    qp: MutexGuard<'a, PollableQp>,
    slot: &'a Slot,
}

impl Deref for DrivenQpGuard<'_> {
    type Target = VirtualQp;

    fn deref(&self) -> &VirtualQp {
        self.qp.vqp()
    }
}

impl DerefMut for DrivenQpGuard<'_> {
    fn deref_mut(&mut self) -> &mut VirtualQp {
        self.qp.vqp_unguarded()
    }
}

impl Drop for DrivenQpGuard<'_> {
    fn drop(&mut self) {
        self.qp.update_timer(false);
        self.slot.notify(&self.qp);
    }
}
