//! A bounded event queue with an eventfd that is readable while the queue holds an event.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// The capacity of a queue, in events. A full queue drops new events.
const CAPACITY: usize = 1 << 16;

/// A bounded queue of events. Its descriptor is readable while the queue holds an event.
pub(crate) struct EventQueue<T> {
    state: Mutex<State<T>>,
    eventfd: EventFd,
}

struct State<T> {
    events: VecDeque<T>,
    /// Whether the eventfd is readable. `pop` reads the eventfd only then: the application may have made it blocking, and the
    /// read would wait.
    signalled: bool,
}

impl<T: PartialEq> EventQueue<T> {
    pub(crate) fn new() -> io::Result<EventQueue<T>> {
        let eventfd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(EventQueue { state: Mutex::new(State { events: VecDeque::new(), signalled: false }), eventfd })
    }

    /// Adds an event and makes the descriptor readable.
    pub(crate) fn push(&self, event: T) {
        self.enqueue(event);
        self.signal();
    }

    /// Adds an event unless the queue holds an equal one, and makes the descriptor readable.
    pub(crate) fn push_once(&self, event: T) {
        self.enqueue_once(event);
        self.signal();
    }

    fn enqueue(&self, event: T) {
        let mut state = self.lock();
        if state.events.len() < CAPACITY {
            state.events.push_back(event);
        }
    }

    /// Adds an event unless the queue holds an equal one. The descriptor does not change until [`EventQueue::signal`].
    pub(crate) fn enqueue_once(&self, event: T) {
        if !self.lock().events.contains(&event) {
            self.enqueue(event);
        }
    }

    /// Makes the descriptor readable if the queue holds an event.
    pub(crate) fn signal(&self) {
        let mut state = self.lock();
        if !state.events.is_empty() && !std::mem::replace(&mut state.signalled, true) {
            signal_eventfd(&self.eventfd);
        }
    }

    /// Takes the oldest event.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        let event = state.events.pop_front()?;
        if state.events.is_empty() && std::mem::take(&mut state.signalled) {
            clear_eventfd(&self.eventfd);
        }
        Some(event)
    }

    /// Returns the number of events in the queue.
    pub(crate) fn len(&self) -> usize {
        self.lock().events.len()
    }
}

impl<T> EventQueue<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Each change to the state is one call, so a panic leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// Makes an eventfd readable. `EAGAIN` means that its counter is at the maximum, so it is readable already.
pub(crate) fn signal_eventfd(fd: &EventFd) {
    let result = fd.write(1);
    debug_assert!(matches!(result, Ok(_) | Err(Errno::EAGAIN)), "{result:?}");
}

/// Makes an eventfd unreadable. `EAGAIN` means that its counter is 0, so it is unreadable already.
pub(crate) fn clear_eventfd(fd: &EventFd) {
    let result = fd.read();
    debug_assert!(matches!(result, Ok(_) | Err(Errno::EAGAIN)), "{result:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_drops_new_events() {
        let queue = EventQueue::new().unwrap();
        for i in 0..2 * CAPACITY {
            queue.push(i);
        }
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), CAPACITY);
    }
}
