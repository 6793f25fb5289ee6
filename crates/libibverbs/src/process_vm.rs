//! Copies from and to memory that may not be there, by the kernel: slow, and the same on every processor.

use core::ptr;
use core::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, PoisonError};

use libc::{c_ulong, iovec, pid_t, process_vm_readv, process_vm_writev};
use mitra_verbs::Unmapped;

/// Copies out of lent memory.
///
/// # Safety
/// The caller may read what is at `from`, if anything is.
pub(crate) unsafe fn read(from: *const u8, out: &mut [u8]) -> Result<(), Unmapped> {
    let (first, rest) = out.split_at_mut(out.len().min(8));
    // SAFETY: the parts of `out` are ours to write; reading is the caller's word.
    unsafe {
        transfer(process_vm_readv, first.as_mut_ptr(), from, first.len())?;
        fence(Ordering::Acquire);
        transfer(process_vm_readv, rest.as_mut_ptr(), from.wrapping_add(first.len()), rest.len())
    }
}

/// Copies into lent memory; the last bytes last.
///
/// # Safety
/// The caller may write what is at `to`, if anything is.
pub(crate) unsafe fn write(to: *mut u8, data: &[u8]) -> Result<(), Unmapped> {
    // The last aligned word, or what there is of it.
    let end = to.addr().wrapping_add(data.len());
    let tail = if end.is_multiple_of(8) { 8 } else { end % 8 }.min(data.len());
    let (most, last) = data.split_at(data.len() - tail);
    // SAFETY: writing at `to` is the caller's word; the kernel only reads our side.
    unsafe {
        transfer(process_vm_writev, most.as_ptr().cast_mut(), to, most.len())?;
        fence(Ordering::Release);
        transfer(process_vm_writev, last.as_ptr().cast_mut(), to.wrapping_add(most.len()), tail)
    }
}

/// Replaces a word if it is `current`; the inner result is the old word. Atomic among those who come here, not to a
/// processor's own instructions: no way to have those survive is known for every processor.
///
/// # Safety
/// As [`write`].
pub(crate) unsafe fn compare_exchange(
    word: *mut u64,
    current: u64,
    new: u64,
) -> Result<Result<u64, u64>, Unmapped> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut old = [0; 8];
    // SAFETY: the caller's word.
    unsafe { read(word.cast(), &mut old)? };
    let old = u64::from_ne_bytes(old);
    if old != current {
        return Ok(Err(old));
    }
    // SAFETY: the caller's word.
    unsafe { write(word.cast(), &new.to_ne_bytes())? };
    Ok(Ok(old))
}

type Call = unsafe extern "C" fn(pid_t, *const iovec, c_ulong, *const iovec, c_ulong, c_ulong) -> isize;

/// # Safety
/// `ours` is `len` bytes of ours, to be written if the call does that; `lent` is the caller's word.
unsafe fn transfer(call: Call, ours: *mut u8, lent: *const u8, len: usize) -> Result<(), Unmapped> {
    if len == 0 {
        return Ok(());
    }
    let side = |base: *const u8| iovec { iov_base: base.cast_mut().cast(), iov_len: len };
    let (local, remote) = (side(ours), side(lent));
    let pid = std::process::id() as pid_t;
    // SAFETY: one vector each, `ours` by the caller; the kernel checks the lent side as another process's.
    let done = unsafe { call(pid, ptr::from_ref(&local), 1, ptr::from_ref(&remote), 1, 0) };
    if done == len as isize { Ok(()) } else { Err(Unmapped) }
}
