//! The registered memory between a client's operations and its work requests.

use std::sync::Arc;

use mitra_consensus_memory::{ClientLink, MAX_READ_BYTES};
use mitra_failover::{Domain, OwnedRegion, RemoteRegion};
use mitra_verbs::{Data, Error, SendOp};

use crate::link::Link;

/// The number of staging slots for READs and compare-and-swaps, which bounds the number of these
/// requests in flight.
const READ_SLOTS: usize = 4;
/// The number of staging slots for WRITEs that are too long to be inline, which bounds the number
/// of these requests in flight.
const WRITE_SLOTS: usize = 16;

/// The local memory of READs, compare-and-swaps and long WRITEs: the read slots, followed by the
/// write slots.
#[derive(Debug)]
pub(super) struct Staging {
    region: OwnedRegion,
    read_slot_bytes: usize,
    write_slot_bytes: usize,
    free_reads: Vec<usize>,
    free_writes: Vec<usize>,
    used: Vec<UsedSlot>,
}

#[derive(Debug)]
struct UsedSlot {
    wr_id: u64,
    slot: Slot,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    /// A read slot, and the number of bytes that the request fetches.
    Read(usize, usize),
    Write(usize),
}

impl Staging {
    /// Allocates the memory for WRITEs of at most `max_write_bytes` and READs of at most
    /// `max_read_bytes` or [`MAX_READ_BYTES`], whichever is larger.
    pub(super) fn new(
        domain: &Arc<Domain>,
        max_write_bytes: usize,
        max_read_bytes: usize,
    ) -> Result<Staging, Error> {
        let (write_slot_bytes, read_slot_bytes) = (max_write_bytes, MAX_READ_BYTES.max(max_read_bytes));
        let bytes = READ_SLOTS * read_slot_bytes + WRITE_SLOTS * write_slot_bytes;
        Ok(Staging {
            region: OwnedRegion::new(domain, bytes)?,
            read_slot_bytes,
            write_slot_bytes,
            free_reads: (0..READ_SLOTS).collect(),
            free_writes: (0..WRITE_SLOTS).collect(),
            used: Vec::new(),
        })
    }

    /// Frees all slots. The caller has ended all queue pairs that used the memory.
    pub(super) fn reset(&mut self) {
        (self.free_reads, self.free_writes) = ((0..READ_SLOTS).collect(), (0..WRITE_SLOTS).collect());
        self.used.clear();
    }

    /// Frees the slot of a completed work request, and returns the bytes that the work request
    /// fetched.
    pub(super) fn complete(&mut self, wr_id: u64) -> Vec<u8> {
        let Some(at) = self.used.iter().position(|used| used.wr_id == wr_id) else { return Vec::new() };
        match self.used.swap_remove(at).slot {
            Slot::Read(slot, len) => {
                self.free_reads.push(slot);
                self.region.read(slot * self.read_slot_bytes, len)
            }
            Slot::Write(slot) => {
                self.free_writes.push(slot);
                Vec::new()
            }
        }
    }
}

pub(super) struct StagedLink<'a> {
    pub(super) link: &'a mut Link,
    pub(super) staging: &'a mut Staging,
}

impl StagedLink<'_> {
    /// Posts a request that fetches `len` bytes to a read slot.
    fn fetch(&mut self, wr_id: u64, op: SendOp, len: usize) -> bool {
        let Some(slot) = self.staging.free_reads.pop() else { return false };
        let sge = self.staging.region.sge(slot * self.staging.read_slot_bytes, len);
        let posted = self.link.post(wr_id, op, Data::sge(sge)).is_ok();
        match posted {
            true => self.staging.used.push(UsedSlot { wr_id, slot: Slot::Read(slot, len) }),
            false => self.staging.free_reads.push(slot),
        }
        posted
    }
}

impl ClientLink for StagedLink<'_> {
    type Key = RemoteRegion;

    fn connect(&mut self, info: &[u8]) -> bool {
        self.link.connect(info).is_ok()
    }

    fn import(&mut self, encoded: &[u8], len: u64) -> Option<RemoteRegion> {
        let remote = RemoteRegion::decode(encoded).ok()?;
        (remote.len() == len && self.link.import(&remote).is_ok()).then_some(remote)
    }

    fn free_send_slots(&self) -> usize {
        self.link.free_send_slots()
    }

    fn write(&mut self, wr_id: u64, key: &RemoteRegion, offset: u64, data: &[u8]) -> bool {
        let op = SendOp::Write(key.at(offset));
        if data.len() <= self.staging.region.domain().limits().inline as usize {
            return self.link.post(wr_id, op, Data::inline(data)).is_ok();
        }
        let Some(slot) = self.staging.free_writes.pop() else { return false };
        let at = READ_SLOTS * self.staging.read_slot_bytes + slot * self.staging.write_slot_bytes;
        self.staging.region.write(at, data);
        let sge = self.staging.region.sge(at, data.len());
        let posted = self.link.post(wr_id, op, Data::sge(sge)).is_ok();
        match posted {
            true => self.staging.used.push(UsedSlot { wr_id, slot: Slot::Write(slot) }),
            false => self.staging.free_writes.push(slot),
        }
        posted
    }

    fn read(&mut self, wr_id: u64, key: &RemoteRegion, offset: u64, len: usize) -> bool {
        self.fetch(wr_id, SendOp::Read(key.at(offset)), len)
    }

    fn compare_swap(&mut self, wr_id: u64, key: &RemoteRegion, offset: u64, compare: u64, swap: u64) -> bool {
        self.fetch(wr_id, SendOp::CompareSwap { remote: key.at(offset), compare, swap }, size_of::<u64>())
    }

    fn send(&mut self, message: Vec<u8>) -> bool {
        self.link.send(message)
    }
}
