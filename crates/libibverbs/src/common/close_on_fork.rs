//! Descriptors that a child process closes on `fork`, as `O_CLOFORK` would. Linux does not have
//! that flag.
//!
//! If a child kept its parent's sockets open, the peers of the parent would not detect the parent's
//! death. A handler therefore closes them in the child before `fork` returns there. The handler
//! must not take a lock, because another thread of the parent may have held the lock at the `fork`.
//! The descriptors are therefore registered in a table of atomics.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;

/// The number of descriptors in the table. A descriptor with this number or a greater one cannot be
/// registered.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// One bit for each descriptor, set while the descriptor is registered.
static REGISTERED: [AtomicU64; MAX_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];

/// The registration of one descriptor. Its owner drops it before the descriptor is closed, so that
/// no other descriptor with the same number is closed.
#[derive(Debug)]
pub(crate) struct CloseOnFork(usize);

impl CloseOnFork {
    /// Registers a descriptor.
    ///
    /// # Errors
    /// `EMFILE` if the descriptor is beyond the table.
    pub(crate) fn new(fd: RawFd) -> Result<Self, Errno> {
        let index = usize::try_from(fd).ok().filter(|fd| *fd < MAX_DESCRIPTORS).ok_or(Errno::EMFILE)?;
        register_fork_handler();
        REGISTERED[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        Ok(Self(index))
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        REGISTERED[self.0 / 64].fetch_and(!(1 << (self.0 % 64)), Ordering::Relaxed);
    }
}

/// Registers [`close_registered`] in the first call.
fn register_fork_handler() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // Two threads may register the handler twice, which has no effect. None waits for another one,
    // which would not exist in the child of a fork.
    if !REGISTERED.load(Ordering::Acquire) {
        // SAFETY: the handler has the required signature and does only what is allowed in the child
        // of a `fork` of a process with threads. A failure, which only a lack of memory causes, is
        // ignored: children then share the parent's sockets, so a peer does not detect the parent's
        // death before the child's.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(close_registered)) };
        REGISTERED.store(true, Ordering::Release);
    }
}

/// Closes all registered descriptors and empties the table. A handler for `pthread_atfork(3)` in
/// the child. Async-signal-safe: atomics and `close` only.
extern "C" fn close_registered() {
    for (index, word) in REGISTERED.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = index * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: the descriptor is the child's copy. The objects that own it belong to the
            // parent, and the child does not use them.
            unsafe { libc::close(fd as RawFd) };
        }
    }
}
