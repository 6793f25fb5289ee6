//! Buffers of one length in registered memory.

use std::sync::Arc;

use mitra_verbs::Buffer;

/// The number of posted receives per queue pair.
pub(super) const RECVS: u32 = 32;

#[derive(Clone, Debug)]
pub(super) struct Slots {
    memory: Arc<Buffer>,
    len: usize,
}

impl Slots {
    /// Allocates `count` slots of at least `len` bytes.
    pub(super) fn new(count: usize, len: usize) -> Slots {
        let len = len.next_multiple_of(8);
        Slots { memory: Arc::new(Buffer::new(count * len)), len }
    }

    pub(super) fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    pub(super) fn offset(&self, slot: usize) -> u64 {
        (slot * self.len) as u64
    }

    pub(super) fn len(&self) -> u32 {
        self.len as u32
    }

    pub(super) fn write(&self, slot: usize, bytes: &[u8]) {
        self.memory.write_at(slot * self.len, bytes);
    }

    /// Returns the first `len` bytes of a slot, or the whole slot if it is shorter.
    pub(super) fn read(&self, slot: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(self.len)];
        self.memory.read_at(slot * self.len, &mut bytes);
        bytes
    }
}
