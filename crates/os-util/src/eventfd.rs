//! The use of an eventfd as a flag, which is set while the eventfd is readable. The value of its
//! counter has no meaning.

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;

/// Makes an eventfd readable. `EAGAIN` means that its counter is at the maximum, so the eventfd is
/// readable already.
pub fn signal(fd: &EventFd) {
    let result = fd.write(1);
    debug_assert!(matches!(result, Ok(_) | Err(Errno::EAGAIN)), "{result:?}");
}

/// Makes a non-blocking eventfd unreadable. `EAGAIN` means that its counter is 0, so the eventfd is
/// unreadable already. The call on a blocking eventfd blocks until the eventfd is readable.
pub fn clear(fd: &EventFd) {
    let result = fd.read();
    debug_assert!(matches!(result, Ok(_) | Err(Errno::EAGAIN)), "{result:?}");
}
