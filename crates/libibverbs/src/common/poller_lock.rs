//! The lock of a completion queue's poller.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A thread yields after this number of attempts, because the holder may be preempted.
const SPINS: u32 = 64;

/// A lock from `ibv_start_poll` to `ibv_end_poll`, a spin lock as in the drivers of NICs.
#[derive(Debug)]
pub(crate) struct PollerLock {
    is_held: AtomicBool,
    /// Whether several threads poll the queue.
    is_shared: bool,
}

pub(crate) struct PollerGuard<'a>(&'a PollerLock);

impl PollerLock {
    pub(crate) fn new(is_shared: bool) -> PollerLock {
        PollerLock { is_held: AtomicBool::new(false), is_shared }
    }

    pub(crate) fn lock(&self) {
        if !self.is_shared {
            return;
        }
        let mut attempts = 0;
        while self.is_held.swap(true, Ordering::Acquire) {
            attempts += 1;
            if attempts % SPINS == 0 { thread::yield_now() } else { hint::spin_loop() }
        }
    }

    pub(crate) fn guard(&self) -> PollerGuard<'_> {
        self.lock();
        PollerGuard(self)
    }

    pub(crate) fn unlock(&self) {
        self.is_held.store(false, Ordering::Release);
    }
}

impl Drop for PollerGuard<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}
