//! Registered memory, and what the NIC does to it.

use std::sync::Arc;

use mitra_transport::{AtomicOp, Memory, MemoryFault};
use mitra_verbs::{Buffer, RegionId, Unmapped};

/// The memory behind each region, by its number.
pub(crate) struct Regions {
    buffers: Vec<Option<Arc<Buffer>>>,
    free: Vec<u32>,
    /// Whether atomics use the processor's atomic instructions.
    global_atomics: bool,
    /// Whether writes are held back.
    holding: bool,
    /// Writes that were acknowledged but not placed, oldest first.
    held: Vec<Held>,
    /// Met between the load and the store of an atomic.
    #[cfg(test)]
    pub(crate) between: Option<Arc<std::sync::Barrier>>,
}

/// A write that the host does not see yet.
struct Held {
    region: RegionId,
    offset: usize,
    data: Box<[u8]>,
}

impl Regions {
    pub(crate) fn new(global_atomics: bool) -> Regions {
        Regions {
            buffers: Vec::new(),
            free: Vec::new(),
            global_atomics,
            holding: false,
            held: Vec::new(),
            #[cfg(test)]
            between: None,
        }
    }

    /// Keeps the buffer under a new name.
    pub(crate) fn insert(&mut self, buffer: Arc<Buffer>) -> RegionId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(None);
            self.buffers.len() as u32 - 1
        });
        self.buffers[index as usize] = Some(buffer);
        RegionId(index)
    }

    /// Places what was held back for the region and lets go of its buffer.
    pub(crate) fn remove(&mut self, region: RegionId) {
        if self.held.iter().any(|held| held.region == region) {
            self.place_held();
        }
        if self.buffers[region.0 as usize].take().is_some() {
            self.free.push(region.0);
        }
    }

    /// Lets go of everything; what was held back is lost.
    pub(crate) fn clear(&mut self) {
        self.lose_held();
        self.buffers.clear();
        self.free.clear();
    }

    /// Holds writes back from here on, or places those held back and all that follow.
    pub(crate) fn hold(&mut self, holding: bool) {
        if !holding {
            self.place_held();
        }
        self.holding = holding;
    }

    /// Places what was held back.
    pub(crate) fn place_held(&mut self) {
        for held in std::mem::take(&mut self.held) {
            if let Some(Some(buffer)) = self.buffers.get(held.region.0 as usize) {
                // Memory that is gone has nobody left to see it.
                let _ = buffer.try_write_at(held.offset, &held.data);
            }
        }
    }

    /// Forgets what was held back.
    pub(crate) fn lose_held(&mut self) {
        self.held.clear();
    }

    /// The buffer, if the range lies in it. The state machine has checked that, so it always does; but memory is not
    /// touched on anybody's word alone.
    fn range(&self, region: RegionId, offset: u64, len: usize) -> Result<(&Buffer, usize), MemoryFault> {
        let buffer = self.buffers.get(region.0 as usize).and_then(Option::as_deref).ok_or(MemoryFault)?;
        let offset = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let end = offset.checked_add(len).ok_or(MemoryFault)?;
        if end > buffer.len() {
            return Err(MemoryFault);
        }
        Ok((buffer, offset))
    }

    /// What the NIC itself sees of a word: with what it holds back.
    fn load(&mut self, region: RegionId, offset: usize) -> Result<u64, MemoryFault> {
        let mut word = [0; 8];
        self.fetch(region, offset as u64, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }
}

impl Memory for Regions {
    fn place(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let (buffer, offset) = self.range(region, offset, data.len())?;
        if self.holding {
            self.held.push(Held { region, offset, data: data.into() });
        } else {
            buffer.try_write_at(offset, data).map_err(gone)?;
        }
        Ok(())
    }

    fn fetch(&mut self, region: RegionId, offset: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let (buffer, offset) = self.range(region, offset, out.len())?;
        buffer.try_read_at(offset, out).map_err(gone)?;
        for held in self.held.iter().filter(|held| held.region == region) {
            let (from, to) =
                (held.offset.max(offset), (held.offset + held.data.len()).min(offset + out.len()));
            if from < to {
                out[from - offset..to - offset]
                    .copy_from_slice(&held.data[from - held.offset..to - held.offset]);
            }
        }
        Ok(())
    }

    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let (buffer, at) = self.range(region, offset, 8)?;
        if !buffer.addr().wrapping_add(offset).is_multiple_of(8) {
            return Err(MemoryFault);
        }
        if self.global_atomics && !self.holding {
            let mut old = buffer.try_load(at).map_err(gone)?;
            while let Err(now) = buffer.try_compare_exchange(at, old, op.apply(old)).map_err(gone)? {
                old = now;
            }
            return Ok(old);
        }
        // As on most hardware: this NIC's lock is all that makes it atomic. Another NIC, or the processor, can come
        // between the load and the store.
        let old = self.load(region, at)?;
        #[cfg(test)]
        if let Some(between) = &self.between {
            between.wait();
        }
        self.place(region, offset, &op.apply(old).to_ne_bytes())?;
        Ok(old)
    }
}

fn gone(_: Unmapped) -> MemoryFault {
    MemoryFault
}

#[cfg(test)]
mod tests {
    use mitra_verbs::ForeignMemory;

    use super::*;

    fn one(len: usize) -> (Regions, RegionId, Arc<Buffer>) {
        let buffer = Arc::new(Buffer::new(len));
        let mut regions = Regions::new(false);
        let region = regions.insert(Arc::clone(&buffer));
        (regions, region, buffer)
    }

    #[test]
    fn nothing_outside_a_region_is_touched() {
        let (mut regions, region, _) = one(16);
        assert_eq!(regions.place(region, 9, &[1; 8]), Err(MemoryFault));
        assert_eq!(regions.place(region, u64::MAX, &[1; 8]), Err(MemoryFault));
        assert_eq!(regions.fetch(RegionId(7), 0, &mut [0; 8]), Err(MemoryFault));
        assert_eq!(regions.atomic(region, 12, AtomicOp::FetchAdd { add: 1 }), Err(MemoryFault));
        assert_eq!(regions.atomic(region, 4, AtomicOp::FetchAdd { add: 1 }), Err(MemoryFault));
        regions.remove(region);
        assert_eq!(regions.place(region, 0, &[1; 8]), Err(MemoryFault));
    }

    #[test]
    fn what_is_held_back_is_seen_by_the_nic_alone_until_it_is_placed() {
        let (mut regions, region, buffer) = one(32);
        buffer.write_at(0, &[9; 32]);
        regions.hold(true);
        regions.place(region, 4, &[1, 2, 3, 4]).unwrap();
        regions.place(region, 6, &[7]).unwrap();
        let mut seen = [0; 8];
        regions.fetch(region, 2, &mut seen).unwrap();
        assert_eq!(seen, [9, 9, 1, 2, 7, 4, 9, 9]);
        assert_eq!(regions.atomic(region, 16, AtomicOp::FetchAdd { add: 1 }), Ok(0x0909_0909_0909_0909));
        assert_eq!(regions.atomic(region, 16, AtomicOp::FetchAdd { add: 1 }), Ok(0x0909_0909_0909_090a));
        let mut all = [0; 32];
        buffer.read_at(0, &mut all);
        assert_eq!(all, [9; 32]);
        regions.hold(false);
        buffer.read_at(0, &mut all);
        assert_eq!(all[..9], [9, 9, 9, 9, 1, 2, 7, 4, 9]);
        assert_eq!(buffer.load(16), 0x0909_0909_0909_090b);
    }

    #[test]
    fn what_is_held_back_dies_with_the_nic() {
        let (mut regions, region, buffer) = one(8);
        regions.hold(true);
        regions.place(region, 0, &[1; 8]).unwrap();
        regions.lose_held();
        regions.hold(false);
        assert_eq!(buffer.load(0), 0);
    }

    #[test]
    fn a_region_that_goes_is_complete() {
        let (mut regions, region, buffer) = one(8);
        regions.hold(true);
        regions.place(region, 0, &7_u64.to_ne_bytes()).unwrap();
        regions.remove(region);
        assert_eq!(buffer.load(0), 7);
    }

    /// Lent memory that is gone.
    struct Gone;

    impl ForeignMemory for Gone {
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
    fn memory_that_is_gone_faults() {
        for global_atomics in [false, true] {
            let mut regions = Regions::new(global_atomics);
            let region = regions.insert(Arc::new(Buffer::from_foreign(Box::new(Gone), 0x1003, 64)));
            assert_eq!(regions.place(region, 0, &[1]), Err(MemoryFault));
            assert_eq!(regions.fetch(region, 0, &mut [0]), Err(MemoryFault));
            assert_eq!(regions.atomic(region, 5, AtomicOp::FetchAdd { add: 1 }), Err(MemoryFault));
            regions.hold(true);
            regions.place(region, 0, &[1]).unwrap();
            regions.remove(region);
        }
    }

    /// Lends what may begin at any byte.
    struct Lent(Buffer, usize);

    impl ForeignMemory for Lent {
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
    fn atomics_are_aligned_by_address() {
        for global_atomics in [false, true] {
            let mut regions = Regions::new(global_atomics);
            let region = regions.insert(Arc::new(Buffer::from_foreign(
                Box::new(Lent(Buffer::new(64), 3)),
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
