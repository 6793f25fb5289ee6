//! `stat` and `access` of the device's file: there is none, and UCX takes no device without one.
//!
//! UCX 1.13 wants `/dev/infiniband/DEV_NAME` to be a character device that it may read and write
//! (`uct_ib_device_is_accessible` in its src/uct/ib/base/ib_md.c); it never opens it. The C library is always asked
//! first, and only where it refuses the path of our device does a file stand in there.

use core::ffi::CStr;
use core::mem::zeroed;

use libc::{c_char, c_int};

use super::Next;
use crate::calls::device::DEV_NAME;
use crate::calls::error::minus_one;

const DIRECTORY: &[u8] = b"/dev/infiniband/";

/// As the kernel numbers `uverbs` devices (Documentation/admin-guide/devices.txt).
const NUMBER: libc::dev_t = libc::makedev(231, 192);
/// Everybody may read and write, nobody may execute.
const MODE: libc::mode_t = libc::S_IFCHR | 0o666;

type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
type VersionedStat = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat) -> c_int;
type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;

// SAFETY, of all five: the types of stat(2) and access(2), and of what `stat` called until glibc 2.33; `struct stat` and
// `struct stat64` are one on 64-bit machines.
static STAT: Next<Stat> = unsafe { Next::new(c"stat") };
static STAT64: Next<Stat> = unsafe { Next::new(c"stat64") };
static XSTAT: Next<VersionedStat> = unsafe { Next::new(c"__xstat") };
static XSTAT64: Next<VersionedStat> = unsafe { Next::new(c"__xstat64") };
static ACCESS: Next<Access> = unsafe { Next::new(c"access") };

/// `stat(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { look(STAT.get().map(|next| next(path, to)), path, to) }
}

/// `stat(2)`, as programs built with `_FILE_OFFSET_BITS=64` call it.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { look(STAT64.get().map(|next| next(path, to)), path, to) }
}

/// `stat(2)`, as programs linked with a glibc before 2.33 call it.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { look(XSTAT.get().map(|next| next(version, path, to)), path, to) }
}

/// Both of these.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat64(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { look(XSTAT64.get().map(|next| next(version, path, to)), path, to) }
}

/// `access(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let answer = unsafe { ACCESS.get().map(|next| next(path, mode)) };
    // SAFETY: `refused_ours` asks whether the path was readable before it reads it.
    if !unsafe { refused_ours(answer, path) } {
        return answer.unwrap_or_else(|| minus_one(libc::ENOSYS));
    }
    if mode & libc::X_OK != 0 { minus_one(libc::EACCES) } else { 0 }
}

/// What the C library answered; of our device's file, if it refused that, what a real one's would be.
///
/// # Safety
/// `answer` is the C library's to `path`, and `to` has room.
unsafe fn look(answer: Option<c_int>, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise.
    if !unsafe { refused_ours(answer, path) } {
        return answer.unwrap_or_else(|| minus_one(libc::ENOSYS));
    }
    // SAFETY: integers.
    let mut found: libc::stat = unsafe { zeroed() };
    found.st_mode = MODE;
    found.st_rdev = NUMBER;
    found.st_nlink = 1;
    // SAFETY: the caller's promise.
    unsafe { to.write(found) };
    0
}

/// Whether the C library refused the path of our device's file.
///
/// # Safety
/// `answer` is the C library's to `path`, and `errno` its.
unsafe fn refused_ours(answer: Option<c_int>, path: *const c_char) -> bool {
    // SAFETY: `errno` of the calling thread is always there.
    let why = unsafe { *libc::__errno_location() };
    // With EFAULT the kernel could not read the path; with these it has read it.
    if answer != Some(-1) || !matches!(why, libc::ENOENT | libc::ENOTDIR | libc::EACCES) {
        return false;
    }
    // SAFETY: a string that the kernel has read to its end.
    let path = unsafe { CStr::from_ptr(path) };
    path.to_bytes().strip_prefix(DIRECTORY) == Some(DEV_NAME.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
    }

    #[test]
    fn the_device_has_a_file_to_those_who_look() {
        let path = c"/dev/infiniband/uverbs0".as_ptr();
        // `_STAT_VER` of bits/stat.h, until glibc 2.33.
        let version = if cfg!(target_arch = "x86_64") { 1 } else { 0 };
        let calls: [&dyn Fn(*mut libc::stat) -> c_int; 4] = [
            // SAFETY, of all four: a string, and room for what is found.
            &|found| unsafe { stat(path, found) },
            &|found| unsafe { stat64(path, found) },
            &|found| unsafe { __xstat(version, path, found) },
            &|found| unsafe { __xstat64(version, path, found) },
        ];
        for call in calls {
            // SAFETY: integers.
            let mut found: libc::stat = unsafe { zeroed() };
            assert_eq!(call(&raw mut found), 0);
            assert_eq!(found.st_mode & libc::S_IFMT, libc::S_IFCHR);
        }
        // SAFETY: a string.
        unsafe {
            assert_eq!(access(path, libc::R_OK | libc::W_OK), 0);
            assert_eq!((access(path, libc::X_OK), errno()), (-1, libc::EACCES));
        }
    }

    #[test]
    fn all_else_is_as_the_c_library_says() {
        // SAFETY: strings or an address that the kernel finds bad, and room for what is found.
        unsafe {
            let mut found: libc::stat = zeroed();
            assert_eq!(stat(c"/dev/null".as_ptr(), &raw mut found), 0);
            assert_eq!(found.st_rdev, libc::makedev(1, 3));
            assert_eq!(
                (stat(c"/dev/infiniband/uverbs1".as_ptr(), &raw mut found), errno()),
                (-1, libc::ENOENT)
            );
            assert_eq!((access(c"/dev/infiniband/uverbs0/x".as_ptr(), 0), errno()), (-1, libc::ENOENT));
            assert_eq!((access(c"/dev/null/uverbs0".as_ptr(), 0), errno()), (-1, libc::ENOTDIR));
            assert_eq!((stat(core::ptr::without_provenance(8), &raw mut found), errno()), (-1, libc::EFAULT));
            assert_eq!((access(core::ptr::without_provenance(8), 0), errno()), (-1, libc::EFAULT));
        }
    }
}
