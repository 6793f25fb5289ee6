//! Queues of events that a program reads through a file descriptor.

use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU32;

pub(crate) use mitra_os_util::event_queue::{Closed, EventQueue};
use mitra_verbs::{Error, Result};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::cancellation::{self, Futex};

/// A full queue drops new events.
const CAPACITY: usize = 1 << 12;

/// Creates an empty queue. The program may set `O_NONBLOCK` on the descriptor, which
/// [`take_or_sleep`] then respects.
///
/// # Errors
/// `System` if the descriptor cannot be created.
pub(crate) fn new_event_queue<T>() -> Result<EventQueue<T>> {
    EventQueue::with_blocking_fd(CAPACITY).map_err(|e| Error::system("creating an eventfd", &e))
}

/// Calls `next` until the result is an event. If the result is a futex, sleeps on the futex. A
/// cancellation point, like a read(2) on a device of the kernel.
///
/// During the sleep, another thread may destroy the object that contains the futex, so each call of
/// `next` looks for the object again.
///
/// # Errors
/// The error of `next`; `EINTR` after a signal whose handler has no `SA_RESTART`.
pub(crate) fn wait_for_event<T: Copy>(
    next: impl Fn() -> Result<ControlFlow<T, Futex>, Errno>,
) -> Result<T, Errno> {
    cancellation::test();
    loop {
        match next()? {
            ControlFlow::Break(event) => return Ok(event),
            ControlFlow::Continue((futex, value)) => cancellation::sleep(futex, value)?,
        }
    }
}

/// A queue with a descriptor, on which a thread can sleep until there is an event.
pub(crate) trait SleepableQueue: AsFd {
    /// As [`EventQueue::begin_wait`].
    fn begin_wait(&self) -> Option<(&AtomicU32, u32)>;
}

impl<E> SleepableQueue for EventQueue<E> {
    fn begin_wait(&self) -> Option<(&AtomicU32, u32)> {
        EventQueue::begin_wait(self)
    }
}

/// Returns the event that `take` takes from `queue`, or the futex on which to sleep until the queue
/// has an event.
///
/// # Errors
/// `EAGAIN` if the descriptor is non-blocking and there is no event; `EIO` if the queue is closed
/// and empty.
pub(crate) fn take_or_sleep<T>(
    queue: &impl SleepableQueue,
    take: impl Fn() -> Result<Option<T>, Closed>,
) -> Result<ControlFlow<T, Futex>, Errno> {
    loop {
        if let Some(taken) = take().map_err(|Closed| Errno::EIO)? {
            return Ok(ControlFlow::Break(taken));
        }
        if is_nonblocking(queue)? {
            return Err(Errno::EAGAIN);
        }
        if let Some((futex, value)) = queue.begin_wait() {
            return Ok(ControlFlow::Continue((futex, value)));
        }
    }
}

/// # Errors
/// The error of `fcntl`, if the program has closed the descriptor.
pub(crate) fn is_nonblocking(descriptor: &impl AsFd) -> Result<bool, Errno> {
    Ok(OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL)?).contains(OFlag::O_NONBLOCK))
}
