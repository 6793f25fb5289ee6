//! The messages between the coordinator and the two participants.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::workload::Kind;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToParticipant {
    /// Open the NICs, register the memory and create the vQP.
    RoundSetup(RoundSetup),
    /// Connect to this peer.
    Peer(ConnectionInfo),
    /// Both sides are connected: arm the fault and begin.
    Go,
    /// The client has finished: stop and report. On this message, the client closes its vQP.
    Finish,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FromParticipant {
    ConnectionInfo(ConnectionInfo),
    /// The participant is connected. The server sends this message again when its fault is armed.
    Ready,
    /// The number of completed operations of this round.
    Progress(u64),
    ClientReport(ClientReport),
    ServerReport(ServerReport),
    /// The round is over: the participant has closed its NICs, and its capture files are complete.
    Closed,
}

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
    /// The fault script to arm at this participant.
    pub(super) fault: Option<String>,
    /// Whether the fault acknowledges data before its placement. The NIC must be opened with that
    /// capability.
    pub(super) ack_before_placement: bool,
    /// The prefix of the capture files' names.
    pub(super) pcap: Option<PathBuf>,
}

/// The information about a participant that its peer needs to connect.
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

/// The outcome of an operation, as the vQP reported it to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum OpOutcome {
    Success,
    Indeterminate,
    ValueLost,
    ExecutedBehindError,
    Undecided,
    Flushed,
    Failed,
}

impl OpOutcome {
    pub(super) fn description(self) -> &'static str {
        match self {
            OpOutcome::Success => "executed exactly once",
            OpOutcome::Indeterminate => "not, partly or fully executed: no evidence tells which",
            OpOutcome::ValueLost => "executed exactly once, but its value is lost",
            OpOutcome::ExecutedBehindError => {
                "executed exactly once, behind an operation that ended in an error"
            }
            OpOutcome::Undecided => "the vQP ended before the operation could be decided",
            OpOutcome::Flushed => "not executed: the vQP had ended",
            OpOutcome::Failed => "failed as on a queue pair without failover",
        }
    }
}

/// How the vQP completed an operation; see `mitra_failover::Resolution`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Resolution {
    Direct,
    Recovered,
    Replayed,
}

/// A posted operation. Times are in ns of the machine's monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct OpRecord {
    pub(super) posted: u64,
    pub(super) completion: Option<CompletionRecord>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct CompletionRecord {
    pub(super) at: u64,
    pub(super) outcome: OpOutcome,
    pub(super) resolution: Resolution,
    /// The old value of a CAS or FAA, the number of wrong words of a READ, or 0.
    pub(super) value: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
