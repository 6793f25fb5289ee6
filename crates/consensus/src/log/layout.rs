//! What a memory of the log holds, and where: a header, a ring of entries, and two areas for a snapshot.

use serde::{Deserialize, Serialize};

use crate::{LegalChange, Op, Permissions, ProcessSet, Region, RegisterKind};

/// More than what a cell takes, as postcard writes it, beside the bytes of commands and snapshots.
const OVERHEAD: usize = 48;
/// What a command takes beside its bytes: its length.
const PER_COMMAND: usize = 5;

/// The sizes of a log, the same at all its processes. Nothing in it grows beyond them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Config {
    /// How many processes there can be, 1 to 64. Any number of them may be dead, or not there yet.
    pub processes: u8,
    /// How many memories there are, 1 to 64. A majority of them must live.
    pub memories: u8,
    /// How many entries may be on their way at a time, 1 to `window`. What is submitted meanwhile waits, and goes into the next ones
    /// together: with few there are fewer, larger entries.
    pub max_inflight: u16,
    /// How many registers are read or written at a time.
    pub window: u16,
    /// The ring of entries is so many windows long, at least 2.
    pub ring_windows: u16,
    /// How many bytes each register has room for, as postcard writes a [`Cell`].
    pub register_bytes: u32,
    /// How many registers a snapshot may take.
    pub snapshot_registers: u16,
    /// How many commands may wait for a place in the window.
    pub queue_capacity: u16,
}

impl Config {
    /// Whether the numbers fit each other.
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

    /// The most bytes that a command can have.
    pub fn max_command_bytes(&self) -> usize {
        self.register_bytes as usize - OVERHEAD - PER_COMMAND
    }

    /// The most bytes that a snapshot can have.
    pub fn max_snapshot_bytes(&self) -> usize {
        self.chunk_bytes() * usize::from(self.snapshot_registers)
    }

    /// The regions of each memory: one, which nobody may write until somebody takes it.
    pub fn regions(&self) -> Vec<Region> {
        vec![Region {
            registers: 1 + self.ring() + 2 * self.snapshot_registers,
            permissions: Permissions::read_only(self.processes),
            legal_change: LegalChange::ExclusiveWriter,
            kind: RegisterKind::ReadWrite,
        }]
    }

    /// How many commands of `all`, at least one, go into one entry.
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

    /// How many entries the ring has room for.
    pub(super) fn ring(&self) -> u16 {
        self.window * self.ring_windows
    }

    /// The register of an entry.
    pub(super) fn slot(&self, index: u64) -> u16 {
        1 + (index % u64::from(self.ring())) as u16
    }

    /// Reads a window of entries, the one that this index is in.
    pub(super) fn read_entries(&self, index: u64) -> Op<Cell> {
        let window = (index / u64::from(self.window) % u64::from(self.ring_windows)) as u16;
        read(1 + window * self.window, self.window)
    }

    /// Reads the entries from one to another of the same window.
    pub(super) fn read_some(&self, first: u64, last: u64) -> Op<Cell> {
        read(self.slot(first), (last - first) as u16 + 1)
    }

    /// How many windows on from that of the one index that of the other is.
    pub(super) fn windows_between(&self, one: u64, other: u64) -> u64 {
        other / u64::from(self.window) - one / u64::from(self.window)
    }

    /// The last index in the same window.
    pub(super) fn window_end(&self, index: u64) -> u64 {
        index - index % u64::from(self.window) + u64::from(self.window) - 1
    }

    /// The register of a snapshot's so manieth chunk.
    pub(super) fn chunk(&self, area: bool, nth: u16) -> u16 {
        1 + self.ring() + u16::from(area) * self.snapshot_registers + nth
    }

    /// Reads the next chunks of a snapshot, of which there are some left.
    pub(super) fn read_chunks(&self, stamp: &SnapshotMeta, nth: u16) -> Op<Cell> {
        read(self.chunk(stamp.area, nth), self.window.min(stamp.chunks - nth))
    }
}

/// Reads the header.
pub(super) const READ_HEADER: Op<Cell> = Op::Read { region: 0, first: 0, count: 1 };

fn read(first: u16, count: u16) -> Op<Cell> {
    Op::Read { region: 0, first, count }
}

/// Writes a register.
pub(super) fn write(register: u16, cell: Cell) -> Op<Cell> {
    Op::Write { region: 0, register, cell }
}

/// What a register holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Cell {
    /// Nothing yet.
    #[default]
    Empty,
    /// The first register.
    Header(Header),
    /// A register of the ring.
    Entry(Entry),
    /// A register of the snapshot's areas.
    Chunk(Chunk),
}

/// The state of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Header {
    /// The highest ballot begun here.
    pub ballot: u64,
    /// The snapshot here. Its index is the recycling point: registers of entries up to it may be written anew.
    pub snapshot: SnapshotMeta,
}

/// Which snapshot it is, and where.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SnapshotMeta {
    /// The last entry in it; 0 for no snapshot.
    pub index: u64,
    /// The ballot of who wrote it.
    pub ballot: u64,
    /// In which of the two areas it is.
    pub area: bool,
    /// In how many registers.
    pub chunks: u16,
    /// Who might lead then.
    pub leaders: ProcessSet,
}

impl Default for SnapshotMeta {
    fn default() -> SnapshotMeta {
        SnapshotMeta { index: 0, ballot: 0, area: false, chunks: 0, leaders: ProcessSet::NONE }
    }
}

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The ballot of who wrote it.
    pub ballot: u64,
    /// Its place in the log, from 1.
    pub index: u64,
    /// Up to where entries were committed, as far as the writer knew.
    pub commit: u64,
    /// What it says.
    pub payload: Payload,
}

/// What an entry says.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Payload {
    /// Commands for the state machine, in order.
    Commands(#[serde(with = "commands")] Vec<Vec<u8>>),
    /// Only these may lead from here on.
    EligibleLeaders(ProcessSet),
}

/// A part of a snapshot.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Chunk {
    /// The last entry in the snapshot.
    pub index: u64,
    /// The ballot of who wrote it.
    pub ballot: u64,
    /// The part.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Commands are bytes, and not lists of numbers to be written down one by one.
mod commands {
    use serde::{Deserialize, Deserializer, Serializer};
    use serde_bytes::{ByteBuf, Bytes};

    pub(super) fn serialize<S: Serializer>(commands: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(commands.iter().map(|command| Bytes::new(command)))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<Vec<u8>>, D::Error> {
        Ok(Vec::<ByteBuf>::deserialize(from)?.into_iter().map(ByteBuf::into_vec).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        postcard::to_allocvec(cell).expect("a cell can be written down").len()
    }

    #[test]
    fn every_cell_has_room_in_its_register() {
        let room = CONFIG.register_bytes as usize;
        let stamp = SnapshotMeta {
            index: MOST,
            ballot: MOST,
            area: true,
            chunks: u16::MAX,
            leaders: ProcessSet::first(64),
        };
        assert!(size(&Cell::Header(Header { ballot: MOST, snapshot: stamp })) <= OVERHEAD);
        let bytes = vec![255; CONFIG.chunk_bytes()];
        assert!(size(&Cell::Chunk(Chunk { index: MOST, ballot: MOST, bytes })) <= room);
        for length in 0..=CONFIG.max_command_bytes() {
            let waiting = vec![vec![255; length]; 200];
            let commands = waiting[..CONFIG.batch(waiting.iter())].to_vec();
            let full = commands.len() * (length + PER_COMMAND) + OVERHEAD + length + PER_COMMAND > room;
            assert!(full, "{} commands of {length} bytes, where there is room for more", commands.len());
            let payload = Payload::Commands(commands);
            assert!(size(&Cell::Entry(Entry { ballot: MOST, index: MOST, commit: MOST, payload })) <= room);
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
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
    fn no_two_registers_are_one() {
        let entries = (0..u64::from(CONFIG.ring())).map(|index| CONFIG.slot(index));
        let chunks =
            [false, true].into_iter().flat_map(|area| (0..5).map(move |nth| CONFIG.chunk(area, nth)));
        let mut all: Vec<u16> = entries.chain(chunks).collect();
        all.sort_unstable();
        assert_eq!(all, (1..CONFIG.regions()[0].registers).collect::<Vec<_>>());
        assert_eq!(CONFIG.slot(1), CONFIG.slot(1 + u64::from(CONFIG.ring())));
    }
}
