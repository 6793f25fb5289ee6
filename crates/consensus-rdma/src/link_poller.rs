//! The poller of a node waits for the events of all its links, and for wake-ups from other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use mitra_driver::Connection;
use mitra_failover::Domain;
use mitra_verbs::{Error, Result};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// The key of the descriptor that wakes the node. Links have keys below [`KEYS`].
const WAKE: u64 = u64::MAX;
/// The key of the asynchronous events of all NICs.
const NICS: u64 = WAKE - 1;
/// The number of keys of links.
pub(crate) const KEYS: u8 = u128::BITS as u8;
/// The largest number of descriptors that one wait returns.
const BATCH: usize = 32;

/// Waits for the events of links, which have completion channels of their own, for the asynchronous
/// events of their NICs, and for [`LinkPoller::wake`].
#[derive(Clone, Debug)]
pub(crate) struct LinkPoller(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    epoll: Epoll,
    wakeup: EventFd,
}

/// The keys of the links with events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready(u128);

impl Ready {
    /// The keys of all links.
    pub(crate) const ALL: Ready = Ready(u128::MAX);

    pub(crate) fn contains(self, key: u8) -> bool {
        self.0 >> key & 1 == 1
    }
}

/// Which links a node drives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pass {
    /// All of them. Their events stay unread and their queues disarmed, so the node must not sleep
    /// before a pass of the other kind.
    Poll,
    /// The links with these keys, and those with an expired timer. The pass reads the events and
    /// arms the queues, so the node may sleep after it.
    HandleEvents(Ready),
}

/// The watch of a link. The drop ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) key: u8,
    poller: LinkPoller,
    fds: Vec<OwnedFd>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        for fd in &self.fds {
            let _ = self.poller.0.epoll.delete(fd); // the descriptor is in the epoll instance
        }
    }
}

impl LinkPoller {
    /// Makes the poller of links over the NICs of `domain`.
    ///
    /// # Errors
    /// If the system has no free descriptor.
    pub(crate) fn new(domain: &Domain) -> nix::Result<LinkPoller> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let wakeup = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        epoll.add(&wakeup, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        for fd in domain.nics().iter().filter_map(|nic| nic.provider.async_event_fd()) {
            // The events stay in the NICs until a connected link takes them.
            epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, NICS))?;
        }
        Ok(LinkPoller(Arc::new(Inner { epoll, wakeup })))
    }

    /// Ends the current wait, or the next one.
    pub(crate) fn wake(&self) {
        // EAGAIN means that the counter is full, so the eventfd is readable already.
        let _ = self.0.wakeup.write(1);
    }

    /// Watches the events of a connection under a key.
    ///
    /// # Errors
    /// [`Error::System`] if the process has no descriptor left.
    pub(crate) fn watch(&self, key: u8, connection: &Connection) -> Result<Watch> {
        let mut watch = Watch { key, poller: self.clone(), fds: Vec::new() };
        for fd in connection.event_fds() {
            let fd = fd.try_clone_to_owned().map_err(|e| Error::system("duplicating a descriptor", &e))?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, key.into());
            let added = self.0.epoll.add(&fd, event);
            let failed = |e: Errno| Error::system("adding to an epoll instance", &io::Error::from(e));
            added.map_err(failed)?;
            watch.fds.push(fd);
        }
        Ok(watch)
    }

    /// Blocks until an event or a wake-up arrives, for at most `timeout`, which is rounded up to
    /// milliseconds.
    pub(crate) fn wait(&self, timeout: Duration) -> Ready {
        let millis = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
        let timeout = EpollTimeout::try_from(millis).unwrap_or(EpollTimeout::ZERO);
        let mut events = [EpollEvent::empty(); BATCH];
        // After an error such as EINTR, this function returns early, which is harmless.
        let count = self.0.epoll.wait(&mut events, timeout).unwrap_or(0);
        // The descriptors beyond a full batch would raise no other edge for a caller that watches
        // this poller with edge-triggering. A second wait may return the same descriptors again.
        let mut ready = if count == BATCH { Ready::ALL.0 } else { 0 };
        for event in &events[..count] {
            match event.data() {
                WAKE => _ = self.0.wakeup.read(),
                NICS => ready |= Ready::ALL.0,
                key => ready |= 1 << key,
            }
        }
        Ready(ready)
    }
}

impl AsFd for LinkPoller {
    /// The descriptor is readable when [`LinkPoller::wait`] would not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.epoll.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use mitra_softnic::fault::Failure;
    use mitra_softnic::{Config, SoftNic};
    use mitra_verbs::Provider;

    use super::*;

    fn nic_and_poller() -> (Arc<SoftNic>, LinkPoller) {
        let nic = SoftNic::open(Config::loopback()).expect("a loopback NIC opens");
        let domain = Domain::with_completion_channels(vec![Arc::clone(&nic) as Arc<dyn Provider>])
            .expect("the NIC has the resources of a domain");
        let poller = LinkPoller::new(&domain).expect("the system has descriptors");
        (nic, poller)
    }

    #[test]
    fn one_wait_reports_all_links_with_events() {
        let (_nic, poller) = nic_and_poller();
        let fds: Vec<_> =
            (0..KEYS).map(|_| EventFd::from_value_and_flags(1, EfdFlags::EFD_NONBLOCK)).collect();
        for (key, fd) in (0..).zip(&fds) {
            let fd = fd.as_ref().expect("the system has descriptors");
            poller.0.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, key)).expect("a new descriptor");
        }
        let ready = poller.wait(Duration::ZERO);
        assert!((0..KEYS).all(|key| ready.contains(key)));
    }

    #[test]
    fn each_event_of_a_nic_is_reported_once_to_all_links() {
        let (nic, poller) = nic_and_poller();
        let fail = || nic.faults().fail(Failure::LinkDown);
        for change in [&fail as &dyn Fn(), &|| nic.faults().heal()] {
            change();
            let ready = poller.wait(Duration::from_secs(60));
            assert!((0..KEYS).all(|key| ready.contains(key)));
            assert!(!poller.wait(Duration::ZERO).contains(0), "nobody takes the event");
        }
    }
}
