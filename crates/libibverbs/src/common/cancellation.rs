//! The calls in which `pthread_cancel(3)` ends a thread: those that wait for an event, as on a
//! kernel's device, where they are a read(2).
//!
//! glibc ends a thread by unwinding its stack. So a frame that holds something to drop must not be
//! on the stack then, and the functions on the way from the program to this module are
//! `extern "C-unwind"`: Rust aborts the process when an unwinding leaves an `extern "C"` function.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::AtomicU32;

use nix::errno::Errno;

unsafe extern "C-unwind" {
    safe fn pthread_testcancel();
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Calls a function in which the thread is not cancelled. For what calls functions of the C library
/// that are cancellation points inside ([`without_cancellation`](crate::without_cancellation)
/// replaces the others).
pub(crate) fn held_off<T>(function: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: `before` is valid for writing, and the second call may pass null.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let result = function();
    // SAFETY: as above. The call ends no thread whose cancellation is deferred, as it is in every
    // thread that may call the C library.
    unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
    result
}

/// A futex, and the value with which a thread sleeps on it.
pub(crate) type Futex = (*const AtomicU32, u32);

/// A futex that nothing wakes: for a sleep that never ends, as that in a read(2) of a descriptor
/// that another thread has closed.
pub(crate) const NEVER_WOKEN: Futex = {
    static FUTEX: AtomicU32 = AtomicU32::new(0);
    (&raw const FUTEX, 0)
};

/// Ends the thread if it is cancelled and its state allows that.
pub(crate) fn test() {
    pthread_testcancel();
}

/// Sleeps while a futex has a value, until it is woken. It may also return without a cause, and
/// `futex` may dangle: only the kernel reads it.
///
/// The kernel goes on with the sleep after a signal without a handler, or with `SA_RESTART`, as it
/// does in a read(2).
///
/// # Errors
/// `EINTR` after a handler without `SA_RESTART`.
// The sleep is a call that does not unwind, except by cancellation. In a caller with landing pads
// that would end the process.
#[inline(never)]
pub(crate) fn sleep(futex: *const AtomicU32, value: u32) -> Result<(), Errno> {
    let mut before = 0;
    // SAFETY: `before` is valid for writing, and the second call may pass null. Between the calls
    // the thread can be ended at any instruction: it only makes a system call, which changes
    // nothing, and no frame of this library has anything to drop.
    let slept = unsafe {
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &raw mut before);
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        let slept = libc::syscall(libc::SYS_futex, futex, wait, value, ptr::null::<libc::timespec>());
        pthread_setcanceltype(before, ptr::null_mut());
        slept
    };
    if slept < 0 && Errno::last() == Errno::EINTR { Err(Errno::EINTR) } else { Ok(()) }
}
