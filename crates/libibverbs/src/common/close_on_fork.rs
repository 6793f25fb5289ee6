//! Descriptors that a child process closes on `fork`, as with `O_CLOFORK`, which Linux lacks.
//!
//! If a child kept its parent's sockets open, the peers of the parent would not detect the parent's
//! death. A handler therefore closes the descriptors in the child before `fork` returns there. The
//! table of descriptors has no lock, because another thread of the parent may hold the lock at the
//! `fork`.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;

use super::fork_generation;

/// Descriptors with this number or a greater one cannot be registered.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// One bit for each descriptor, set while the descriptor is registered.
static REGISTERED: [AtomicU64; MAX_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];

/// The registration of one descriptor. The owner drops the registration before the descriptor is
/// closed, because another descriptor may then get the same number.
#[derive(Debug)]
pub(crate) struct CloseOnFork(usize);

impl CloseOnFork {
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

/// Registers [`after_fork_in_child`] in the first call.
fn register_fork_handler() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // Two threads may register the handler twice, which has no effect. A thread that waited for
    // another thread would wait forever in the child of a fork.
    if !REGISTERED.load(Ordering::Acquire) {
        // A failure, which only a lack of memory causes, is ignored: children then share the
        // parent's sockets and identifiers, and a peer detects the parent's death only when the
        // children have ended, too.
        // SAFETY: the handler has the required signature and is async-signal-safe.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        REGISTERED.store(true, Ordering::Release);
    }
}

/// Gives the child state of its own ([`PerProcess`](super::per_process::PerProcess)), and closes
/// all registered descriptors. Async-signal-safe: atomics and `close` only.
extern "C" fn after_fork_in_child() {
    fork_generation::after_fork_in_child();
    for (index, word) in REGISTERED.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let fd = index * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: the descriptor is the child's copy, and the child does not use the objects
            // that own the descriptor in the parent.
            unsafe { libc::close(fd as RawFd) };
        }
    }
}
