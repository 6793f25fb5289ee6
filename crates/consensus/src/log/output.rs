//! The outputs of a log process: messages to other processes, deliveries to the state machine, and
//! the outcomes of submissions.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::Payload;

/// The message by which a leader announces its commit index to the other processes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Committed {
    /// The sender's ballot.
    pub ballot: u64,
    /// The index of the last committed entry.
    pub index: u64,
}

/// A delivery to the state machine, in log order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Delivery {
    /// The next entry is committed.
    Entry {
        /// The index of the entry, one above the last delivered index.
        index: u64,
        /// The content of the entry.
        payload: Payload,
    },
    /// Replaces the whole state of the state machine.
    Snapshot {
        /// The index of the last entry that the snapshot includes.
        index: u64,
        /// The bytes that a leader passed to [`super::Log::snapshot`].
        bytes: Vec<u8>,
    },
}

/// The identifier of a submission, unique at its process until the process restarts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ticket(pub(super) u64);

/// The outcome of a submission.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CommitOutcome {
    /// The submission is committed.
    Committed {
        /// The index of the submission's entry.
        index: u64,
        /// The position of the command within the entry, from 0.
        position: usize,
    },
    /// This process no longer leads. The submission may be committed now, later, or never.
    Unknown,
}

/// The error of a log operation that had no effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LogError {
    /// This process does not lead, or has not completed its takeover.
    NotLeader,
    /// The submission queue is full.
    QueueFull,
    /// The command or snapshot exceeds its maximum size.
    TooLarge,
    /// The set of eligible leaders contains no process of the log.
    NoEligibleLeader,
    /// Some deliveries have not been taken, or no entry was committed since the last snapshot.
    NotReady,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogError::NotLeader => "this process does not lead",
            LogError::QueueFull => "the submission queue is full",
            LogError::TooLarge => "too large for the log's registers",
            LogError::NoEligibleLeader => "the set contains no process that could lead",
            LogError::NotReady => "deliveries have not been taken, or there is nothing new to include",
        })
    }
}

impl std::error::Error for LogError {}
