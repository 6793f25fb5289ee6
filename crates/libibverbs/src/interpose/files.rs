//! Files of the device that programs look for by themselves: there are none, and here they stand in.
//!
//! - `/dev/infiniband/CHAR_DEVICE_NAME` is a character device to `stat` and `access`: UCX 1.13 takes no other, and never opens it
//!   (`uct_ib_device_is_accessible` in its src/uct/ib/base/ib_md.c).
//! - `/sys/class/infiniband/DEVICE_NAME/ports/1/gid_attrs/types/0` can be read: UCX takes a device for one of RoCE v1 if it cannot
//!   (`uct_ib_device_query_gid_info` in ib_device.c), and drops every datagram of v2.
//!
//! The C library is always asked first: only where it finds nothing does a file of ours stand in.

use core::ffi::CStr;
use core::mem::zeroed;

use libc::{c_char, c_int};

use super::Next;
use crate::calls::device::{CHAR_DEVICE_NAME, DEVICE_NAME};
use crate::common::errno::minus_one;

/// A file that stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum File {
    /// The device.
    Device,
    /// The type of the only GID.
    GidType,
}

/// What the kernel writes there (`gid_attr_show_type` in drivers/infiniband/core/sysfs.c).
const ROCE_V2: &[u8] = b"RoCE v2\n";

/// As the kernel numbers `uverbs` devices (Documentation/admin-guide/devices.txt).
const NUMBER: libc::dev_t = libc::makedev(231, 192);
/// Everybody may read and write, nobody may execute.
const DEVICE_MODE: libc::mode_t = libc::S_IFCHR | 0o666;

type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
type VersionedStat = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat) -> c_int;
type Open = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int;
type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;

// SAFETY, of all: the types of stat(2), access(2) and open(2), and of what `stat` called until glibc 2.33. `struct stat` and
// `struct stat64` are one on 64-bit machines; and there, the optional argument of `open` is passed as if it were not
// optional (the System V ABI of x86-64, AAPCS64).
static STAT: Next<Stat> = unsafe { Next::new(c"stat") };
static STAT64: Next<Stat> = unsafe { Next::new(c"stat64") };
static XSTAT: Next<VersionedStat> = unsafe { Next::new(c"__xstat") };
static XSTAT64: Next<VersionedStat> = unsafe { Next::new(c"__xstat64") };
static ACCESS: Next<Access> = unsafe { Next::new(c"access") };
static OPEN: Next<Open> = unsafe { Next::new(c"open") };
static OPEN64: Next<Open> = unsafe { Next::new(c"open64") };

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
    // SAFETY: that was its answer.
    match unsafe { stands_in(answer, path) } {
        None => answer.unwrap_or_else(|| minus_one(libc::ENOSYS)),
        Some(File::Device) if mode & libc::X_OK == 0 => 0,
        Some(File::GidType) if mode & (libc::X_OK | libc::W_OK) == 0 => 0,
        Some(_) => minus_one(libc::EACCES),
    }
}

/// `open(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { descriptor(OPEN.get().map(|next| next(path, flags, mode)), path, flags) }
}

/// `open(2)`, as programs built with `_FILE_OFFSET_BITS=64` call it.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { descriptor(OPEN64.get().map(|next| next(path, flags, mode)), path, flags) }
}

/// What the C library answered; if it refused the type of our GID, a descriptor from which that is read.
///
/// # Safety
/// `answer` is the C library's to `path`.
unsafe fn descriptor(answer: Option<c_int>, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { stands_in(answer, path) } != Some(File::GidType) {
        return answer.unwrap_or_else(|| minus_one(libc::ENOSYS));
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        return minus_one(libc::EACCES);
    }
    let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: a name that ends in a zero; a descriptor of our own, and the bytes to write to it.
    unsafe {
        let file = libc::memfd_create(c"gid_type".as_ptr(), close_on_exec);
        if file >= 0 && libc::pwrite(file, ROCE_V2.as_ptr().cast(), ROCE_V2.len(), 0) < 0 {
            libc::close(file);
            return minus_one(libc::EIO);
        }
        file
    }
}

/// What the C library answered; if it refused a file of ours, what a real one's would be.
///
/// # Safety
/// `answer` is the C library's to `path`, and `to` has room.
unsafe fn look(answer: Option<c_int>, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise.
    let Some(file) = (unsafe { stands_in(answer, path) }) else {
        return answer.unwrap_or_else(|| minus_one(libc::ENOSYS));
    };
    // SAFETY: integers.
    let mut found: libc::stat = unsafe { zeroed() };
    found.st_nlink = 1;
    match file {
        File::Device => {
            found.st_mode = DEVICE_MODE;
            found.st_rdev = NUMBER;
        }
        File::GidType => found.st_mode = libc::S_IFREG | 0o444,
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(found) };
    0
}

/// The file of ours that the C library refused, if it is one.
///
/// # Safety
/// `answer` is the C library's to `path`, and `errno` its.
unsafe fn stands_in(answer: Option<c_int>, path: *const c_char) -> Option<File> {
    // SAFETY: `errno` of the calling thread is always there.
    let why = unsafe { *libc::__errno_location() };
    // With EFAULT the kernel could not read the path; with these it has read it.
    if answer != Some(-1) || !matches!(why, libc::ENOENT | libc::ENOTDIR | libc::EACCES) {
        return None;
    }
    // SAFETY: a string that the kernel has read to its end.
    let path = unsafe { CStr::from_ptr(path) }.to_str().ok()?;
    if path.strip_prefix("/dev/infiniband/") == Some(CHAR_DEVICE_NAME) {
        return Some(File::Device);
    }
    let rest = path.strip_prefix("/sys/class/infiniband/")?.strip_prefix(DEVICE_NAME)?;
    (rest == "/ports/1/gid_attrs/types/0").then_some(File::GidType)
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
    fn the_type_of_the_gid_can_be_read() {
        let path = c"/sys/class/infiniband/mitra0/ports/1/gid_attrs/types/0".as_ptr();
        // SAFETY: strings, descriptors of our own, and room for what is read.
        unsafe {
            for open in [open, open64] {
                let file = open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
                let mut read = [0; 16];
                let length = libc::read(file, read.as_mut_ptr().cast(), read.len());
                assert_eq!(&read[..usize::try_from(length).expect("a length")], b"RoCE v2\n");
                assert_eq!(libc::fcntl(file, libc::F_GETFD), libc::FD_CLOEXEC);
                assert_eq!(libc::close(file), 0);
                assert_eq!((open(path, libc::O_RDWR, 0), errno()), (-1, libc::EACCES));
                let other = c"/sys/class/infiniband/mitra0/ports/1/gid_attrs/types/1".as_ptr();
                assert_eq!((open(other, libc::O_RDONLY, 0), errno()), (-1, libc::ENOENT));
            }
            let mut found: libc::stat = zeroed();
            assert_eq!(stat(path, &raw mut found), 0);
            assert_eq!(found.st_mode & libc::S_IFMT, libc::S_IFREG);
            assert_eq!(access(path, libc::R_OK), 0);
            assert_eq!((access(path, libc::W_OK), errno()), (-1, libc::EACCES));
        }
    }

    #[test]
    fn a_file_is_made_with_the_mode_that_was_asked_for() {
        let dir = tempfile::tempdir().expect("can make a directory");
        let name = dir.path().join("file").into_os_string().into_string().expect("UTF-8");
        let path = std::ffi::CString::new(name).expect("no zero in it");
        // SAFETY: a string, and room for what is found.
        unsafe {
            let file = open(path.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o640);
            assert!(file >= 0);
            libc::close(file);
            let mut found: libc::stat = zeroed();
            assert_eq!(stat(path.as_ptr(), &raw mut found), 0);
            assert_eq!(found.st_mode & 0o700, 0o600);
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
