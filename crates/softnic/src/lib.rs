//! The software NIC: RoCEv2 over UDP sockets from user space, rootless; never decides protocol.
//!
//! [`SoftNic::open`] gives a [`Provider`](mitra_verbs::Provider): one UDP socket at port 4791 of one address, and one for
//! each multicast group that it is in, one lock, one progress thread. Protocol, keys and queues are
//! [`mitra_transport::Nic`]'s; here are only the sockets, the memory, the thread and the faults on demand:
//!
//! ```text
//!            callers ──┐                        ┌── progress thread     lease.rs: who drives
//!                      ▼        one lock        ▼
//!   nic.rs ───────▶ engine.rs ◀────────────── progress.rs
//!                      │
//!   receive.rs: socket ▶ ICRC ▶ faults ▶ transport::Nic ▶ memory.rs, completions.rs
//!   transmit.rs:         transport::Nic ▶ faults ▶ ICRC ▶ socket (runs of equal datagrams in one piece)
//! ```
//!
//! Rails bind to loopback unless told otherwise ([`Config::at`]): RoCE authenticates nobody.
#![forbid(unsafe_code)]

mod attention;
mod capture;
mod channel;
mod clock;
mod completions;
mod config;
mod counts;
mod delayed;
mod engine;
mod error;
mod faults;
mod groups;
mod host;
mod lease;
mod memory;
mod nic;
mod paths;
mod progress;
mod receive;
mod socket;
#[cfg(test)]
mod tests;
mod transmit;

pub use config::{Config, Offload};
pub use error::OpenError;
pub use faults::RailFaults;
pub use host::{Interface, RocePortOwner, interfaces, roce_port_owners};
pub use mitra_transport::fault;
pub use nic::SoftNic;
pub use progress::after_fork_in_child;
