//! Writing packets into a batch.

use mitra_verbs::Gid;
use mitra_wire::{ICRC_LEN, Packet};

use crate::TxBatch;

/// Datagrams in a batch: what a kernel segments in one send.
const MAX_DATAGRAMS: usize = 64;
/// Bytes in a batch: two messages of sixteen packets of 4096 bytes. A driver that hands runs of packets to a kernel in
/// one piece cuts them to what that takes; larger batches only fall out of the cache.
const MAX_BYTES: usize = 132 * 1024;
/// Headers, pad and ICRC at most.
const OVERHEAD: usize = mitra_wire::MAX_HEADERS_LEN + 8 + 3 + ICRC_LEN;

/// A batch being filled.
pub(crate) struct Out<'a> {
    batch: &'a mut TxBatch,
    payload: u64,
}

impl<'a> Out<'a> {
    pub(crate) fn new(batch: &'a mut TxBatch) -> Out<'a> {
        Out { batch, payload: 0 }
    }

    /// Where all packets of the batch go.
    pub(crate) fn destination(&self) -> Gid {
        self.batch.destination
    }

    /// Whether a packet with so much payload still fits.
    pub(crate) fn has_room(&self, payload: usize) -> bool {
        self.batch.is_empty()
            || self.batch.ends.len() < MAX_DATAGRAMS
                && self.batch.bytes.len() + payload + OVERHEAD <= MAX_BYTES
    }

    /// Appends a packet whose `len` payload bytes `fill` writes. If that fails, nothing is appended.
    pub(crate) fn packet<E>(
        &mut self,
        packet: &Packet<'_>,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = &mut self.batch.bytes;
        let start = bytes.len();
        packet.emit_headers_to(len, bytes);
        let body = bytes.len();
        // Payload, pad and ICRC; zeros but for the payload.
        bytes.resize(body + len + Packet::pad_for(len) + ICRC_LEN, 0);
        if let Err(e) = fill(&mut bytes[body..body + len]) {
            bytes.truncate(start);
            return Err(e);
        }
        self.batch.ends.push(bytes.len() as u32);
        self.payload += len as u64;
        Ok(())
    }

    /// Appends a packet without payload.
    pub(crate) fn bare(&mut self, packet: &Packet<'_>) {
        packet.emit_headers_to(0, &mut self.batch.bytes);
        self.batch.bytes.extend_from_slice(&[0; ICRC_LEN]);
        self.batch.ends.push(self.batch.bytes.len() as u32);
    }

    /// Payload bytes appended through this.
    pub(crate) fn payload(&self) -> u64 {
        self.payload
    }
}
