#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod event_queue;
pub mod eventfd;
pub mod thread;
pub mod wake_signal;

/// The lock of an event queue, and the atomic of a wake signal. `tests/event_queue_orders.rs`, and softnic's `tests/thread_wakeup_orders.rs`,
/// compile them with those of loom instead.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};
}
