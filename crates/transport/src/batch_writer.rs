//! Appends packets to a [`TxBatch`].

use mitra_wire::{ICRC_LEN, Packet};

use crate::{IpPath, TxBatch};

/// The largest number of datagrams in a batch. Linux accepts at most this many segments in one send
/// with UDP_SEGMENT.
const MAX_DATAGRAMS: usize = 64;
/// The largest number of bytes in a batch: 32 packets of 4096 bytes with their headers. A larger
/// batch does not stay in the CPU's cache. The driver splits a batch that its kernel does not
/// accept in one call.
const MAX_BYTES: usize = 132 * 1024;
/// An upper bound on the bytes of a datagram beyond its payload: headers, pad and ICRC.
const OVERHEAD: usize = mitra_wire::MAX_HEADERS_LEN + 8 + 3 + ICRC_LEN;

pub(crate) struct BatchWriter<'a> {
    batch: &'a mut TxBatch,
    payload: u64,
}

impl<'a> BatchWriter<'a> {
    pub(crate) fn new(batch: &'a mut TxBatch) -> BatchWriter<'a> {
        BatchWriter { batch, payload: 0 }
    }

    pub(crate) fn destination(&self) -> IpPath {
        IpPath { address: self.batch.destination, traffic_class: self.batch.traffic_class }
    }

    /// The first packet always fits. `payload` is in bytes.
    pub(crate) fn has_room(&self, payload: usize) -> bool {
        self.batch.is_empty()
            || self.batch.ends.len() < MAX_DATAGRAMS
                && self.batch.bytes.len() + payload + OVERHEAD <= MAX_BYTES
    }

    /// Appends a packet with `len` payload bytes, which `fill` writes. If `fill` fails, the batch
    /// does not change.
    pub(crate) fn append<E>(
        &mut self,
        packet: &Packet<'_>,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = &mut self.batch.bytes;
        let start = bytes.len();
        packet.emit_headers_to(len, bytes);
        let body = bytes.len();
        // Pad and ICRC stay zero.
        bytes.resize(body + len + Packet::pad_for(len) + ICRC_LEN, 0);
        if let Err(e) = fill(&mut bytes[body..body + len]) {
            bytes.truncate(start);
            return Err(e);
        }
        self.batch.ends.push(bytes.len() as u32);
        self.payload += len as u64;
        Ok(())
    }

    pub(crate) fn append_headers(&mut self, packet: &Packet<'_>) {
        packet.emit_headers_to(0, &mut self.batch.bytes);
        self.batch.bytes.extend_from_slice(&[0; ICRC_LEN]);
        self.batch.ends.push(self.batch.bytes.len() as u32);
    }

    pub(crate) fn payload(&self) -> u64 {
        self.payload
    }
}
