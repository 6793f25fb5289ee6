//! Descriptors out of the way of programs: those that scripts number, and those that a program
//! closes because it knows no other.

use core::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Descriptors of programs, such as those that scripts number, are smaller.
const FIRST_DESCRIPTOR: c_int = 256;

/// Returns another descriptor for the same open file, or the same one if the limit of descriptors
/// is too low. Programs that are executed do not have it.
pub(crate) fn moved_up(descriptor: OwnedFd) -> OwnedFd {
    // SAFETY: the call only makes another descriptor, which is unknown to other code.
    unsafe {
        let moved = libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);
        if moved < 0 { descriptor } else { OwnedFd::from_raw_fd(moved) }
    }
}
