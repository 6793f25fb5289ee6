//! Queues of events that a program reads through a file descriptor.

use std::os::fd::BorrowedFd;

pub(crate) use mitra_os_util::event_queue::EventQueue;
use mitra_verbs::{Error, Result};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The maximum number of events in a queue. A full queue drops new events.
const CAPACITY: usize = 1 << 12;

/// Creates an empty queue.
///
/// The program may set `O_NONBLOCK` on the descriptor; [`wait_for_event`] then returns `EAGAIN` instead of waiting.
///
/// # Errors
/// `System` if the descriptor cannot be created.
pub(crate) fn new_event_queue<T>() -> Result<EventQueue<T>> {
    EventQueue::with_blocking_fd(CAPACITY)
        .map_err(|e| Error::System { operation: "creating an eventfd", message: e.to_string() })
}

/// Calls `take` until it returns an event, and waits for `fd` before each new attempt. `fd` must be readable while an event can be
/// taken.
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
