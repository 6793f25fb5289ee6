//! A number that changes with each `fork`, in a program that registers [`after_fork_in_child`] with
//! `pthread_atfork(3)`. Objects that a child inherits know by it that they belong to the parent.

use std::sync::atomic::{AtomicU32, Ordering};

/// Starts at 1, so that 0 is the number of no process.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Returns a number that differs from the numbers of the process' ancestors, and is never 0.
pub fn current() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Gives the child a number of its own. Several handlers for `pthread_atfork(3)` call the function.
/// Only the first call in a child changes the number, because the program's own handlers may run
/// between the calls. Async-signal-safe.
pub fn after_fork_in_child() {
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    if PROCESS.swap(process, Ordering::Relaxed) != process {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
}
