//! The list of work requests that a program builds call by call (`ibv_wr_start(3)`).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Error, SendWr};

use crate::common::lock::lock;

/// The list of requests under construction. It belongs to one thread from `ibv_wr_start` to `ibv_wr_complete` or
/// `ibv_wr_abort`; other threads wait in `ibv_wr_start`.
#[derive(Default)]
pub(crate) struct WrBuilder {
    taken: Mutex<bool>,
    free: Condvar,
    built: Mutex<Built>,
}

#[derive(Default)]
pub(crate) struct Built {
    pub(crate) wrs: Vec<SendWr>,
    /// The first error. `ibv_wr_complete` then posts nothing and returns it.
    pub(crate) error: Option<Error>,
}

impl WrBuilder {
    pub(crate) fn start(&self) {
        let mut taken = lock(&self.taken);
        while *taken {
            taken = self.free.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
    }

    pub(crate) fn end(&self) {
        *lock(&self.taken) = false;
        self.free.notify_one();
    }

    pub(crate) fn built(&self) -> MutexGuard<'_, Built> {
        lock(&self.built)
    }
}
