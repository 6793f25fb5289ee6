//! The report of an error to a C program: an `errno` value, and the explanation of [`refusal`].

use std::ffi::c_int;
use std::ptr;

use mitra_verbs::Error;

use super::refusal;

/// Returns the `errno` value of the verbs' manual pages.
pub(crate) fn errno_of(error: &Error) -> c_int {
    match error {
        // A program can act on these errors of the operating system by closing descriptors.
        Error::System { errno: Some(errno @ (libc::EMFILE | libc::ENFILE)), .. } => *errno,
        Error::DeviceFatal | Error::System { .. } => libc::EIO,
        Error::Busy { .. } => libc::EBUSY,
        Error::NoSuchObject { .. } => libc::ENOENT,
        Error::QueueFull { .. } | Error::SrqFull { .. } | Error::TooLarge { .. } => libc::ENOMEM,
        Error::NotPermitted(_) => libc::EPERM,
        Error::Inaccessible { .. } => libc::EFAULT,
        Error::Unsupported(_) => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}

/// Explains why a call is refused, and sets and returns `errno`.
pub(crate) fn refuse(verb: &str, errno: c_int, reason: &'static str) -> c_int {
    refusal::explain(verb, &reason);
    set_errno(errno);
    errno
}

/// Explains why a call is refused, sets `errno`, and returns null.
pub(crate) fn refuse_object<T>(verb: &str, errno: c_int, reason: &'static str) -> *mut T {
    refuse(verb, errno, reason);
    ptr::null_mut()
}

/// Explains an error, and sets and returns `errno`, as the system call of a kernel's device does.
fn report(verb: &str, error: &Error) -> c_int {
    refusal::explain(verb, error);
    set_errno(errno_of(error));
    errno_of(error)
}

/// Converts a result for a verb that returns 0 or an `errno` value, and reports an error.
pub(crate) fn status(verb: &str, result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| report(verb, &error), |()| 0)
}

/// Converts the result of destroying an object of a NIC. The objects of a dead NIC do not exist any
/// more, so a dead NIC is not an error.
///
/// # Errors
/// Any other error of the NIC.
pub(crate) fn unless_dead(destroyed: Result<(), Error>) -> Result<(), Error> {
    match destroyed {
        Err(Error::DeviceFatal) => Ok(()),
        other => other,
    }
}

/// Converts a result for a verb that returns a pointer, and reports an error.
pub(crate) fn pointer<T>(verb: &str, result: Result<*mut T, Error>) -> *mut T {
    result.unwrap_or_else(|error| {
        report(verb, &error);
        ptr::null_mut()
    })
}

pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's `errno` lives as long as the thread.
    unsafe { *libc::__errno_location() = errno };
}
