use std::sync::Arc;

use mitra_verbs::{Data, RecvWr, Result};
use smallvec::smallvec;

use crate::domain::Domain;
use crate::owned_region::OwnedRegion;

/// In bytes.
pub(super) const BUFFER_LEN: usize = 4096;
pub(super) const RECVS: u32 = 64;
pub(super) const SENDS: u32 = 64;

/// The registered memory of the messages on the backup: the receive buffers and, behind them, the
/// send buffers.
#[derive(Debug)]
pub(super) struct MessageBuffers {
    region: OwnedRegion,
    /// Send buffers that are not in use.
    free: Vec<u32>,
}

impl MessageBuffers {
    /// # Errors
    /// Any error of a NIC.
    pub(super) fn new(domain: &Arc<Domain>) -> Result<MessageBuffers> {
        let region = OwnedRegion::new(domain, (RECVS + SENDS) as usize * BUFFER_LEN)?;
        Ok(MessageBuffers { region, free: (RECVS..RECVS + SENDS).rev().collect() })
    }

    pub(super) fn receive(&self, buffer: u32) -> RecvWr {
        RecvWr::new(buffer.into(), self.region.sge(buffer as usize * BUFFER_LEN, BUFFER_LEN))
    }

    pub(super) fn read(&self, buffer: u32, len: u32) -> Vec<u8> {
        self.region.read(buffer as usize * BUFFER_LEN, (len as usize).min(BUFFER_LEN))
    }

    /// Stores `bytes` in a free send buffer. Returns `None` if no buffer is free.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Option<u32> {
        let buffer = self.free.pop()?;
        self.region.write(buffer as usize * BUFFER_LEN, bytes);
        Some(buffer)
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// The first `len` bytes of a send buffer, for a SEND.
    pub(super) fn data(&self, buffer: u32, len: u32) -> Data {
        Data::Sges(smallvec![self.region.sge(buffer as usize * BUFFER_LEN, len as usize)])
    }

    pub(super) fn free(&mut self, buffer: u32) {
        self.free.push(buffer);
    }
}
