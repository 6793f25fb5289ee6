//! The completion log: behind each WRITE and atomic, on the same queue pair, an 8-byte inline WRITE of
//! ⟨epoch:16, sequence number:48⟩ into the responder's memory. RC executes in order, so an entry that is there proves
//! every operation before it. It is host memory: it survives the responder's NIC. (After Varuna, seed `001`.)

use std::sync::Arc;

use mitra_verbs::{Buffer, Data, RemoteAddr, SendFlags, SendOp, SendWr};

use crate::domain::{RemoteRegion, VirtualMr};

const SEQ_BITS: u32 = 48;

/// The log that the peer writes about its own operations.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) memory: Arc<Buffer>,
    pub(crate) mr: VirtualMr,
}

/// Entries for a queue of that depth: a slot is used again only after its operation was decided.
pub(crate) fn slots(depth: u32) -> usize {
    depth.next_power_of_two() as usize
}

impl Log {
    /// The highest sequence number logged in this epoch.
    pub(crate) fn last(&self, epoch: u16) -> Option<u64> {
        let slots = self.memory.len() / 8;
        (0..slots)
            .map(|slot| (slot as u64, self.memory.load(slot * 8)))
            .filter(|&(slot, entry)| {
                let seq = entry & ((1 << SEQ_BITS) - 1);
                entry >> SEQ_BITS == u64::from(epoch) && seq % slots as u64 == slot
            })
            .map(|(_, entry)| entry & ((1 << SEQ_BITS) - 1))
            .max()
    }
}

/// The request that logs an operation, on the rail where the region has this name.
pub(crate) fn entry(region: &RemoteRegion, rail: usize, wr_id: u64, epoch: u16, seq: u64) -> SendWr {
    let slot = seq % (region.len / 8);
    let at = region.rails[rail];
    let remote = RemoteAddr { addr: at.addr.wrapping_add(slot * 8), rkey: at.rkey };
    let value = u64::from(epoch) << SEQ_BITS | seq;
    SendWr::new(wr_id, SendOp::Write(remote), Data::inline(&value.to_ne_bytes()))
        .with_flags(SendFlags::empty())
}
