//! Copies from and to memory that may be unmapped, by `process_vm_readv` and `process_vm_writev`,
//! which then return EFAULT. These copies work on every architecture, but are slower than the
//! copies of `copy_nofault`.

use core::ptr;
use core::sync::atomic::{Ordering, fence};
use std::sync::Mutex;

use libc::{c_ulong, iovec, pid_t, process_vm_readv, process_vm_writev};
use mitra_verbs::Unmapped;

use crate::common::lock::lock;

/// These copies need no signal handler.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn install_handler() {}

/// # Errors
/// Part of the memory is unmapped or not readable.
///
/// # Safety
/// The caller may read what is mapped at `from`, if anything is.
pub(crate) unsafe fn read(from: *const u8, out: &mut [u8]) -> Result<(), Unmapped> {
    let (first, rest) = out.split_at_mut(out.len().min(8));
    // SAFETY: `first` and `rest` are parts of an exclusive borrow, and the caller may read at
    // `from`.
    unsafe {
        transfer(process_vm_readv, first.as_mut_ptr(), from, first.len())?;
        fence(Ordering::Acquire);
        transfer(process_vm_readv, rest.as_mut_ptr(), from.wrapping_add(first.len()), rest.len())
    }
}

/// A second system call writes the last word, after all other bytes.
///
/// # Errors
/// Part of the memory is unmapped or not writable.
///
/// # Safety
/// The caller may write what is mapped at `to`, if anything is.
pub(crate) unsafe fn write(to: *mut u8, data: &[u8]) -> Result<(), Unmapped> {
    // The part of `data` in the last aligned 8-byte word of the destination.
    let end = to.addr().wrapping_add(data.len());
    let tail = if end.is_multiple_of(8) { 8 } else { end % 8 }.min(data.len());
    let (first, last) = data.split_at(data.len() - tail);
    // SAFETY: `process_vm_writev` only reads the local side, in spite of the cast to `*mut`. The
    // caller may write at `to`.
    unsafe {
        transfer(process_vm_writev, first.as_ptr().cast_mut(), to, first.len())?;
        fence(Ordering::Release);
        transfer(process_vm_writev, last.as_ptr().cast_mut(), to.wrapping_add(first.len()), tail)
    }
}

/// Replaces the word by `new` if it equals `current`. The inner result contains the old word and is
/// `Ok` if the word was replaced.
///
/// The exchange is atomic only with respect to other calls of this function. An atomic instruction
/// of the processor would fault on unmapped memory, and recovery from a fault takes code for each
/// architecture.
///
/// # Errors
/// The word is unmapped or not writable.
///
/// # Safety
/// As for [`write`].
pub(crate) unsafe fn compare_exchange(
    word: *mut u64,
    current: u64,
    new: u64,
) -> Result<Result<u64, u64>, Unmapped> {
    static EXCHANGE_LOCK: Mutex<()> = Mutex::new(());
    let _guard = lock(&EXCHANGE_LOCK);
    let mut old = [0; 8];
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe { read(word.cast(), &mut old)? };
    let old = u64::from_ne_bytes(old);
    if old != current {
        return Ok(Err(old));
    }
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe { write(word.cast(), &new.to_ne_bytes())? };
    Ok(Ok(old))
}

type Transfer = unsafe extern "C" fn(pid_t, *const iovec, c_ulong, *const iovec, c_ulong, c_ulong) -> isize;

/// # Safety
/// `local` points to `len` bytes of this process, writable if `call` is `process_vm_readv`. The
/// caller may access `foreign` in the direction of `call`.
unsafe fn transfer(call: Transfer, local: *mut u8, foreign: *const u8, len: usize) -> Result<(), Unmapped> {
    if len == 0 {
        return Ok(());
    }
    let vector = |base: *const u8| iovec { iov_base: base.cast_mut().cast(), iov_len: len };
    let (local, foreign) = (vector(local), vector(foreign));
    let pid = std::process::id() as pid_t;
    // SAFETY: each vector describes one range. The caller passes a valid local range. The kernel
    // checks the foreign range.
    let copied = unsafe { call(pid, ptr::from_ref(&local), 1, ptr::from_ref(&foreign), 1, 0) };
    if copied == len as isize { Ok(()) } else { Err(Unmapped) }
}
