//! The queue pairs that use a completion queue, a shared receive queue or an XRC domain.

use std::ptr;
use std::sync::{Arc, Mutex, Weak};

use mitra_verbs::Result;

use crate::common::lock::lock;

/// A queue pair over several rails.
pub(super) trait QueueUser: Send + Sync {
    /// Polls the queue pair, and pushes its new completions to its completion queues.
    fn drive(&self);

    /// Requests an event of the NICs at the next completion, so that the progress thread wakes.
    ///
    /// # Errors
    /// The error of a NIC that is not dead.
    fn arm(&self) -> Result<()>;

    /// Matches messages that have arrived with receives that were just posted to a shared receive
    /// queue.
    fn on_receives_posted(&self);
}

/// The users of a queue. A queue pair that was dropped is no user.
#[derive(Default)]
pub(super) struct QueueUsers(Mutex<Vec<Weak<dyn QueueUser>>>);

impl QueueUsers {
    /// Adds a queue pair, unless it was added before.
    pub(super) fn add(&self, user: &Arc<dyn QueueUser>) {
        let mut users = lock(&self.0);
        users.retain(|known| known.strong_count() > 0);
        if !users.iter().any(|known| ptr::addr_eq(known.as_ptr(), Arc::as_ptr(user))) {
            users.push(Arc::downgrade(user));
        }
    }

    pub(super) fn remove(&self, user: &dyn QueueUser) {
        lock(&self.0).retain(|known| !ptr::addr_eq(known.as_ptr(), user));
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).iter().all(|known| known.strong_count() == 0)
    }

    pub(super) fn all(&self) -> Vec<Arc<dyn QueueUser>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    /// Calls `act` for each user without holding the lock.
    pub(super) fn for_each(&self, act: impl Fn(&dyn QueueUser)) {
        let users = lock(&self.0);
        if let [only] = users.as_slice() {
            // Most queues have one user. In this case nothing is allocated.
            let only = only.upgrade();
            drop(users);
            only.iter().for_each(|user| act(&**user));
        } else {
            drop(users);
            self.all().iter().for_each(|user| act(&**user));
        }
    }
}
