use mitra_verbs::RegionId;

/// Access to registered memory, implemented by the driver.
///
/// The state machine has checked key, bounds and access rights before each call. The driver keeps a
/// region's memory until [`Nic::dereg_mr`](crate::Nic::dereg_mr) returns its [`RegionId`].
pub trait Memory {
    /// Copies `data` to byte `offset` of the region.
    ///
    /// The copy need not be atomic. Later calls on this trait see the data. The host need not see
    /// the data at once, but must see it before it can poll a completion that the NIC writes after
    /// this call.
    ///
    /// # Errors
    /// [`MemoryFault`] if the memory behind the region no longer exists.
    fn place(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault>;

    /// Copies bytes from byte `offset` of the region to `out`.
    ///
    /// # Errors
    /// [`MemoryFault`] if the memory behind the region no longer exists.
    fn fetch(&mut self, region: RegionId, offset: u64, out: &mut [u8]) -> Result<(), MemoryFault>;

    /// Applies `op` to the 8-byte word at byte `offset` of the region and returns the old value.
    /// The word's address is a multiple of 8.
    ///
    /// # Errors
    /// [`MemoryFault`] if the memory behind the region no longer exists.
    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault>;
}

/// Regions as vectors, for tests and models: region `i` is vector `i`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VecMemory(pub Vec<Vec<u8>>);

impl VecMemory {
    fn range(&mut self, region: RegionId, offset: u64, len: usize) -> Result<&mut [u8], MemoryFault> {
        let region = self.0.get_mut(region.0 as usize).ok_or(MemoryFault)?;
        let offset = offset as usize;
        region.get_mut(offset..offset + len).ok_or(MemoryFault)
    }
}

impl Memory for VecMemory {
    fn place(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.range(region, offset, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn fetch(&mut self, region: RegionId, offset: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        out.copy_from_slice(self.range(region, offset, out.len())?);
        Ok(())
    }

    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let word = self.range(region, offset, 8)?;
        let old = word.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        word.copy_from_slice(&op.apply(old).to_ne_bytes());
        Ok(old)
    }
}

/// The memory behind a region no longer exists, because its owner unmapped the memory while the
/// region was registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryFault;

/// An atomic operation on a 64-bit word in the responder's byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    /// Compare and swap.
    CompareSwap {
        /// The value that the word must have for the swap to take place.
        compare: u64,
        /// The value that replaces the old value.
        swap: u64,
    },
    /// Fetch and add, modulo 2⁶⁴.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

impl AtomicOp {
    /// Returns the new value of a word whose value is `old`.
    pub fn apply(self, old: u64) -> u64 {
        match self {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        }
    }
}
