//! Converts the paths that programs know to paths in the tree of device files, and back.

use core::ffi::{CStr, c_char, c_long};
use core::ptr;

use super::tree::{self, DIGITS, NAME_BEGINS};
use crate::common::cancellation;

/// A path of a device file begins with one of these. Then comes `_verbs` or nothing, and then a
/// slash or the end of the path.
const PLACES: [&[u8]; 3] = [b"/sys/class/infiniband", b"/sys/devices/virtual/infiniband", b"/dev/infiniband"];
/// The character devices. Programs get the null device, because the verbs need no character device.
const DEVICES: [&CStr; 2] = [c"/dev/infiniband/rdma_cm", c"/dev/infiniband/uverbs0"];
const NULL_DEVICE: &CStr = c"/dev/null";
/// The size of the first page of memory, in bytes. The kernel refuses addresses there with EFAULT.
const FIRST_PAGE: usize = 4096;
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Returns whether a path names a file of the device.
///
/// # Safety
/// `path` is null, an address in the first page of memory, or the address of a C string.
#[inline]
pub(super) unsafe fn is_device_file(path: *const c_char) -> bool {
    // SAFETY: the caller upholds the same requirement (`# Safety` above). `PLACES` has no zero, so
    // `follows` reads no byte after a terminating zero.
    path.addr() >= FIRST_PAGE
        && PLACES.iter().any(|place| unsafe {
            follows(path, place).is_some_and(|rest| {
                let rest = follows(rest, b"_verbs").unwrap_or(rest);
                matches!(*rest as u8, 0 | b'/')
            })
        })
}

/// Returns the rest of a C string that begins with `start`.
///
/// # Safety
/// `path` is the address of a C string, and `start` has no zero.
unsafe fn follows(path: *const c_char, start: &[u8]) -> Option<*const c_char> {
    // SAFETY: all earlier bytes are equal to bytes of `start`, so none of them terminates the
    // string.
    start
        .iter()
        .enumerate()
        .all(|(at, &byte)| unsafe { *path.add(at) as u8 == byte })
        .then(|| path.wrapping_add(start.len()))
}

/// Returns whether a path names a character device.
///
/// # Safety
/// The requirement of [`is_device_file`].
pub(super) unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: a path of a file of the device is a C string.
    unsafe { is_device_file(path) && DEVICES.contains(&CStr::from_ptr(path)) }
}

/// Calls a function with a path. For a file of the device, the path is in the tree. For a character
/// device, it is the path of the null device.
///
/// # Safety
/// The requirement of [`is_device_file`].
#[inline]
pub(super) unsafe fn at_file<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe {
        match is_device_file(path) {
            false => call(path),
            true if is_device(path) && tree::root().is_some() => call(NULL_DEVICE.as_ptr()),
            true => in_tree(path, call),
        }
    }
}

/// As [`at_file`], but keeps the names of the character devices, because `call` returns names.
///
/// # Safety
/// The requirement of [`is_device_file`].
#[inline]
pub(super) unsafe fn at_name<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe { if is_device_file(path) { in_tree(path, call) } else { call(path) } }
}

/// # Safety
/// The requirement of [`is_device_file`].
pub(super) unsafe fn exists(path: *const c_char) -> bool {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe { at_name(path, |path| libc::access(path, libc::F_OK) == 0) }
}

/// # Safety
/// `path` is a C string.
#[cold]
unsafe fn in_tree<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let (within, Some(root)) = (unsafe { CStr::from_ptr(path) }.to_bytes_with_nul(), tree::root()) else {
        return call(path);
    };
    if within.windows(COUNTERS.len()).any(|window| window == COUNTERS) {
        cancellation::held_off(|| tree::write_counters(root));
    }
    let root = root.to_bytes();
    let mut buffer = [0u8; PATH_MAX];
    let Some(room) = buffer.get_mut(..root.len() + within.len()) else { return call(path) };
    room[..root.len()].copy_from_slice(root);
    room[root.len()..].copy_from_slice(within);
    call(buffer.as_ptr().cast())
}

const COUNTERS: &[u8] = b"hw_counters";

/// Returns the path that programs know for a path in a tree, or `None` for a path outside every
/// tree.
pub(super) fn outside_of_tree(path: &[u8]) -> Option<&[u8]> {
    let name = NAME_BEGINS.as_bytes();
    let at = path.windows(name.len()).position(|window| window == name)?;
    let (digits, rest) = path[at + name.len()..].split_at_checked(DIGITS)?;
    let is_root = path[..at].ends_with(b"/") && digits.iter().all(u8::is_ascii_hexdigit);
    (is_root && matches!(rest, [] | [b'/', ..])).then_some(if rest.is_empty() { b"/" } else { rest })
}

/// Replaces a path in a tree by the path that programs know. Returns its argument.
///
/// # Safety
/// `path` is null or the address of a C string that the caller may write.
pub(super) unsafe fn renamed(path: *mut c_char) -> *mut c_char {
    if !path.is_null() {
        // SAFETY: the caller upholds the same requirement (`# Safety` above). The new path is
        // shorter.
        unsafe {
            if let Some(outside) = outside_of_tree(CStr::from_ptr(path).to_bytes()) {
                ptr::copy(outside.as_ptr().cast(), path, outside.len());
                path.add(outside.len()).write(0);
            }
        }
    }
    path
}

/// Writes the target of a symbolic link to a buffer, and returns its length. A target longer than
/// the buffer is cut, as by readlink(2). `call` is the C library's function.
///
/// # Safety
/// `to` has `size` bytes that the caller may write, and `call` writes at most the number of bytes
/// in its argument.
pub(super) unsafe fn read_link(
    to: *mut c_char,
    size: usize,
    call: impl Fn(*mut c_char, usize) -> c_long,
) -> c_long {
    let len = call(to, size);
    match usize::try_from(len) {
        Err(_) => len,
        // SAFETY: `call` has written `bytes` bytes to `to`.
        Ok(bytes) if bytes < size => unsafe { renamed_bytes(to, bytes) as c_long },
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        Ok(_) => unsafe { read_long_link(to, size, call) },
    }
}

/// Does the same as [`read_link`] for a target that may be longer than the buffer. The path that
/// programs know is shorter, and may fit. The local buffer is too long for the stacks of signal
/// handlers, so the function is not inlined.
///
/// # Safety
/// The requirements of [`read_link`].
#[cold]
#[inline(never)]
unsafe fn read_long_link(
    to: *mut c_char,
    size: usize,
    call: impl Fn(*mut c_char, usize) -> c_long,
) -> c_long {
    let mut whole = [0 as c_char; PATH_MAX];
    let len = call(whole.as_mut_ptr(), PATH_MAX);
    let Ok(bytes) = usize::try_from(len) else { return len };
    // SAFETY: `call` has written `bytes` bytes. `copied` is at most the size of both buffers.
    unsafe {
        let copied = renamed_bytes(whole.as_mut_ptr(), bytes).min(size);
        ptr::copy_nonoverlapping(whole.as_ptr(), to, copied);
        copied as c_long
    }
}

/// Does the same as [`renamed`] for a path without a terminating zero. Returns the new length.
///
/// # Safety
/// `path` has `len` bytes that the caller may write.
unsafe fn renamed_bytes(path: *mut c_char, len: usize) -> usize {
    // SAFETY: the caller upholds the same requirement (`# Safety` above). The new path is not
    // longer.
    unsafe {
        let Some(outside) = outside_of_tree(core::slice::from_raw_parts(path.cast(), len)) else {
            return len;
        };
        let new = outside.len();
        ptr::copy(outside.as_ptr().cast(), path, new);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_end_at_a_slash() {
        for path in [
            c"/sys/class/infiniband",
            c"/sys/class/infiniband/",
            c"/sys/class/infiniband/mitra0",
            c"/sys/class/infiniband_verbs/abi_version",
            c"/sys/devices/virtual/infiniband/mitra0",
            c"/dev/infiniband/uverbs0",
        ] {
            // SAFETY: the path is a C string.
            assert!(unsafe { is_device_file(path.as_ptr()) }, "{path:?}");
        }
        for path in [
            c"",
            c"/",
            c"/sys/class/infinibandx",
            c"/sys/class/infiniband_verb",
            c"/dev/infini",
            c"sys/class/infiniband",
        ] {
            // SAFETY: the path is a C string.
            assert!(!unsafe { is_device_file(path.as_ptr()) }, "{path:?}");
        }
        // SAFETY: the address is in the first page.
        assert!(!unsafe { is_device_file(ptr::without_provenance(8)) });
    }

    #[test]
    fn paths_in_a_tree_are_named_as_outside() {
        let outside = |path: &str| {
            outside_of_tree(path.as_bytes()).map(|path| String::from_utf8_lossy(path).into_owned())
        };
        assert_eq!(outside("/run/mitra/device-files-0123456789abcdef/sys/x").as_deref(), Some("/sys/x"));
        assert_eq!(outside("/run/mitra/device-files-0123456789abcdef").as_deref(), Some("/"));
        for path in [
            "/sys/x",
            "/run/device-files-012345678",
            "/run/device-files-0123456789abcdefg/x",
            "/run/device-files-0123456789abcdeg/x",
        ] {
            assert_eq!(outside(path), None, "{path}");
        }
    }
}
