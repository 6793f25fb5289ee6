//! System calls without cancellation points.
//!
//! In C, a verb other than a wait is no cancellation point: a thread that is cancelled inside the
//! verb ends later. A cancellation in read(2) or a similar function of the C library would unwind
//! the stack through frames that hold locks. The functions below therefore replace the C library's
//! functions in this library, including the standard library and other crates. The assembly binds
//! the names inside this library, and hides the names from programs and other libraries. The
//! binding costs the data path nothing.

use std::arch::global_asm;
use std::ffi::{c_int, c_long};
use std::ptr;

/// Defines functions that return −1 with `errno` after an error, as in the C library.
macro_rules! system_calls {
    ($($name:literal $function:ident($($parameter:ident: $type:ty),*) = $number:ident [$($argument:expr),*];)*) => {$(
        unsafe extern "C" fn $function($($parameter: $type),*) -> Word {
            // SAFETY: the caller passes the arguments of the C library's function of this name.
            unsafe { libc::syscall(libc::$number, $($argument),*) }
        }
        bind!($name, $function);
    )*};
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

/// Binds a name to a function within this library.
macro_rules! bind {
    ($name:literal, $function:ident) => {
        global_asm!(
            concat!(".pushsection .text.mitra_", $name, ",\"ax\",@progbits"),
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ":"),
            ".cfi_startproc",
            jump!(),
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            function = sym $function,
        );
    };
}

/// An argument or a result that is passed on unchanged.
type Word = c_long;

const NOTHING: Word = 0;
/// The length of the kernel's signal set, in bytes.
const SIGNALS_LEN: Word = 8;

system_calls! {
    "accept4" accept4(fd: c_int, address: Word, len: Word, flags: c_int) = SYS_accept4 [fd, address, len, flags];
    "close" close(fd: c_int) = SYS_close [fd];
    "connect" connect(fd: c_int, address: Word, len: u32) = SYS_connect [fd, address, len];
    "epoll_wait" epoll_wait(fd: c_int, events: Word, count: c_int, timeout: c_int) = SYS_epoll_pwait [fd, events, count, timeout, NOTHING, SIGNALS_LEN];
    "getrandom" getrandom(bytes: Word, len: Word, flags: u32) = SYS_getrandom [bytes, len, flags];
    "pwrite" pwrite(fd: c_int, bytes: Word, len: Word, offset: Word) = SYS_pwrite64 [fd, bytes, len, offset];
    "read" read(fd: c_int, bytes: Word, len: Word) = SYS_read [fd, bytes, len];
    "recv" recv(fd: c_int, bytes: Word, len: Word, flags: c_int) = SYS_recvfrom [fd, bytes, len, flags, NOTHING, NOTHING];
    "recvfrom" recvfrom(fd: c_int, bytes: Word, len: Word, flags: c_int, address: Word, address_len: Word) = SYS_recvfrom [fd, bytes, len, flags, address, address_len];
    "recvmsg" recvmsg(fd: c_int, message: Word, flags: c_int) = SYS_recvmsg [fd, message, flags];
    "send" send(fd: c_int, bytes: Word, len: Word, flags: c_int) = SYS_sendto [fd, bytes, len, flags, NOTHING, NOTHING];
    "sendmmsg" sendmmsg(fd: c_int, messages: Word, count: u32, flags: c_int) = SYS_sendmmsg [fd, messages, count, flags];
    "sendmsg" sendmsg(fd: c_int, message: Word, flags: c_int) = SYS_sendmsg [fd, message, flags];
    "sendto" sendto(fd: c_int, bytes: Word, len: Word, flags: c_int, address: Word, address_len: u32) = SYS_sendto [fd, bytes, len, flags, address, address_len];
    "write" write(fd: c_int, bytes: Word, len: Word) = SYS_write [fd, bytes, len];
    "writev" writev(fd: c_int, parts: Word, count: c_int) = SYS_writev [fd, parts, count];
}

/// The kernel overwrites the timeout with the remaining time. The C library's function does not, so
/// the kernel gets a copy.
unsafe extern "C" fn ppoll(fds: Word, count: u64, timeout: *const libc::timespec, mask: Word) -> c_int {
    // SAFETY: the caller passes null or a valid time. `left` is a local variable.
    unsafe {
        let mut left = timeout.as_ref().copied();
        let left = left.as_mut().map_or(ptr::null_mut(), |left| &raw mut *left);
        libc::syscall(libc::SYS_ppoll, fds, count, left, mask, SIGNALS_LEN) as c_int
    }
}

/// aarch64 has no system call poll(2).
unsafe extern "C" fn poll(fds: Word, count: u64, milliseconds: c_int) -> c_int {
    let ms = libc::c_long::from(milliseconds);
    let timeout = libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    // SAFETY: the caller passes valid descriptors, and the time is null or a local variable.
    unsafe { ppoll(fds, count, if ms < 0 { ptr::null() } else { &raw const timeout }, NOTHING) }
}

/// Returns the error number, in contrast to the functions above.
unsafe extern "C" fn clock_nanosleep(clock: c_int, flags: c_int, time: Word, left: Word) -> c_int {
    // SAFETY: the caller passes the arguments of clock_nanosleep(2).
    match unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, time, left) } {
        0 => 0,
        _ => nix::errno::Errno::last_raw(),
    }
}

bind!("ppoll", ppoll);
bind!("poll", poll);
bind!("clock_nanosleep", clock_nanosleep);
