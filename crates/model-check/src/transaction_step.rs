//! The sizes of worlds of transactions, the layout of their memory, and the steps of the adversary.

use mitra_txn::{Copies, Location, Place, PlaceKind, TableId};

use crate::transaction_nodes::node_id;

/// The bytes of a record before its value.
pub(crate) const HEADER_BYTES: usize = 40;
pub(crate) const RECORD_BYTES: u32 = 128;
pub(crate) const SLOT_BYTES: u32 = 192;
/// The number of logs that must have an entry. Also the number of copies of a record.
pub(crate) const COPIES: usize = 2;

/// The use of a record by a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecordUse {
    /// The transaction reads the record.
    Read,
    /// The transaction reads the record, and later appends its number to the value.
    ReadThenAppend,
    /// The transaction locks and reads the record, and later appends its number to the value.
    LockThenAppend,
    /// The transaction replaces the value by its number, without reading the value.
    Overwrite,
}

/// The records that a transaction uses, and how.
pub type TransactionProgram = &'static [(u8, RecordUse)];

/// The size of a world, the number of its faults, and its rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TransactionConfig {
    /// The number of memory nodes.
    pub nodes: u8,
    /// The number of records.
    pub records: u8,
    /// The transactions of each coordinator. There are at most 15.
    pub programs: &'static [&'static [TransactionProgram]],
    /// How often the life of a coordinator may end.
    pub ends: u8,
    /// How often the life of a recoverer may end.
    pub recoverer_ends: u8,
    /// How often the answers to an agent's requests to a node may be lost.
    pub doubts: u8,
    /// How many nodes may die.
    pub deaths: u8,
    /// Whether a life that has ended is fenced, so that none of its requests is executed later.
    pub fences: bool,
    /// Whether a coordinator begins its next life only after the recovery of its last life.
    pub recovers_first: bool,
    /// Whether a NIC may read the lock word of a record later than the rest of the word's line.
    pub tears_headers: bool,
}

/// The knowledge of an agent about requests of which an answer is lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LostAnswers {
    /// Nothing is known.
    Unknown,
    /// Nothing is known about the first request. The requests behind it were not executed.
    FirstUnknown,
    /// Everything is known except the value of the first request.
    Known,
}

/// One step of the adversary.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TransactionStep {
    /// A node executes the next part of the first request of an agent.
    Execute {
        /// The coordinator, or the recoverer, which has the last number.
        agent: u8,
        /// The node.
        node: u8,
    },
    /// An attempt reads locked records again until it gives up, before anything else happens.
    GiveUp {
        /// The coordinator.
        agent: u8,
    },
    /// The answers to an agent's requests to a node are lost. The first `executed` of these
    /// requests were executed.
    Doubt {
        /// The agent.
        agent: u8,
        /// The node.
        node: u8,
        /// The number of executed requests.
        executed: u8,
        /// The agent's knowledge about the requests.
        lost: LostAnswers,
    },
    /// The life of an agent ends, with a fence if `fences` of the configuration is set.
    End {
        /// The agent.
        agent: u8,
    },
    /// A node is declared dead.
    Die {
        /// The node.
        node: u8,
    },
    /// A node executes the next part of a request of a life that has ended. This is impossible if
    /// lives are fenced.
    ExecuteLate {
        /// The node.
        node: u8,
    },
}

impl TransactionStep {
    /// The agent whose requests are executed; 0 if there is none.
    pub(crate) fn agent(&self) -> u8 {
        match *self {
            TransactionStep::Execute { agent, .. } | TransactionStep::GiveUp { agent } => agent,
            TransactionStep::Doubt { agent, .. } | TransactionStep::End { agent } => agent,
            TransactionStep::Die { .. } | TransactionStep::ExecuteLate { .. } => 0,
        }
    }

    pub(crate) fn is_fault(&self) -> bool {
        matches!(
            self,
            TransactionStep::Doubt { .. } | TransactionStep::End { .. } | TransactionStep::Die { .. }
        )
    }
}

impl TransactionConfig {
    pub(crate) fn copies(&self, record: u8) -> Copies {
        let place = Place { table: TableId(0), partition: 0, kind: PlaceKind::Record, index: record.into() };
        let location = |node: u8| Location {
            node: node_id(usize::from(node % self.nodes)),
            at: u64::from(u32::from(record) * RECORD_BYTES),
        };
        Copies { place, primary: location(record), backups: vec![location(record + 1)], bytes: RECORD_BYTES }
    }

    /// Returns the slot of a coordinator on each node.
    pub(crate) fn slot(&self, agent: usize) -> Vec<Location> {
        let at = u64::from(u32::from(self.records) * RECORD_BYTES) + agent as u64 * u64::from(SLOT_BYTES);
        (0..self.nodes).map(|node| Location { node: node_id(node.into()), at }).collect()
    }

    pub(crate) fn resolve(&self, place: Place) -> Option<Copies> {
        (place.index < u32::from(self.records)).then(|| self.copies(place.index as u8))
    }

    /// Returns the number of the first transaction of a coordinator.
    pub(crate) fn first(&self, agent: usize) -> usize {
        self.programs[..agent].iter().map(|programs| programs.len()).sum()
    }
}
