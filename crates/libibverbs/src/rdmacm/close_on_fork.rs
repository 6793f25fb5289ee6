//! Descriptors that a child process closes on `fork`, as `O_CLOFORK` would. Linux does not have that flag.
//!
//! If a child kept its parent's sockets open, the peers of the parent would not detect the parent's death. A handler therefore closes
//! them in the child before `fork` returns there. The handler must not take a lock, because another thread of the parent may have held
//! the lock at the `fork`. The descriptors are therefore registered in a table of atomics.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

/// The number of descriptors in the table. A descriptor with this number or a greater one cannot be registered.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// One bit for each descriptor, set while the descriptor is registered.
static REGISTERED: [AtomicU64; MAX_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];

/// The registration of one descriptor. Its owner drops it before the descriptor is closed, so that no other descriptor with the same
/// number is closed.
#[derive(Debug)]
pub struct CloseOnFork(usize);

impl CloseOnFork {
    /// Registers a descriptor.
    ///
    /// # Errors
    /// `EMFILE` if the descriptor is beyond the table.
    pub fn new(fd: RawFd) -> Result<Self, Errno> {
        let index = usize::try_from(fd).ok().filter(|fd| *fd < MAX_DESCRIPTORS).ok_or(Errno::EMFILE)?;
        REGISTERED[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        Ok(Self(index))
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        REGISTERED[self.0 / 64].fetch_and(!(1 << (self.0 % 64)), Ordering::Relaxed);
    }
}

/// Closes all registered descriptors and empties the table. Async-signal-safe: atomics and `close` only.
///
/// # Safety
/// Runs in a child process after `fork`, where no Rust object that owns one of the descriptors is used any more.
pub unsafe fn close_registered() {
    for (index, word) in REGISTERED.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = index * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: the descriptor is the child's copy. By the contract no object of the child uses it.
            unsafe { libc::close(fd as RawFd) };
        }
    }
}
