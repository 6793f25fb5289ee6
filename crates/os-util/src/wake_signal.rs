//! The signal that ends the sleep of a thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::eventfd;
use crate::sync::{AtomicBool, Ordering};

/// Ends the sleeps of a thread that waits for descriptors, and the thread.
///
/// [`WakeSignal::wake`] makes a descriptor readable, until the thread has slept on it. The thread
/// sees everything that other threads did before they woke it.
#[derive(Debug)]
pub struct WakeSignal {
    eventfd: EventFd,
    stop: AtomicBool,
}

/// The result of one step of a thread in [`WakeSignal::run`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The thread worked, and did not sleep.
    Worked,
    /// The thread worked, and then slept.
    Slept {
        /// Whether the descriptor of the [`WakeSignal`] was readable.
        is_signalled: bool,
    },
    /// The thread cannot go on.
    Ended,
}

impl WakeSignal {
    /// Creates a signal that is not set.
    ///
    /// # Errors
    /// The error of eventfd(2), for example if the process has no file descriptor left.
    pub fn new() -> io::Result<WakeSignal> {
        let eventfd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(WakeSignal { eventfd, stop: AtomicBool::new(false) })
    }

    /// Ends the current sleep of the thread, or its next one.
    pub fn wake(&self) {
        eventfd::signal(&self.eventfd);
    }

    /// Tells the thread to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Runs the steps of the thread until [`WakeSignal::stop`] is called, or a step returns
    /// [`Step::Ended`].
    ///
    /// A step looks for work. If there is none, the step sleeps on the descriptor of this signal
    /// and on others. The descriptor is cleared between a sleep and the next look for work, so each
    /// later signal is seen.
    pub fn run(&self, mut step: impl FnMut() -> Step) {
        while !self.stop.load(Ordering::Acquire) {
            match step() {
                Step::Worked | Step::Slept { is_signalled: false } => {}
                Step::Slept { is_signalled: true } => eventfd::clear(&self.eventfd),
                Step::Ended => return,
            }
        }
    }
}

impl AsFd for WakeSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
