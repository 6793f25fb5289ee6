//! What a log says: to other processes, and to the state machine and the submitters above it.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::Payload;

/// What processes say: in which ballot entries were found committed, and up to where.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Committed {
    /// The sender's ballot.
    pub ballot: u64,
    /// The last one.
    pub index: u64,
}

/// What the state machine above is given, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Delivery {
    /// The next entry is committed.
    Entry {
        /// Its place, one more than that of the last.
        index: u64,
        /// What it says.
        payload: Payload,
    },
    /// All that it has done so far is obsolete: it is to become this.
    Snapshot {
        /// The last entry in it.
        index: u64,
        /// What [`super::Log::snapshot`] was given somewhere.
        bytes: Vec<u8>,
    },
}

/// Names a submission at its process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ticket(pub(super) u64);

/// What has become of a submission.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CommitOutcome {
    /// It is committed.
    Committed {
        /// In this entry.
        index: u64,
        /// As the so manieth of its commands.
        position: usize,
    },
    /// This process leads no more. The submission may be committed, or may yet be, or never.
    Unknown,
}

/// Why something is refused. Nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LogError {
    /// This process does not lead, or not yet.
    NotLeader,
    /// As much is waiting as may.
    QueueFull,
    /// It has more bytes than there is room for.
    TooLarge,
    /// Nobody could lead.
    NoEligibleLeader,
    /// What was committed has not all been taken, or no more than at the last snapshot.
    NotReady,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogError::NotLeader => "this process does not lead",
            LogError::QueueFull => "too much is waiting already",
            LogError::TooLarge => "too many bytes",
            LogError::NoEligibleLeader => "nobody could lead",
            LogError::NotReady => "not now",
        })
    }
}

impl std::error::Error for LogError {}
