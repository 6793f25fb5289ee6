//! Descriptors out of the way of programs: shell scripts number descriptors, and programs close the
//! descriptors that they do not know.

use core::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Descriptors of programs and scripts are usually smaller.
const FIRST_DESCRIPTOR: c_int = 256;

/// Returns a close-on-exec descriptor for the same open file, or `descriptor` if the limit of
/// descriptors is too low.
pub(crate) fn moved_up(descriptor: OwnedFd) -> OwnedFd {
    // SAFETY: the call only makes another descriptor, which no other code knows.
    unsafe {
        let moved = libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);
        if moved < 0 { descriptor } else { OwnedFd::from_raw_fd(moved) }
    }
}
