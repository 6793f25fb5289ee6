//! A seeded fabric in virtual time that drives transport and failover unchanged; never used in production.
//!
//! A [`World`] has hosts, NICs and cables, one clock and one queue of events. [`SimNic`] is a
//! [`Provider`](mitra_verbs::Provider): what runs over it cannot tell it from another NIC. Under it the transport's own
//! state machine works on real packets, sealed and verified; and its way to memory is as treacherous as hardware's
//! (see `pipeline`). Every delay, every order, every fault comes from the seed: a run is repeated by its number.
//!
//! ```text
//! App ── SimNic ── transport::Nic ── Faults ── cable ── Faults ── transport::Nic ── pipeline ── Buffer ── App
//! ```
//!
//! Beside the fabric, [`workload`] makes operations and judges what became of them, over any endpoint.
#![forbid(unsafe_code)]

mod app;
mod config;
mod fabric;
mod harness;
mod nic;
mod pcap;
mod pipeline;
mod provider;
mod queue;
mod report;
mod rig;
mod rng;
mod trace;
mod wire;
pub mod workload;
mod world;

pub use app::{App, Ctx};
pub use config::{Config, HostTiming, MemoryTiming, NicTiming, Wire};
pub use harness::{reproduce, seeds};
pub use mitra_prng::Prng;
pub use mitra_transport::fault::{Failure, Noise, Stage};
pub use nic::NicStats;
pub use provider::SimNic;
pub use rig::{Case, PartyApp, Rig, What};
pub use rng::Range;
pub use trace::Trace;
pub use world::{HostId, NicId, Stuck, World};
