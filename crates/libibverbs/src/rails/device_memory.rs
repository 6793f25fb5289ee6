//! The memory of the device. Programs allocate parts of it (`ibv_alloc_dm(3)`).
//!
//! Device memory is ordinary memory of the process. Each part is created when a program allocates
//! it. The allocator takes no lock, because a forked child may use the allocator of a device that
//! it inherited.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use mitra_verbs::{Buffer, ForeignMemory, Result, Unmapped};

/// The size of the device's memory in bytes: several times the 128 KiB or 256 KiB of common
/// hardware NICs.
pub(crate) const DEVICE_MEMORY_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct DeviceMemory {
    /// The number of allocated bytes.
    used: Arc<AtomicUsize>,
    /// The number of allocations so far. It is the handle of the next allocation.
    allocations: AtomicU32,
}

impl DeviceMemory {
    /// Allocates zeroed memory. Returns `None` if fewer bytes are free.
    pub(crate) fn allocate(&self, len: usize) -> Option<Allocation> {
        let add = |used: usize| used.checked_add(len).filter(|sum| *sum <= DEVICE_MEMORY_BYTES);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        let handle = self.allocations.fetch_add(1, Ordering::Relaxed);
        Some(Allocation { bytes: Buffer::new(len), handle, used: Arc::clone(&self.used) })
    }
}

/// Dropping the value frees the memory.
pub(crate) struct Allocation {
    pub(crate) bytes: Buffer,
    pub(crate) handle: u32,
    used: Arc<AtomicUsize>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Returns the buffer of a region that begins at `offset` in an allocation and ends within it. In
/// work requests, the first byte of the region has the address 0. If the region permits atomics,
/// `offset` must be a multiple of 8.
pub(crate) fn zero_based_buffer(memory: &Arc<Allocation>, offset: usize, len: usize) -> Arc<Buffer> {
    Arc::new(Buffer::from_foreign(Box::new(Part { memory: Arc::clone(memory), offset }), 0, len))
}

/// The memory of an allocation from an offset on.
struct Part {
    memory: Arc<Allocation>,
    offset: usize,
}

impl ForeignMemory for Part {
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        self.memory.bytes.try_read_at(self.offset + offset, out)
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
        self.memory.bytes.try_write_at(self.offset + offset, data)
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>, Unmapped> {
        self.memory.bytes.try_compare_exchange(self.offset + offset, current, new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_reused() {
        let memory = DeviceMemory::default();
        let half = memory.allocate(DEVICE_MEMORY_BYTES / 2).expect("half is free");
        let rest = memory.allocate(DEVICE_MEMORY_BYTES / 2).expect("the other half is free");
        assert!(memory.allocate(1).is_none() && memory.allocate(usize::MAX).is_none());
        assert_ne!(half.handle, rest.handle);
        let part = zero_based_buffer(&Arc::new(rest), 8, 16);
        drop(half);
        assert!(memory.allocate(DEVICE_MEMORY_BYTES / 2 + 1).is_none(), "a region keeps its memory");
        drop(part);
        assert!(memory.allocate(DEVICE_MEMORY_BYTES).is_some());
    }
}
