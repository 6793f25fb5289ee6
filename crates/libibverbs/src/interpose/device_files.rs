//! The files that the kernel provides for an RDMA device, in `/sys` and `/dev/infiniband`. Programs
//! and users look at them.
//!
//! The files are in a directory that Mitra makes, the [`tree`]. This module overrides each function
//! of the C library that takes a path. An override replaces the path of a file of the device by the
//! path in the tree ([`place`]), and calls the C library. If the result is a path in the tree, the
//! override replaces it by the path that programs know. Calls within the C library do not reach the
//! overrides, so `opendir`, `glob` and similar functions need overrides of their own.
//!
//! For any other path, an override only compares the first bytes before it calls the C library, so
//! `open` and `stat` stay async-signal-safe.

use core::ptr;

use libc::{DIR, FILE, c_char, c_int, c_long, c_uint, c_void, mode_t, size_t};

use self::place::{at_file, at_name, exists, is_device, is_device_file, read_link, renamed};
use crate::common::errno::set_errno;

pub(super) mod attributes;
mod place;
mod tree;
mod walks;

/// The value that a C function returns after an error.
trait Failure {
    const FAILURE: Self;
}

impl Failure for c_int {
    const FAILURE: c_int = -1;
}

// On 64-bit machines `ssize_t` is `c_long`.
impl Failure for c_long {
    const FAILURE: c_long = -1;
}

impl<T> Failure for *mut T {
    const FAILURE: *mut T = ptr::null_mut();
}

fn fail<R: Failure>(errno: c_int) -> R {
    set_errno(errno);
    R::FAILURE
}

/// The purpose for which a call opens a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    Read,
    /// Write a file, which must exist.
    Write,
    /// Write a file, and create a missing file.
    Create,
}

impl Intent {
    fn of_flags(flags: c_int) -> Intent {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        match flags & libc::O_CREAT != 0 {
            true => Intent::Create,
            false if writes => Intent::Write,
            false => Intent::Read,
        }
    }

    /// # Safety
    /// `mode` is a C string.
    unsafe fn of_mode(mode: *const c_char) -> Intent {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        let letters = unsafe { core::ffi::CStr::from_ptr(mode) }.to_bytes();
        match letters {
            [b'r', rest @ ..] if rest.contains(&b'+') => Intent::Write,
            [b'r', ..] => Intent::Read,
            _ => Intent::Create,
        }
    }
}

/// Returns whether the call is refused with EACCES, because the files of the device can only be
/// read.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn is_refused(path: *const c_char, intent: Intent) -> bool {
    // SAFETY, for all: the caller upholds the rules (`# Safety` above).
    match intent {
        Intent::Read => false,
        _ if !unsafe { is_device_file(path) } || unsafe { is_device(path) } => false,
        Intent::Write => unsafe { exists(path) },
        Intent::Create => true,
    }
}

/// Defines overrides that call the C library with the path that a function of [`place`] provides
/// (`by`), and apply `then` to the result. The arguments before the semicolon precede the path. An
/// override with an [`Intent`] fails with EACCES if `is_refused` says so. `$next` is the module of
/// the C library's functions.
macro_rules! path_functions {
    ($next:ident; $($name:ident($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*) -> $result:ty, by $by:ident
        $(, for $intent:expr)? $(, then $then:expr)?;)*) => {
        // On 64-bit machines, a function with 64 in its name has the same types as the function
        // without 64. A variadic argument of integer type is passed like a named one (System V ABI
        // of x86-64, AAPCS64).
        next_functions! { $next; $($name: unsafe extern "C-unwind" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;)* }
        $(
            /// # Safety
            /// The rules of the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
                let Some(next) = $next::$name.get() else { return fail(libc::ENOSYS) };
                // SAFETY, for all: the caller upholds the rules (`# Safety` above).
                $(let intent = $intent;
                if unsafe { is_refused(path, intent) } {
                    return fail(libc::EACCES);
                })?
                let result = unsafe { $by(path, |path| next($($before,)* path $(, $after)*)) };
                $(let result = unsafe { $then(result) };)?
                result
            }
        )*
    };
}

path_functions! {
    next_of_path;
    open(; flags: c_int, mode: mode_t) -> c_int, by at_file, for Intent::of_flags(flags);
    open64(; flags: c_int, mode: mode_t) -> c_int, by at_file, for Intent::of_flags(flags);
    openat(dir: c_int; flags: c_int, mode: mode_t) -> c_int, by at_file, for Intent::of_flags(flags);
    openat64(dir: c_int; flags: c_int, mode: mode_t) -> c_int, by at_file, for Intent::of_flags(flags);
    // Programs built with `_FORTIFY_SOURCE` call the names with underscores.
    __open_2(; flags: c_int) -> c_int, by at_file, for Intent::of_flags(flags);
    __open64_2(; flags: c_int) -> c_int, by at_file, for Intent::of_flags(flags);
    __openat_2(dir: c_int; flags: c_int) -> c_int, by at_file, for Intent::of_flags(flags);
    __openat64_2(dir: c_int; flags: c_int) -> c_int, by at_file, for Intent::of_flags(flags);
    creat(; mode: mode_t) -> c_int, by at_file, for Intent::Create;
    creat64(; mode: mode_t) -> c_int, by at_file, for Intent::Create;
    fopen(; mode: *const c_char) -> *mut FILE, by at_file, for unsafe { Intent::of_mode(mode) };
    fopen64(; mode: *const c_char) -> *mut FILE, by at_file, for unsafe { Intent::of_mode(mode) };
    freopen(; mode: *const c_char, stream: *mut FILE) -> *mut FILE, by at_file, for unsafe { Intent::of_mode(mode) };
    freopen64(; mode: *const c_char, stream: *mut FILE) -> *mut FILE, by at_file, for unsafe { Intent::of_mode(mode) };

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

    realpath(; to: *mut c_char) -> *mut c_char, by at_name, then renamed;
    __realpath_chk(; to: *mut c_char, room: size_t) -> *mut c_char, by at_name, then renamed;
    canonicalize_file_name(;) -> *mut c_char, by at_name, then renamed;
}

/// Defines overrides that write the target of a symbolic link to a buffer. `$room` is the
/// additional argument of the functions for `_FORTIFY_SOURCE`: the size of the buffer, as known to
/// the compiler.
macro_rules! link_functions {
    ($next:ident; $($name:ident($($before:ident: $before_type:ty),* $(; $room:ident)?);)*) => {
        next_functions! { $next; $($name: unsafe extern "C-unwind" fn($($before_type,)* *const c_char, *mut c_char, size_t $(, link_functions!(@type $room))?) -> c_long;)* }
        $(
            /// # Safety
            /// The rules of the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name(
                $($before: $before_type,)* path: *const c_char, to: *mut c_char, size: size_t $(, $room: size_t)?
            ) -> c_long {
                let Some(next) = $next::$name.get() else { return fail(libc::ENOSYS) };
                // SAFETY: the caller upholds the same requirement (`# Safety` above).
                unsafe {
                    at_name(path, |path| {
                        read_link(to, size, |buffer, size| {
                            $(let $room = if buffer == to { $room } else { size };)?
                            next($($before,)* path, buffer, size $(, $room)?)
                        })
                    })
                }
            }
        )*
    };
    (@type $room:ident) => { size_t };
}

link_functions! {
    next_of_link;
    readlink();
    readlinkat(dir: c_int);
    __readlink_chk(; room);
    __readlinkat_chk(dir: c_int; room);
}

/// Defines overrides that return the path of the working directory.
macro_rules! working_directory_functions {
    ($next:ident; $($name:ident($($argument:ident: $type:ty),*);)*) => {
        next_functions! { $next; $($name: unsafe extern "C-unwind" fn($($type),*) -> *mut c_char;)* }
        $(
            /// # Safety
            /// The rules of the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> *mut c_char {
                // SAFETY: the caller upholds the rules. The result is null or a C string of the
                // caller.
                $next::$name.get().map_or_else(|| fail(libc::ENOSYS), |next| unsafe { renamed(next($($argument),*)) })
            }
        )*
    };
}

working_directory_functions! {
    next_of_working_directory;
    getcwd(to: *mut c_char, size: size_t);
    __getcwd_chk(to: *mut c_char, size: size_t, room: size_t);
    get_current_dir_name();
}

pub(super) fn look_up() {
    next_of_path::look_up();
    next_of_link::look_up();
    next_of_working_directory::look_up();
    walks::look_up();
}

#[cfg(test)]
mod tests;
