//! RDMA operations that are executed exactly once, across lost packets, links and NICs.
//!
//! Mitra consists of the `mitra` program (`cargo run --release -- demo`) and of libraries, which
//! this crate re-exports.
//!
//! Switch the default feature `cli` off in programs that use the library:
//! `mitra = { path = "…", default-features = false }`, with [further features](#where-to-go) as
//! needed. The feature `cli` belongs to the `mitra` program, and brings clap, serde and the
//! simulator along.
//!
//! # Concepts
//!
//! - A **NIC** executes verbs: it registers memory, creates queue pairs, and completes work
//!   requests. Every NIC implements [`verbs::Provider`]. [`softnic::SoftNic`] is a NIC in software
//!   that speaks RoCEv2 over UDP sockets, needs no root, and fails on demand.
//!   [`hardnic::HardNic`] is a device of the kernel, by the system's libibverbs.
//! - A **rail** is one path between two processes: a pair of NICs.
//! - A **virtual queue pair**, [`failover::VirtualQp`], is a reliable connection over several
//!   rails. When the active rail fails, the virtual queue pair fences that rail, reads the evidence
//!   of which operations the peer's NIC executed, replays only the other operations, and recovers
//!   the values that atomics returned. An operation whose execution cannot be determined ends in a
//!   named error.
//! - A **memory node** provides registers, which **processes** read and write by RDMA to decide on
//!   values. [`consensus`] contains the protocols as state machines. [`consensus_rdma`] runs them
//!   over virtual queue pairs. [`kv`] is a key-value store that is built on both.
//!
//! # Quick start
//!
//! The client increments a counter in the server's memory by fetch-and-add. Halfway, the client's
//! NIC of rail 0 fails. Each addition is still executed exactly once. In this example both ends are
//! in one process. Two processes exchange their `ConnectInfo` over a socket by
//! [`failover::handshake`], as [`examples::counter`] does.
//!
//! ```
//! use std::sync::Arc;
//! use mitra::failover::{Domain, VirtualQp};
//! use mitra::softnic::{SoftNic, fault::Failure};
//! use mitra::verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Each end has two NICs, so there are two rails.
//! let open = || SoftNic::open(mitra::softnic::Config::loopback());
//! let (client_nics, server_nics) = ([open()?, open()?], [open()?, open()?]);
//! let rail0 = Arc::clone(&client_nics[0]);
//! let client = Domain::new(client_nics.into_iter().map(|nic| nic as Arc<dyn Provider>).collect())?;
//! let server = Domain::new(server_nics.into_iter().map(|nic| nic as Arc<dyn Provider>).collect())?;
//!
//! let mut a = VirtualQp::builder(&client).build()?;
//! let mut b = VirtualQp::builder(&server).build()?;
//! a.connect(&b.local_info())?;
//! b.connect(&a.local_info())?;
//!
//! // The server gives the client access to a counter.
//! let counter = Arc::new(Buffer::new(8));
//! let remote = server.register(&counter, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?.remote();
//! a.import(&remote)?;
//! let old_value = Arc::new(Buffer::new(8));
//! let local = client.register(&old_value, Access::LOCAL_WRITE)?;
//!
//! for i in 0..100 {
//!     if i == 50 {
//!         rail0.faults().fail(Failure::NicDead);
//!     }
//!     let add = SendOp::FetchAdd { remote: remote.at(0), add: 1 };
//!     a.post_send(SendWr::new(i, add, Data::sge(local.sge(0, 8))))?;
//!     let mut completions = Vec::new();
//!     while completions.is_empty() {
//!         a.poll(&mut completions);
//!         b.progress();
//!     }
//!     completions[0].into_result()?;
//!     assert_eq!(old_value.load(0), i);
//! }
//! assert_eq!(counter.load(0), 100);
//! # Ok(())
//! # }
//! ```
//!
//! [`examples`] has complete programs:
//!
//! | example | shows | run it by |
//! |---|---|---|
//! | [`counter`](examples::counter) | two processes, WRITE and fetch-and-add, a failing rail | `cargo run --example counter -- server`, then `… client ADDRESS --fail-rail-0`; both take `--device mlx5_0,mlx5_1` |
//! | [`cell`](examples::cell) | two clients change one cell while the server's NIC dies | `cargo run --example cell` |
//! | [`bank`](examples::bank) | transactions over three memories, while a rail fails and a coordinator ends | `cargo run --example bank` |
//! | [`tokio`](examples::tokio) | a virtual queue pair in an event loop | `cargo run --example tokio` |
//! | [`rpc`](examples::rpc) | remote calls that are executed exactly once, over datagrams and over virtual queue pairs | `cargo run --example rpc` |
//! | [`survive`](examples::survive) | a failover in one process | `cargo run --example survive` |
//! | [`write`](examples::write) | the verbs, without failover | `cargo run --example write` |
//!
//! # Where to go
//!
//! | to | start at | cargo feature |
//! |---|---|---|
//! | survive a lost link or NIC | [`failover`] | |
//! | drive virtual queue pairs by a thread or an event loop | [`driver`] | |
//! | share words in remote memory among clients that fail over | [`objects`] | |
//! | use or test RDMA without hardware | [`softnic`], [`verbs`] | |
//! | use the RDMA devices of a machine | [`hardnic`] | |
//! | show a program to `mitra watch` and to Prometheus | [`control`], [`metrics`] | `control` |
//! | parse or emit RoCEv2 packets | [`wire`] | |
//! | embed the NIC's state machine elsewhere | [`transport`] | |
//! | agree on values, replicate a log or a store | [`consensus`], [`consensus_rdma`], [`kv`] | `consensus` |
//! | run transactions over the memory of other processes | [`txn`], [`txn_rdma`] | `transactions` |
//! | test a program in virtual time, from seeds | [`sim`] | `sim` |
//! | explore a protocol in every order of steps | [`model_check`] | `sim` |
//! | find how many crashes a graph of shared memory tolerates | [`topology`] | `topology` |
//!
//! The feature `baselines` adds policies of virtual queue pairs that lose or corrupt data, for
//! comparisons.
//!
//! The default feature `cli`, which the `mitra` program needs, switches all these features on.
#![forbid(unsafe_code)]

#[cfg(feature = "consensus")]
pub use mitra_consensus as consensus;
#[cfg(feature = "consensus")]
pub use mitra_consensus_rdma as consensus_rdma;
#[cfg(feature = "control")]
pub use mitra_control as control;
pub use mitra_driver as driver;
pub use mitra_failover as failover;
pub use mitra_filter as filter;
pub use mitra_hardnic as hardnic;
#[cfg(feature = "consensus")]
pub use mitra_kv as kv;
#[cfg(feature = "control")]
pub use mitra_metrics as metrics;
#[cfg(feature = "sim")]
pub use mitra_model_check as model_check;
pub use mitra_objects as objects;
#[cfg(feature = "sim")]
pub use mitra_sim as sim;
pub use mitra_softnic as softnic;
#[cfg(feature = "topology")]
pub use mitra_topology as topology;
pub use mitra_transport as transport;
#[cfg(feature = "transactions")]
pub use mitra_txn as txn;
#[cfg(feature = "transactions")]
pub use mitra_txn_rdma as txn_rdma;
pub use mitra_verbs as verbs;
pub use mitra_wire as wire;

/// The source text of the programs in `examples/`. This module is part of the documentation only.
#[cfg(any(doc, doctest))]
pub mod examples {
    /// Two processes exchange `ConnectInfo` over TCP. The client adds and writes to the server's
    /// memory while a rail fails, and the server is driven by a background thread:
    /// `cargo run --example counter -- server`.
    #[doc = concat!("```rust,no_run\n", include_str!("../examples/counter.rs"), "\n```")]
    pub mod counter {}

    /// Two clients add to one recoverable cell while the server's NIC of rail 0 dies:
    /// `cargo run --example cell`.
    #[doc = concat!("```rust,no_run\n", include_str!("../examples/cell.rs"), "\n```")]
    pub mod cell {}

    /// Two coordinators move money between accounts in three memories. Meanwhile a rail fails and
    /// heals, and one coordinator ends: `cargo run --example bank`.
    #[doc = concat!("```rust,no_run\n", include_str!("../examples/bank.rs"), "\n```")]
    pub mod bank {}

    /// Waits for a virtual queue pair in tokio, by `AsyncFd`: `cargo run --example tokio`.
    #[doc = concat!("```rust,no_run\n", include_str!("../examples/tokio.rs"), "\n```")]
    pub mod tokio {}

    /// Makes remote calls that are executed exactly once, over datagrams and over virtual queue
    /// pairs: `cargo run --example rpc`.
    #[doc = concat!("```rust,no_run\n", include_str!("../examples/rpc.rs"), "\n```")]
    pub mod rpc {}

    /// Increments a counter in the peer's memory by fetch-and-add while a rail fails:
    /// `cargo run --example survive`.
    #[doc = concat!("```rust,no_run\n", include_str!("../examples/survive.rs"), "\n```")]
    pub mod survive {}

    /// Connects two software NICs and executes one WRITE: `cargo run --example write`.
    #[doc = concat!("```rust,no_run\n", include_str!("../examples/write.rs"), "\n```")]
    pub mod write {}
}
