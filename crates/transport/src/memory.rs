use mitra_verbs::RegionId;

/// Registered memory, as the state machines touch it. Keys, bounds and rights have been checked before.
///
/// The driver keeps a region's memory until [`Nic::dereg_mr`](crate::Nic::dereg_mr) returns its [`RegionId`].
pub trait Memory {
    /// Copies `data` in at `offset`. Need not be visible to the host at once, nor atomically; but later calls see it,
    /// and it must be visible before a completion that follows it can be polled.
    fn place(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault>;

    /// Copies out at `offset`.
    fn fetch(&mut self, region: RegionId, offset: u64, out: &mut [u8]) -> Result<(), MemoryFault>;

    /// Loads the 8-byte word at `offset` (its address 8-byte aligned), applies `op`, stores; returns the old value.
    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault>;
}

/// The memory behind a region is gone (its owner unmapped it while registered).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryFault;

/// An atomic operation on a word in the responder's byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    /// Compare and swap.
    CompareSwap {
        /// Expected.
        compare: u64,
        /// New.
        swap: u64,
    },
    /// Fetch and add, wrapping.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

impl AtomicOp {
    /// The word's new value.
    pub fn apply(self, old: u64) -> u64 {
        match self {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        }
    }
}
