//! `opendir`, `readdir` and `closedir` of emulated directories.
//!
//! The stream of an emulated directory is a stream of the root directory, so that the functions that are not overridden work on it. Only
//! `readdir` returns other entries.

use core::mem::zeroed;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use libc::{DIR, c_char, c_int, dirent, dirent64};

use super::emulated_file;
use super::tree::EmulatedFile;
use crate::common::errno::{minus_one, set_errno};
use crate::common::lock::lock;
use crate::interpose::NextFunction;

type OpenDir = unsafe extern "C" fn(*const c_char) -> *mut DIR;
type ReadDir = unsafe extern "C" fn(*mut DIR) -> *mut dirent;
type ReadDir64 = unsafe extern "C" fn(*mut DIR) -> *mut dirent64;
type CloseDir = unsafe extern "C" fn(*mut DIR) -> c_int;

// SAFETY, for all four: these are the types of opendir(3), readdir(3) and closedir(3).
static OPENDIR: NextFunction<OpenDir> = unsafe { NextFunction::new(c"opendir") };
static READDIR: NextFunction<ReadDir> = unsafe { NextFunction::new(c"readdir") };
static READDIR64: NextFunction<ReadDir64> = unsafe { NextFunction::new(c"readdir64") };
static CLOSEDIR: NextFunction<CloseDir> = unsafe { NextFunction::new(c"closedir") };

/// An open stream of an emulated directory.
struct Listing {
    stream: usize,
    names: Vec<String>,
    /// The number of entries that were read.
    read: usize,
    /// The entry that was read last. On 64-bit machines `dirent` is the same structure.
    entry: Box<dirent64>,
}

/// The open streams.
static LISTINGS: Mutex<Vec<Listing>> = Mutex::new(Vec::new());
/// The number of open streams. While it is 0, which is usual, no call takes the lock.
static OPEN_LISTINGS: AtomicUsize = AtomicUsize::new(0);

impl Listing {
    /// Returns the next entry, or null at the end.
    fn next(&mut self) -> *mut dirent64 {
        let Some(name) = self.names.get(self.read) else { return core::ptr::null_mut() };
        self.read += 1;
        // SAFETY: the structure consists of integers and an array of integers, for which zeros are valid.
        *self.entry = unsafe { zeroed() };
        self.entry.d_ino = self.read as u64;
        self.entry.d_off = self.read as i64;
        self.entry.d_reclen = size_of::<dirent64>() as u16;
        self.entry.d_type = libc::DT_DIR;
        // The last byte stays zero.
        let room = self.entry.d_name.len() - 1;
        for (to, byte) in self.entry.d_name[..room].iter_mut().zip(name.bytes()) {
            *to = byte as c_char;
        }
        &raw mut *self.entry
    }
}

/// Returns the next entry of a stream if it is one of an emulated directory.
fn next_entry(stream: *mut DIR) -> Option<*mut dirent64> {
    if OPEN_LISTINGS.load(Ordering::Acquire) == 0 {
        return None;
    }
    lock(&LISTINGS).iter_mut().find(|listing| listing.stream == stream as usize).map(Listing::next)
}

/// `opendir(3)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    let Some(next) = OPENDIR.get() else {
        set_errno(libc::ENOSYS);
        return core::ptr::null_mut();
    };
    // SAFETY: by the contract of this function.
    let stream = unsafe { next(path) };
    let result = if stream.is_null() { -1 } else { 0 };
    // SAFETY: `result` tells whether the C library has opened `path`, and `errno` is unchanged since.
    let Some(EmulatedFile::Directory(names)) = (unsafe { emulated_file(Some(result), path) }) else {
        return stream;
    };
    // SAFETY: the path is a C string.
    let stream = unsafe { next(c"/".as_ptr()) };
    if !stream.is_null() {
        let names = [".", ".."].map(str::to_owned).into_iter().chain(names).collect();
        // SAFETY: the structure consists of integers and an array of integers, for which zeros are valid.
        let entry = Box::new(unsafe { zeroed() });
        lock(&LISTINGS).push(Listing { stream: stream as usize, names, read: 0, entry });
        OPEN_LISTINGS.fetch_add(1, Ordering::Release);
    }
    stream
}

/// `readdir(3)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir(stream: *mut DIR) -> *mut dirent {
    match next_entry(stream) {
        Some(entry) => entry.cast(),
        // SAFETY: by the contract of this function.
        None => READDIR.get().map_or(core::ptr::null_mut(), |next| unsafe { next(stream) }),
    }
}

/// `readdir(3)`, as programs built with `_FILE_OFFSET_BITS=64` call it.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir64(stream: *mut DIR) -> *mut dirent64 {
    match next_entry(stream) {
        Some(entry) => entry,
        // SAFETY: by the contract of this function.
        None => READDIR64.get().map_or(core::ptr::null_mut(), |next| unsafe { next(stream) }),
    }
}

/// `closedir(3)`.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closedir(stream: *mut DIR) -> c_int {
    if OPEN_LISTINGS.load(Ordering::Acquire) > 0 {
        let mut listings = lock(&LISTINGS);
        if let Some(at) = listings.iter().position(|listing| listing.stream == stream as usize) {
            listings.swap_remove(at);
            OPEN_LISTINGS.fetch_sub(1, Ordering::Release);
        }
    }
    // SAFETY: by the contract of this function.
    CLOSEDIR.get().map_or_else(|| minus_one(libc::ENOSYS), |next| unsafe { next(stream) })
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;

    use super::*;

    #[test]
    fn network_device_is_listed() {
        // SAFETY: the paths are C strings, each stream is open while it is used, and an entry's name is a C string.
        unsafe {
            for path in
                [c"/sys/class/infiniband/mitra0/device/net", c"/sys/class/infiniband/mitra0/device/net/"]
            {
                let stream = opendir(path.as_ptr());
                assert!(!stream.is_null());
                let mut names = Vec::new();
                while let Some(entry) = readdir(stream).as_ref() {
                    names.push(CStr::from_ptr(entry.d_name.as_ptr()).to_owned());
                }
                assert_eq!(names, [c".".to_owned(), c"..".to_owned(), c"lo".to_owned()]);
                assert!(readdir64(stream).is_null());
                assert_eq!(closedir(stream), 0);
            }
            let real = opendir(c"/proc/self".as_ptr());
            assert!(!real.is_null() && !readdir(real).is_null() && !readdir64(real).is_null());
            assert_eq!(closedir(real), 0);
            assert!(opendir(c"/sys/class/infiniband/mitra0/ports/1/gid_attrs/types/0".as_ptr()).is_null());
            assert!(opendir(c"/sys/class/infiniband/mitra0/device/other".as_ptr()).is_null());
        }
    }
}
