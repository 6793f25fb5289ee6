use mitra_verbs::{Key, WcOpcode, WcStatus};

use crate::agreement::CloseReason;

/// What cannot be known or recovered, said instead of guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnresolvedError {
    /// The operation was not, partly or fully executed; no evidence tells.
    #[error("not, partly or fully executed: no evidence tells which")]
    Indeterminate,
    /// The operation was executed exactly once, but the value that it returned is lost.
    #[error("executed exactly once, but its value is lost")]
    ValueLost,
    /// The operation was executed exactly once, although one before it ended in an error.
    #[error("executed exactly once, behind an operation that ended in an error")]
    ExecutedBehindError,
    /// The vQP ended before anything could be decided about this operation.
    #[error("the queue pair ended before this could be decided: {0:?}")]
    Undecided(CloseReason),
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// Executed exactly once; its data or value is where it should be.
    Success,
    /// As a queue pair without failover would report it.
    Failed(WcStatus),
    /// Something could not be known or recovered.
    Unresolved(UnresolvedError),
}

/// How the outcome came about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Resolution {
    /// The rail that it was posted on completed it.
    Direct,
    /// It had been executed when the rail failed; the evidence said so and recovered its value.
    Recovered,
    /// It had not (wholly) been executed, or had to be read again, and was sent on the next rail.
    Replayed,
}

/// A completion of a virtual queue pair, in posting order, once for each operation that asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// As posted.
    pub wr_id: u64,
    /// The operation's sequence number on this vQP; for receives, the order of arrival.
    pub seq: u64,
    /// What it was.
    pub opcode: WcOpcode,
    /// How it ended.
    pub outcome: Outcome,
    /// How that came about.
    pub resolution: Resolution,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data, of a receive.
    pub imm: Option<u32>,
    /// The key that a SEND with invalidate killed, of a receive.
    pub invalidated: Option<Key>,
    /// The sender asked that who waits for such messages is woken, of a receive.
    pub solicited: bool,
}

impl Completion {
    /// Whether it succeeded.
    pub fn is_success(&self) -> bool {
        self.outcome == Outcome::Success
    }
}
