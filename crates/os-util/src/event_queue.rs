//! A bounded event queue with a file descriptor for `poll(2)`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::eventfd;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// A bounded queue of events with an eventfd that is readable while the queue holds an event, except for events added by
/// [`EventQueue::enqueue`]. A full queue drops new events.
///
/// Each new event is a new edge of the descriptor, also while older events are in the queue: an edge-triggered epoll(7) wakes for each, as it does for
/// the events of the kernel's verbs. So does one that a full queue drops: a program that never reads its events still wakes.
///
/// The application may wait on the descriptor and may change its `O_NONBLOCK` flag. It must not read the
/// descriptor.
#[derive(Debug)]
pub struct EventQueue<T> {
    state: Mutex<State<T>>,
    eventfd: EventFd,
    /// The maximum number of events in the queue.
    capacity: usize,
}

#[derive(Debug)]
struct State<T> {
    events: VecDeque<T>,
    /// Whether the eventfd is readable. `pop` and `retain` read the eventfd only then: a read of an unreadable eventfd would block
    /// if the application has cleared `O_NONBLOCK`.
    signalled: bool,
    /// Whether an event was added by `enqueue` since the last signal.
    has_silent: bool,
}

impl<T> EventQueue<T> {
    /// Creates a queue with a non-blocking descriptor.
    ///
    /// # Errors
    /// The error of eventfd(2), for example if the process has no file descriptor left.
    pub fn new(capacity: usize) -> io::Result<EventQueue<T>> {
        EventQueue::with_flags(capacity, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
    }

    /// Creates a queue with a blocking descriptor, for applications that read its flags to decide whether to wait for an event
    /// (`ibv_get_async_event(3)`).
    ///
    /// # Errors
    /// The error of eventfd(2), for example if the process has no file descriptor left.
    pub fn with_blocking_fd(capacity: usize) -> io::Result<EventQueue<T>> {
        EventQueue::with_flags(capacity, EfdFlags::EFD_CLOEXEC)
    }

    fn with_flags(capacity: usize, flags: EfdFlags) -> io::Result<EventQueue<T>> {
        let state = Mutex::new(State { events: VecDeque::new(), signalled: false, has_silent: false });
        Ok(EventQueue { state, eventfd: EventFd::from_flags(flags)?, capacity })
    }

    /// Adds an event, unless the queue is full, and makes the descriptor readable.
    pub fn push(&self, event: T) {
        let mut state = self.lock();
        self.add(&mut state, event);
        signal(&self.eventfd, &mut state);
    }

    /// Adds an event, unless the queue is full. If the descriptor is unreadable, it stays so until the next call of [`EventQueue::signal`] or of a
    /// push function.
    pub fn enqueue(&self, event: T) {
        self.add(&mut self.lock(), event);
    }

    /// Makes the descriptor readable if the queue holds an event.
    pub fn signal(&self) {
        signal(&self.eventfd, &mut self.lock());
    }

    /// Removes and returns the oldest event. If it was the last event, the descriptor becomes unreadable.
    pub fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        let event = state.events.pop_front()?;
        self.clear_if_empty(&mut state);
        Some(event)
    }

    /// Removes the events for which `keep` returns false.
    pub fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut state = self.lock();
        state.events.retain(keep);
        self.clear_if_empty(&mut state);
    }

    /// Returns the number of events in the queue.
    pub fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// Returns whether the queue holds no event.
    pub fn is_empty(&self) -> bool {
        self.lock().events.is_empty()
    }

    fn add(&self, state: &mut State<T>, event: T) {
        if state.events.len() < self.capacity {
            state.events.push_back(event);
        }
        state.has_silent = true;
    }

    fn clear_if_empty(&self, state: &mut State<T>) {
        if state.events.is_empty() && std::mem::take(&mut state.signalled) {
            eventfd::clear(&self.eventfd);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Each change to the state is one call, so a panic leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: PartialEq> EventQueue<T> {
    /// Adds an event, unless the queue is full or holds an equal event, and makes the descriptor readable.
    pub fn push_once(&self, event: T) {
        let mut state = self.lock();
        if !state.events.contains(&event) {
            self.add(&mut state, event);
        }
        signal(&self.eventfd, &mut state);
    }
}

/// Makes the descriptor readable if there is an event. An edge is reported for events that none was reported for.
fn signal<T>(fd: &EventFd, state: &mut State<T>) {
    let is_new = std::mem::take(&mut state.has_silent);
    if !state.events.is_empty() && (!std::mem::replace(&mut state.signalled, true) || is_new) {
        eventfd::signal(fd);
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
