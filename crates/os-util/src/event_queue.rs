//! A bounded event queue with a file descriptor for `poll(2)`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, PoisonError};
use crate::{eventfd, futex};

/// A bounded queue of events with an eventfd that is readable while the queue holds an event,
/// except for events added by [`EventQueue::enqueue`]. A full queue drops new events.
///
/// Each new event is a new edge of the descriptor, even while older events are in the queue. An
/// edge-triggered epoll(7) wakes for each event, as for the events of the kernel's verbs. An event
/// that a full queue drops is an edge, too, so a program that never reads its events still wakes.
///
/// The application may wait on the descriptor and may change its `O_NONBLOCK` flag. It must not
/// read the descriptor.
///
/// A thread that takes events one by one may sleep on a futex instead of the descriptor
/// ([`EventQueue::begin_wait`]). The sleep takes nothing from the queue, so a cancelled or
/// interrupted sleeper loses no event. The kernel restarts the sleep after a signal, as it restarts
/// a read(2).
#[derive(Debug)]
pub struct EventQueue<T> {
    state: Mutex<State<T>>,
    /// Threads sleep on this futex. Its value is odd while a thread may sleep, and changes with
    /// each event that wakes the sleepers.
    futex: AtomicU32,
    eventfd: EventFd,
    capacity: usize,
}

#[derive(Debug)]
struct State<T> {
    events: VecDeque<T>,
    /// Whether the eventfd is readable. `pop` and `retain` read the eventfd only then: a read of an
    /// unreadable eventfd would block if the application has cleared `O_NONBLOCK`.
    signalled: bool,
    /// Whether an event was added by `enqueue` since the last signal.
    has_silent: bool,
    is_closed: bool,
}

/// The queue is closed, and all its events were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl<T> EventQueue<T> {
    /// Creates a queue with a non-blocking descriptor.
    ///
    /// # Errors
    /// The error of eventfd(2), for example if the process has no file descriptor left.
    pub fn new(capacity: usize) -> io::Result<EventQueue<T>> {
        EventQueue::with_flags(capacity, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
    }

    /// Creates a queue with a blocking descriptor, for applications that read its flags to decide
    /// whether to wait for an event (`ibv_get_async_event(3)`).
    ///
    /// # Errors
    /// The error of eventfd(2), for example if the process has no file descriptor left.
    pub fn with_blocking_fd(capacity: usize) -> io::Result<EventQueue<T>> {
        EventQueue::with_flags(capacity, EfdFlags::EFD_CLOEXEC)
    }

    fn with_flags(capacity: usize, flags: EfdFlags) -> io::Result<EventQueue<T>> {
        let state = State { events: VecDeque::new(), signalled: false, has_silent: false, is_closed: false };
        let (state, futex) = (Mutex::new(state), AtomicU32::new(0));
        Ok(EventQueue { state, futex, eventfd: EventFd::from_flags(flags)?, capacity })
    }

    /// Adds an event, unless the queue is full or closed, and makes the descriptor readable.
    pub fn push(&self, event: T) {
        let mut state = self.lock();
        self.add(&mut state, event);
        self.show(&mut state);
    }

    /// Adds an event, unless the queue is full or closed. If the descriptor is unreadable, it stays
    /// unreadable until the next call of [`EventQueue::signal`] or of a push function.
    pub fn enqueue(&self, event: T) {
        self.add(&mut self.lock(), event);
    }

    /// Makes the descriptor readable if the queue holds an event.
    pub fn signal(&self) {
        self.show(&mut self.lock());
    }

    /// Ends the queue: later events are dropped, the descriptor stays readable, and waiting threads
    /// wake.
    pub fn close(&self) {
        let mut state = self.lock();
        (state.is_closed, state.signalled) = (true, true);
        self.wake();
    }

    /// Removes and returns the oldest event. If it was the last event, the descriptor becomes
    /// unreadable.
    pub fn pop(&self) -> Option<T> {
        self.pop_unless_closed().ok().flatten()
    }

    /// Does the same as [`EventQueue::pop`], and distinguishes an empty queue from a closed one.
    ///
    /// # Errors
    /// [`Closed`] if the queue is closed and holds no event.
    pub fn pop_unless_closed(&self) -> Result<Option<T>, Closed> {
        let mut state = self.lock();
        let event = state.events.pop_front();
        if event.is_none() && state.is_closed {
            return Err(Closed);
        }
        self.clear_if_empty(&mut state);
        Ok(event)
    }

    /// Prepares the caller to sleep until there is an event. Returns the futex (private to the
    /// process, `futex(2)`) and its value, or `None` if the queue holds an event or is closed. The
    /// next event or the end of the queue changes the value and wakes every sleeper.
    pub fn begin_wait(&self) -> Option<(&AtomicU32, u32)> {
        let state = self.lock();
        (state.events.is_empty() && !state.is_closed)
            .then(|| (&self.futex, self.futex.fetch_or(1, Ordering::Relaxed) | 1))
    }

    /// Removes and returns the events for which `is_wanted` returns true, oldest first.
    pub fn extract(&self, is_wanted: impl FnMut(&T) -> bool) -> VecDeque<T> {
        let mut state = self.lock();
        let (taken, kept) = std::mem::take(&mut state.events).into_iter().partition(is_wanted);
        state.events = kept;
        self.clear_if_empty(&mut state);
        taken
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

    /// Returns the number of events for which `is_counted` returns true.
    pub fn count(&self, is_counted: impl Fn(&T) -> bool) -> usize {
        self.lock().events.iter().filter(|event| is_counted(event)).count()
    }

    /// Returns whether the queue holds no event.
    pub fn is_empty(&self) -> bool {
        self.lock().events.is_empty()
    }

    fn add(&self, state: &mut State<T>, event: T) {
        if state.events.len() < self.capacity && !state.is_closed {
            state.events.push_back(event);
        }
        state.has_silent = true;
    }

    /// Makes the descriptor readable and wakes the sleepers if there is an event. Reports a new
    /// edge only for events that were added since the last edge.
    fn show(&self, state: &mut State<T>) {
        let is_new = std::mem::take(&mut state.has_silent);
        if !state.events.is_empty() && (!std::mem::replace(&mut state.signalled, true) || is_new) {
            self.wake();
        }
    }

    /// Signals the descriptor, and wakes all sleepers, because a single woken sleeper may be about
    /// to be cancelled or interrupted. The caller holds the lock.
    fn wake(&self) {
        eventfd::signal(&self.eventfd);
        if self.futex.load(Ordering::Relaxed) & 1 == 1 {
            self.futex.fetch_add(1, Ordering::Relaxed);
            futex::wake_all(&self.futex);
        }
    }

    fn clear_if_empty(&self, state: &mut State<T>) {
        if state.events.is_empty() && !state.is_closed && std::mem::take(&mut state.signalled) {
            eventfd::clear(&self.eventfd);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Each change to the state is one call, so a panic leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes the futex, because freed memory keeps its value for a while. Otherwise the kernel could
/// resume an interrupted sleep on freed memory.
impl<T> Drop for EventQueue<T> {
    fn drop(&mut self) {
        self.futex.fetch_add(2, Ordering::Relaxed);
    }
}

impl<T: PartialEq> EventQueue<T> {
    /// Adds an event, unless the queue is full, closed, or holds an equal event, and makes the
    /// descriptor readable.
    pub fn push_once(&self, event: T) {
        let mut state = self.lock();
        if !state.events.contains(&event) {
            self.add(&mut state, event);
        }
        self.show(&mut state);
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
