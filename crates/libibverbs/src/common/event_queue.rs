//! Queues of events that a program reads through a file descriptor.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use mitra_verbs::{Error, Result};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::lock::lock;

/// Events that the program has not taken, and an eventfd that is readable while there are any.
///
/// The program may set `O_NONBLOCK` on the descriptor; [`wait_for_event`] then returns `EAGAIN` instead of waiting.
pub(crate) struct EventQueue<T> {
    pending: Mutex<VecDeque<T>>,
    eventfd: EventFd,
}

/// Events that a queue holds at most. A full queue drops new events.
const CAPACITY: usize = 1 << 12;

impl<T> EventQueue<T> {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// `System` if the process has no file descriptor left.
    pub(crate) fn new() -> Result<EventQueue<T>> {
        let eventfd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)
            .map_err(|e| Error::System { operation: "making an eventfd", message: e.to_string() })?;
        Ok(EventQueue { pending: Mutex::default(), eventfd })
    }

    /// Returns the descriptor that is readable while the queue holds events.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// Appends an event, unless the queue is full.
    pub(crate) fn push(&self, event: T) {
        let mut pending = lock(&self.pending);
        if pending.len() == CAPACITY {
            return;
        }
        pending.push_back(event);
        if pending.len() == 1 {
            // The counter is 0 here, so the write neither fails nor blocks.
            let _ = self.eventfd.write(1);
        }
    }

    /// Takes the oldest event.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut pending = lock(&self.pending);
        let event = pending.pop_front()?;
        if pending.is_empty() {
            // The counter is 1 here, so the read does not block.
            let _ = self.eventfd.read();
        }
        Some(event)
    }

    /// Removes the events for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut pending = lock(&self.pending);
        let before = pending.len();
        pending.retain(keep);
        if before > 0 && pending.is_empty() {
            let _ = self.eventfd.read();
        }
    }
}

/// Waits until `take` returns an event. `fd` is readable when `take` may succeed.
///
/// # Errors
/// `EAGAIN` if `fd` is non-blocking and there is no event; `EINTR` if a signal arrives, as for `read(2)`.
pub(crate) fn wait_for_event<T>(fd: BorrowedFd<'_>, mut take: impl FnMut() -> Option<T>) -> Result<T, Errno> {
    loop {
        if let Some(taken) = take() {
            return Ok(taken);
        }
        let mode = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
        if mode.contains(OFlag::O_NONBLOCK) {
            return Err(Errno::EAGAIN);
        }
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::NONE)?;
    }
}
