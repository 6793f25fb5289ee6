//! Functions that walk through directories inside the C library.

use core::cell::Cell;
use core::ffi::CStr;
use core::ptr;
use std::ffi::CString;

use libc::{c_char, c_int, c_void, size_t};

use super::place::{at_name, is_device_file, outside_of_tree};
use super::{fail, lstat, opendir, stat};
use crate::common::cancellation;

/// `struct FTW`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Position {
    base: c_int,
    level: c_int,
}

/// The function that `nftw` calls for each file.
type Visit = unsafe extern "C-unwind" fn(*const c_char, *const c_void, c_int, *mut Position) -> c_int;
/// The function that `ftw` calls for each file.
type ShortVisit = unsafe extern "C-unwind" fn(*const c_char, *const c_void, c_int) -> c_int;

thread_local! {
    /// The program's functions for the walks that this thread is making.
    static VISIT: Cell<Option<Visit>> = const { Cell::new(None) };
    static SHORT_VISIT: Cell<Option<ShortVisit>> = const { Cell::new(None) };
}

/// Returns the length of the tree's root in a path, in bytes, or 0 for a path outside the tree.
///
/// # Safety
/// `path` is a C string.
unsafe fn root_len(path: *const c_char) -> usize {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let inside = unsafe { CStr::from_ptr(path) }.to_bytes();
    outside_of_tree(inside).map_or(0, |outside| inside.len() - outside.len())
}

unsafe extern "C-unwind" fn visit(
    path: *const c_char,
    stat: *const c_void,
    kind: c_int,
    at: *mut Position,
) -> c_int {
    let Some(visit) = VISIT.get() else { return -1 };
    // SAFETY: the C library passes the arguments that nftw(3) describes.
    unsafe {
        let root = root_len(path);
        let mut outside = Position { base: (*at).base - root as c_int, ..*at };
        visit(path.add(root), stat, kind, &raw mut outside)
    }
}

unsafe extern "C-unwind" fn short_visit(path: *const c_char, stat: *const c_void, kind: c_int) -> c_int {
    let Some(visit) = SHORT_VISIT.get() else { return -1 };
    // SAFETY: the C library passes the arguments that ftw(3) describes.
    unsafe { visit(path.add(root_len(path)), stat, kind) }
}

/// Defines overrides that call a function of the program for each file.
macro_rules! visiting_functions {
    ($next:ident; $($name:ident($function:ty, $descriptors:ident: $int:ty $(, $flags:ident: $flags_type:ty)?) through $through:ident, $current:ident;)*) => {
        next_functions! { $next; $($name: unsafe extern "C-unwind" fn(*const c_char, $function, $int $(, $flags_type)?) -> c_int;)* }
        $(
        /// # Safety
        /// The rules of the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char, function: $function, $descriptors: $int $(, $flags: $flags_type)?
        ) -> c_int {
            let Some(next) = $next::$name.get() else { return fail(libc::ENOSYS) };
            // SAFETY, for all: the caller upholds the rules (`# Safety` above).
            if !unsafe { is_device_file(path) } {
                return unsafe { next(path, function, $descriptors $(, $flags)?) };
            }
            // The program's function may itself start a walk.
            let outer = $current.replace(Some(function));
            let result = unsafe { at_name(path, |path| next(path, $through, $descriptors $(, $flags)?)) };
            $current.set(outer);
            result
        }
        )*
    };
}

visiting_functions! {
    next_of_visit;
    nftw(Visit, descriptors: c_int, flags: c_int) through visit, VISIT;
    nftw64(Visit, descriptors: c_int, flags: c_int) through visit, VISIT;
    ftw(ShortVisit, descriptors: c_int) through short_visit, SHORT_VISIT;
    ftw64(ShortVisit, descriptors: c_int) through short_visit, SHORT_VISIT;
}

/// `glob_t`, and `glob64_t`, which is the same on 64-bit machines.
#[repr(C)]
#[derive(Debug)]
pub struct Matches {
    path_count: size_t,
    paths: *mut *mut c_char,
    offset: size_t,
    flags: c_int,
    /// `glob` calls this function and the next four if `GLOB_ALTDIRFUNC` is set.
    closedir: *const c_void,
    readdir: *const c_void,
    opendir: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

/// `GLOB_ALTDIRFUNC` of glob.h.
const GLOB_ALTDIRFUNC: c_int = 1 << 9;

/// Defines overrides that return the paths that match a pattern. For a pattern of the device's
/// files, the C library calls this library's functions to find files.
macro_rules! matching_functions {
    ($next:ident; $($name:ident;)*) => {
        next_functions! { $next; $($name: unsafe extern "C-unwind" fn(*const c_char, c_int, *mut c_void, *mut Matches) -> c_int;)* }
        $(
        /// # Safety
        /// The rules of the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            pattern: *const c_char, flags: c_int, on_error: *mut c_void, matches: *mut Matches,
        ) -> c_int {
            let Some(next) = $next::$name.get() else { return libc::GLOB_ABORTED };
            // SAFETY, for all: the caller upholds the rules (`# Safety` above). The functions have
            // the types of the fields in C.
            if flags & GLOB_ALTDIRFUNC != 0 || !unsafe { is_device_file(pattern) } {
                return unsafe { next(pattern, flags, on_error, matches) };
            }
            unsafe {
                (*matches).closedir = libc::closedir as *const c_void;
                (*matches).readdir = libc::readdir as *const c_void;
                (*matches).opendir = opendir as *const c_void;
                (*matches).lstat = lstat as *const c_void;
                (*matches).stat = stat as *const c_void;
                next(pattern, flags | GLOB_ALTDIRFUNC, on_error, matches)
            }
        }
        )*
    };
}

matching_functions! {
    next_of_match;
    glob;
    glob64;
}

/// Defines overrides that open a walk. The program sees the paths that the entries have in the
/// tree.
macro_rules! hierarchy_functions {
    ($next:ident; $($name:ident;)*) => {
        next_functions! { $next; $($name: unsafe extern "C-unwind" fn(*const *mut c_char, c_int, *mut c_void) -> *mut c_void;)* }
        $(
        /// # Safety
        /// The rules of the C library's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            paths: *const *mut c_char, options: c_int, compare: *mut c_void,
        ) -> *mut c_void {
            let Some(next) = $next::$name.get() else { return fail(libc::ENOSYS) };
            // A cancellation inside the C library would unwind the stack through the vectors.
            // SAFETY, for all: `paths` is an array of C strings that ends with null (fts(3)). The C
            // library copies them.
            cancellation::held_off(|| unsafe {
                let given = (0..).map(|at| *paths.add(at)).take_while(|path| !path.is_null());
                let owned: Vec<CString> =
                    given.map(|path| at_name(path, |path| CStr::from_ptr(path).to_owned())).collect();
                let found: Vec<*mut c_char> =
                    owned.iter().map(|path| path.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect();
                next(found.as_ptr(), options, compare)
            })
        }
        )*
    };
}

hierarchy_functions! {
    next_of_hierarchy;
    fts_open;
    fts64_open;
}

pub(super) fn look_up() {
    next_of_visit::look_up();
    next_of_match::look_up();
    next_of_hierarchy::look_up();
}
