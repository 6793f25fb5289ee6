//! The wake-up of the threads that sleep on a futex.

use std::sync::atomic::AtomicU32;

use rustix::thread::futex::{self, Flags};

/// Wakes all threads of this process that sleep on a futex.
pub fn wake_all(word: &AtomicU32) {
    let result = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
    debug_assert!(result.is_ok(), "{result:?}");
}
