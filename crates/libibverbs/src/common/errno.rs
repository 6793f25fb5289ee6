//! The report of an error to a C program: an `errno` value, and a line on standard error
//! ([`refusal`]).

use std::ffi::c_int;
use std::ptr;

use mitra_verbs::Error;

use super::refusal;

/// Returns the `errno` value that the manual pages of the verbs give for an error.
pub(crate) fn errno_of(error: &Error) -> c_int {
    match error {
        // The one error of the operating system that a program can act on: it has closed too few
        // descriptors.
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

/// Explains why a call is refused, and sets and returns `errno`: for a verb that returns an error
/// number.
pub(crate) fn refuse(verb: &str, errno: c_int, reason: &'static str) -> c_int {
    refusal::explain(verb, &reason);
    set_errno(errno);
    errno
}

/// Explains why a call is refused, sets `errno`, and returns null: for a verb that returns an
/// object.
pub(crate) fn refuse_object<T>(verb: &str, errno: c_int, reason: &'static str) -> *mut T {
    refuse(verb, errno, reason);
    ptr::null_mut()
}

/// Converts a result for a verb that returns 0 or an `errno` value. Logs an error, and sets
/// `errno`, as the system call of a kernel's device does.
pub(crate) fn status(verb: &str, result: Result<(), Error>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            refusal::explain(verb, &error);
            set_errno(errno_of(&error));
            errno_of(&error)
        }
    }
}

/// Converts the result of destroying an object of a NIC. A dead NIC is not an error, because its
/// objects do not exist any more.
///
/// # Errors
/// Any other error of the NIC.
pub(crate) fn unless_dead(destroyed: Result<(), Error>) -> Result<(), Error> {
    match destroyed {
        Err(Error::DeviceFatal) => Ok(()),
        other => other,
    }
}

/// Converts a result for a verb that returns a pointer, or null after an error. Logs an error, and
/// sets `errno`.
pub(crate) fn pointer<T>(verb: &str, result: Result<*mut T, Error>) -> *mut T {
    result.unwrap_or_else(|error| {
        refusal::explain(verb, &error);
        set_errno(errno_of(&error));
        ptr::null_mut()
    })
}

/// Sets `errno` and returns −1.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Sets `errno` of the calling thread.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: `__errno_location` returns the calling thread's `errno`, which lives as long as the
    // thread.
    unsafe { *libc::__errno_location() = errno };
}
