//! A workload over an endpoint, and a verdict on the outcomes of its operations. Only Mitra's own
//! tests need this module.
//!
//! A [`WorkloadPeer`] is one end of a connection. The peer posts the operations of its own
//! [`Plan`], and serves the operations of the other peer: it consumes and resets flags, takes
//! messages, and overwrites blocks that it has read. Each end keeps a log of its requests and their
//! completions ([`RequesterLog`]), and a log of the effects that it observed in its memory
//! ([`ResponderLog`]). [`verify`] compares one end's `RequesterLog` with the other end's
//! `ResponderLog`, and uses no state of the queue pairs.
//!
//! An effect that happens twice is detected for every kind of operation. A flag that is written
//! again is consumed again. A counter is too high. A message that is received again has two entries
//! in the log. A block that was consumed and overwritten changes again.
//!
//! ```text
//! Plan ── ops ──▶ WorkloadPeer A ── Endpoint ═══ NICs ═══ Endpoint ── WorkloadPeer B ◀── the same plan
//!                    │ RequesterLog                                      │ ResponderLog
//!                    └──────────────▶ verify(plan, …) ◀──────────────────┘
//! ```
//!
//! ```rust
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use mitra_sim::workload::{Plan, RcOptions, WorkloadPeer, connect_rc, verify};
//! use mitra_sim::{Config, Testbed, World};
//! use mitra_verbs::Provider;
//!
//! // Host `a` posts 50 operations over a noisy link, and host `b` serves them.
//! let mut config = Config::fault_free();
//! config.link.noise.drop_ppm = 10_000;
//! let mut testbed = Testbed::with_config(1, config, 1);
//! let (plan, none) = (Plan::new(1, 50), Plan { tag: 2, ..Plan::new(1, 0) });
//! let mut peers = [WorkloadPeer::new(&plan, &none), WorkloadPeer::new(&none, &plan)];
//! let nics = testbed.nics.each_ref().map(|rails| Arc::clone(&rails[0]) as Arc<dyn Provider>);
//! let [mut a, mut b] = connect_rc(nics, peers.each_mut(), &RcOptions::default()).unwrap();
//! let [requester, responder] = &mut peers;
//! let done = |_: &World| {
//!     responder.step(&mut b);
//!     requester.step(&mut a);
//!     requester.is_done()
//! };
//! testbed.world.run_until(done, Duration::from_secs(1)).unwrap();
//! testbed.world.run_for(Duration::from_millis(1));
//! responder.step(&mut b);
//!
//! responder.sweep();
//! requester.sweep();
//! let verdict = verify(&plan, requester.requester_log(), responder.responder_log());
//! assert!(verdict.is_complete(), "{verdict}");
//! ```

mod failover_connection;
mod failover_endpoint;
mod failure_case;
mod peer;
mod plan;
mod rc_endpoint;
mod requester;
mod responder;
pub mod shared_word;
mod verdict;
mod xrc_end;

use mitra_verbs::{Key, PostError, RecvWr, SendWr};

pub use crate::liveness::check_liveness;
pub use failover_connection::{
    backed_qps, backed_qps_with, connect_backed, connect_vqp, connect_vqp_in, shared_backups, virtual_qps,
    virtual_qps_with,
};
pub use failover_endpoint::{
    BackedEndpoint, FailoverEndpoint, FailoverQp, Flag, Halt, Membership, VqpEndpoint, exchange_memory,
};
pub use failure_case::{FailureCase, FailureTarget};
pub use peer::{PeerApp, WorkloadPeer};
use plan::MemoryLayout;
pub use plan::{Op, OpKind, Plan};
pub use rc_endpoint::{RcEndpoint, RcOptions, connect_rc};
pub use requester::{Record, RequesterLog};
pub use responder::{Received, ResponderLog};
pub use verdict::{Tally, Verdict, verify};
pub use xrc_end::XrcEnd;

/// One end of a connection: a queue pair or a virtual queue pair.
pub trait Endpoint {
    /// Posts an operation.
    ///
    /// # Errors
    /// Returns [`mitra_verbs::Error::QueueFull`] if the caller should try again later. After any
    /// other error, the workload posts no more operations. The operation is not posted if an error
    /// is returned.
    fn post(&mut self, wr: SendWr) -> Result<(), PostError>;

    /// Posts a receive.
    ///
    /// # Errors
    /// Returns the same errors as [`Endpoint::post`].
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError>;

    /// Appends to `out` the completions since the last call.
    fn poll(&mut self, out: &mut Vec<EndpointCompletion>);

    /// Returns whether all operations have ended. An endpoint that cannot know this for unsignalled
    /// operations returns false. If the result is true directly after [`Endpoint::poll`], all
    /// unsignalled operations without a completion have succeeded.
    fn is_idle(&self) -> bool {
        false
    }
}

/// The completion of an operation or of a receive. The `wr_id` of a receive contains
/// [`RECV_WR_FLAG`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointCompletion {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// The outcome.
    pub outcome: ReportedOutcome,
    /// The size of the received message, in bytes.
    pub byte_len: u32,
    /// The immediate data of a receive.
    pub imm: Option<u32>,
    /// The key that a received SEND has invalidated.
    pub invalidated: Option<Key>,
}

/// The outcome of an operation as the endpoint reports it. [`verify`] checks its truth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReportedOutcome {
    /// Executed once. Data or a value that the operation returns is in local memory.
    Success,
    /// Executed once, but the returned value is lost.
    Executed,
    /// Not executed.
    NotExecuted,
    /// Not executed, partly executed, or executed once. An operation with two effects contradicts
    /// this outcome.
    Unknown,
}

/// The bit that marks the `wr_id` of a receive.
pub const RECV_WR_FLAG: u64 = 1 << 63;
