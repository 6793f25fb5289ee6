//! Unpredictable numbers.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns 64 unpredictable bits. Not a cancellation point, in contrast to the C library's
/// `getrandom(2)`.
///
/// # Errors
/// The error of `getrandom(2)`, which does not fail once the kernel has booted.
pub fn random_u64() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
