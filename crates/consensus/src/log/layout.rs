//! The configuration of a log, and the layout of its memories: a header, a ring of entries, and two
//! areas for a snapshot.

use serde::{Deserialize, Serialize};

use super::{Cell, SnapshotMeta};
use crate::{LegalChange, Op, Permissions, Region, RegisterKind};

/// An upper bound on the size of a cell's postcard encoding without its commands or snapshot bytes,
/// in bytes.
const OVERHEAD: usize = 48;
/// An upper bound on the size of a command's length prefix, in bytes.
const PER_COMMAND: usize = 5;

/// The configuration of a log, which is equal at all its processes. Its fields bound the size of
/// all state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Config {
    /// The number of processes, 1 to 64. Any number of them may have crashed or not started.
    pub processes: u8,
    /// The number of memories, 1 to 64. A majority of them must be alive.
    pub memories: u8,
    /// The maximum number of entries in flight, 1 to `window`. Once this number is reached,
    /// submitted commands wait, and then share entries. A smaller maximum therefore leads to fewer
    /// and larger entries.
    pub max_inflight: u16,
    /// The maximum number of registers that one operation reads. Also the maximum number of
    /// outstanding entry writes per memory, and of outstanding chunk writes.
    pub window: u16,
    /// The length of the ring in windows, at least 2.
    pub ring_windows: u16,
    /// The capacity of a register in bytes. A register holds a postcard-encoded [`Cell`].
    pub register_bytes: u32,
    /// The maximum size of a snapshot in registers.
    pub snapshot_registers: u16,
    /// The maximum number of queued submissions.
    pub queue_capacity: u16,
}

impl Config {
    /// Returns whether all fields are in their ranges and one region can have all the registers.
    pub fn is_valid(&self) -> bool {
        let registers = 1
            + u64::from(self.window) * u64::from(self.ring_windows)
            + 2 * u64::from(self.snapshot_registers);
        (1..=64).contains(&self.processes)
            && (1..=64).contains(&self.memories)
            && (1..=self.window).contains(&self.max_inflight)
            && self.ring_windows >= 2
            && self.queue_capacity > 0
            && registers <= u16::MAX.into()
            && self.register_bytes as usize > OVERHEAD + PER_COMMAND
    }

    /// Returns the maximum size of a command in bytes.
    pub fn max_command_bytes(&self) -> usize {
        self.register_bytes as usize - OVERHEAD - PER_COMMAND
    }

    /// Returns the maximum size of a snapshot in bytes.
    pub fn max_snapshot_bytes(&self) -> usize {
        self.chunk_bytes() * usize::from(self.snapshot_registers)
    }

    /// Returns the regions of each memory: one region, which no process may write until it takes
    /// the permission.
    pub fn regions(&self) -> Vec<Region> {
        vec![Region {
            registers: 1 + self.ring() + 2 * self.snapshot_registers,
            permissions: Permissions::read_only(self.processes),
            legal_change: LegalChange::ExclusiveWriter,
            kind: RegisterKind::ReadWrite,
        }]
    }

    /// Returns how many of the first commands fit into one entry together, or 1 if there is no
    /// command.
    pub(super) fn batch<'a>(&self, all: impl Iterator<Item = &'a Vec<u8>>) -> usize {
        let room = self.register_bytes as usize - OVERHEAD;
        let ends = all.scan(0, |bytes, command| {
            *bytes += command.len() + PER_COMMAND;
            Some(*bytes)
        });
        ends.take_while(|&end| end <= room).count().max(1)
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.register_bytes as usize - OVERHEAD
    }

    /// Returns the capacity of the ring in entries.
    pub(super) fn ring(&self) -> u16 {
        self.window * self.ring_windows
    }

    /// Returns the register of an entry.
    pub(super) fn slot(&self, index: u64) -> u16 {
        1 + (index % u64::from(self.ring())) as u16
    }

    /// Returns a read of the window that contains this index.
    pub(super) fn read_entries(&self, index: u64) -> Op<Cell> {
        let window = (index / u64::from(self.window) % u64::from(self.ring_windows)) as u16;
        read(1 + window * self.window, self.window)
    }

    /// Returns a read of the entries from `first` to `last`, inclusive, which must be in one
    /// window.
    pub(super) fn read_some(&self, first: u64, last: u64) -> Op<Cell> {
        read(self.slot(first), (last - first) as u16 + 1)
    }

    /// Returns the number of windows after the window of index `first`, up to and including the
    /// window of index `last`.
    pub(super) fn windows_between(&self, first: u64, last: u64) -> u64 {
        last / u64::from(self.window) - first / u64::from(self.window)
    }

    /// Returns the last index in the window of `index`.
    pub(super) fn window_end(&self, index: u64) -> u64 {
        index - index % u64::from(self.window) + u64::from(self.window) - 1
    }

    /// Returns the register of the snapshot chunk number `nth` in an area.
    pub(super) fn chunk(&self, area: bool, nth: u16) -> u16 {
        1 + self.ring() + u16::from(area) * self.snapshot_registers + nth
    }

    /// Returns a read of at most a window of a snapshot's chunks, beginning with chunk number
    /// `nth`, which must exist.
    pub(super) fn read_chunks(&self, meta: &SnapshotMeta, nth: u16) -> Op<Cell> {
        read(self.chunk(meta.area, nth), self.window.min(meta.chunks - nth))
    }
}

pub(super) const READ_HEADER: Op<Cell> = Op::Read { region: 0, first: 0, count: 1 };

fn read(first: u16, count: u16) -> Op<Cell> {
    Op::Read { region: 0, first, count }
}

pub(super) fn write(register: u16, cell: Cell) -> Op<Cell> {
    Op::Write { region: 0, register, cell }
}

#[cfg(test)]
mod tests {
    use super::super::{Chunk, Entry, Header, Payload};
    use super::*;
    use crate::ProcessSet;

    const CONFIG: Config = Config {
        processes: 3,
        memories: 3,
        max_inflight: 4,
        window: 4,
        ring_windows: 3,
        register_bytes: 300,
        snapshot_registers: 5,
        queue_capacity: 1,
    };
    const MOST: u64 = u64::MAX;

    fn size(cell: &Cell) -> usize {
        postcard::to_allocvec(cell).expect("every cell can be encoded").len()
    }

    #[test]
    fn every_cell_fits_in_its_register() {
        let room = CONFIG.register_bytes as usize;
        let meta = SnapshotMeta {
            index: MOST,
            ballot: MOST,
            area: true,
            chunks: u16::MAX,
            leaders: ProcessSet::first(64),
        };
        assert!(size(&Cell::Header(Header { ballot: MOST, snapshot: meta })) <= OVERHEAD);
        let bytes = vec![255; CONFIG.chunk_bytes()];
        assert!(size(&Cell::Chunk(Chunk { index: MOST, ballot: MOST, bytes })) <= room);
        for length in 0..=CONFIG.max_command_bytes() {
            let waiting = vec![vec![255; length]; 200];
            let commands = waiting[..CONFIG.batch(waiting.iter())].to_vec();
            let full = commands.len() * (length + PER_COMMAND) + OVERHEAD + length + PER_COMMAND > room;
            assert!(full, "{} commands of {length} bytes do not fill the entry", commands.len());
            let payload = Payload::Commands(commands);
            assert!(size(&Cell::Entry(Entry { ballot: MOST, index: MOST, commit: MOST, payload })) <= room);
        }
    }

    #[test]
    fn invalid_configurations_are_rejected() {
        assert!(CONFIG.is_valid());
        let most = (u16::MAX - 1 - CONFIG.ring()) / 2;
        assert!(Config { snapshot_registers: most, ..CONFIG }.is_valid());
        for bad in [
            Config { processes: 0, ..CONFIG },
            Config { processes: 65, ..CONFIG },
            Config { memories: 0, ..CONFIG },
            Config { memories: 65, ..CONFIG },
            Config { max_inflight: 0, ..CONFIG },
            Config { max_inflight: 5, ..CONFIG },
            Config { window: 0, ..CONFIG },
            Config { ring_windows: 1, ..CONFIG },
            Config { queue_capacity: 0, ..CONFIG },
            Config { register_bytes: 53, ..CONFIG },
            Config { snapshot_registers: most + 1, ..CONFIG },
            Config { window: u16::MAX, ring_windows: u16::MAX, snapshot_registers: u16::MAX, ..CONFIG },
        ] {
            assert!(!bad.is_valid(), "{bad:?}");
        }
    }

    #[test]
    fn registers_of_entries_and_chunks_are_distinct() {
        let entries = (0..u64::from(CONFIG.ring())).map(|index| CONFIG.slot(index));
        let chunks =
            [false, true].into_iter().flat_map(|area| (0..5).map(move |nth| CONFIG.chunk(area, nth)));
        let mut all: Vec<u16> = entries.chain(chunks).collect();
        all.sort_unstable();
        assert_eq!(all, (1..CONFIG.regions()[0].registers).collect::<Vec<_>>());
        assert_eq!(CONFIG.slot(1), CONFIG.slot(1 + u64::from(CONFIG.ring())));
    }
}
