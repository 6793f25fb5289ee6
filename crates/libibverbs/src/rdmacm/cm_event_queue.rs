//! The queue of an event channel, with a descriptor that is readable while the queue holds events.
//!
//! The descriptor is an eventfd that the program may poll. A reader reads the descriptor before it pops an event. Blocking,
//! `O_NONBLOCK` and interruption by signals therefore work as on the descriptor of a kernel channel.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::cm_event::{CmEvent, IdHandle};

/// The events of the identifiers on one event channel, oldest first.
pub struct CmEventQueue {
    readable: Arc<EventFd>,
    events: VecDeque<(IdHandle, CmEvent)>,
}

impl CmEventQueue {
    /// Creates an empty queue with a blocking descriptor.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { readable: Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?), events: VecDeque::new() })
    }

    /// Returns the descriptor that the program sees as `rdma_event_channel.fd`.
    pub fn fd(&self) -> RawFd {
        self.readable.as_raw_fd()
    }

    /// Returns the descriptor for [`wait`]. It stays open if another thread destroys the channel. It is not a
    /// duplicate, which a process that has reached its limit of descriptors could not make.
    pub fn waiter(&self) -> Arc<EventFd> {
        self.readable.clone()
    }

    /// Whether a read of the descriptor blocks while the queue is empty. The program may change the mode with `fcntl`.
    pub fn is_blocking(&self) -> bool {
        fcntl(&self.readable, FcntlArg::F_GETFL).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
    }

    /// Appends an event and makes the descriptor readable.
    pub fn push(&mut self, handle: IdHandle, event: CmEvent) {
        self.events.push_back((handle, event));
        self.set_readable();
    }

    /// Removes and returns the oldest event. The caller has called [`wait`], which made the descriptor unreadable. If events remain,
    /// `pop` makes the descriptor readable again.
    pub fn pop(&mut self) -> Option<(IdHandle, CmEvent)> {
        let event = self.events.pop_front();
        if !self.events.is_empty() {
            self.set_readable();
        }
        event
    }

    /// Returns the number of events of one identifier.
    pub fn count(&self, handle: IdHandle) -> usize {
        self.events.iter().filter(|(owner, _)| *owner == handle).count()
    }

    /// Removes and returns the events of one identifier.
    pub fn take(&mut self, handle: IdHandle) -> VecDeque<CmEvent> {
        let (taken, left) = std::mem::take(&mut self.events)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(owner, _)| *owner == handle);
        self.events = left;
        if !taken.is_empty() && self.events.is_empty() {
            self.set_unreadable();
        }
        taken.into_iter().map(|(_, report)| report).collect()
    }

    fn set_readable(&self) {
        // An eventfd write blocks only when the count would exceed 2^64 − 2.
        let _ = self.readable.write(1);
    }

    /// Makes the descriptor unreadable. Never blocks: the descriptor may be in blocking mode, and another thread may have read it
    /// already.
    fn set_unreadable(&self) {
        let mut count = [0_u8; 8];
        let iovec = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // A kernel before 5.8 refuses RWF_NOWAIT on an eventfd. The descriptor then stays readable, and the next `pop` returns `None`.
        // SAFETY: `iovec` describes `count`, which outlives the call.
        unsafe { libc::preadv2(self.fd(), &raw const iovec, 1, -1, libc::RWF_NOWAIT) };
    }
}

/// Reads the descriptor of a queue. If the queue is empty, a blocking descriptor waits until the queue holds an event.
///
/// # Errors
/// `EAGAIN` if the queue is empty and the descriptor non-blocking, `EINTR` if a signal ends the wait.
pub fn wait(waiter: BorrowedFd) -> Result<(), Errno> {
    nix::unistd::read(waiter, &mut [0; 8]).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::fcntl::OFlag;

    use super::*;

    fn is_readable(queue: &CmEventQueue) -> bool {
        let fd = queue.readable.as_fd();
        let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, 0_u8).unwrap() == 1
    }

    #[test]
    fn descriptor_is_readable_while_events_remain() {
        let mut queue = CmEventQueue::new().unwrap();
        assert!(queue.is_blocking() && !is_readable(&queue));
        queue.push(1, CmEvent::AddressResolved);
        queue.push(2, CmEvent::RouteResolved);
        for handle in [1, 2] {
            assert!(is_readable(&queue));
            wait(queue.waiter().as_fd()).unwrap();
            assert_eq!(queue.pop().unwrap().0, handle);
        }
        assert!(!is_readable(&queue));
    }

    #[test]
    fn wait_on_empty_non_blocking_queue_returns_eagain() {
        let queue = CmEventQueue::new().unwrap();
        fcntl(&queue.readable, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert!(!queue.is_blocking());
        assert_eq!(wait(queue.waiter().as_fd()), Err(Errno::EAGAIN));
    }

    #[test]
    fn taking_last_event_makes_descriptor_unreadable() {
        let mut queue = CmEventQueue::new().unwrap();
        queue.push(1, CmEvent::AddressResolved);
        queue.push(2, CmEvent::AddressResolved);
        assert_eq!(queue.take(1).len(), 1);
        assert!(is_readable(&queue));
        assert_eq!(queue.take(2).len(), 1);
        assert!(!is_readable(&queue));
    }
}
