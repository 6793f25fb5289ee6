//! Completion channels: completion events for the application, and their deferred wake-ups.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use mitra_os_util::event_queue::{Closed, EventQueue};
use mitra_verbs::{CompletionChannel, CqId, Error, Result};

/// The largest number of events that a channel or an asynchronous event queue holds.
pub(crate) const MAX_EVENTS: usize = 1 << 16;

/// The completion channel of a software NIC. Each time an armed completion queue completes
/// something, the NIC adds one event, as the kernel's channels do.
///
/// The NIC adds events while its lock is held. `PendingWakeups` makes the descriptor readable after
/// the lock is released, because the application calls the NIC as soon as it wakes.
pub(crate) struct SoftCompletionChannel(EventQueue<CqId>);

/// Channels whose descriptors become readable when this value is dropped.
#[derive(Default)]
pub(crate) struct PendingWakeups(Vec<Arc<SoftCompletionChannel>>);

impl PendingWakeups {
    pub(crate) fn add(&mut self, channel: &Arc<SoftCompletionChannel>) {
        self.0.push(Arc::clone(channel));
    }
}

impl Drop for PendingWakeups {
    fn drop(&mut self) {
        for channel in &self.0 {
            channel.0.signal();
        }
    }
}

impl SoftCompletionChannel {
    pub(crate) fn new() -> io::Result<SoftCompletionChannel> {
        EventQueue::new(MAX_EVENTS).map(SoftCompletionChannel)
    }

    /// Adds an event. The descriptor does not become readable before a [`PendingWakeups`] with this
    /// channel is dropped.
    pub(crate) fn push(&self, cq: CqId) {
        self.0.enqueue(cq);
    }
}

impl AsFd for SoftCompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl CompletionChannel for SoftCompletionChannel {
    fn next_event(&self) -> Result<Option<CqId>> {
        self.0.pop_unless_closed().map_err(|Closed| Error::DeviceFatal)
    }

    fn begin_wait(&self) -> Option<(&AtomicU32, u32)> {
        self.0.begin_wait()
    }

    fn close(&self) {
        self.0.close();
    }
}

impl fmt::Debug for SoftCompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SoftCompletionChannel({} events)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    fn is_readable(fd: &impl AsFd) -> bool {
        poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn descriptor_is_readable_while_channel_holds_event() {
        let channel = Arc::new(SoftCompletionChannel::new().unwrap());
        let wake = || drop(PendingWakeups(vec![Arc::clone(&channel)]));
        channel.push(CqId(1));
        channel.push(CqId(2));
        assert!(!is_readable(&*channel), "readable before the wake-up");
        wake();
        assert!(is_readable(&*channel));
        assert_eq!(channel.next_event().unwrap(), Some(CqId(1)));
        assert!(is_readable(&*channel));
        assert_eq!(channel.next_event().unwrap(), Some(CqId(2)));
        assert!(!is_readable(&*channel));
        assert_eq!(channel.next_event().unwrap(), None);
        wake();
        assert!(!is_readable(&*channel), "a wake-up of an empty channel made it readable");
    }

    /// The application can make the descriptor blocking, and another thread can take an event
    /// before the wake-up.
    #[test]
    fn event_taken_before_wakeup_does_not_block() {
        let channel = Arc::new(SoftCompletionChannel::new().unwrap());
        fcntl(&*channel, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        let consumer = Arc::clone(&channel);
        std::thread::spawn(move || {
            for cq in 0..3 {
                consumer.push(CqId(cq));
                assert_eq!(consumer.next_event().unwrap(), Some(CqId(cq)));
                drop(PendingWakeups(vec![Arc::clone(&consumer)]));
            }
            done.send(()).unwrap();
        });
        is_done.recv_timeout(std::time::Duration::from_secs(20)).expect("next_event does not block");
        assert!(!is_readable(&*channel));
    }
}
