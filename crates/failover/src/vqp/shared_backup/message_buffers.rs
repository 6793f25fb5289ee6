//! The registered memory of the messages on the backup.

use std::sync::Arc;

use mitra_verbs::{Access, Buffer, Data, RecvWr, Result};
use smallvec::smallvec;

use crate::domain::Domain;
use crate::memory_region::VirtualMr;

/// The length of a buffer, in bytes.
pub(super) const BUFFER_LEN: usize = 4096;
/// The number of receive buffers.
pub(super) const RECVS: u32 = 64;
/// The number of send buffers.
pub(super) const SENDS: u32 = 64;

/// The buffers: the receive buffers and, behind them, the send buffers. They are deregistered when
/// they are dropped.
#[derive(Debug)]
pub(super) struct MessageBuffers {
    domain: Arc<Domain>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
    /// The send buffers that are not in use.
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

    /// Returns the receive into a receive buffer.
    pub(super) fn receive(&self, buffer: u32) -> RecvWr {
        RecvWr::new(buffer.into(), self.mr.sge(u64::from(buffer) * BUFFER_LEN as u64, BUFFER_LEN as u32))
    }

    /// Returns the first `len` bytes of a receive buffer.
    pub(super) fn read(&self, buffer: u32, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; (len as usize).min(BUFFER_LEN)];
        self.memory.read_at(buffer as usize * BUFFER_LEN, &mut bytes);
        bytes
    }

    /// Takes a free send buffer and stores `bytes` there. Returns `None` if none is free.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Option<u32> {
        let buffer = self.free.pop()?;
        self.memory.write_at(buffer as usize * BUFFER_LEN, bytes);
        Some(buffer)
    }

    /// Returns whether a send buffer is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the first `len` bytes of a send buffer, for a SEND.
    pub(super) fn data(&self, buffer: u32, len: u32) -> Data {
        Data::Sges(smallvec![self.mr.sge(u64::from(buffer) * BUFFER_LEN as u64, len)])
    }

    /// Frees a send buffer.
    pub(super) fn free(&mut self, buffer: u32) {
        self.free.push(buffer);
    }
}

impl Drop for MessageBuffers {
    fn drop(&mut self) {
        // Only a dead NIC does not confirm the revocation. The memory is not freed while a NIC
        // refers to it.
        let _ = self.domain.deregister(&self.mr);
    }
}
