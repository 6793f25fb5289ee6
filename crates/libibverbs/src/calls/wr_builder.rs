//! The list of work requests that a program builds call by call (`ibv_wr_start(3)`).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Error, SendWr};

use crate::common::lock::lock;

/// What is being built. From `ibv_wr_start` to `ibv_wr_complete` it belongs to one thread; others wait.
#[derive(Default)]
pub(crate) struct WrBuilder {
    taken: Mutex<bool>,
    free: Condvar,
    built: Mutex<Built>,
}

#[derive(Default)]
pub(crate) struct Built {
    pub(crate) wrs: Vec<SendWr>,
    /// The first thing that was wrong: `ibv_wr_complete` reports it and posts nothing.
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
