//! How large a store is: the same at all its processes and memories.

use mitra_consensus::heartbeat::Heartbeat;
use mitra_consensus::kv_store::Limits;
use mitra_consensus::{Region, log};

/// Bytes of a register's contents, and so of a command with its key and its value.
const ROOM: usize = 4 << 10;
/// Entries on their way at a time: what clients ask for meanwhile goes into the next one together. More would be smaller ones, and each
/// costs every memory a write.
const DEPTH: u16 = 2;
/// Registers read at a time, and how many times as many the ring holds. At half of it the leader writes a snapshot to each memory, so a
/// long one makes those rare.
const WINDOW: u16 = 16;
const WINDOWS: u16 = 128;
/// Commands that wait at a leader.
const QUEUE: u16 = 4096;
/// Sessions kept.
const SESSIONS: u16 = 1024;
/// What all keys and values may take, in MiB, at most: a region has at most 65,535 registers.
pub const MAX_CAPACITY_MIB: u8 = 122;

/// How large a store is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Processes, 1 to 64.
    pub processes: u8,
    /// Memories, 1 to 64.
    pub memories: u8,
    /// What all keys and values may take, in MiB: 1 to [`MAX_CAPACITY_MIB`].
    pub capacity_mib: u8,
}

impl StoreConfig {
    /// Those of its log.
    pub fn log_config(&self) -> log::Config {
        let bytes = usize::from(self.capacity_mib.clamp(1, MAX_CAPACITY_MIB)) << 20;
        log::Config {
            processes: self.processes,
            memories: self.memories,
            max_inflight: DEPTH,
            window: WINDOW,
            ring_windows: WINDOWS,
            register_bytes: ROOM as u32,
            // A little is lost in each register.
            snapshot_registers: (bytes / (ROOM - 64)) as u16 + 1,
            queue_capacity: QUEUE,
        }
    }

    /// Those of what it holds.
    pub fn kv_limits(&self) -> Limits {
        Limits { sessions: SESSIONS, bytes: self.log_config().max_snapshot_bytes() as u32 }
    }

    /// The regions of each memory: the log's, then the heartbeats'.
    pub fn regions(&self) -> Vec<Region> {
        let mut regions = self.log_config().regions();
        regions.extend(Heartbeat::regions(self.processes));
        regions
    }

    /// Bytes that a memory's registers have room for: a register's contents, and whose it is.
    pub fn register_capacity(&self) -> usize {
        ROOM + 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sizes_fit() {
        for megabytes in 0..=u8::MAX {
            let sizes = StoreConfig { processes: 64, memories: 64, capacity_mib: megabytes };
            assert!(sizes.log_config().is_valid(), "{megabytes} MiB");
            let least = usize::from(megabytes.clamp(1, MAX_CAPACITY_MIB)) << 20;
            assert!(sizes.log_config().max_snapshot_bytes() >= least, "{megabytes} MiB");
        }
    }
}
