use core::fmt;

use mitra_verbs::{Ended, Key, Srqn, WcOpcode, WcStatus};

use crate::close_reason::CloseReason;

/// The reason why the execution of an operation, or its return value, is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnresolvedError {
    /// The evidence does not show whether the responder executed none, a part or all of the
    /// operation.
    #[error(
        "not, partly or fully executed: no evidence tells which; read the peer's memory to find out, then resume()"
    )]
    Indeterminate,
    /// The operation was executed exactly once, but its return value is lost. For a receive, the
    /// lost value is the length.
    #[error("executed exactly once, but its value is lost; do not repeat it, then resume()")]
    ValueLost,
    /// The responder executed the operation exactly once, behind an operation that ended in an
    /// error.
    #[error(
        "executed exactly once, behind an operation that ended in an error; do not repeat it, then resume()"
    )]
    ExecutedBehindError,
    /// The vQP closed before it could decide this operation.
    #[error("the queue pair closed before this operation could be decided: {0}")]
    Undecided(CloseReason),
}

/// The result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The operation was executed exactly once. Its data or value is in the memory that the work
    /// request names.
    Success,
    /// The operation failed as it would on a queue pair without failover.
    Failed(WcStatus),
    /// The execution or the return value is unknown.
    Unresolved(UnresolvedError),
}

impl Outcome {
    /// How the operation ended, for a program that does not need the reason. An operation that a
    /// NIC refused, or that the vQP did not send, was not executed; of a WRITE that the peer's NIC
    /// refused in the middle, the packets before may be placed. Behind another error, an atomic may
    /// have been executed, and its value not stored. An operation that the vQP could not decide
    /// before it closed is unknown. The peer may execute that operation until the connection is
    /// fenced.
    pub fn ended(self) -> Ended {
        match self {
            Outcome::Success => Ended::Success,
            Outcome::Failed(
                WcStatus::Flushed
                | WcStatus::LocalLength
                | WcStatus::LocalQpOperation
                | WcStatus::WindowBind
                | WcStatus::RemoteInvalidRequest
                | WcStatus::RemoteAccess
                | WcStatus::RnrRetryExceeded,
            ) => Ended::NotExecuted,
            Outcome::Failed(_) => Ended::Unknown,
            Outcome::Unresolved(UnresolvedError::ValueLost | UnresolvedError::ExecutedBehindError) => {
                Ended::ValueLost
            }
            Outcome::Unresolved(UnresolvedError::Indeterminate | UnresolvedError::Undecided(_)) => {
                Ended::Unknown
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Success => f.write_str("success"),
            Outcome::Failed(status) => write!(f, "{status}"),
            Outcome::Unresolved(error) => write!(f, "{error}"),
        }
    }
}

/// The step that determined an operation's [`Outcome`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Resolution {
    /// The first rail that carried the operation completed it.
    Direct,
    /// A failover decided the operation from the evidence, without sending it again.
    Recovered,
    /// A failover sent the operation, or the rest of it, again on another rail.
    Replayed,
}

/// A completion of a virtual queue pair.
///
/// Sends complete in posting order, each once. Every signalled send has a completion, and so does
/// every send that fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// The sequence number of the operation on this vQP. For a receive, the number of receives
    /// before it.
    pub seq: u64,
    /// The type of the operation.
    pub opcode: WcOpcode,
    /// The result.
    pub outcome: Outcome,
    /// The step that determined the result.
    pub resolution: Resolution,
    /// The number of bytes received or read, or 8 for an atomic.
    pub byte_len: u32,
    /// The immediate data of a receive.
    pub imm: Option<u32>,
    /// The key that the peer's SEND with invalidate revoked, for a receive.
    pub invalidated: Option<Key>,
    /// Whether the sender asked for a solicited event, for a receive.
    pub solicited: bool,
    /// The shared receive queue of the receive, in an XRC domain.
    pub srq: Option<Srqn>,
}

impl Completion {
    /// The completion of a receive without a message. `seq` is the position among all receives of
    /// the queue pair, from 0.
    pub fn failed_receive(wr_id: u64, seq: u64, status: WcStatus) -> Completion {
        Completion {
            wr_id,
            seq,
            opcode: WcOpcode::Recv,
            outcome: Outcome::Failed(status),
            resolution: Resolution::Direct,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
            srq: None,
        }
    }

    /// Whether the outcome is [`Outcome::Success`].
    pub fn is_success(&self) -> bool {
        self.outcome == Outcome::Success
    }

    /// Converts every outcome but [`Outcome::Success`] into an error.
    ///
    /// # Errors
    /// The operation and its outcome.
    pub fn into_result(self) -> Result<Completion, OperationError> {
        match self.outcome {
            Outcome::Success => Ok(self),
            outcome => Err(OperationError { wr_id: self.wr_id, opcode: self.opcode, outcome }),
        }
    }
}

/// An operation that did not succeed. The message names the operation, the cause and, if there is
/// one, the way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{opcode} {wr_id}: {outcome}")]
pub struct OperationError {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// The type of the operation.
    pub opcode: WcOpcode,
    /// The result, never [`Outcome::Success`].
    pub outcome: Outcome,
}
