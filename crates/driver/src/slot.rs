//! The state of a vQP that the driver's thread and the program share.

use core::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A vQP, as the driver's thread sees it. `tests/slot_orders.rs` has another implementation.
pub(crate) trait Driven {
    fn drive(&mut self);

    /// Takes account of calls that the program has made.
    fn after_change(&mut self);

    /// Returns whether there are completions or the vQP has closed.
    fn has_news(&self) -> bool;
}

#[derive(Debug)]
pub(crate) struct Slot<Q> {
    qp: Mutex<Q>,
    /// Signalled when there are completions or the vQP has closed.
    changed: Condvar,
}

/// The locked vQP of a program that changes it.
#[derive(Debug)]
pub(crate) struct SlotGuard<'a, Q: Driven> {
    qp: MutexGuard<'a, Q>,
    changed: &'a Condvar,
}

impl<Q: Driven> Slot<Q> {
    pub(crate) fn new(qp: Q) -> Slot<Q> {
        Slot { qp: Mutex::new(qp), changed: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Q> {
        // A vQP is consistent between two calls. The thread whose call panicked reports the panic.
        self.qp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the vQP for calls of the program, which may end the wait of another thread.
    pub(crate) fn lock_to_change(&self) -> SlotGuard<'_, Q> {
        SlotGuard { qp: self.lock(), changed: &self.changed }
    }

    /// Drives the vQP and wakes the threads that wait for the vQP.
    pub(crate) fn drive(&self) {
        let mut qp = self.lock();
        qp.drive();
        notify(&self.changed, &*qp);
    }

    /// Waits until `ready` returns a value. Returns `None` at `deadline`, if there is one.
    pub(crate) fn wait_until<T>(
        &self,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut Q) -> Option<T>,
    ) -> Option<T> {
        let mut qp = self.lock();
        loop {
            if let Some(value) = ready(&mut qp) {
                return Some(value);
            }
            let changed = &self.changed;
            qp = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => changed.wait(qp).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(rest) => changed.wait_timeout(qp, rest).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

fn notify(changed: &Condvar, qp: &impl Driven) {
    if qp.has_news() {
        changed.notify_all();
    }
}

impl<Q: Driven> Deref for SlotGuard<'_, Q> {
    type Target = Q;

    fn deref(&self) -> &Q {
        &self.qp
    }
}

impl<Q: Driven> DerefMut for SlotGuard<'_, Q> {
    fn deref_mut(&mut self) -> &mut Q {
        &mut self.qp
    }
}

impl<Q: Driven> Drop for SlotGuard<'_, Q> {
    fn drop(&mut self) {
        self.qp.after_change();
        notify(self.changed, &*self.qp);
    }
}
