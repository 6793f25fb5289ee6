//! What the client and the server process tell each other, and what each records of a round.

use std::path::PathBuf;

use mitra_failover::{Outcome, Resolution, UnresolvedError};
use mitra_nics::TwoEnds;
use mitra_verbs::WcStatus;
use serde::{Deserialize, Serialize};

use super::fault_plan::Side;
use super::workload::Kind;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RoundSetup {
    /// The policy, by its name on the command line.
    pub(super) policy: String,
    pub(super) log: bool,
    pub(super) in_flight: u32,
    pub(super) ops: usize,
    /// The seed of the workload.
    pub(super) seed: u64,
    /// The time after which the client posts no more operations, in milliseconds.
    pub(super) timeout_ms: u64,
    /// The fault script, and the side that arms it.
    pub(super) fault: String,
    pub(super) fault_at: Side,
    /// Whether the fault acknowledges data before its placement. The NIC must be opened with that
    /// capability.
    pub(super) ack_before_placement: bool,
    /// The prefix of the capture files' names.
    pub(super) pcap: Option<PathBuf>,
    /// The NICs of both sides, the client first. `None` takes software NICs.
    pub(super) device: Option<TwoEnds>,
}

/// The information about a side that its peer needs to connect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ConnectionInfo {
    /// An encoded `ConnectInfo`.
    pub(super) connect: Vec<u8>,
    /// Encoded `RemoteRegion`s of the server: the memory that the client writes, and the pattern
    /// that it reads. Empty for the client.
    pub(super) regions: Vec<Vec<u8>>,
    /// The addresses of the NICs, for output.
    pub(super) addresses: Vec<String>,
}

/// Describes an outcome without what a program should do about it.
pub(super) fn describe(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "executed exactly once",
        Outcome::Unresolved(UnresolvedError::Indeterminate) => {
            "not, partly or fully executed: no evidence tells which"
        }
        Outcome::Unresolved(UnresolvedError::ValueLost) => "executed exactly once, but its value is lost",
        Outcome::Unresolved(UnresolvedError::ExecutedBehindError) => {
            "executed exactly once, behind an operation that ended in an error"
        }
        Outcome::Unresolved(UnresolvedError::Undecided(_)) => {
            "the vQP ended before the operation could be decided"
        }
        Outcome::Failed(WcStatus::Flushed) => "not executed: the vQP had ended",
        Outcome::Unresolved(_) | Outcome::Failed(_) => "failed as on a queue pair without failover",
    }
}

/// A posted operation. Times are in ns of the machine's monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpRecord {
    pub(super) posted: u64,
    pub(super) completion: Option<CompletionRecord>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CompletionRecord {
    pub(super) at: u64,
    pub(super) outcome: Outcome,
    pub(super) resolution: Resolution,
    /// The old value of a CAS or FAA, the number of wrong words of a READ, or 0.
    pub(super) value: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ClientReport {
    /// The operations in posting order.
    pub(super) ops: Vec<OpRecord>,
    /// Completions that were out of order, duplicated, or without a posted operation.
    pub(super) stray: u64,
    /// The last failover that this side reported.
    pub(super) failover: Option<Failover>,
    /// The time at which this side observed the failure of its NIC.
    pub(super) fault_at: Option<u64>,
    /// The reason why the vQP closed. `None` if it was open at the end of the round.
    pub(super) ended: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ServerReport {
    /// The executions in the order in which the server's processor saw them.
    pub(super) log: Vec<ExecutionRecord>,
    /// The final value of the counter.
    pub(super) counter: u64,
    /// The value of the counter when the server closed the old rail.
    pub(super) counter_before: Option<u64>,
    /// The last failover that this side reported.
    pub(super) failover: Option<Failover>,
    /// The time at which this side observed the failure of its NIC.
    pub(super) fault_at: Option<u64>,
    /// The reason why the vQP closed. `None` if it was open at the end of the round.
    pub(super) ended: Option<String>,
}

/// A word or a message that the server's processor consumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ExecutionRecord {
    pub(super) kind: Kind,
    pub(super) id: u64,
    /// Whether the whole payload of the operation was present.
    pub(super) intact: bool,
    /// Whether the server saw the execution before it closed the old rail.
    pub(super) before: bool,
    pub(super) at: u64,
}

/// A failover as one side reports it; see `mitra_failover::FailoverReport`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Failover {
    /// The number of moves so far.
    pub(super) moves: u16,
    /// The name of the detector.
    pub(super) cause: String,
    pub(super) detected: u64,
    pub(super) fenced: u64,
    pub(super) decided: u64,
    /// Payload bytes in flight, and the part of them that was sent again.
    pub(super) bytes_in_flight: u64,
    pub(super) bytes_replayed: u64,
}
