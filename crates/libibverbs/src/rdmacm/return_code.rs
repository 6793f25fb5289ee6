//! Return values of C calls as `Result`, in both directions.

use std::ffi::c_int;

use nix::errno::Errno;

use super::explanation;
use crate::common::errno::minus_one;
use crate::common::refusal;

/// Executes a librdmacm call, and returns 0, or −1 with `errno` set. Explains a refusal that no
/// verb in the call has explained.
pub fn return_code(call: &str, execute: impl FnOnce() -> Result<(), Errno>) -> c_int {
    let before = refusal::count_of_thread();
    let Err(errno) = execute() else { return 0 };
    if refusal::count_of_thread() == before {
        match explanation::rule(call, errno) {
            Some(rule) => refusal::explain(call, &rule),
            None => refusal::explain_if_verbose(call, &errno.desc()),
        }
    }
    minus_one(errno as c_int)
}

/// Converts the return value of a verb that returns 0 or an error number.
pub fn check_errno(returned: c_int) -> Result<(), Errno> {
    if returned == 0 { Ok(()) } else { Err(Errno::from_raw(returned)) }
}

/// Converts the return value of a call that returns an object, or null with `errno` set.
pub fn check_pointer<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(Errno::last()) } else { Ok(object) }
}
