use std::sync::Arc;

use mitra_verbs::{Access, Buffer, Data, RecvWr, Result};
use smallvec::smallvec;

use crate::domain::Domain;
use crate::memory_region::VirtualMr;

/// In bytes.
pub(super) const BUFFER_LEN: usize = 4096;
pub(super) const RECVS: u32 = 64;
pub(super) const SENDS: u32 = 64;

/// The registered memory of the messages on the backup: the receive buffers and, behind them, the
/// send buffers. Dropping deregisters the memory.
#[derive(Debug)]
pub(super) struct MessageBuffers {
    domain: Arc<Domain>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
    /// Send buffers that are not in use.
    free: Vec<u32>,
}

impl MessageBuffers {
    /// # Errors
    /// Any error of a NIC.
    pub(super) fn new(domain: &Arc<Domain>) -> Result<MessageBuffers> {
        let memory = Arc::new(Buffer::new((RECVS + SENDS) as usize * BUFFER_LEN));
        let mr = domain.register(&memory, Access::LOCAL_WRITE)?;
        let free = (RECVS..RECVS + SENDS).rev().collect();
        Ok(MessageBuffers { domain: Arc::clone(domain), memory, mr, free })
    }

    pub(super) fn receive(&self, buffer: u32) -> RecvWr {
        RecvWr::new(buffer.into(), self.mr.sge(u64::from(buffer) * BUFFER_LEN as u64, BUFFER_LEN as u32))
    }

    pub(super) fn read(&self, buffer: u32, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; (len as usize).min(BUFFER_LEN)];
        self.memory.read_at(buffer as usize * BUFFER_LEN, &mut bytes);
        bytes
    }

    /// Stores `bytes` in a free send buffer. Returns `None` if no buffer is free.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Option<u32> {
        let buffer = self.free.pop()?;
        self.memory.write_at(buffer as usize * BUFFER_LEN, bytes);
        Some(buffer)
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// The first `len` bytes of a send buffer, for a SEND.
    pub(super) fn data(&self, buffer: u32, len: u32) -> Data {
        Data::Sges(smallvec![self.mr.sge(u64::from(buffer) * BUFFER_LEN as u64, len)])
    }

    pub(super) fn free(&mut self, buffer: u32) {
        self.free.push(buffer);
    }
}

impl Drop for MessageBuffers {
    fn drop(&mut self) {
        // Only a dead NIC does not confirm the revocation, and the memory is not freed while a NIC
        // refers to it.
        let _ = self.domain.deregister(&self.mr);
    }
}
