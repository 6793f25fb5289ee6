//! Return values of C calls as `Result`, in both directions.

use std::ffi::c_int;

use nix::errno::Errno;

use crate::common::errno::minus_one;

/// Returns 0, or −1 with `errno` set: the return value of a librdmacm call.
pub fn return_code(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => minus_one(errno as c_int),
    }
}

/// Converts the return value of a verb that returns 0 or an error number.
pub fn check_errno(returned: c_int) -> Result<(), Errno> {
    if returned == 0 { Ok(()) } else { Err(Errno::from_raw(returned)) }
}

/// Converts the return value of a call that returns an object, or null with `errno` set.
pub fn check_pointer<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(Errno::last()) } else { Ok(object) }
}
