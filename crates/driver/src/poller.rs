//! The poller, which waits for events of completions and NICs, and for wake-ups from other threads,
//! with one ppoll(2) call.

use std::sync::Arc;
use std::time::Duration;

use std::os::fd::{AsFd, BorrowedFd};

use mitra_failover::Domain;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

/// Waits for completion events and other events of a domain's NICs, and for [`Waker::wake`].
#[derive(Debug)]
pub struct Poller {
    domain: Arc<Domain>,
    wakeup: Arc<EventFd>,
}

/// Wakes a [`Poller`] from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Ends the current wait of the poller, or its next wait.
    pub fn wake(&self) {
        // EAGAIN means that the counter is full, so the eventfd is readable already.
        let _ = self.0.write(1);
    }
}

impl Poller {
    /// Creates a poller of a domain. A domain without completion channels
    /// ([`Domain::with_completion_channels`]) has no completion events.
    ///
    /// # Errors
    /// If the system has no free descriptor.
    pub fn new(domain: &Arc<Domain>) -> nix::Result<Poller> {
        let wakeup = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Poller { domain: Arc::clone(domain), wakeup: Arc::new(wakeup) })
    }

    /// Returns a handle that ends a wait from any thread.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wakeup))
    }

    /// Returns the descriptors to poll for reading: those of the completion channels and of the
    /// NICs' events, and the wake-up eventfd last.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let nics = self.domain.nics().iter();
        let channels = nics.clone().filter_map(|nic| nic.channel.as_ref()).map(|channel| channel.as_fd());
        let events = nics.filter_map(|nic| nic.provider.async_event_fd());
        channels.chain(events).chain([self.wakeup.as_fd()]).collect()
    }

    /// Consumes all pending events, so that only later events make the descriptors readable. The
    /// domain keeps the state of the NICs for its vQPs.
    pub fn drain_events(&self) {
        self.domain.poll_events();
        let _ = self.wakeup.read();
        for channel in self.domain.nics().iter().filter_map(|nic| nic.channel.as_ref()) {
            while let Ok(Some(_)) = channel.next_event() {}
        }
    }

    /// Blocks until an event or a wake-up arrives, for at most `timeout`, and consumes all pending
    /// events.
    pub fn wait(&self, timeout: Duration) {
        let fds = self.fds();
        let mut fds: Vec<PollFd<'_>> = fds.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // After an error such as EINTR, this function returns early, which is harmless.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(timeout)), None);
        self.drain_events();
    }
}
