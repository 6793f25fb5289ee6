//! An event channel: reports in order, and a descriptor that is readable while there are any.
//!
//! The descriptor is an eventfd. Reading a report means reading the descriptor first, so that blocking, `O_NONBLOCK` and
//! interruption by signals are the kernel's, as with a real channel.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::state::{Handle, Report};

/// A channel.
pub struct Channel {
    signal: EventFd,
    reports: VecDeque<(Handle, Report)>,
}

impl Channel {
    /// A channel without reports.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { signal: EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?, reports: VecDeque::new() })
    }

    /// The descriptor for the program.
    pub fn fd(&self) -> RawFd {
        self.signal.as_raw_fd()
    }

    /// A descriptor to [`wait`] on, which another thread's destroying the channel does not close.
    pub fn waiter(&self) -> Result<OwnedFd, Errno> {
        self.signal.as_fd().try_clone_to_owned().map_err(super::socket::errno_of)
    }

    /// Whether reading it waits for reports.
    pub fn is_blocking(&self) -> bool {
        fcntl(&self.signal, FcntlArg::F_GETFL).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
    }

    /// Adds a report.
    pub fn push(&mut self, handle: Handle, report: Report) {
        self.reports.push_back((handle, report));
        self.raise();
    }

    /// The next report, after [`wait`].
    pub fn pop(&mut self) -> Option<(Handle, Report)> {
        let report = self.reports.pop_front();
        if !self.reports.is_empty() {
            self.raise();
        }
        report
    }

    /// How many reports of one identifier there are.
    pub fn count(&self, handle: Handle) -> usize {
        self.reports.iter().filter(|(of, _)| *of == handle).count()
    }

    /// Takes the reports of one identifier out.
    pub fn take(&mut self, handle: Handle) -> VecDeque<Report> {
        let (taken, left) = std::mem::take(&mut self.reports)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(of, _)| *of == handle);
        self.reports = left;
        if !taken.is_empty() && self.reports.is_empty() {
            self.clear();
        }
        taken.into_iter().map(|(_, report)| report).collect()
    }

    fn raise(&self) {
        // Blocks after 2^64 - 2 of them only.
        let _ = self.signal.write(1);
    }

    /// Makes the descriptor unreadable, though it may be in blocking mode and another thread may have read it just now.
    fn clear(&self) {
        let mut count = [0_u8; 8];
        let into = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: `into` describes `count`. Where the kernel cannot read an eventfd this way (before 5.8), the
        // descriptor stays readable and `pop` finds nothing.
        unsafe { libc::preadv2(self.fd(), &raw const into, 1, -1, libc::RWF_NOWAIT) };
    }
}

/// Waits until there is a report, as the descriptor's flags say.
pub fn wait(waiter: BorrowedFd) -> Result<(), Errno> {
    nix::unistd::read(waiter, &mut [0; 8]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::OFlag;

    fn is_readable(channel: &Channel) -> bool {
        let fd = channel.signal.as_fd();
        let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, 0_u8).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_while_there_are_reports() {
        let mut channel = Channel::new().unwrap();
        assert!(channel.is_blocking() && !is_readable(&channel));
        channel.push(1, Report::AddressResolved);
        channel.push(2, Report::RouteResolved);
        for handle in [1, 2] {
            assert!(is_readable(&channel));
            wait(channel.waiter().unwrap().as_fd()).unwrap();
            assert_eq!(channel.pop().unwrap().0, handle);
        }
        assert!(!is_readable(&channel));
    }

    #[test]
    fn without_reports_a_non_blocking_channel_says_so() {
        let channel = Channel::new().unwrap();
        fcntl(&channel.signal, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert!(!channel.is_blocking());
        assert_eq!(wait(channel.waiter().unwrap().as_fd()), Err(Errno::EAGAIN));
    }

    #[test]
    fn with_the_last_report_taken_out_the_descriptor_is_silent() {
        let mut channel = Channel::new().unwrap();
        channel.push(1, Report::AddressResolved);
        channel.push(2, Report::AddressResolved);
        assert_eq!(channel.take(1).len(), 1);
        assert!(is_readable(&channel));
        assert_eq!(channel.take(2).len(), 1);
        assert!(!is_readable(&channel));
    }
}
