//! The contents of the registers of a log's memory.

use serde::{Deserialize, Serialize};

use crate::ProcessSet;

/// The content of a register.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Cell {
    /// The register has not been written.
    #[default]
    Empty,
    /// The content of register 0.
    Header(Header),
    /// The content of a register of the ring.
    Entry(Entry),
    /// The content of a register of a snapshot area.
    Chunk(Chunk),
}

/// The header of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Header {
    /// The highest ballot begun at this memory.
    pub ballot: u64,
    /// The valid snapshot in this memory. Its index is the recycling point: the registers of
    /// entries up to this index may be overwritten.
    pub snapshot: SnapshotMeta,
}

/// The metadata of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SnapshotMeta {
    /// The index of the last entry that the snapshot includes; 0 for no snapshot.
    pub index: u64,
    /// The ballot of the leader that wrote the snapshot.
    pub ballot: u64,
    /// The area that holds the snapshot: false for the first area, true for the second.
    pub area: bool,
    /// The number of chunks, each in one register.
    pub chunks: u16,
    /// The eligible leaders as of the snapshot's index.
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
    /// The ballot of the leader that wrote the entry.
    pub ballot: u64,
    /// The position in the log, from 1.
    pub index: u64,
    /// The writer's commit index when it wrote the entry.
    pub commit: u64,
    /// The content.
    pub payload: Payload,
}

/// The content of an entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Payload {
    /// Commands for the state machine, in order.
    Commands(#[serde(with = "commands")] Vec<Vec<u8>>),
    /// Only these processes may lead from this entry on.
    EligibleLeaders(ProcessSet),
}

/// A chunk of a snapshot.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Chunk {
    /// The index of the last entry that the snapshot includes.
    pub index: u64,
    /// The ballot of the leader that wrote the chunk.
    pub ballot: u64,
    /// The bytes of the chunk.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Encodes commands as byte strings. Serde would encode `Vec<u8>` as a sequence of numbers.
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
