//! Descriptors that a child process closes on `fork`, as `O_CLOFORK` would. Linux does not have that flag.
//!
//! If a child kept its parent's sockets open, the peers of the parent would not notice the parent's death. The handler that
//! runs in the child between `fork` and its return may take no lock, because another thread of the parent may hold it. The
//! descriptors are therefore entered in a table of atomics.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

/// The table covers the descriptors below this number. A connection with a greater descriptor is refused.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// One bit for each descriptor, set while the descriptor is registered.
static REGISTERED: [AtomicU64; MAX_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];

/// The registration of one descriptor. It is dropped before the descriptor is closed.
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
