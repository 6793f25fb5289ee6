//! Queues of events that a program reads through a file descriptor.

use std::os::fd::AsFd;

pub(crate) use mitra_os_util::event_queue::{Closed, EventQueue};
use mitra_verbs::{Error, Result};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::cancellation;

/// The maximum number of events in a queue. A full queue drops new events.
const CAPACITY: usize = 1 << 12;

/// Creates an empty queue.
///
/// The program may set `O_NONBLOCK` on the descriptor; [`wait_for_event`] then returns `EAGAIN` instead of waiting.
///
/// # Errors
/// `System` if the descriptor cannot be created.
pub(crate) fn new_event_queue<T>() -> Result<EventQueue<T>> {
    EventQueue::with_blocking_fd(CAPACITY).map_err(|e| Error::system("creating an eventfd", &e))
}

/// Calls `take` until it returns an event of `queue`, and waits for an event before each new attempt, as a read(2) of a kernel's device does. A cancellation point.
///
/// # Errors
/// `EAGAIN` if the descriptor is non-blocking and there is no event; `EINTR` after a signal whose handler has no `SA_RESTART`; `EIO` if the queue is closed and empty.
pub(crate) fn wait_for_event<E, T: Copy>(
    queue: &EventQueue<E>,
    take: impl Fn() -> Result<Option<T>, Closed>,
) -> Result<T, Errno> {
    cancellation::test();
    loop {
        if let Some(taken) = take().map_err(|Closed| Errno::EIO)? {
            return Ok(taken);
        }
        if is_nonblocking(queue)? {
            return Err(Errno::EAGAIN);
        }
        if let Some((futex, value)) = queue.begin_wait() {
            cancellation::sleep(futex, value)?;
        }
    }
}

/// Returns whether the program has set `O_NONBLOCK`.
///
/// # Errors
/// The error of `fcntl`, if the program has closed the descriptor.
pub(crate) fn is_nonblocking(descriptor: &impl AsFd) -> Result<bool, Errno> {
    Ok(OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL)?).contains(OFlag::O_NONBLOCK))
}
