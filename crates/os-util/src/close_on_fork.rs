//! The descriptors that a child process must give up on `fork`, as with `O_CLOFORK`, which Linux
//! lacks.
//!
//! If a child kept its parent's sockets open, the peers of the parent would not detect the parent's
//! death. The table of descriptors has no lock, because another thread of the parent may hold the
//! lock at the `fork`.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors with this number or a greater one cannot be registered.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// One bit for each descriptor, set while the descriptor is registered.
static REGISTERED: [AtomicU64; MAX_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];

/// The registration of one descriptor. The owner drops the registration before the descriptor is
/// closed, because another descriptor may then get the same number.
#[derive(Debug)]
pub struct CloseOnFork(usize);

impl CloseOnFork {
    /// Returns `None` if the descriptor is beyond the table. A child then keeps it.
    pub fn new(fd: RawFd) -> Option<Self> {
        let index = usize::try_from(fd).ok().filter(|fd| *fd < MAX_DESCRIPTORS)?;
        REGISTERED[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        Some(Self(index))
    }
}

impl Drop for CloseOnFork {
    fn drop(&mut self) {
        REGISTERED[self.0 / 64].fetch_and(!(1 << (self.0 % 64)), Ordering::Relaxed);
    }
}

/// Removes and returns the registered descriptors. A program that forks replaces them in the child,
/// by a handler of `pthread_atfork(3)`: objects that the child inherits own the numbers, so it must
/// not close them. Async-signal-safe.
pub fn take_descriptors_to_close_on_fork() -> impl Iterator<Item = RawFd> {
    REGISTERED.iter().enumerate().flat_map(|(index, word)| {
        let bits = word.swap(0, Ordering::Relaxed);
        (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| (index * 64 + bit) as RawFd)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_listed_once_while_they_are_registered() {
        let numbers = [MAX_DESCRIPTORS as RawFd - 1, 60_000, 60_063];
        let taken = || take_descriptors_to_close_on_fork().filter(|fd| numbers.contains(fd)).count();
        let register = || numbers.map(|fd| CloseOnFork::new(fd).expect("the number is in the table"));
        let registered = register();
        assert_eq!((taken(), taken()), (3, 0));
        drop(registered);
        drop(register());
        assert_eq!(taken(), 0);
        assert!(CloseOnFork::new(MAX_DESCRIPTORS as RawFd).is_none() && CloseOnFork::new(-1).is_none());
    }
}
