//! Sleeping until something happens.

use std::sync::Arc;
use std::time::Duration;

use std::os::fd::AsFd;

use mitra_failover::Domain;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// What wakes a sleeper: completions on the domain's NICs, and a bell that any thread may ring.
#[derive(Debug)]
pub(crate) struct Rest {
    domain: Arc<Domain>,
    bell: Arc<EventFd>,
}

/// Rings a sleeper's bell.
#[derive(Clone, Debug)]
pub struct Bell(Arc<EventFd>);

impl Bell {
    /// Wakes it; if it does not sleep, it will not the next time.
    pub fn ring(&self) {
        // Full is rung.
        let _ = self.0.write(1);
    }
}

impl Rest {
    pub(crate) fn new(domain: &Arc<Domain>) -> nix::Result<Rest> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Rest { domain: Arc::clone(domain), bell: Arc::new(bell) })
    }

    pub(crate) fn bell(&self) -> Bell {
        Bell(Arc::clone(&self.bell))
    }

    /// Sleeps until something happens, or so long.
    pub(crate) fn rest(&self, at_most: Duration) {
        let channels: Vec<_> = self.domain.nics().iter().filter_map(|nic| nic.channel.as_ref()).collect();
        let mut fds: Vec<PollFd<'_>> =
            channels.iter().map(|channel| PollFd::new(channel.as_fd(), PollFlags::POLLIN)).collect();
        fds.push(PollFd::new(self.bell.as_fd(), PollFlags::POLLIN));
        // A refused wait is a short one.
        let _ = poll(&mut fds, PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX));
        for channel in channels {
            while let Ok(Some(_)) = channel.next_event() {}
        }
        let _ = self.bell.read();
    }
}
