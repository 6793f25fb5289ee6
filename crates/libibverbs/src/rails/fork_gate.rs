//! Forks wait until the library's threads hold no lock.
//!
//! A fork copies locked locks, and the threads that would unlock them do not exist in the child. A child that uses an inherited object
//! would wait for such a lock forever. The library's threads therefore work only inside [`enter`], and a fork waits until none does. As
//! with any library, a child may still wait forever for a lock that another thread of the program held at the fork.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum time for which a fork waits. It bounds the wait of a signal handler that forks while it interrupts a verb: the verb may
/// hold a lock that one of the library's threads waits for.
const MAX_WAIT: Duration = Duration::from_millis(200);
/// The time between two looks at a counter that another thread changes.
const LOOK_INTERVAL: Duration = Duration::from_micros(20);

/// The number of threads of the library inside [`enter`].
static WORKING: AtomicUsize = AtomicUsize::new(0);
/// The number of forks in progress. Threads of the library do not begin to work while there is one.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Ends the work of a thread when dropped.
pub(super) struct Working;

impl Drop for Working {
    fn drop(&mut self) {
        WORKING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until no fork is in progress. Forks wait until the result is dropped. The caller holds no lock.
pub(super) fn enter() -> Working {
    loop {
        WORKING.fetch_add(1, Ordering::SeqCst);
        let working = Working;
        if FORKS.load(Ordering::SeqCst) == 0 {
            return working;
        }
        drop(working);
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Waits until no thread of the library works. A handler for `pthread_atfork(3)` before the fork.
pub(super) extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    let started = Instant::now();
    while WORKING.load(Ordering::SeqCst) > 0 && started.elapsed() < MAX_WAIT {
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Lets the threads of the library continue. A handler for `pthread_atfork(3)` in the parent.
pub(super) extern "C" fn after_fork_in_parent() {
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

/// Removes the forks and the threads of the parent from the counts. A handler for `pthread_atfork(3)` in the child.
pub(super) fn after_fork_in_child() {
    FORKS.store(0, Ordering::SeqCst);
    WORKING.store(0, Ordering::SeqCst);
}
