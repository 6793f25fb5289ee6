#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod close_on_fork;
pub mod event_queue;
pub mod eventfd;
pub mod fork_generation;
mod futex;
pub mod interfaces;
pub mod poll_loop;
pub mod random;
pub mod thread;
pub mod wake_signal;

/// The lock and the futex of an event queue, and the atomic of a wake signal.
/// `tests/event_queue_orders.rs` and softnic's `tests/thread_wakeup_orders.rs` replace this module
/// by loom's types.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};
}
