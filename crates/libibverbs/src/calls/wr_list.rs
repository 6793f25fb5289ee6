//! The list of work requests that a program builds call by call (`ibv_wr_start(3)`).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Error, SendWr};

use crate::common::lock::lock;

/// The list of requests under construction. It belongs to one thread from `ibv_wr_start` to `ibv_wr_complete` or
/// `ibv_wr_abort`; other threads wait in `ibv_wr_start`.
#[derive(Default)]
pub(crate) struct WrBuilder {
    is_started: Mutex<bool>,
    ended: Condvar,
    list: Mutex<WrList>,
}

#[derive(Default)]
pub(crate) struct WrList {
    pub(crate) wrs: Vec<SendWr>,
    /// The first error. `ibv_wr_complete` then posts nothing and returns it.
    pub(crate) error: Option<Error>,
}

impl WrBuilder {
    pub(crate) fn start(&self) {
        let mut is_started = lock(&self.is_started);
        while *is_started {
            is_started = self.ended.wait(is_started).unwrap_or_else(PoisonError::into_inner);
        }
        *is_started = true;
    }

    pub(crate) fn end(&self) {
        *lock(&self.is_started) = false;
        self.ended.notify_one();
    }

    pub(crate) fn list(&self) -> MutexGuard<'_, WrList> {
        lock(&self.list)
    }
}
