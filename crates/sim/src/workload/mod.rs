//! A workload over an endpoint, and a verdict on what happened to its operations.
//!
//! A [`WorkloadPeer`] is one end of a connection. It posts the operations of its [`Plan`] and serves those of
//! its peer as a program with a CPU would: it consumes and resets flags, takes messages, and overwrites
//! blocks that it has read. Each end keeps a log of what it requested and which completions it got
//! ([`RequesterLog`]), and a log of what it saw in its memory ([`ResponderLog`]). [`verify`] compares one
//! end's `RequesterLog` with the other's `ResponderLog`. The queue pair, virtual or real, takes no part in
//! the verdict.
//!
//! Every effect shows if it happens twice: a flag that is written again after it was consumed is consumed
//! again, a counter counts, the log of received messages has another entry, and an overwritten block changes
//! again.
//!
//! ```text
//! Plan ── ops ──▶ WorkloadPeer A ── Endpoint ═══ NICs ═══ Endpoint ── WorkloadPeer B ◀── the same plan
//!                    │ RequesterLog                                      │ ResponderLog
//!                    └──────────────▶ verify(plan, …) ◀──────────────────┘
//! ```

mod peer;
mod plan;
mod rc_endpoint;
mod requester;
mod responder;
mod verdict;
mod vqp_endpoint;

use mitra_verbs::{PostError, RecvWr, SendWr};

pub use peer::WorkloadPeer;
use plan::MemoryLayout;
pub use plan::{Op, OpKind, Plan};
pub use rc_endpoint::{RcEndpoint, RcOptions, connect_rc};
pub use requester::{Record, RequesterLog};
pub use responder::{Received, ResponderLog};
pub use verdict::{Tally, Verdict, verify};
pub use vqp_endpoint::{VqpEndpoint, connect_vqp, connect_vqp_in};

/// One end of a connection: a queue pair or a virtual queue pair.
pub trait Endpoint {
    /// Posts an operation.
    ///
    /// # Errors
    /// [`mitra_verbs::Error::QueueFull`] if the caller should try again later. After any other error the
    /// operation is not posted, and the workload posts no more.
    fn post(&mut self, wr: SendWr) -> Result<(), PostError>;

    /// Posts a receive.
    ///
    /// # Errors
    /// See [`Endpoint::post`].
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError>;

    /// Appends the completions since the last call.
    fn poll(&mut self, out: &mut Vec<EndpointCompletion>);

    /// Returns whether all operations have ended, for endpoints that track unsignalled operations. Call it
    /// directly after [`Endpoint::poll`]: unsignalled operations without a completion have then succeeded.
    fn is_idle(&self) -> bool {
        false
    }
}

/// The completion of an operation or of a receive. Receives of the workload have [`RECV_WR_FLAG`] in their
/// `wr_id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointCompletion {
    /// The id of the work request.
    pub wr_id: u64,
    /// The outcome.
    pub outcome: ReportedOutcome,
    /// The size of the received message, in bytes.
    pub byte_len: u32,
    /// The immediate data of a receive.
    pub imm: Option<u32>,
}

/// The outcome of an operation as the endpoint reports it. The verdict checks that it is true.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReportedOutcome {
    /// Executed once, and its data or value is in place.
    Success,
    /// Executed once, but the returned value is lost.
    Executed,
    /// Not executed.
    NotExecuted,
    /// Executed not at all, in part, or once, but never twice.
    Unknown,
}

/// The bit that marks the `wr_id` of a receive.
pub const RECV_WR_FLAG: u64 = 1 << 63;
