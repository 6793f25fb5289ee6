//! Counts of events that the program has taken and not yet acknowledged.

use std::sync::{Condvar, Mutex, PoisonError};

use super::lock::lock;

/// The number of unacknowledged events about one object. The call that destroys the object waits
/// for 0 (`ibv_get_async_event(3)`, `ibv_get_cq_event(3)`, `rdma_destroy_id(3)`).
#[derive(Default)]
pub(crate) struct UnacknowledgedEvents {
    count: Mutex<u32>,
    decreased: Condvar,
}

impl UnacknowledgedEvents {
    pub(crate) fn add_one(&self) {
        *lock(&self.count) += 1;
    }

    pub(crate) fn acknowledge(&self, n: u32) {
        let mut count = lock(&self.count);
        *count = count.saturating_sub(n);
        self.decreased.notify_all();
    }

    pub(crate) fn is_zero(&self) -> bool {
        *lock(&self.count) == 0
    }

    pub(crate) fn wait_for_all(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self.decreased.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
