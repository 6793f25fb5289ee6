//! The completion log: evidence of executed operations that survives a failure of the responder's
//! NIC (modelled on Varuna's completion log).
//!
//! After each WRITE and atomic, the requester posts an entry: an inline WRITE of 8 bytes,
//! ⟨epoch:16, sequence number:48⟩, on the same queue pair into the responder's host memory. RC
//! executes in order, so an entry proves the execution of every operation before it.

use std::sync::Arc;

use mitra_mutants::Mutant;
use mitra_verbs::{Access, Buffer, Data, Result, SendFlags, SendOp, SendWr};

use crate::config::{CompletionLogConfig, Config};
use crate::domain::Domain;
use crate::memory_region::{RemoteRegion, VirtualMr};

pub(crate) const SEQ_BITS: u32 = 48;

/// The log at the responder, into which the requester writes the entries.
#[derive(Debug)]
pub(crate) struct CompletionLog {
    memory: Arc<Buffer>,
    mr: VirtualMr,
}

/// Returns the number of slots for a send queue of `depth` requests. With at least `depth` slots, a
/// slot is reused only after its operation has left the send queue.
pub(crate) fn slots(depth: u32) -> usize {
    depth.next_power_of_two() as usize
}

impl CompletionLog {
    fn new(domain: &Domain, depth: u32) -> Result<CompletionLog> {
        let memory = Arc::new(Buffer::new(slots(depth) * 8));
        let mr = domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(CompletionLog { memory, mr })
    }

    pub(crate) fn of_config(domain: &Domain, config: &Config) -> Result<Option<CompletionLog>> {
        config.log_entries().map(|depth| CompletionLog::new(domain, depth)).transpose()
    }

    /// Returns the log's memory for the peer. `None` if the peer has no right to WRITE, because the
    /// NIC would then refuse the peer's entries.
    pub(crate) fn offer(&self, access: Access) -> Option<RemoteRegion> {
        access.contains(Access::REMOTE_WRITE).then(|| self.mr.remote())
    }

    pub(crate) fn mr(&self) -> &VirtualMr {
        &self.mr
    }

    /// Returns the highest sequence number of the entries of `epoch`. READs and SENDs leave gaps,
    /// so the call reads all slots, one for each request of the peer's send queue. In mode
    /// `durable` each maintenance run calls it.
    pub(crate) fn last_seq(&self, epoch: u16) -> Option<u64> {
        let slots = self.memory.len() / 8;
        (0..slots)
            .map(|slot| (slot as u64, self.memory.load(slot * 8)))
            .filter(|&(slot, entry)| {
                let seq = entry & ((1 << SEQ_BITS) - 1);
                (entry >> SEQ_BITS == u64::from(epoch) || Mutant::LogOfEarlierEpochRead.is_on())
                    && seq % slots as u64 == slot
            })
            .map(|(_, entry)| entry & ((1 << SEQ_BITS) - 1))
            .max()
    }
}

/// The part of an end's connection parameters about its completion log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTerms<'a> {
    pub(crate) is_kept: bool,
    pub(crate) is_durable: bool,
    /// See [`CompletionLog::offer`].
    pub(crate) region: Option<&'a RemoteRegion>,
}

/// Returns the reason why this end, with up to `depth` outstanding requests, cannot connect to its
/// peer.
pub(crate) fn mismatch(
    local: LogTerms<'_>,
    peer: LogTerms<'_>,
    depth: u32,
    rails: usize,
) -> Option<&'static str> {
    let fits = |region: &RemoteRegion| {
        region.len() >= (slots(depth) * 8) as u64
            && region.len().is_multiple_of(8)
            && region.rail_count() == rails
    };
    let mismatches = [
        (
            peer.is_kept != local.is_kept,
            "one end keeps a completion log and the other does not; give both --log, or neither",
        ),
        (peer.is_durable != local.is_durable, "one end is durable and the other is not; give both the same"),
        (
            peer.is_durable && peer.region.is_none(),
            "a durable end needs the peer's right to WRITE the completion log; add REMOTE_WRITE to the access",
        ),
        (
            peer.is_kept && !peer.region.is_none_or(fits),
            "the peer's completion log has no room for this end's send_wrs; set its completion_log.entries",
        ),
    ];
    mismatches.into_iter().find(|(mismatch, _)| *mismatch).map(|(_, reason)| reason)
}

/// Returns the number of WRITEs per entry. If a NIC of the peer acknowledges data before the data
/// is in memory, each WRITE needs an entry.
pub(crate) fn interval(log: &CompletionLogConfig, acks_after_placement: bool) -> u32 {
    if log.durable || !acks_after_placement { 1 } else { log.interval }
}

/// Returns the inline WRITE that puts the entry of operation `seq` into the peer's log.
pub(crate) fn entry(log: &RemoteRegion, rail: usize, wr_id: u64, epoch: u16, seq: u64) -> SendWr {
    let slot = seq % (log.len() / 8);
    let remote = log.on_rail(rail, slot * 8);
    let value = u64::from(epoch) << SEQ_BITS | seq;
    SendWr::new(wr_id, SendOp::Write(remote), Data::inline(&value.to_ne_bytes()))
        .with_flags(SendFlags::empty())
}
