//! The queue of reports behind an event channel, with a descriptor that is readable while the queue holds reports.
//!
//! The descriptor is an eventfd that the program may poll. A reader reads the descriptor before it pops a report, so blocking,
//! `O_NONBLOCK` and interruption by signals behave as the kernel defines them, like on a real channel.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::report::{IdHandle, Report};
use super::socket::errno_of;

/// The reports of the identifiers on one event channel, oldest first.
pub struct ReportQueue {
    readable: EventFd,
    reports: VecDeque<(IdHandle, Report)>,
}

impl ReportQueue {
    /// Creates an empty queue with a blocking descriptor.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { readable: EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?, reports: VecDeque::new() })
    }

    /// Returns the descriptor that the program sees as `rdma_event_channel.fd`.
    pub fn fd(&self) -> RawFd {
        self.readable.as_raw_fd()
    }

    /// Duplicates the descriptor for [`wait`]. The duplicate stays open if another thread destroys the channel.
    pub fn waiter(&self) -> Result<OwnedFd, Errno> {
        self.readable.as_fd().try_clone_to_owned().map_err(errno_of)
    }

    /// Whether a read of the descriptor blocks while the queue is empty. The program may change that with `fcntl`.
    pub fn is_blocking(&self) -> bool {
        fcntl(&self.readable, FcntlArg::F_GETFL).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
    }

    /// Appends a report and makes the descriptor readable.
    pub fn push(&mut self, handle: IdHandle, report: Report) {
        self.reports.push_back((handle, report));
        self.set_readable();
    }

    /// Removes the oldest report. Called after [`wait`], which made the descriptor unreadable; if reports remain, `pop` makes
    /// it readable again.
    pub fn pop(&mut self) -> Option<(IdHandle, Report)> {
        let report = self.reports.pop_front();
        if !self.reports.is_empty() {
            self.set_readable();
        }
        report
    }

    /// Counts the reports of one identifier.
    pub fn count(&self, handle: IdHandle) -> usize {
        self.reports.iter().filter(|(owner, _)| *owner == handle).count()
    }

    /// Removes and returns the reports of one identifier.
    pub fn take(&mut self, handle: IdHandle) -> VecDeque<Report> {
        let (taken, left) = std::mem::take(&mut self.reports)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(owner, _)| *owner == handle);
        self.reports = left;
        if !taken.is_empty() && self.reports.is_empty() {
            self.set_unreadable();
        }
        taken.into_iter().map(|(_, report)| report).collect()
    }

    fn set_readable(&self) {
        // An eventfd write blocks only when the count would exceed 2^64 − 2.
        let _ = self.readable.write(1);
    }

    /// Makes the descriptor unreadable without blocking, although it may be in blocking mode and another thread may have read
    /// it in the meantime.
    fn set_unreadable(&self) {
        let mut count = [0_u8; 8];
        let into = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: `into` describes `count`, which outlives the call. Kernels before 5.8 refuse RWF_NOWAIT on an eventfd; then
        // the descriptor stays readable, and the next `pop` finds no report.
        unsafe { libc::preadv2(self.fd(), &raw const into, 1, -1, libc::RWF_NOWAIT) };
    }
}

/// Waits until the queue of the descriptor holds a report, as the flags of the descriptor say.
///
/// # Errors
/// `EAGAIN` if the queue is empty and the descriptor non-blocking, `EINTR` if a signal ends the wait.
pub fn wait(waiter: BorrowedFd) -> Result<(), Errno> {
    nix::unistd::read(waiter, &mut [0; 8]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::OFlag;

    fn is_readable(queue: &ReportQueue) -> bool {
        let fd = queue.readable.as_fd();
        let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, 0_u8).unwrap() == 1
    }

    #[test]
    fn descriptor_is_readable_while_reports_remain() {
        let mut queue = ReportQueue::new().unwrap();
        assert!(queue.is_blocking() && !is_readable(&queue));
        queue.push(1, Report::AddressResolved);
        queue.push(2, Report::RouteResolved);
        for handle in [1, 2] {
            assert!(is_readable(&queue));
            wait(queue.waiter().unwrap().as_fd()).unwrap();
            assert_eq!(queue.pop().unwrap().0, handle);
        }
        assert!(!is_readable(&queue));
    }

    #[test]
    fn wait_on_empty_non_blocking_queue_returns_eagain() {
        let queue = ReportQueue::new().unwrap();
        fcntl(&queue.readable, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert!(!queue.is_blocking());
        assert_eq!(wait(queue.waiter().unwrap().as_fd()), Err(Errno::EAGAIN));
    }

    #[test]
    fn taking_last_report_makes_descriptor_unreadable() {
        let mut queue = ReportQueue::new().unwrap();
        queue.push(1, Report::AddressResolved);
        queue.push(2, Report::AddressResolved);
        assert_eq!(queue.take(1).len(), 1);
        assert!(is_readable(&queue));
        assert_eq!(queue.take(2).len(), 1);
        assert!(!is_readable(&queue));
    }
}
