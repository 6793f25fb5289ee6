//! `pthread_sigmask` and `sigprocmask`: keep SIGSEGV and SIGBUS unblocked in every thread.
//!
//! Threads of the program drive the NIC when they poll, and many programs block all signals in such
//! threads. The kernel kills a process that faults while it blocks the signal, even if a handler is
//! installed (sigprocmask(2)). These functions therefore remove the two signals from every set that
//! is to be blocked.

use core::ptr;

use libc::{SIG_BLOCK, SIG_SETMASK, SIGBUS, SIGSEGV, c_int, sigset_t};

use super::NextFunction;

pub(super) type SetMask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// The C library's function, which blocks every signal in the set.
// SAFETY: `SetMask` is the type of pthread_sigmask(3).
pub(super) static PTHREAD_SIGMASK: NextFunction<SetMask> = unsafe { NextFunction::new(c"pthread_sigmask") };
// SAFETY: `SetMask` is the type of sigprocmask(2).
static SIGPROCMASK: NextFunction<SetMask> = unsafe { NextFunction::new(c"sigprocmask") };

/// # Safety
/// The rules of pthread_sigmask(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let Some(next) = PTHREAD_SIGMASK.get() else { return libc::ENOSYS };
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe { set_mask_except_faults(next, how, set, old) }
}

/// # Safety
/// The rules of sigprocmask(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let Some(next) = SIGPROCMASK.get() else { return -1 };
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe { set_mask_except_faults(next, how, set, old) }
}

/// # Safety
/// `set` and `old` are null or valid.
unsafe fn set_mask_except_faults(
    next: SetMask,
    how: c_int,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let mut set = unsafe { set.as_ref() }.copied();
    if let Some(set) = &mut set
        && matches!(how, SIG_BLOCK | SIG_SETMASK)
    {
        for signal in [SIGSEGV, SIGBUS] {
            // SAFETY: `set` is a local copy of an initialised set.
            unsafe { libc::sigdelset(set, signal) };
        }
    }
    // SAFETY: the set is null or a local variable, and the caller passes null or a valid `old`.
    unsafe { next(how, set.as_ref().map_or(ptr::null(), ptr::from_ref), old) }
}
