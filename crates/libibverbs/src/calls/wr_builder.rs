//! The list of work requests that a program builds with one call for each request
//! (`ibv_wr_start(3)`).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Error, SendWr};

use crate::common::lock::lock;

/// The list of a queue pair, and the right to build it. From `ibv_wr_start` to `ibv_wr_complete` or
/// `ibv_wr_abort`, one thread has this right, and other threads wait in `ibv_wr_start`.
#[derive(Default)]
pub(crate) struct WrBuilder {
    is_started: Mutex<bool>,
    ended: Condvar,
    list: Mutex<WrList>,
}

/// The requests that are under construction, in posting order.
#[derive(Default)]
pub(crate) struct WrList {
    pub(crate) wrs: Vec<SendWr>,
    /// The first error in a call that builds a request. If there is one, `ibv_wr_complete` posts
    /// nothing and returns the error.
    pub(crate) error: Option<Error>,
}

impl WrBuilder {
    /// Waits for the right to build the list.
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
