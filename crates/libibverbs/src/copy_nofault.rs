//! Copies from and to memory that may not be there.
//!
//! The instructions that touch it stand together, in assembly, between two labels. They use no stack and change no
//! register that a caller counts on. So when one of them faults, the signal's handler can send the thread on to
//! the end of the routine, which then says that the memory is gone. All other faults are the program's own: they
//! are passed on as if we were not there ([`signals`]).

use core::arch::global_asm;
use std::sync::Once;

use libc::{REG_RIP, c_int, c_void, siginfo_t, ucontext_t};
use mitra_verbs::Unmapped;

use crate::interpose::signals;

/// Moves the next bytes through a register of their size.
macro_rules! step {
    ($bytes:literal, $register:literal) => {
        concat!(
            "mov ",
            $register,
            ", [rsi]\n",
            "mov [rdi], ",
            $register,
            "\n",
            "add rsi, ",
            $bytes,
            "\n",
            "add rdi, ",
            $bytes,
            "\n",
            "sub rdx, ",
            $bytes,
            "\n",
        )
    };
}

/// If that brings the lent address (rcx) to a multiple of twice the size, and there are as many bytes.
macro_rules! align {
    ($bytes:literal, $register:literal) => {
        concat!(
            "test cl, ",
            $bytes,
            "\n",
            "jz 2f\n",
            "cmp rdx, ",
            $bytes,
            "\n",
            "jb 2f\n",
            step!($bytes, $register),
            "add rcx, ",
            $bytes,
            "\n",
            "2:\n",
        )
    };
}

/// If there are as many bytes; fewer than twice as many are left.
macro_rules! finish {
    ($bytes:literal, $register:literal) => {
        concat!("test dl, ", $bytes, "\n", "jz 2f\n", step!($bytes, $register), "2:\n")
    };
}

// Bytes ascend, and x86-64 keeps loads in order and stores in order (Intel SDM volume 3, memory ordering): who sees
// the last byte sees all. On the lent side every access is aligned to its size, so that no word of the program's is
// torn. Blocks go by 16 bytes, which may be stored as two halves in either order: the last bytes are therefore never
// left to them.
global_asm!(
    ".pushsection .text.mitra_lent, \"ax\", @progbits",
    ".balign 64",
    ".hidden mitra_lent_begin, mitra_lent_copy, mitra_lent_compare_exchange, mitra_lent_end, mitra_lent_gone",
    ".globl mitra_lent_begin, mitra_lent_copy, mitra_lent_compare_exchange, mitra_lent_end, mitra_lent_gone",
    ".type mitra_lent_copy, @function",
    ".type mitra_lent_compare_exchange, @function",
    "mitra_lent_begin:",
    // (to: rdi, from: rsi, length: rdx, whichever of the two is lent: rcx) -> whether it is gone: eax
    "mitra_lent_copy:",
    ".cfi_startproc",
    align!("1", "al"),
    align!("2", "ax"),
    align!("4", "eax"),
    align!("8", "rax"),
    "cmp rdx, 64",
    "jbe 4f",
    "3:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "ja 3b",
    "4:",
    "cmp rdx, 8",
    "jb 5f",
    step!("8", "rax"),
    "jmp 4b",
    "5:",
    finish!("4", "eax"),
    finish!("2", "ax"),
    finish!("1", "al"),
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size mitra_lent_copy, . - mitra_lent_copy",
    // (word: rdi, current: rsi, new: rdx, where to put the old word: rcx) -> whether it is gone: eax
    "mitra_lent_compare_exchange:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov [rcx], rax",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size mitra_lent_compare_exchange, . - mitra_lent_compare_exchange",
    "mitra_lent_end:",
    "mitra_lent_gone:",
    "mov eax, 1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    static mitra_lent_begin: u8;
    static mitra_lent_end: u8;
    static mitra_lent_gone: u8;
    fn mitra_lent_copy(to: *mut u8, from: *const u8, len: usize, lent: *const u8) -> c_int;
    fn mitra_lent_compare_exchange(word: *mut u64, current: u64, new: u64, old: *mut u64) -> c_int;
}

/// Makes the copies safe: to be called before the first.
pub(crate) fn install_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| signals::stand_in_front(on_fault));
}

/// Copies out of lent memory.
///
/// # Safety
/// After [`install_handler`]. The caller may read what is at `from`, if anything is.
pub(crate) unsafe fn read(from: *const u8, out: &mut [u8]) -> Result<(), Unmapped> {
    // SAFETY: `out` is ours to write; a fault at `from` is survived, by the caller's word.
    there(unsafe { mitra_lent_copy(out.as_mut_ptr(), from, out.len(), from) })
}

/// Copies into lent memory.
///
/// # Safety
/// After [`install_handler`]. The caller may write what is at `to`, if anything is.
pub(crate) unsafe fn write(to: *mut u8, data: &[u8]) -> Result<(), Unmapped> {
    // SAFETY: `data` is ours to read; a fault at `to` is survived, by the caller's word.
    there(unsafe { mitra_lent_copy(to, data.as_ptr(), data.len(), to) })
}

/// Replaces a word if it is `current`; the inner result is the old word.
///
/// # Safety
/// As [`write`].
pub(crate) unsafe fn compare_exchange(
    word: *mut u64,
    current: u64,
    new: u64,
) -> Result<Result<u64, u64>, Unmapped> {
    let mut old = 0;
    // SAFETY: as in `write`; `old` is ours.
    there(unsafe { mitra_lent_compare_exchange(word, current, new, &raw mut old) })?;
    Ok(if old == current { Ok(old) } else { Err(old) })
}

fn there(gone: c_int) -> Result<(), Unmapped> {
    if gone == 0 { Ok(()) } else { Err(Unmapped) }
}

/// The handler of SIGSEGV and SIGBUS. Nothing in it locks or allocates.
///
/// # Safety
/// To be called by the kernel.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel gives both (sigaction(2)), and they are this handler's alone.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs) };
    let ours = (&raw const mitra_lent_begin).addr()..(&raw const mitra_lent_end).addr();
    let at = &mut registers[REG_RIP as usize];
    // Codes above zero are the kernel's: this instruction faulted. Others say that somebody sent the signal.
    if code > 0 && ours.contains(&(*at as usize)) {
        *at = (&raw const mitra_lent_gone).addr() as i64;
    } else {
        // SAFETY: they are handed on as they came.
        unsafe { signals::pass_on(signal, info, context) };
    }
}
