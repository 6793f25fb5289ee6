//! The queue pairs that use a completion queue, a shared receive queue or an XRC domain.

use std::ptr;
use std::sync::{Arc, Mutex, Weak};

use mitra_verbs::Result;

use crate::common::lock::lock;

/// A queue pair over several rails.
pub(super) trait QueueUser: Send + Sync {
    /// Polls a virtual queue pair, whether or not it has something to do.
    fn poll(&self) {}

    /// Has the next poll of any completion queue drive the queue pair, because one of its queues
    /// has changed. May be called while the queue pair is locked.
    fn wake(&self) {}
}

/// A queue pair that every poll of its completion queues drives, whether or not it has something to
/// do.
pub(super) trait PolledUser: Send + Sync {
    /// Polls the queue pair, and pushes its new completions to its completion queues.
    fn drive(&self);

    /// Requests an event of the NICs at the next completion, so that the progress thread wakes.
    ///
    /// # Errors
    /// The error of a NIC that is not dead.
    fn arm(&self) -> Result<()>;
}

/// The users of a queue. A queue pair that was dropped is no user.
pub(super) struct QueueUsers<T: ?Sized = dyn QueueUser>(Mutex<Vec<Weak<T>>>);

impl<T: ?Sized> Default for QueueUsers<T> {
    fn default() -> QueueUsers<T> {
        QueueUsers(Mutex::default())
    }
}

impl<T: ?Sized> QueueUsers<T> {
    /// Adds a queue pair, unless it was added before.
    pub(super) fn add(&self, user: &Arc<T>) {
        let mut users = lock(&self.0);
        users.retain(|known| known.strong_count() > 0);
        if !users.iter().any(|known| ptr::addr_eq(known.as_ptr(), Arc::as_ptr(user))) {
            users.push(Arc::downgrade(user));
        }
    }

    pub(super) fn remove<U: ?Sized>(&self, user: &U) {
        lock(&self.0).retain(|known| !ptr::addr_eq(known.as_ptr(), user));
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).iter().all(|known| known.strong_count() == 0)
    }

    pub(super) fn all(&self) -> Vec<Arc<T>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn contains<U: ?Sized>(&self, user: &U) -> bool {
        lock(&self.0).iter().any(|known| ptr::addr_eq(known.as_ptr(), user))
    }

    /// Returns the user if there is one only.
    pub(super) fn only(&self) -> Option<Arc<T>> {
        match lock(&self.0).as_slice() {
            [only] => only.upgrade(),
            _ => None,
        }
    }

    /// Calls `act` for each user without holding the lock.
    pub(super) fn for_each(&self, act: impl Fn(&T)) {
        // Most queues have one user. In this case nothing is allocated.
        match self.only() {
            Some(only) => act(&only),
            None => self.all().iter().for_each(|user| act(user)),
        }
    }
}
