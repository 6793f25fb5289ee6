//! What the first process and the two ends tell each other: JSON, a message a line, over the ends' standard input and
//! output.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::workload::Kind;

/// To an end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToParticipant {
    /// Open the NICs, make the memory and the vQP.
    Round(Round),
    /// Connect to this peer.
    Peer(Introduction),
    /// Everybody is connected: arm the fault, and begin.
    Go,
    /// The client has done: stop, and report. (To the client: let go of the vQP.)
    Finish,
}

/// From an end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FromParticipant {
    /// What the peer needs to know.
    Introduction(Introduction),
    /// Connected. From the server once more, when its fault is armed.
    Ready,
    /// So many operations have completed in this round.
    Progress(u64),
    /// The client's report.
    Posted(Posted),
    /// The server's report.
    Seen(Seen),
}

/// One round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Round {
    /// By its name on the command line.
    pub(super) policy: String,
    /// With a completion log.
    pub(super) log: bool,
    pub(super) in_flight: u32,
    pub(super) ops: usize,
    /// Of the workload.
    pub(super) seed: u64,
    /// The fault to arm at this end, as text.
    pub(super) fault: Option<String>,
    /// The fault makes a NIC acknowledge what it has not placed: it must say so beforehand.
    pub(super) lies: bool,
    /// Begin of the capture files' names.
    pub(super) pcap: Option<PathBuf>,
}

/// An end, as its peer must know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Introduction {
    /// `ConnectInfo`, encoded.
    pub(super) connect: Vec<u8>,
    /// `RemoteRegion`s, encoded: the memory that is written, and the pattern that is read. Of the server.
    pub(super) regions: Vec<Vec<u8>>,
    /// Addresses of its NICs, for people.
    pub(super) addresses: Vec<String>,
}

/// How an operation ended, as the client was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Ending {
    Success,
    Indeterminate,
    ValueLost,
    ExecutedBehindError,
    Undecided,
    Flushed,
    Failed,
}

/// How its completion came about (`mitra_failover::Resolution`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Way {
    Direct,
    Recovered,
    Replayed,
}

/// A posted operation. Times are in ns of the machine's monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) posted: u64,
    /// Its completion, if there was one.
    pub(super) done: Option<Done>,
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) at: u64,
    pub(super) ending: Ending,
    pub(super) way: Way,
    /// CAS and FAA: the old value. READ: how many words were not as they should be. Else 0.
    pub(super) value: u64,
}

/// The client's report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Posted {
    /// In posting order.
    pub(super) ops: Vec<Record>,
    /// Completions that came out of order, twice, or for nothing that was posted.
    pub(super) stray: u64,
    /// The last failover of this end.
    pub(super) failover: Option<Failover>,
    /// When this end saw its NIC fail.
    pub(super) struck: Option<u64>,
    /// Why the vQP ended, if it did.
    pub(super) ended: Option<String>,
}

/// The server's report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// In the order in which its processor saw them.
    pub(super) log: Vec<Entry>,
    /// The counter at last ...
    pub(super) counter: u64,
    /// ... and when the old rail was closed.
    pub(super) counter_before: Option<u64>,
    /// The last failover of this end.
    pub(super) failover: Option<Failover>,
    /// When this end saw its NIC fail.
    pub(super) struck: Option<u64>,
    /// Why the vQP ended, if it did.
    pub(super) ended: Option<String>,
}

/// The server's processor consumed a word, or a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    /// The word.
    pub(super) id: u64,
    /// Whether everything that belongs to it was there.
    pub(super) whole: bool,
    /// Before the server closed the old rail.
    pub(super) before: bool,
    pub(super) at: u64,
}

/// One end's failover, from `mitra_failover::FailoverReport`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Failover {
    /// Moves so far.
    pub(super) moves: u16,
    /// The detector's name.
    pub(super) cause: String,
    pub(super) detected: u64,
    pub(super) fenced: u64,
    pub(super) decided: u64,
    /// Payload bytes that were in flight, and that were sent again.
    pub(super) bytes_in_flight: u64,
    pub(super) bytes_replayed: u64,
}
