//! Counts of events that the program has taken and not yet acknowledged.

use std::sync::{Condvar, Mutex, PoisonError};

use super::lock::lock;

/// The number of unacknowledged events about one object. The verb that destroys the object waits
/// until the number is 0 (`ibv_get_async_event(3)`, `ibv_get_cq_event(3)`).
#[derive(Default)]
pub(crate) struct UnacknowledgedEvents {
    count: Mutex<u32>,
    decreased: Condvar,
}

impl UnacknowledgedEvents {
    /// Adds an event that the program takes.
    pub(crate) fn add_one(&self) {
        *lock(&self.count) += 1;
    }

    /// Subtracts `n` events that the program acknowledges.
    pub(crate) fn acknowledge(&self, n: u32) {
        let mut count = lock(&self.count);
        *count = count.saturating_sub(n);
        self.decreased.notify_all();
    }

    /// Waits until the program has acknowledged all events.
    pub(crate) fn wait_for_all(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self.decreased.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
