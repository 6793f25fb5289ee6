//! Copies from and to *foreign* memory, which the program may unmap at any time. A copy of unmapped
//! memory fails, and the process continues (compare `copy_from_kernel_nofault` in the kernel's
//! `mm/maccess.c`).
//!
//! All instructions that access foreign memory are assembly between the labels
//! `mitra_nofault_begin` and `mitra_nofault_end`. The routines there do not change the stack
//! pointer, and use only registers that a callee need not preserve. When one of their instructions
//! faults, the signal handler resumes the thread at `mitra_nofault_unmapped`, which returns the
//! failure to the routine's caller. [`signal_actions`] passes any other fault to the program's
//! handler.

use core::arch::global_asm;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{REG_RIP, c_int, c_void, siginfo_t, ucontext_t};
use mitra_verbs::Unmapped;

use crate::interpose::signal_actions;

// The copy runs from low to high addresses, and x86-64 keeps the order of loads and the order of
// stores (Intel SDM volume 3, memory ordering). A thread that sees the new last byte therefore sees
// all new bytes. Every access to foreign memory is aligned to its size, so that no word of the
// program is torn. The processor may store the two halves of a 16-byte register in either order, so
// smaller registers copy the last 1 to 64 bytes.
global_asm!(
    // Copies as many bytes as the register holds, adds their number to the pointers (rsi, rdi), and
    // subtracts it from the remaining length (rdx).
    ".macro mitra_step bytes, register",
    "mov \\register, [rsi]",
    "mov [rdi], \\register",
    "add rsi, \\bytes",
    "add rdi, \\bytes",
    "sub rdx, \\bytes",
    ".endm",
    // Copies one register if the foreign address (rcx) is not yet aligned to twice the register's
    // size, and the remaining length suffices.
    ".macro mitra_align bytes, register",
    "test cl, \\bytes",
    "jz 2f",
    "cmp rdx, \\bytes",
    "jb 2f",
    "mitra_step \\bytes, \\register",
    "add rcx, \\bytes",
    "2:",
    ".endm",
    // Copies one register if the bit of the register's size is set in the remaining length, which
    // must be less than twice that size.
    ".macro mitra_finish bytes, register",
    "test dl, \\bytes",
    "jz 2f",
    "mitra_step \\bytes, \\register",
    "2:",
    ".endm",
    ".pushsection .text.mitra_nofault, \"ax\", @progbits",
    ".balign 64",
    ".hidden mitra_nofault_begin, mitra_nofault_copy, mitra_nofault_compare_exchange, mitra_nofault_end, mitra_nofault_unmapped",
    ".globl mitra_nofault_begin, mitra_nofault_copy, mitra_nofault_compare_exchange, mitra_nofault_end, mitra_nofault_unmapped",
    ".type mitra_nofault_copy, @function",
    ".type mitra_nofault_compare_exchange, @function",
    "mitra_nofault_begin:",
    // Arguments: rdi = to, rsi = from, rdx = length, rcx = the foreign address: `to` or `from`.
    // Result: eax = 1 if the foreign memory is unmapped, otherwise 0.
    "mitra_nofault_copy:",
    ".cfi_startproc",
    "mitra_align 1, al",
    "mitra_align 2, ax",
    "mitra_align 4, eax",
    "mitra_align 8, rax",
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
    "mitra_step 8, rax",
    "jmp 4b",
    "5:",
    "mitra_finish 4, eax",
    "mitra_finish 2, ax",
    "mitra_finish 1, al",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size mitra_nofault_copy, . - mitra_nofault_copy",
    // Arguments: rdi = word, rsi = current, rdx = new, rcx = the address to which the old value is
    // written. Result: eax = 1 if the word is unmapped, otherwise 0.
    "mitra_nofault_compare_exchange:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov [rcx], rax",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size mitra_nofault_compare_exchange, . - mitra_nofault_compare_exchange",
    "mitra_nofault_end:",
    "mitra_nofault_unmapped:",
    "mov eax, 1",
    "ret",
    ".popsection",
    ".purgem mitra_step",
    ".purgem mitra_align",
    ".purgem mitra_finish",
);

unsafe extern "C" {
    static mitra_nofault_begin: u8;
    static mitra_nofault_end: u8;
    static mitra_nofault_unmapped: u8;
    fn mitra_nofault_copy(to: *mut u8, from: *const u8, len: usize, foreign: *const u8) -> c_int;
    fn mitra_nofault_compare_exchange(word: *mut u64, current: u64, new: u64, old: *mut u64) -> c_int;
}

/// Installs the handler of SIGSEGV and SIGBUS if it is not installed yet.
pub(crate) fn install_handler() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    // Two threads may both install the handler, and the second installation has no effect. A lock
    // would be wrong: in the child of a fork, the thread that holds the lock does not exist.
    if !INSTALLED.load(Ordering::Acquire) {
        signal_actions::install_library_handler(on_fault);
        INSTALLED.store(true, Ordering::Release);
    }
}

/// # Errors
/// [`Unmapped`] if a page of the foreign memory is not mapped or not readable. A prefix may have
/// been copied.
///
/// # Safety
/// [`install_handler`] was called, and the caller may read the mapped memory at `from`.
pub(crate) unsafe fn read(from: *const u8, out: &mut [u8]) -> Result<(), Unmapped> {
    // SAFETY: `out` has `out.len()` bytes. The caller may read at `from`, and the handler turns a
    // fault there into the return value 1.
    check_mapped(unsafe { mitra_nofault_copy(out.as_mut_ptr(), from, out.len(), from) })
}

/// # Errors
/// [`Unmapped`] if a page of the foreign memory is not mapped or not writable. A prefix may have
/// been copied.
///
/// # Safety
/// [`install_handler`] was called, and the caller may write the mapped memory at `to`.
pub(crate) unsafe fn write(to: *mut u8, data: &[u8]) -> Result<(), Unmapped> {
    // SAFETY: `data` has `data.len()` bytes. The caller may write at `to`, and the handler turns a
    // fault there into the return value 1.
    check_mapped(unsafe { mitra_nofault_copy(to, data.as_ptr(), data.len(), to) })
}

/// Replaces a word in foreign memory by `new` if the word equals `current`, in one atomic step. The
/// inner result holds the old value: `Ok` if the word was replaced, `Err` if not.
///
/// # Errors
/// [`Unmapped`] if the page is not mapped or not writable.
///
/// # Safety
/// [`install_handler`] was called, and the caller may write the mapped memory at `word`.
pub(crate) unsafe fn compare_exchange(
    word: *mut u64,
    current: u64,
    new: u64,
) -> Result<Result<u64, u64>, Unmapped> {
    let mut old = 0;
    // SAFETY: the caller may write at `word`, and the handler turns a fault there into the return
    // value 1. `old` is a local variable.
    check_mapped(unsafe { mitra_nofault_compare_exchange(word, current, new, &raw mut old) })?;
    Ok(if old == current { Ok(old) } else { Err(old) })
}

fn check_mapped(unmapped: c_int) -> Result<(), Unmapped> {
    if unmapped == 0 { Ok(()) } else { Err(Unmapped) }
}

/// The handler of SIGSEGV and SIGBUS. It neither locks nor allocates.
///
/// # Safety
/// The kernel passes the arguments to a handler that was installed with `SA_SIGINFO`.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid pointers to the signal's information and to the saved
    // registers (sigaction(2)), which no other code accesses while the handler runs.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs) };
    let nofault_code = (&raw const mitra_nofault_begin).addr()..(&raw const mitra_nofault_end).addr();
    let rip = &mut registers[REG_RIP as usize];
    // A positive `si_code` means that the kernel raised the signal because of the interrupted
    // instruction. Otherwise a process sent the signal.
    if code > 0 && nofault_code.contains(&(*rip as usize)) {
        *rip = (&raw const mitra_nofault_unmapped).addr() as i64;
    } else {
        // SAFETY: the kernel passed these arguments to this handler.
        unsafe { signal_actions::forward_to_program(signal, info, context) };
    }
}
