//! The lock of a completion queue's poller.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The number of attempts before a thread that waits lets others run. The holder may have been
/// preempted.
const SPINS: u32 = 64;

/// A lock that one call takes and another one releases, from `ibv_start_poll` to `ibv_end_poll`.
/// The drivers of NICs use a spin lock here, too.
#[derive(Debug)]
pub(crate) struct PollerLock {
    is_held: AtomicBool,
    /// Whether several threads poll the queue. If not, there is nothing to lock.
    is_shared: bool,
}

/// Holds the lock until it is dropped.
pub(crate) struct PollerGuard<'a>(&'a PollerLock);

impl PollerLock {
    pub(crate) fn new(is_shared: bool) -> PollerLock {
        PollerLock { is_held: AtomicBool::new(false), is_shared }
    }

    /// Takes the lock, and waits while another thread has it.
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

    /// Takes the lock for as long as the returned value exists.
    pub(crate) fn guard(&self) -> PollerGuard<'_> {
        self.lock();
        PollerGuard(self)
    }

    /// Releases the lock. Has no effect if it is free.
    pub(crate) fn unlock(&self) {
        self.is_held.store(false, Ordering::Release);
    }
}

impl Drop for PollerGuard<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}
