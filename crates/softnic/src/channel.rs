//! Queues of events with a descriptor that is readable while an event waits.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{CompletionChannel, CqId, Result};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Events to keep when nobody takes them; later ones are dropped.
const BOUND: usize = 1 << 16;

/// Waiting events and an eventfd that is readable if there are any.
pub(crate) struct EventQueue<T> {
    waiting: Mutex<Waiting<T>>,
    ready: EventFd,
}

struct Waiting<T> {
    events: VecDeque<T>,
    /// The descriptor is readable. Only then it is read: a program may have made it one whose reads block.
    told: bool,
}

impl<T: PartialEq> EventQueue<T> {
    pub(crate) fn new() -> io::Result<EventQueue<T>> {
        let ready = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(EventQueue { waiting: Mutex::new(Waiting { events: VecDeque::new(), told: false }), ready })
    }

    /// Adds an event and tells of it.
    pub(crate) fn push(&self, event: T) {
        self.put(event);
        self.tell();
    }

    /// Adds the event unless an equal one waits already, and tells of it.
    pub(crate) fn push_once(&self, event: T) {
        self.put_once(event);
        self.tell();
    }

    fn put(&self, event: T) {
        let mut waiting = self.lock();
        if waiting.events.len() < BOUND {
            waiting.events.push_back(event);
        }
    }

    fn put_once(&self, event: T) {
        if !self.lock().events.contains(&event) {
            self.put(event);
        }
    }

    /// Makes the descriptor readable, if an event waits.
    fn tell(&self) {
        let mut waiting = self.lock();
        if !waiting.events.is_empty() && !std::mem::replace(&mut waiting.told, true) {
            signal(&self.ready);
        }
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let mut waiting = self.lock();
        let event = waiting.events.pop_front()?;
        if waiting.events.is_empty() && std::mem::take(&mut waiting.told) {
            clear(&self.ready);
        }
        Some(event)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        // Each change of the queue is one call: a panic cannot leave it half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// Makes an eventfd readable. It can only refuse when it is readable to the brim.
pub(crate) fn signal(fd: &EventFd) {
    let refused = fd.write(1);
    debug_assert!(matches!(refused, Ok(_) | Err(Errno::EAGAIN)), "{refused:?}");
}

/// Makes an eventfd unreadable. It refuses when it is already.
pub(crate) fn clear(fd: &EventFd) {
    let refused = fd.read();
    debug_assert!(matches!(refused, Ok(_) | Err(Errno::EAGAIN)), "{refused:?}");
}

/// A completion channel of a software NIC. A queue that has an event waiting gets no second one: who takes the first
/// polls the queue after that.
///
/// Events are put in while the NIC is locked, and told of by [`Bells`] once it is not: who is woken calls the NIC at once.
pub(crate) struct Channel(EventQueue<CqId>);

/// Channels that have something to tell. They do so when this is dropped.
#[derive(Default)]
pub(crate) struct Bells(Vec<Arc<Channel>>);

impl Bells {
    pub(crate) fn add(&mut self, channel: &Arc<Channel>) {
        self.0.push(Arc::clone(channel));
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        for channel in &self.0 {
            channel.0.tell();
        }
    }
}

impl Channel {
    pub(crate) fn new() -> io::Result<Channel> {
        EventQueue::new().map(Channel)
    }

    /// Puts an event in, which is then to be told of.
    pub(crate) fn push(&self, cq: CqId) {
        self.0.put_once(cq);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl CompletionChannel for Channel {
    fn next_event(&self) -> Result<Option<CqId>> {
        Ok(self.0.pop())
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({} waiting)", self.0.lock().events.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn readable(fd: &impl AsFd) -> bool {
        poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_an_event_waits() {
        let channel = Arc::new(Channel::new().unwrap());
        let tell = || drop(Bells(vec![Arc::clone(&channel)]));
        channel.push(CqId(1));
        channel.push(CqId(2));
        channel.push(CqId(1));
        assert!(!readable(&*channel), "not while the NIC is locked");
        tell();
        assert!(readable(&*channel));
        assert_eq!(channel.next_event().unwrap(), Some(CqId(1)));
        assert!(readable(&*channel));
        assert_eq!(channel.next_event().unwrap(), Some(CqId(2)));
        assert!(!readable(&*channel));
        assert_eq!(channel.next_event().unwrap(), None);
        tell();
        assert!(!readable(&*channel), "somebody was faster than the bell");
    }

    /// Programs make the descriptor one whose reads block; and somebody may take an event before the bell rings.
    #[test]
    fn who_is_faster_than_the_bell_does_not_block() {
        let channel = Arc::new(Channel::new().unwrap());
        fcntl(&*channel, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        let taker = Arc::clone(&channel);
        std::thread::spawn(move || {
            for cq in 0..3 {
                taker.push(CqId(cq));
                assert_eq!(taker.next_event().unwrap(), Some(CqId(cq)));
                drop(Bells(vec![Arc::clone(&taker)]));
            }
            done.send(()).unwrap();
        });
        is_done.recv_timeout(std::time::Duration::from_secs(20)).expect("it does not block");
        assert!(!readable(&*channel));
    }

    #[test]
    fn events_that_nobody_takes_are_bounded() {
        let queue = EventQueue::new().unwrap();
        for i in 0..2 * BOUND {
            queue.push(i);
        }
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), BOUND);
    }
}
