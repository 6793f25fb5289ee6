//! Cancellation of threads. `pthread_cancel(3)` ends a thread in a call that waits for an event.
//! With an RDMA device of the kernel, such a call is a read(2).
//!
//! glibc ends a thread by unwinding its stack. No frame on the stack may then hold a value to drop.
//! The functions on the way from the program to this module are `extern "C-unwind"`, because Rust
//! aborts the process when an unwinding leaves an `extern "C"` function.

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

/// Calls a function without cancelling the thread, for functions of the C library with cancellation
/// points inside. [`without_cancellation`](crate::without_cancellation) replaces other functions.
pub(crate) fn held_off<T>(function: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: `before` is valid for writing, and the second call may pass null.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let result = function();
    // SAFETY: as above. Every thread that may call the C library has deferred cancellation, so the
    // call ends no thread.
    unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
    result
}

/// A futex and a value. A thread sleeps on the futex while the futex has the value.
pub(crate) type Futex = (*const AtomicU32, u32);

/// A futex for a sleep that never ends, like a read(2) of a descriptor that another thread has
/// closed.
pub(crate) const NEVER_WOKEN: Futex = {
    static FUTEX: AtomicU32 = AtomicU32::new(0);
    (&raw const FUTEX, 0)
};

pub(crate) fn test() {
    pthread_testcancel();
}

/// Sleeps on a futex while the futex has a value. The sleep may also end without a cause. `futex`
/// may dangle, because only the kernel reads the futex.
///
/// # Errors
/// `EINTR` after a signal handler without `SA_RESTART`. As in a read(2), the sleep goes on after
/// other signals.
// Not inlined, because an inlining caller may have landing pads. A cancellation that unwinds
// through landing pads ends the process.
#[inline(never)]
pub(crate) fn sleep(futex: *const AtomicU32, value: u32) -> Result<(), Errno> {
    let mut before = 0;
    // SAFETY: `before` is valid for writing, and the second call may pass null. A cancellation may
    // end the thread at any instruction between the calls. The system call changes nothing, and no
    // frame of this library has a value to drop.
    let slept = unsafe {
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &raw mut before);
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        let slept = libc::syscall(libc::SYS_futex, futex, wait, value, ptr::null::<libc::timespec>());
        pthread_setcanceltype(before, ptr::null_mut());
        slept
    };
    if slept < 0 && Errno::last() == Errno::EINTR { Err(Errno::EINTR) } else { Ok(()) }
}
