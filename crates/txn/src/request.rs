//! The requests of a coordinator to the memory nodes, and their outcomes.

use mitra_mutants::Mutant;

use crate::lock_word::LockWord;
use crate::place::Location;
use crate::record::{LOCK_BYTES, VERSION_BYTES};

/// The number of a memory node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u16);

/// One access to the memory of a node. A node executes the requests that are posted together in
/// their order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// The node.
    pub node: NodeId,
    /// The offset in the node's memory, in bytes: a multiple of 8.
    pub at: u64,
    /// The access.
    pub op: Op,
}

/// The access of a [`Request`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// RDMA READ of this many bytes.
    Read(u32),
    /// RDMA WRITE of these bytes.
    Write(Vec<u8>),
    /// Compare-and-swap of a word.
    CompareSwap {
        /// The value that the word must have for the swap.
        compare: u64,
        /// The new value.
        swap: u64,
    },
}

/// The outcome of a request. A request is never executed after its outcome is known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The request was executed once. The bytes are the result of a READ, or the word before a
    /// compare-and-swap; empty for a WRITE.
    Executed(Vec<u8>),
    /// The request was executed once, and its result is lost.
    ValueLost,
    /// The request was not executed.
    NotExecuted,
    /// The request was either executed once or not executed.
    Unknown,
    /// The node is declared dead. The execution of the request no longer matters.
    NodeDead,
}

impl Request {
    pub(crate) fn read(from: Location, bytes: u32) -> Request {
        Request { node: from.node, at: from.at, op: Op::Read(bytes) }
    }

    pub(crate) fn write(to: Location, offset: usize, bytes: Vec<u8>) -> Request {
        Request { node: to.node, at: to.at + offset as u64, op: Op::Write(bytes) }
    }

    /// Writes all of a backup but its lock, the version last. A torn WRITE leaves the old version,
    /// so a recovery sees that the backup lacks the value.
    pub(crate) fn write_backup(to: Location, content: &[u8]) -> [Request; 2] {
        let (version, rest) = content.split_at(VERSION_BYTES);
        let mut writes = [
            Request::write(to, LOCK_BYTES + VERSION_BYTES, rest.to_vec()),
            Request::write(to, LOCK_BYTES, version.to_vec()),
        ];
        if Mutant::BackupVersionFirst.is_on() {
            writes.reverse();
        }
        writes
    }

    pub(crate) fn swap_lock(at: Location, compare: LockWord, swap: LockWord) -> Request {
        let (compare, swap) = (compare.bits(), swap.bits());
        Request { node: at.node, at: at.at, op: Op::CompareSwap { compare, swap } }
    }
}

impl Outcome {
    /// The bytes that the request returned, if they are known.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Outcome::Executed(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The word that a compare-and-swap returned, if it is known.
    pub(crate) fn word(&self) -> Option<u64> {
        self.bytes()?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Whether a WRITE must be posted again: it may not have been executed, and its node lives.
    pub fn needs_repetition(&self) -> bool {
        !self.is_executed() && *self != Outcome::NodeDead
    }

    /// Whether the request was certainly executed.
    pub(crate) fn is_executed(&self) -> bool {
        matches!(self, Outcome::Executed(_) | Outcome::ValueLost)
    }
}
