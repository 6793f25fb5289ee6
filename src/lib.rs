//! Mitra: RDMA that keeps its word.
//!
//! - [`verbs`]: the vocabulary, and the [`Provider`](verbs::Provider) trait that every NIC implements.
//! - [`softnic`]: a NIC in software that speaks RoCEv2 from user space, with faults on demand.
//! - [`failover`]: virtual queue pairs that survive a link or a NIC, over any providers.
//! - [`wire`]: RoCEv2 packets and their ICRC.
//!
//! Each room is a crate of its own (`mitra-verbs`, …); this one gathers them and holds the `mitra` program. Start from the
//! programs in `examples/`.
#![forbid(unsafe_code)]

pub use mitra_failover as failover;
pub use mitra_softnic as softnic;
pub use mitra_verbs as verbs;
pub use mitra_wire as wire;
