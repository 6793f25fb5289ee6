//! Files that the kernel provides for an RDMA device and that some programs look for. Overrides of the C library emulate them.
//!
//! - `/dev/infiniband/CHAR_DEVICE_NAME` is a character device to `stat` and `access`. UCX 1.13 ignores a device without one, and
//!   never opens it (`uct_ib_device_is_accessible` in its src/uct/ib/base/ib_md.c).
//! - `/sys/class/infiniband/DEVICE_NAME/ports/1/gid_attrs/types/INDEX` is readable. UCX assumes RoCE v1 if it is not
//!   (`uct_ib_device_query_gid_info` in ib_device.c), and then drops all datagrams of v2. `ndevs/INDEX` beside `types` contains the
//!   name of the network interface.
//! - `/sys/class/infiniband/DEVICE_NAME/device/net` is a directory that contains the name of the network interface. rdma-core's tests
//!   look there for an IP address.
//!
//! The functions call the C library first and emulate a file only if the C library does not find it.

use core::ffi::CStr;
use core::mem::zeroed;
use core::ptr;

use libc::{FILE, c_char, c_int, c_uint};

use self::tree::EmulatedFile;
use super::NextFunction;
use crate::common::errno::{minus_one, set_errno};

mod directories;
mod tree;

/// The device number of `uverbs0` (Documentation/admin-guide/devices.txt).
const DEVICE_NUMBER: libc::dev_t = libc::makedev(231, 192);
/// A character device, readable and writable by all users.
const DEVICE_MODE: libc::mode_t = libc::S_IFCHR | 0o666;

type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
type VersionedStat = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat) -> c_int;
type Open = unsafe extern "C-unwind" fn(*const c_char, c_int, libc::mode_t) -> c_int;
type StatX = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
type OpenFile = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut FILE;
type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;

// SAFETY, for all twelve: these are the types of stat(2), lstat(2), statx(2), access(2), open(2) and fopen(3), and of the functions
// behind `stat` before glibc 2.33. On 64-bit machines `struct stat` and `struct stat64` are the same, and a variadic argument of integer type is passed
// like a named one (System V ABI of x86-64, AAPCS64), so the variadic `open` has the type `Open`.
static STAT: NextFunction<Stat> = unsafe { NextFunction::new(c"stat") };
static STAT64: NextFunction<Stat> = unsafe { NextFunction::new(c"stat64") };
static LSTAT: NextFunction<Stat> = unsafe { NextFunction::new(c"lstat") };
static LSTAT64: NextFunction<Stat> = unsafe { NextFunction::new(c"lstat64") };
static STATX: NextFunction<StatX> = unsafe { NextFunction::new(c"statx") };
static FOPEN: NextFunction<OpenFile> = unsafe { NextFunction::new(c"fopen") };
static FOPEN64: NextFunction<OpenFile> = unsafe { NextFunction::new(c"fopen64") };
static XSTAT: NextFunction<VersionedStat> = unsafe { NextFunction::new(c"__xstat") };
static XSTAT64: NextFunction<VersionedStat> = unsafe { NextFunction::new(c"__xstat64") };
static ACCESS: NextFunction<Access> = unsafe { NextFunction::new(c"access") };
static OPEN: NextFunction<Open> = unsafe { NextFunction::new(c"open") };
static OPEN64: NextFunction<Open> = unsafe { NextFunction::new(c"open64") };

/// `stat(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { stat_result(STAT.get().map(|next| next(path, to)), path, to) }
}

/// `stat(2)`, as programs built with `_FILE_OFFSET_BITS=64` call it.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { stat_result(STAT64.get().map(|next| next(path, to)), path, to) }
}

/// `lstat(2)`. No emulated file is a symbolic link.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lstat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { stat_result(LSTAT.get().map(|next| next(path, to)), path, to) }
}

/// `lstat(2)`, as programs built with `_FILE_OFFSET_BITS=64` call it.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lstat64(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { stat_result(LSTAT64.get().map(|next| next(path, to)), path, to) }
}

/// `statx(2)`, which `ls` calls.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut libc::statx,
) -> c_int {
    // SAFETY: by the contract of this function.
    let result = unsafe { STATX.get().map(|next| next(dir, path, flags, mask, to)) };
    // SAFETY: `result` is the C library's result for `path`, and `errno` is unchanged since.
    let Some(file) = (unsafe { emulated_file(result, path) }) else {
        return result.unwrap_or_else(|| minus_one(libc::ENOSYS));
    };
    // SAFETY: `struct statx` consists of integers, for which zeros are valid.
    let mut attributes: libc::statx = unsafe { zeroed() };
    attributes.stx_mask = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_NLINK;
    attributes.stx_nlink = 1;
    attributes.stx_mode = mode_of(&file) as u16;
    if file == EmulatedFile::Device {
        (attributes.stx_rdev_major, attributes.stx_rdev_minor) =
            (libc::major(DEVICE_NUMBER), libc::minor(DEVICE_NUMBER));
    }
    // SAFETY: by the contract `to` is writable.
    unsafe { to.write(attributes) };
    0
}

/// `stat(2)`, as programs linked with a glibc before 2.33 call it.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { stat_result(XSTAT.get().map(|next| next(version, path, to)), path, to) }
}

/// `stat(2)`, as programs built with `_FILE_OFFSET_BITS=64` and linked with a glibc before 2.33 call it.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __xstat64(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { stat_result(XSTAT64.get().map(|next| next(version, path, to)), path, to) }
}

/// `access(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: by the contract of this function.
    let result = unsafe { ACCESS.get().map(|next| next(path, mode)) };
    // SAFETY: `result` is the C library's result for `path`, and `errno` is unchanged since.
    match unsafe { emulated_file(result, path) } {
        None => result.unwrap_or_else(|| minus_one(libc::ENOSYS)),
        Some(EmulatedFile::Device) if mode & libc::X_OK == 0 => 0,
        Some(EmulatedFile::Text(_)) if mode & (libc::X_OK | libc::W_OK) == 0 => 0,
        Some(EmulatedFile::Directory(_)) if mode & libc::W_OK == 0 => 0,
        Some(_) => minus_one(libc::EACCES),
    }
}

/// `open(2)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { open_result(OPEN.get().map(|next| next(path, flags, mode)), path, flags) }
}

/// `open(2)`, as programs built with `_FILE_OFFSET_BITS=64` call it.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: by the contract of this function.
    unsafe { open_result(OPEN64.get().map(|next| next(path, flags, mode)), path, flags) }
}

/// `fopen(3)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: by the contract of this function.
    unsafe { fopen_result(FOPEN.get().map(|next| next(path, mode)), path, mode) }
}

/// `fopen(3)`, as programs built with `_FILE_OFFSET_BITS=64` call it.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: by the contract of this function.
    unsafe { fopen_result(FOPEN64.get().map(|next| next(path, mode)), path, mode) }
}

/// Returns the C library's result of `fopen`, or, for an emulated text file, a stream from which its content is read.
///
/// # Safety
/// As for [`emulated_file`], and `mode` is a C string.
unsafe fn fopen_result(result: Option<*mut FILE>, path: *const c_char, mode: *const c_char) -> *mut FILE {
    let Some(stream) = result else {
        set_errno(libc::ENOSYS);
        return ptr::null_mut();
    };
    // SAFETY: by the contract of this function.
    let file = unsafe { emulated_file(Some(if stream.is_null() { -1 } else { 0 }), path) };
    let Some(EmulatedFile::Text(content)) = file else { return stream };
    // SAFETY: by the contract of this function.
    let letters = unsafe { CStr::from_ptr(mode) }.to_bytes();
    if letters.first() != Some(&b'r') || letters.contains(&b'+') {
        set_errno(libc::EACCES);
        return ptr::null_mut();
    }
    let descriptor = text_descriptor(&content, letters.contains(&b'e'));
    if descriptor < 0 {
        return ptr::null_mut();
    }
    // SAFETY: the descriptor is new and unknown to other code, and `mode` is a C string.
    unsafe {
        let stream = libc::fdopen(descriptor, mode);
        if stream.is_null() {
            libc::close(descriptor);
        }
        stream
    }
}

/// Returns the C library's result of `open`, or, for an emulated text file, a descriptor from which its content is read.
///
/// # Safety
/// As for [`emulated_file`].
unsafe fn open_result(result: Option<c_int>, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: by the contract of this function.
    let Some(EmulatedFile::Text(content)) = (unsafe { emulated_file(result, path) }) else {
        return result.unwrap_or_else(|| minus_one(libc::ENOSYS));
    };
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        return minus_one(libc::EACCES);
    }
    text_descriptor(&content, flags & libc::O_CLOEXEC != 0)
}

/// Returns a descriptor from which a text is read, or −1 with `errno`.
fn text_descriptor(content: &str, close_on_exec: bool) -> c_int {
    let flags = if close_on_exec { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: the name is a C string. The descriptor is new and unknown to other code, and the pointer and length are those of
    // `content`.
    unsafe {
        let file = libc::memfd_create(c"mitra-sysfs".as_ptr(), flags);
        if file >= 0 && libc::pwrite(file, content.as_ptr().cast(), content.len(), 0) < 0 {
            libc::close(file);
            return minus_one(libc::EIO);
        }
        file
    }
}

/// Returns the C library's result of `stat`, or fills in `to` for an emulated file and returns 0.
///
/// # Safety
/// As for [`emulated_file`], and `to` is writable.
unsafe fn stat_result(result: Option<c_int>, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: by the contract of this function.
    let Some(file) = (unsafe { emulated_file(result, path) }) else {
        return result.unwrap_or_else(|| minus_one(libc::ENOSYS));
    };
    // SAFETY: `struct stat` consists of integers, for which zeros are valid.
    let mut attributes: libc::stat = unsafe { zeroed() };
    attributes.st_nlink = 1;
    attributes.st_mode = mode_of(&file);
    if file == EmulatedFile::Device {
        attributes.st_rdev = DEVICE_NUMBER;
    }
    // SAFETY: by the contract `to` is writable.
    unsafe { to.write(attributes) };
    0
}

/// Returns the type and the permissions of an emulated file.
fn mode_of(file: &EmulatedFile) -> libc::mode_t {
    match file {
        EmulatedFile::Device => DEVICE_MODE,
        EmulatedFile::Text(_) => libc::S_IFREG | 0o444,
        EmulatedFile::Directory(_) => libc::S_IFDIR | 0o555,
    }
}

/// Returns the emulated file at `path`, if the C library did not find a file there. Keeps `errno` otherwise.
///
/// # Safety
/// `result` is the result of a call of the C library with `path`, or 0 or −1 as `path` was found or not, and `errno` is as that call left
/// it.
unsafe fn emulated_file(result: Option<c_int>, path: *const c_char) -> Option<EmulatedFile> {
    // SAFETY: `__errno_location` returns the calling thread's `errno`, which lives as long as the thread.
    let errno = unsafe { *libc::__errno_location() };
    // These errors mean that the kernel has read the whole path. After EFAULT the path is unreadable.
    if result != Some(-1) || !matches!(errno, libc::ENOENT | libc::ENOTDIR | libc::EACCES) {
        return None;
    }
    // SAFETY: the kernel has read the path up to its terminating zero, so it is a C string.
    let path = unsafe { CStr::from_ptr(path) }.to_str().ok()?;
    let found = tree::find(path);
    if found.is_none() {
        set_errno(errno);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
    }

    #[test]
    fn stat_and_access_find_the_character_device() {
        let path = c"/dev/infiniband/uverbs0".as_ptr();
        // `_STAT_VER` of bits/stat.h, until glibc 2.33.
        let version = if cfg!(target_arch = "x86_64") { 1 } else { 0 };
        let calls: [&dyn Fn(*mut libc::stat) -> c_int; 4] = [
            // SAFETY, for all four: `path` is a C string, and each call gets a local variable to write.
            &|found| unsafe { stat(path, found) },
            &|found| unsafe { stat64(path, found) },
            &|found| unsafe { __xstat(version, path, found) },
            &|found| unsafe { __xstat64(version, path, found) },
        ];
        for call in calls {
            // SAFETY: `struct stat` consists of integers, for which zeros are valid.
            let mut found: libc::stat = unsafe { zeroed() };
            assert_eq!(call(&raw mut found), 0);
            assert_eq!(found.st_mode & libc::S_IFMT, libc::S_IFCHR);
        }
        // SAFETY: `path` is a C string.
        unsafe {
            assert_eq!(access(path, libc::R_OK | libc::W_OK), 0);
            assert_eq!((access(path, libc::X_OK), errno()), (-1, libc::EACCES));
        }
    }

    #[test]
    fn gid_type_file_is_readable() {
        let path = c"/sys/class/infiniband/mitra0/ports/1/gid_attrs/types/0".as_ptr();
        // SAFETY: the paths are C strings, the descriptors belong to the test, and the buffers are local variables.
        unsafe {
            for open in [open, open64] {
                let file = open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
                let mut read = [0; 16];
                let length = libc::read(file, read.as_mut_ptr().cast(), read.len());
                assert_eq!(&read[..usize::try_from(length).expect("read succeeds")], b"RoCE v2\n");
                assert_eq!(libc::fcntl(file, libc::F_GETFD), libc::FD_CLOEXEC);
                assert_eq!(libc::close(file), 0);
                assert_eq!((open(path, libc::O_RDWR, 0), errno()), (-1, libc::EACCES));
                let other = c"/sys/class/infiniband/mitra0/ports/1/gid_attrs/types/2".as_ptr();
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
    fn network_device_is_readable() {
        let path = c"/sys/class/infiniband/mitra0/ports/1/gid_attrs/ndevs/1".as_ptr();
        let directory = c"/sys/class/infiniband/mitra0/device/net/".as_ptr();
        // SAFETY: the paths and modes are C strings, the streams belong to the test, and the buffers are local variables.
        unsafe {
            for fopen in [fopen, fopen64] {
                let stream = fopen(path, c"re".as_ptr());
                assert!(!stream.is_null());
                let mut read = [0u8; 16];
                assert_eq!(libc::fread(read.as_mut_ptr().cast(), 1, read.len(), stream), 3);
                assert_eq!(&read[..3], b"lo\n");
                assert_eq!(libc::fclose(stream), 0);
                assert!(fopen(path, c"r+".as_ptr()).is_null());
                assert_eq!(errno(), libc::EACCES);
            }
            let mut found: libc::stat = zeroed();
            for stat in [stat, lstat, stat64, lstat64] {
                assert_eq!(stat(directory, &raw mut found), 0);
                assert_eq!(found.st_mode & libc::S_IFMT, libc::S_IFDIR);
            }
            let mut extended: libc::statx = zeroed();
            assert_eq!(statx(libc::AT_FDCWD, directory, 0, libc::STATX_TYPE, &raw mut extended), 0);
            assert_eq!(u32::from(extended.stx_mode) & libc::S_IFMT, libc::S_IFDIR);
            let mounts = c"/proc/self/mounts".as_ptr();
            assert_eq!(statx(libc::AT_FDCWD, mounts, 0, libc::STATX_TYPE, &raw mut extended), 0);
            assert_eq!(u32::from(extended.stx_mode) & libc::S_IFMT, libc::S_IFREG);
            assert_eq!(access(directory, libc::R_OK | libc::X_OK), 0);
        }
    }

    #[test]
    fn open_passes_the_mode_of_a_new_file() {
        let dir = tempfile::tempdir().expect("the temporary directory is writable");
        let name = dir.path().join("file").into_os_string().into_string().expect("the path is UTF-8");
        let path = std::ffi::CString::new(name).expect("the path contains no zero byte");
        // SAFETY: the path is a C string, and the buffer is a local variable.
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
    fn other_files_and_errors_come_from_the_c_library() {
        // SAFETY: each path is a C string or an address at which nothing is mapped, which only the kernel reads.
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
