//! Registered memory, and the NIC's accesses to it.

use std::sync::Arc;

use mitra_transport::{AtomicOp, Memory, MemoryFault};
use mitra_verbs::{Buffer, RegionId, Unmapped};

/// The memory of all registered regions. A [`RegionId`] is an index into `buffers`.
pub(crate) struct MemoryRegions {
    buffers: Vec<Option<Arc<Buffer>>>,
    /// Indices of `buffers` without a buffer.
    free: Vec<u32>,
    /// Whether atomics use the CPU's atomic instructions.
    global_atomics: bool,
    deferred: bool,
    /// Acknowledged writes that are not placed, oldest first.
    deferred_writes: Vec<DeferredWrite>,
    /// A barrier that atomics wait at between their load and their store.
    #[cfg(test)]
    pub(crate) atomic_barrier: Option<Arc<std::sync::Barrier>>,
}

struct DeferredWrite {
    region: RegionId,
    offset: usize,
    data: Box<[u8]>,
}

impl MemoryRegions {
    pub(crate) fn new(global_atomics: bool) -> MemoryRegions {
        MemoryRegions {
            buffers: Vec::new(),
            free: Vec::new(),
            global_atomics,
            deferred: false,
            deferred_writes: Vec::new(),
            #[cfg(test)]
            atomic_barrier: None,
        }
    }

    pub(crate) fn insert(&mut self, buffer: Arc<Buffer>) -> RegionId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(None);
            self.buffers.len() as u32 - 1
        });
        self.buffers[index as usize] = Some(buffer);
        RegionId(index)
    }

    /// Removes a region and releases its buffer. Places the deferred writes first if one of them is
    /// to this region.
    pub(crate) fn remove(&mut self, region: RegionId) {
        if self.deferred_writes.iter().any(|write| write.region == region) {
            self.place_deferred();
        }
        if self.buffers[region.0 as usize].take().is_some() {
            self.free.push(region.0);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.discard_deferred();
        self.buffers.clear();
        self.free.clear();
    }

    pub(crate) fn set_deferred(&mut self, deferred: bool) {
        if !deferred {
            self.place_deferred();
        }
        self.deferred = deferred;
    }

    pub(crate) fn place_deferred(&mut self) {
        for write in std::mem::take(&mut self.deferred_writes) {
            if let Some(Some(buffer)) = self.buffers.get(write.region.0 as usize) {
                // The write fails if the application has unmapped the memory. No reader can then
                // miss the data.
                let _ = buffer.try_write_at(write.offset, &write.data);
            }
        }
    }

    pub(crate) fn discard_deferred(&mut self) {
        self.deferred_writes.clear();
    }

    /// Returns the buffer of a region, and the offset as an index into it.
    ///
    /// # Errors
    /// The region does not exist, or the range exceeds it. `mitra_transport` has checked both; this
    /// second check keeps a mistake there from reaching memory.
    fn range(&self, region: RegionId, offset: u64, len: usize) -> Result<(&Buffer, usize), MemoryFault> {
        let buffer = self.buffers.get(region.0 as usize).and_then(Option::as_deref).ok_or(MemoryFault)?;
        let offset = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let end = offset.checked_add(len).ok_or(MemoryFault)?;
        if end > buffer.len() {
            return Err(MemoryFault);
        }
        Ok((buffer, offset))
    }

    /// Loads a word as the NIC sees it, with the deferred writes applied.
    fn load_word(&mut self, region: RegionId, offset: usize) -> Result<u64, MemoryFault> {
        let mut word = [0; 8];
        self.fetch(region, offset as u64, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }
}

impl Memory for MemoryRegions {
    fn place(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let (buffer, offset) = self.range(region, offset, data.len())?;
        if self.deferred {
            self.deferred_writes.push(DeferredWrite { region, offset, data: data.into() });
        } else {
            buffer.try_write_at(offset, data).map_err(memory_fault)?;
        }
        Ok(())
    }

    fn fetch(&mut self, region: RegionId, offset: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let (buffer, offset) = self.range(region, offset, out.len())?;
        buffer.try_read_at(offset, out).map_err(memory_fault)?;
        for write in self.deferred_writes.iter().filter(|write| write.region == region) {
            let (from, to) =
                (write.offset.max(offset), (write.offset + write.data.len()).min(offset + out.len()));
            if from < to {
                out[from - offset..to - offset]
                    .copy_from_slice(&write.data[from - write.offset..to - write.offset]);
            }
        }
        Ok(())
    }

    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let (buffer, index) = self.range(region, offset, 8)?;
        if !buffer.addr().wrapping_add(offset).is_multiple_of(8) {
            return Err(MemoryFault);
        }
        if self.global_atomics && !self.deferred {
            let mut old = buffer.try_load(index).map_err(memory_fault)?;
            while let Err(current) =
                buffer.try_compare_exchange(index, old, op.apply(old)).map_err(memory_fault)?
            {
                old = current;
            }
            return Ok(old);
        }
        // As on most hardware, the operation is atomic only against other operations of this NIC,
        // whose lock is held here. Another NIC or the CPU can modify the word between the load and
        // the store.
        let old = self.load_word(region, index)?;
        #[cfg(test)]
        if let Some(barrier) = &self.atomic_barrier {
            barrier.wait();
        }
        self.place(region, offset, &op.apply(old).to_ne_bytes())?;
        Ok(old)
    }
}

fn memory_fault(_: Unmapped) -> MemoryFault {
    MemoryFault
}

#[cfg(test)]
mod tests {
    use mitra_verbs::ForeignMemory;

    use super::*;

    fn single_region(len: usize) -> (MemoryRegions, RegionId, Arc<Buffer>) {
        let buffer = Arc::new(Buffer::new(len));
        let mut regions = MemoryRegions::new(false);
        let region = regions.insert(Arc::clone(&buffer));
        (regions, region, buffer)
    }

    #[test]
    fn access_outside_region_faults() {
        let (mut regions, region, _) = single_region(16);
        assert_eq!(regions.place(region, 9, &[1; 8]), Err(MemoryFault));
        assert_eq!(regions.place(region, u64::MAX, &[1; 8]), Err(MemoryFault));
        assert_eq!(regions.fetch(RegionId(7), 0, &mut [0; 8]), Err(MemoryFault));
        assert_eq!(regions.atomic(region, 12, AtomicOp::FetchAdd { add: 1 }), Err(MemoryFault));
        assert_eq!(regions.atomic(region, 4, AtomicOp::FetchAdd { add: 1 }), Err(MemoryFault));
        regions.remove(region);
        assert_eq!(regions.place(region, 0, &[1; 8]), Err(MemoryFault));
    }

    #[test]
    fn deferred_writes_are_visible_to_nic_only_until_placed() {
        let (mut regions, region, buffer) = single_region(32);
        buffer.write_at(0, &[9; 32]);
        regions.set_deferred(true);
        regions.place(region, 4, &[1, 2, 3, 4]).unwrap();
        regions.place(region, 6, &[7]).unwrap();
        let mut fetched = [0; 8];
        regions.fetch(region, 2, &mut fetched).unwrap();
        assert_eq!(fetched, [9, 9, 1, 2, 7, 4, 9, 9]);
        assert_eq!(regions.atomic(region, 16, AtomicOp::FetchAdd { add: 1 }), Ok(0x0909_0909_0909_0909));
        assert_eq!(regions.atomic(region, 16, AtomicOp::FetchAdd { add: 1 }), Ok(0x0909_0909_0909_090a));
        let mut all = [0; 32];
        buffer.read_at(0, &mut all);
        assert_eq!(all, [9; 32]);
        regions.set_deferred(false);
        buffer.read_at(0, &mut all);
        assert_eq!(all[..9], [9, 9, 9, 9, 1, 2, 7, 4, 9]);
        assert_eq!(buffer.load(16), 0x0909_0909_0909_090b);
    }

    #[test]
    fn discarded_writes_are_not_placed() {
        let (mut regions, region, buffer) = single_region(8);
        regions.set_deferred(true);
        regions.place(region, 0, &[1; 8]).unwrap();
        regions.discard_deferred();
        regions.set_deferred(false);
        assert_eq!(buffer.load(0), 0);
    }

    #[test]
    fn removing_region_places_its_deferred_writes() {
        let (mut regions, region, buffer) = single_region(8);
        regions.set_deferred(true);
        regions.place(region, 0, &7_u64.to_ne_bytes()).unwrap();
        regions.remove(region);
        assert_eq!(buffer.load(0), 7);
    }

    struct UnmappedMemory;

    impl ForeignMemory for UnmappedMemory {
        fn read(&self, _: usize, _: &mut [u8]) -> Result<(), Unmapped> {
            Err(Unmapped)
        }

        fn write(&self, _: usize, _: &[u8]) -> Result<(), Unmapped> {
            Err(Unmapped)
        }

        fn compare_exchange(&self, _: usize, _: u64, _: u64) -> Result<Result<u64, u64>, Unmapped> {
            Err(Unmapped)
        }
    }

    #[test]
    fn unmapped_memory_faults() {
        for global_atomics in [false, true] {
            let mut regions = MemoryRegions::new(global_atomics);
            let region = regions.insert(Arc::new(Buffer::from_foreign(Box::new(UnmappedMemory), 0x1003, 64)));
            assert_eq!(regions.place(region, 0, &[1]), Err(MemoryFault));
            assert_eq!(regions.fetch(region, 0, &mut [0]), Err(MemoryFault));
            assert_eq!(regions.atomic(region, 5, AtomicOp::FetchAdd { add: 1 }), Err(MemoryFault));
            regions.set_deferred(true);
            regions.place(region, 0, &[1]).unwrap();
            regions.remove(region);
        }
    }

    /// Foreign memory that begins at an offset into a buffer, and so at any alignment.
    struct OffsetMemory(Buffer, usize);

    impl ForeignMemory for OffsetMemory {
        fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
            self.0.try_read_at(self.1 + offset, out)
        }

        fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
            self.0.try_write_at(self.1 + offset, data)
        }

        fn compare_exchange(
            &self,
            offset: usize,
            current: u64,
            new: u64,
        ) -> Result<Result<u64, u64>, Unmapped> {
            self.0.try_compare_exchange(self.1 + offset, current, new)
        }
    }

    #[test]
    fn atomics_require_aligned_address() {
        for global_atomics in [false, true] {
            let mut regions = MemoryRegions::new(global_atomics);
            let region = regions.insert(Arc::new(Buffer::from_foreign(
                Box::new(OffsetMemory(Buffer::new(64), 3)),
                0x1003,
                32,
            )));
            let add = AtomicOp::FetchAdd { add: 7 };
            assert_eq!(regions.atomic(region, 0, add), Err(MemoryFault));
            assert_eq!(regions.atomic(region, 5, add), Ok(0));
            assert_eq!(regions.atomic(region, 5, add), Ok(7));
        }
    }
}
