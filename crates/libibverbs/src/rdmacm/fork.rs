//! What `fork` must not share: sockets that the child would keep open when the parent dies, so that no peer would notice,
//! and a state whose locks other threads may hold.
//!
//! The child starts anew: identifiers of its parent are unknown to it. What runs between `fork` and the child's return may
//! take no lock, so open sockets stand in a table of atomics.

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

/// Descriptors below this can be held; beyond it a connection is refused.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// One bit for each descriptor that is held.
static HELD: [AtomicU64; MAX_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];

/// A descriptor's place in the table. To be dropped before the descriptor is closed.
#[derive(Debug)]
pub struct Held(usize);

impl Held {
    /// Enters a descriptor.
    pub fn new(fd: RawFd) -> Result<Self, Errno> {
        let place = usize::try_from(fd).ok().filter(|fd| *fd < MAX_DESCRIPTORS).ok_or(Errno::EMFILE)?;
        HELD[place / 64].fetch_or(1 << (place % 64), Ordering::Relaxed);
        Ok(Self(place))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD[self.0 / 64].fetch_and(!(1 << (self.0 % 64)), Ordering::Relaxed);
    }
}

/// Makes every later `fork` leave the parent's sockets and state behind.
pub fn prepare() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: `start_anew` takes no argument and does only what is allowed between `fork` and the child's return.
        // Registering fails for want of memory only; then a child shares what it should not, and nothing worse.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(start_anew)) };
    });
}

/// Runs in the child, where this thread is the only one.
unsafe extern "C" fn start_anew() {
    super::manager::forget();
    for (index, word) in HELD.iter().enumerate() {
        let mut held = word.swap(0, Ordering::Relaxed);
        while held != 0 {
            let fd = index * 64 + held.trailing_zeros() as usize;
            held &= held - 1;
            // SAFETY: closes the child's copy of a descriptor that only the forgotten state refers to.
            unsafe { libc::close(fd as RawFd) };
        }
    }
}
