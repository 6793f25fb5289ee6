//! Wakes the manager's thread from `epoll_wait`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

#[derive(Clone)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// # Errors
    /// The error of `eventfd`.
    pub fn new() -> Result<Self, Errno> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(Arc::new(EventFd::from_flags(flags)?)))
    }

    /// Lets the thread take new messages and deadlines into account. Does not wait.
    pub fn wake(&self) {
        // Fails only if the counter is full, and the thread is awake then.
        let _ = self.0.write(1);
    }

    /// The thread is awake.
    pub fn reset(&self) {
        // Fails only if the counter is 0.
        let _ = self.0.read();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
