//! Memory that the program registers.
//!
//! A program may unmap, protect or truncate memory while it is registered. A hardware NIC that
//! accesses such memory reports an error. In a process with a software NIC, an access by ordinary
//! instructions would kill the process by a signal. All accesses are therefore made by functions
//! that return an error instead: those of `copy_nofault` on x86-64, and those of `process_vm`
//! elsewhere.

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
/// The memory need not be mapped. As in the kernel's `ibv_reg_mr`, `start` and `iova` should have
/// the same offset in a page, because the alignment of an atomic's operand is checked by its
/// address in the work request, not by its address in the process.
///
/// # Safety
/// Until the buffer is dropped, every mapping in the range belongs to the program, which allows
/// other threads and peers to read and write it at any time. No Rust reference points into the
/// range.
pub(crate) unsafe fn program_buffer(start: *mut u8, len: usize, iova: u64) -> Arc<Buffer> {
    #[cfg(target_arch = "x86_64")]
    crate::copy_nofault::install_handler();
    Arc::new(Buffer::from_foreign(Box::new(ProgramMemory { start }), iova, len))
}

struct ProgramMemory {
    start: *mut u8,
}

// SAFETY: the type accesses the memory only by copies that tolerate concurrent access and missing
// mappings, from any thread. The caller of `program_buffer` granted that access.
unsafe impl Send for ProgramMemory {}
// SAFETY: as for `Send`: the methods take `&self` and make the same copies.
unsafe impl Sync for ProgramMemory {}

impl ForeignMemory for ProgramMemory {
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        // SAFETY: `Buffer` has checked that the bytes lie in the range that the caller of
        // `program_buffer` granted.
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
