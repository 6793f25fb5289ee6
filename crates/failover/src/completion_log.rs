//! The completion log: evidence of executed operations that survives a failure of the responder's NIC (modelled on Varuna's completion log).
//!
//! After each WRITE and atomic, the requester posts an entry: an inline WRITE of 8 bytes, ⟨epoch:16, sequence number:48⟩, on the same queue
//! pair into the responder's host memory. RC executes in order, so an entry proves the execution of every operation before it.

use std::sync::Arc;

use mitra_verbs::{Access, Buffer, Data, Result, SendFlags, SendOp, SendWr};

use crate::domain::Domain;
use crate::memory_region::{RemoteRegion, VirtualMr};

/// The length of an entry, in bytes.
pub(crate) const ENTRY_LEN: u32 = 8;

const SEQ_BITS: u32 = 48;

/// The memory at the responder into which the requester writes the entries.
#[derive(Debug)]
pub(crate) struct CompletionLog {
    memory: Arc<Buffer>,
    mr: VirtualMr,
}

/// Returns the number of slots for a send queue of `depth` requests. There are at least `depth` slots, so a slot is reused only after its
/// operation has left the send queue.
pub(crate) fn slots(depth: u32) -> usize {
    depth.next_power_of_two() as usize
}

impl CompletionLog {
    /// Creates an empty log for a peer with at most `depth` outstanding requests, and registers its memory.
    pub(crate) fn new(domain: &Domain, depth: u32) -> Result<CompletionLog> {
        let memory = Arc::new(Buffer::new(slots(depth) * 8));
        let mr = domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(CompletionLog { memory, mr })
    }

    /// The registration of the log's memory.
    pub(crate) fn mr(&self) -> &VirtualMr {
        &self.mr
    }

    /// Returns the highest sequence number that the peer logged in `epoch`, or `None` if there is no entry of that epoch.
    pub(crate) fn last_seq(&self, epoch: u16) -> Option<u64> {
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

/// Returns the request that writes the entry of the operation `seq` into the peer's log over `rail`.
pub(crate) fn entry(log: &RemoteRegion, rail: usize, wr_id: u64, epoch: u16, seq: u64) -> SendWr {
    let slot = seq % (log.len() / 8);
    let remote = log.on_rail(rail, slot * 8);
    let value = u64::from(epoch) << SEQ_BITS | seq;
    SendWr::new(wr_id, SendOp::Write(remote), Data::inline(&value.to_ne_bytes()))
        .with_flags(SendFlags::empty())
}
