//! Operations to post, and a judge of what became of them.
//!
//! A [`Party`] is one end of a connection: it posts the operations of its [`Plan`] and serves those of its peer, as a
//! program with a CPU would: it consumes flags and resets them, takes what is received, scribbles over blocks that
//! it has read. Each end keeps a record of what it asked for and heard back ([`Asked`]) and of what it saw in its
//! memory ([`Seen`]). [`judge`] compares one end's `Asked` with the other's `Seen`: nothing of the queue pair, virtual or
//! real, takes part in the verdict.
//!
//! Every effect is such that doing it twice shows: a flag that is written again after it was consumed is consumed
//! again, a counter counts, a receiver's log has an entry more, a block that was scribbled over is no longer.
//!
//! ```text
//! Plan ── ops ──▶ Party A ── Endpoint ═══ NICs ═══ Endpoint ── Party B ◀── the same plan, to know what to expect
//!                   │ Asked                                       │ Seen
//!                   └──────────────▶ judge(plan, …) ◀─────────────┘
//! ```

mod judge;
mod party;
mod plan;
mod rc;
mod requester;
mod responder;
mod vqp;

use mitra_verbs::{PostError, RecvWr, SendWr};

pub use judge::{Tally, Verdict, judge};
pub use party::Party;
use plan::Layout;
pub use plan::{Kind, Op, Plan};
pub use rc::{RcEndpoint, RcOptions, connect_rc};
pub use requester::{Asked, Record};
pub use responder::{Received, Seen};
pub use vqp::{VqpEndpoint, connect_vqp, connect_vqp_in};

/// One end of something that operations can be posted on: a bare queue pair, a virtual one.
pub trait Endpoint {
    /// Posts an operation.
    ///
    /// # Errors
    /// [`mitra_verbs::Error::QueueFull`]: again later. Any other: the operation is not posted, and no more will be.
    fn post(&mut self, wr: SendWr) -> Result<(), PostError>;

    /// Posts a receive.
    ///
    /// # Errors
    /// As for [`Endpoint::post`].
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError>;

    /// Appends what has ended since.
    fn poll(&mut self, out: &mut Vec<Done>);

    /// Right after a poll: whether it keeps account of every operation, and all have ended. What it has not told of, unsignalled,
    /// succeeded.
    fn is_idle(&self) -> bool {
        false
    }
}

/// An operation or a receive has ended. The workload's receives have [`RECEIVE`] in their `wr_id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// As posted.
    pub wr_id: u64,
    /// How.
    pub ending: Ending,
    /// Bytes received.
    pub byte_len: u32,
    /// Immediate data, of a receive.
    pub imm: Option<u32>,
}

/// What an endpoint says of an operation: the judge holds it to its word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Ending {
    /// Executed once, and its data or value is where it should be.
    Success,
    /// Executed once, but its value is lost.
    Executed,
    /// Not executed.
    NotExecuted,
    /// Not, partly or once; never twice.
    Unknown,
}

/// Set in the `wr_id` of a receive.
pub const RECEIVE: u64 = 1 << 63;
