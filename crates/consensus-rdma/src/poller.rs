//! Sleeping until something happens.

use std::sync::Arc;
use std::time::Duration;

use std::os::fd::{AsFd, BorrowedFd};

use mitra_failover::{Domain, VirtualQp};
use mitra_verbs::CqId;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

/// What wakes a sleeper: completions on the domain's NICs, and a bell that any thread may ring.
#[derive(Debug)]
pub(crate) struct Rest {
    domain: Arc<Domain>,
    bell: Arc<EventFd>,
}

/// The completion queues that have told of something, by rail.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadyCqs(Vec<(usize, CqId)>);

impl ReadyCqs {
    /// Whether one of them is this queue pair's.
    pub(crate) fn is_about(&self, vqp: &VirtualQp) -> bool {
        self.0.iter().any(|&(rail, cq)| vqp.uses_cq(rail, cq))
    }
}

/// Rings a sleeper's bell.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<EventFd>);

impl Bell {
    /// Wakes it; if it does not sleep, it will not the next time.
    pub(crate) fn ring(&self) {
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

    /// What is readable when something has happened.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let channels = self.domain.nics().iter().filter_map(|nic| nic.channel.as_ref());
        channels.map(|channel| channel.as_fd()).chain([self.bell.as_fd()]).collect()
    }

    /// Takes note of what has happened, so that only what comes then is readable again.
    pub(crate) fn note(&self) {
        let _ = self.bell.read();
        self.heard();
    }

    fn heard(&self) -> ReadyCqs {
        let mut heard = Vec::new();
        for (rail, nic) in self.domain.nics().iter().enumerate() {
            while let Some(Ok(Some(cq))) = nic.channel.as_ref().map(|channel| channel.next_event()) {
                heard.push((rail, cq));
            }
        }
        ReadyCqs(heard)
    }

    /// Sleeps until something happens, or so long.
    pub(crate) fn rest(&self, at_most: Duration) -> ReadyCqs {
        let fds = self.fds();
        let mut fds: Vec<PollFd<'_>> = fds.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // A refused wait is a short one.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(at_most)), None);
        if fds.last().is_some_and(|bell| bell.any() == Some(true)) {
            let _ = self.bell.read();
        }
        self.heard()
    }
}
