//! `pthread_sigmask` and `sigprocmask`: no thread blocks the signals of its own faults.
//!
//! Threads that block all signals are common, and they drive the NIC when they poll. But the kernel ends a process that
//! faults while it blocks the signal (sigprocmask(2)), whoever has a handler. So these two stay unblocked; what else is
//! asked is done.

use core::ptr;

use libc::{SIG_BLOCK, SIG_SETMASK, SIGBUS, SIGSEGV, c_int, sigset_t};

use super::Next;

pub(super) type Call = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// The C library's own, which blocks what it is told to.
// SAFETY: pthread_sigmask(3) has this type.
pub(super) static PTHREAD_SIGMASK: Next<Call> = unsafe { Next::new(c"pthread_sigmask") };
// SAFETY: sigprocmask(2) has this type.
static SIGPROCMASK: Next<Call> = unsafe { Next::new(c"sigprocmask") };

/// `pthread_sigmask(3)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let Some(next) = PTHREAD_SIGMASK.get() else { return libc::ENOSYS };
    // SAFETY: the caller's word.
    unsafe { but_for_faults(next, how, set, old) }
}

/// `sigprocmask(2)`.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let Some(next) = SIGPROCMASK.get() else { return -1 };
    // SAFETY: the caller's word.
    unsafe { but_for_faults(next, how, set, old) }
}

/// # Safety
/// As `sigprocmask(2)`.
unsafe fn but_for_faults(next: Call, how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: it is null or a set, by the contract.
    let mut set = unsafe { set.as_ref() }.copied();
    if let Some(set) = &mut set
        && matches!(how, SIG_BLOCK | SIG_SETMASK)
    {
        for signal in [SIGSEGV, SIGBUS] {
            // SAFETY: the set is ours.
            unsafe { libc::sigdelset(set, signal) };
        }
    }
    // SAFETY: `old` is the caller's word.
    unsafe { next(how, set.as_ref().map_or(ptr::null(), ptr::from_ref), old) }
}
