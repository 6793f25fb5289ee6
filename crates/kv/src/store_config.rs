//! The dimensions of a store, which must be the same at all its processes and memory nodes.

use mitra_consensus::heartbeat::Heartbeat;
use mitra_consensus::kv_store::Limits;
use mitra_consensus::{Region, log};

/// The capacity of a log register, in bytes. The capacity limits the length of a command, including
/// the key and the value.
const REGISTER_BYTES: usize = 4 << 10;
/// The maximum number of log entries in flight. Commands that arrive while this many are in flight
/// are combined in the next entry. A larger number would lead to smaller entries, and each entry
/// costs one WRITE to every memory.
const PIPELINE_DEPTH: u16 = 2;
/// The number of registers in a window, which one READ fetches.
const WINDOW: u16 = 16;
/// The number of windows in the ring. When the ring is half full, the leader writes a snapshot to
/// each memory, so a long ring makes snapshots rare.
const WINDOWS: u16 = 128;
/// The maximum number of commands that wait at a leader.
const QUEUED_COMMANDS: u16 = 4096;
/// The maximum number of client sessions. To open another session, the store expires the least
/// recently used session.
const SESSIONS: u16 = 1024;
/// The largest store capacity, in MiB. A region has at most 65,535 registers, and a snapshot of the
/// store must fit into one region.
pub const MAX_CAPACITY_MIB: u8 = 122;

/// The dimensions of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// The number of processes, 1 to 64.
    pub processes: u8,
    /// The number of memory nodes, 1 to 64.
    pub memories: u8,
    /// The capacity for all keys and values, in MiB. Values are clamped to the range from 1 to
    /// [`MAX_CAPACITY_MIB`].
    pub capacity_mib: u8,
}

impl StoreConfig {
    /// Returns the configuration of the replicated log.
    pub fn log_config(&self) -> log::Config {
        let bytes = usize::from(self.capacity_mib.clamp(1, MAX_CAPACITY_MIB)) << 20;
        log::Config {
            processes: self.processes,
            memories: self.memories,
            max_inflight: PIPELINE_DEPTH,
            window: WINDOW,
            ring_windows: WINDOWS,
            register_bytes: REGISTER_BYTES as u32,
            // The header of a register takes at most 64 bytes.
            snapshot_registers: (bytes / (REGISTER_BYTES - 64)) as u16 + 1,
            queue_capacity: QUEUED_COMMANDS,
        }
    }

    /// Returns the limits of the key-value state machine.
    pub fn kv_limits(&self) -> Limits {
        Limits { sessions: SESSIONS, bytes: self.log_config().max_snapshot_bytes() as u32 }
    }

    /// Returns the regions of each memory: the regions of the log, then the regions of the
    /// heartbeats.
    pub fn regions(&self) -> Vec<Region> {
        let mut regions = self.log_config().regions();
        regions.extend(Heartbeat::regions(self.processes));
        regions
    }

    /// Returns the register capacity that memory nodes need, in bytes: the capacity of a log
    /// register plus 8 bytes for the id of its writer.
    pub fn register_capacity(&self) -> usize {
        REGISTER_BYTES + 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capacity_fits_into_the_regions() {
        for megabytes in 0..=u8::MAX {
            let sizes = StoreConfig { processes: 64, memories: 64, capacity_mib: megabytes };
            assert!(sizes.log_config().is_valid(), "{megabytes} MiB");
            let requested = usize::from(megabytes.clamp(1, MAX_CAPACITY_MIB)) << 20;
            assert!(sizes.log_config().max_snapshot_bytes() >= requested, "{megabytes} MiB");
        }
    }
}
