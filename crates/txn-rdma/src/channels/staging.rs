//! The registered memory from which WRITEs are sent and to which READs and compare-and-swaps fetch:
//! a ring, because requests end in the order in which they were posted.

use std::sync::Arc;

use mitra_failover::{Domain, VirtualMr};
use mitra_verbs::{Access, Buffer, Error, Sge};

/// The alignment of a compare-and-swap's result.
const ALIGNMENT: u64 = size_of::<u64>() as u64;

/// The memory of one queue pair.
#[derive(Debug)]
pub(super) struct Staging {
    domain: Arc<Domain>,
    buffer: Arc<Buffer>,
    mr: VirtualMr,
    /// The number of bytes that were ever taken. `freed` is the number of bytes that were ever
    /// freed. Both include the bytes skipped at the end of the ring.
    taken: u64,
    freed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Space {
    offset: u64,
    /// [`Staging::taken`] after this part was taken.
    taken: u64,
}

impl Staging {
    /// Allocates and registers memory of at least `bytes`.
    pub(super) fn new(domain: &Arc<Domain>, bytes: usize) -> Result<Staging, Error> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT as usize);
        let buffer = Arc::new(Buffer::new(bytes));
        let mr = domain.register(&buffer, Access::LOCAL_WRITE)?;
        Ok(Staging { domain: Arc::clone(domain), buffer, mr, taken: 0, freed: 0 })
    }

    /// The length of the longest request that fits into the empty ring, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Takes space for `bytes` bytes, which may be 0. Returns `None` if too little is free now.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Space> {
        let (len, bytes) = (self.bytes(), bytes.next_multiple_of(ALIGNMENT));
        let offset = self.taken % len;
        let skipped = if offset + bytes > len { len - offset } else { 0 };
        if self.taken + skipped + bytes - self.freed > len {
            return None;
        }
        self.taken += skipped + bytes;
        Some(Space { offset: (offset + skipped) % len, taken: self.taken })
    }

    /// Frees the space of a request that has ended. All earlier requests must have ended.
    pub(super) fn free(&mut self, space: Space) {
        self.freed = space.taken;
    }

    /// Continues at the start of the ring, so that the longest request has space. All space must be
    /// free.
    pub(super) fn reset(&mut self) {
        (self.taken, self.freed) = (0, 0);
    }

    pub(super) fn sge(&self, space: Space, bytes: u32) -> Sge {
        self.mr.sge(space.offset, bytes)
    }

    pub(super) fn write(&self, space: Space, bytes: &[u8]) {
        self.buffer.write_at(space.offset as usize, bytes);
    }

    pub(super) fn read(&self, space: Space, bytes: u64) -> Vec<u8> {
        let mut out = vec![0; bytes as usize];
        self.buffer.read_at(space.offset as usize, &mut out);
        out
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = self.domain.deregister(&self.mr); // nobody can handle the error of a NIC
    }
}
