//! The registered memory from which operations send and to which they fetch: a ring, because
//! operations end in the order in which they were posted.

use std::sync::Arc;

use mitra_failover::{Domain, OwnedRegion};
use mitra_verbs::Error;

/// The alignment of an atomic's result.
const ALIGNMENT: usize = size_of::<u64>();

/// The memory of one queue pair.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) region: OwnedRegion,
    bytes: usize,
    /// The number of bytes that were ever taken. `freed` is the number of bytes that were ever
    /// freed. Both include the bytes skipped at the end of the ring.
    taken: u64,
    freed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Space {
    pub(super) offset: usize,
    /// [`Staging::taken`] after this part was taken.
    taken: u64,
}

impl Staging {
    /// Allocates and registers memory of at least `bytes`.
    pub(super) fn new(domain: &Arc<Domain>, bytes: usize) -> Result<Staging, Error> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        Ok(Staging { region: OwnedRegion::new(domain, bytes)?, bytes, taken: 0, freed: 0 })
    }

    /// The length of the longest operation that fits into the empty ring, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes space for `bytes` bytes, which may be 0. Returns `None` if too little is free now.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Space> {
        let (len, bytes) = (self.bytes as u64, bytes.next_multiple_of(ALIGNMENT) as u64);
        let offset = self.taken % len;
        let skipped = if offset + bytes > len { len - offset } else { 0 };
        if self.taken + skipped + bytes - self.freed > len {
            return None;
        }
        self.taken += skipped + bytes;
        Some(Space { offset: ((offset + skipped) % len) as usize, taken: self.taken })
    }

    /// Frees the space of an operation that has ended. All earlier operations must have ended.
    pub(super) fn free(&mut self, space: Space) {
        self.freed = space.taken;
    }

    /// Continues at the start of the ring, so that the longest operation has space. All space must
    /// be free.
    pub(super) fn reset(&mut self) {
        (self.taken, self.freed) = (0, 0);
    }
}
