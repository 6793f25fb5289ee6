//! The program's memory, registered where it lies.
//!
//! Programs unmap, protect and truncate memory while it is registered. A NIC then answers with an error; a software
//! NIC that touches such memory would be killed by a signal. So it is touched only by copies that survive that.

use std::sync::Arc;

use mitra_verbs::{Buffer, ForeignMemory, Unmapped};

#[cfg(target_arch = "x86_64")]
use crate::copy_nofault as access;
#[cfg(not(target_arch = "x86_64"))]
use crate::process_vm as access;

/// `len` bytes of the program's memory from `start` on, which work requests name from `iova` on.
///
/// Nothing need be mapped there. As in the kernel's `ibv_reg_mr`, let `start` and `iova` have the same place in a
/// page: atomics are judged by the address that names a word.
///
/// # Safety
/// Until the buffer is dropped, whatever is mapped there is the program's, which registered it to be read and written
/// by others at any time; nothing there is a Rust object that somebody holds a reference to.
pub(crate) unsafe fn lend(start: *mut u8, len: usize, iova: u64) -> Arc<Buffer> {
    #[cfg(target_arch = "x86_64")]
    crate::copy_nofault::install_handler();
    Arc::new(Buffer::from_foreign(Box::new(ProgramMemory { start }), iova, len))
}

struct ProgramMemory {
    start: *mut u8,
}

// SAFETY: it is an address, followed only by copies that any thread may make at any time, which `lend`'s caller
// granted.
unsafe impl Send for ProgramMemory {}
// SAFETY: as above.
unsafe impl Sync for ProgramMemory {}

impl ForeignMemory for ProgramMemory {
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        // SAFETY: the bytes lie in what `lend`'s caller granted, or nothing is there.
        unsafe { access::read(self.start.wrapping_add(offset), out) }
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
        // SAFETY: as in `read`.
        unsafe { access::write(self.start.wrapping_add(offset), data) }
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>, Unmapped> {
        // SAFETY: as in `read`.
        unsafe { access::compare_exchange(self.start.wrapping_add(offset).cast(), current, new) }
    }
}

#[cfg(test)]
mod tests;
