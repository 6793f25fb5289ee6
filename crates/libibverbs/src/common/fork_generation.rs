//! The number of forks that separate this process from the process that loaded the library.

use std::sync::atomic::{AtomicU32, Ordering};

/// Starts at 1, so that 0 is the number of no process.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Returns a number that differs between a process and its ancestors, and is never 0.
pub(crate) fn current() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Gives the child its own number. A handler for `pthread_atfork(3)` in the child.
pub(crate) fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
