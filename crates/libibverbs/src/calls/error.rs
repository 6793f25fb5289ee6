//! How a refusal reaches a C program: an `errno`, and on request a line on standard error that says why.

use std::ffi::c_int;
use std::fmt::Display;
use std::ptr;
use std::sync::LazyLock;

use mitra_verbs::Error;

/// Whether refused calls are explained: `MITRA_VERBOSE` is 1, which `mitra run --verbose` does.
static VERBOSE: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("MITRA_VERBOSE").is_some_and(|value| value == "1"));

/// The `errno` that stands for an error (`errno(3)` values as in the manual pages of the calls).
pub(crate) fn number(error: &Error) -> c_int {
    match error {
        Error::DeviceFatal | Error::System { .. } => libc::EIO,
        Error::Busy { .. } => libc::EBUSY,
        Error::QueueFull { .. } => libc::ENOMEM,
        Error::Unsupported(_) => libc::EOPNOTSUPP,
        _ => libc::EINVAL,
    }
}

/// Says why a call is refused, if anybody wants to know.
pub(crate) fn explain(call: &str, why: &dyn Display) {
    if *VERBOSE {
        eprintln!("mitra: {call}: {why}");
    }
}

/// Says why there is no device. Programs only say that there is none.
pub(crate) fn tell(why: &dyn Display) {
    eprintln!("mitra: the device cannot be opened: {why}");
}

/// For calls that return 0 or an `errno`.
pub(crate) fn status(call: &str, result: Result<(), Error>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            explain(call, &error);
            number(&error)
        }
    }
}

/// For calls that return a pointer, or NULL with `errno` set.
pub(crate) fn pointer<T>(call: &str, result: Result<*mut T, Error>) -> *mut T {
    result.unwrap_or_else(|error| {
        explain(call, &error);
        set_errno(number(&error));
        ptr::null_mut()
    })
}

/// For calls that return 0, or −1 with `errno` set.
pub(crate) fn minus_one(number: c_int) -> c_int {
    set_errno(number);
    -1
}

/// Sets `errno` of this thread.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: `errno` of the calling thread is always there.
    unsafe { *libc::__errno_location() = number };
}
