//! The files that the kernel provides for an RDMA device, in `/sys` and `/dev/infiniband`. Programs and users look at them.
//!
//! The files stand in a directory of Mitra's ([`tree`]). Each function of the C library that takes a path is overridden here: it replaces the path of a
//! file of the device by that of the file in the tree ([`place`]), and calls the C library. A program that has opened a directory then reads it without
//! these functions. Results that are paths in the tree are replaced by those that programs know. Calls within the C library do not come here,
//! so `opendir`, `glob` and their like are overridden as `open` is.
//!
//! For any other path, a function only compares the first bytes before it calls the C library. So `open`, `stat` and their like stay
//! async-signal-safe after the first call of each, which looks the function of the C library up.

use core::ptr;

use libc::{DIR, FILE, c_char, c_int, c_long, c_uint, c_void, mode_t, size_t};

use self::place::{at_file, at_name, is_device, is_device_file, renamed, renamed_bytes};
use super::NextFunction;
use crate::common::errno::set_errno;

pub(super) mod attributes;
mod place;
mod tree;
mod walks;

/// What a function returns after an error.
trait Failure {
    const FAILURE: Self;
}

impl Failure for c_int {
    const FAILURE: c_int = -1;
}

// `ssize_t` is the same type on 64-bit machines.
impl Failure for c_long {
    const FAILURE: c_long = -1;
}

impl<T> Failure for *mut T {
    const FAILURE: *mut T = ptr::null_mut();
}

/// Sets `errno` and returns the result of a function that fails.
fn fail<R: Failure>(errno: c_int) -> R {
    set_errno(errno);
    R::FAILURE
}

/// Defines functions of the C library that pass a path on by a function of [`place`], and return what `then` makes of the result. The arguments
/// before a semicolon come before the path. A function that `reads` says not to read only fails with EACCES for a file of the tree.
macro_rules! path_functions {
    ($($name:ident($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*) -> $result:ty, by $by:ident
        $(, reads $reads:expr)? $(, then $then:expr)?;)*) => {$(
        #[doc = concat!("The C library's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
            // SAFETY: this is the type of the C library's function. On 64-bit machines the names with 64 stand for the same types, and a variadic
            // argument of integer type is passed like a named one (System V ABI of x86-64, AAPCS64).
            static NEXT: NextFunction<
                unsafe extern "C-unwind" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result,
            > = unsafe { NextFunction::new(c_name(concat!(stringify!($name), "\0"))) };
            let Some(next) = NEXT.get() else { return fail(libc::ENOSYS) };
            // SAFETY, for all: by the contract of this function.
            $(if unsafe { is_device_file(path) && !is_device(path) } && !$reads {
                return fail(libc::EACCES);
            })?
            let result = unsafe { $by(path, |path| next($($before,)* path $(, $after)*)) };
            $(let result = unsafe { $then(result) };)?
            result
        }
    )*};
}

const fn c_name(name: &'static str) -> &'static core::ffi::CStr {
    match core::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with its only zero"),
    }
}

fn flags_read(flags: c_int) -> bool {
    flags & libc::O_ACCMODE == libc::O_RDONLY && flags & (libc::O_CREAT | libc::O_TRUNC) == 0
}

/// # Safety
/// `mode` is a C string.
unsafe fn mode_reads(mode: *const c_char) -> bool {
    // SAFETY: by the contract of this function.
    let letters = unsafe { core::ffi::CStr::from_ptr(mode) }.to_bytes();
    letters.first() == Some(&b'r') && !letters.contains(&b'+')
}

path_functions! {
    open(; flags: c_int, mode: mode_t) -> c_int, by at_file, reads flags_read(flags);
    open64(; flags: c_int, mode: mode_t) -> c_int, by at_file, reads flags_read(flags);
    openat(dir: c_int; flags: c_int, mode: mode_t) -> c_int, by at_file, reads flags_read(flags);
    openat64(dir: c_int; flags: c_int, mode: mode_t) -> c_int, by at_file, reads flags_read(flags);
    // Programs built with `_FORTIFY_SOURCE` call the names with underscores.
    __open_2(; flags: c_int) -> c_int, by at_file, reads flags_read(flags);
    __open64_2(; flags: c_int) -> c_int, by at_file, reads flags_read(flags);
    __openat_2(dir: c_int; flags: c_int) -> c_int, by at_file, reads flags_read(flags);
    __openat64_2(dir: c_int; flags: c_int) -> c_int, by at_file, reads flags_read(flags);
    creat(; mode: mode_t) -> c_int, by at_file, reads false;
    creat64(; mode: mode_t) -> c_int, by at_file, reads false;
    fopen(; mode: *const c_char) -> *mut FILE, by at_file, reads unsafe { mode_reads(mode) };
    fopen64(; mode: *const c_char) -> *mut FILE, by at_file, reads unsafe { mode_reads(mode) };
    freopen(; mode: *const c_char, stream: *mut FILE) -> *mut FILE, by at_file, reads unsafe { mode_reads(mode) };
    freopen64(; mode: *const c_char, stream: *mut FILE) -> *mut FILE, by at_file, reads unsafe { mode_reads(mode) };

    stat(; to: *mut c_void) -> c_int, by at_file;
    stat64(; to: *mut c_void) -> c_int, by at_file;
    lstat(; to: *mut c_void) -> c_int, by at_file;
    lstat64(; to: *mut c_void) -> c_int, by at_file;
    fstatat(dir: c_int; to: *mut c_void, flags: c_int) -> c_int, by at_file;
    fstatat64(dir: c_int; to: *mut c_void, flags: c_int) -> c_int, by at_file;
    statx(dir: c_int; flags: c_int, mask: c_uint, to: *mut c_void) -> c_int, by at_file;
    // Programs linked with a glibc before 2.33 call these.
    __xstat(version: c_int; to: *mut c_void) -> c_int, by at_file;
    __xstat64(version: c_int; to: *mut c_void) -> c_int, by at_file;
    __lxstat(version: c_int; to: *mut c_void) -> c_int, by at_file;
    __lxstat64(version: c_int; to: *mut c_void) -> c_int, by at_file;
    __fxstatat(version: c_int, dir: c_int; to: *mut c_void, flags: c_int) -> c_int, by at_file;
    __fxstatat64(version: c_int, dir: c_int; to: *mut c_void, flags: c_int) -> c_int, by at_file;
    statfs(; to: *mut c_void) -> c_int, by at_file;
    statfs64(; to: *mut c_void) -> c_int, by at_file;
    statvfs(; to: *mut c_void) -> c_int, by at_file;
    statvfs64(; to: *mut c_void) -> c_int, by at_file;
    pathconf(; name: c_int) -> c_long, by at_file;

    access(; mode: c_int) -> c_int, by at_file;
    eaccess(; mode: c_int) -> c_int, by at_file;
    euidaccess(; mode: c_int) -> c_int, by at_file;
    faccessat(dir: c_int; mode: c_int, flags: c_int) -> c_int, by at_file;

    // `ls -l` asks for access control lists.
    getxattr(; name: *const c_char, to: *mut c_void, size: size_t) -> c_long, by at_file;
    lgetxattr(; name: *const c_char, to: *mut c_void, size: size_t) -> c_long, by at_file;
    listxattr(; to: *mut c_char, size: size_t) -> c_long, by at_file;
    llistxattr(; to: *mut c_char, size: size_t) -> c_long, by at_file;

    opendir(;) -> *mut DIR, by at_name;
    scandir(; list: *mut c_void, select: *mut c_void, compare: *mut c_void) -> c_int, by at_name;
    scandir64(; list: *mut c_void, select: *mut c_void, compare: *mut c_void) -> c_int, by at_name;
    scandirat(dir: c_int; list: *mut c_void, select: *mut c_void, compare: *mut c_void) -> c_int, by at_name;
    scandirat64(dir: c_int; list: *mut c_void, select: *mut c_void, compare: *mut c_void) -> c_int, by at_name;
    chdir(;) -> c_int, by at_name;
    inotify_add_watch(notifier: c_int; mask: u32) -> c_int, by at_name;

    readlink(; to: *mut c_char, size: size_t) -> c_long, by at_name, then |result| renamed_bytes(to, result);
    readlinkat(dir: c_int; to: *mut c_char, size: size_t) -> c_long, by at_name, then |result| renamed_bytes(to, result);
    __readlink_chk(; to: *mut c_char, size: size_t, room: size_t) -> c_long, by at_name,
        then |result| renamed_bytes(to, result);
    __readlinkat_chk(dir: c_int; to: *mut c_char, size: size_t, room: size_t) -> c_long, by at_name,
        then |result| renamed_bytes(to, result);
    realpath(; to: *mut c_char) -> *mut c_char, by at_name, then renamed;
    __realpath_chk(; to: *mut c_char, room: size_t) -> *mut c_char, by at_name, then renamed;
    canonicalize_file_name(;) -> *mut c_char, by at_name, then renamed;
}

/// Defines functions of the C library that return the path of the working directory.
macro_rules! working_directory_functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("The C library's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> *mut c_char {
            // SAFETY: this is the type of the C library's function.
            static NEXT: NextFunction<unsafe extern "C-unwind" fn($($type),*) -> *mut c_char> =
                unsafe { NextFunction::new(c_name(concat!(stringify!($name), "\0"))) };
            // SAFETY: by the contract of this function. The result is null or a C string of the caller's.
            NEXT.get().map_or_else(|| fail(libc::ENOSYS), |next| unsafe { renamed(next($($argument),*)) })
        }
    )*};
}

working_directory_functions! {
    getcwd(to: *mut c_char, size: size_t);
    __getcwd_chk(to: *mut c_char, size: size_t, room: size_t);
    get_current_dir_name();
}

#[cfg(test)]
mod tests;
