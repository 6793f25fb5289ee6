//! Memory that the program registers.
//!
//! A program may unmap, protect or truncate registered memory. An access to such memory by ordinary
//! instructions would kill the process by a signal. A software NIC accesses registered memory by
//! functions that return an error instead, as a hardware NIC does: on x86-64 by the functions of
//! `copy_nofault`, elsewhere by the functions of `process_vm`.

pub(crate) mod page_check;

use std::sync::Arc;

use mitra_verbs::{Buffer, ForeignMemory, Unmapped};

#[cfg(target_arch = "x86_64")]
use crate::copy_nofault as copy;
#[cfg(not(target_arch = "x86_64"))]
use crate::process_vm as copy;

/// Returns a buffer of the `len` bytes of the program's memory at `start`. In work requests, the
/// first byte has the address `iova`.
///
/// The memory need not be mapped. `start` and `iova` should have the same offset in a page, because
/// the NIC checks the alignment of an atomic's operand by the address in the work request, not by
/// the address in the process.
///
/// # Safety
/// Until the buffer is dropped, every mapping in the range belongs to the program, which allows
/// other threads and peers to read and write it at any time. No Rust reference points into the
/// range.
pub(crate) unsafe fn program_buffer(start: *mut u8, len: usize, iova: u64) -> Arc<Buffer> {
    copy::install_handler();
    Arc::new(Buffer::from_foreign(Box::new(ProgramMemory { start }), iova, len))
}

struct ProgramMemory {
    start: *mut u8,
}

// SAFETY: the copies tolerate missing mappings and concurrent access from any thread, which the
// caller of `program_buffer` granted.
unsafe impl Send for ProgramMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for ProgramMemory {}

impl ForeignMemory for ProgramMemory {
    /// A NIC of the kernel locks the memory, and accesses it at any time.
    fn process_addr(&self) -> Option<usize> {
        Some(self.start.expose_provenance())
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        // SAFETY: `Buffer` has checked that the bytes lie in the granted range.
        unsafe { copy::read(self.start.wrapping_add(offset), out) }
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
        // SAFETY: as in `read`.
        unsafe { copy::write(self.start.wrapping_add(offset), data) }
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>, Unmapped> {
        // SAFETY: as in `read`.
        unsafe { copy::compare_exchange(self.start.wrapping_add(offset).cast(), current, new) }
    }
}

#[cfg(test)]
mod tests;
