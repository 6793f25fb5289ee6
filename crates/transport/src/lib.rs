//! RC, UC and UD as state machines: a whole NIC ([`Nic`]) without I/O, threads, clocks or randomness of its own.
//!
//! Inputs are verbs calls, packets ([`Nic::handle_packet`]) and the time ([`Nic::handle_timeout`]). Outputs are
//! polled: packets ([`Nic::poll_transmit`]), the next wake-up ([`Nic::poll_timeout`]), queues to notify
//! ([`Nic::poll_cq_event`]) and events ([`Nic::poll_async_event`]). Registered memory is reached through the
//! [`Memory`] trait, and only after keys, bounds, rights and generations were checked here.
//!
//! A driver's loop: feed what arrived; `handle_timeout` when [`Nic::poll_timeout`] is due; then `poll_transmit`
//! until it gives nothing; then the events. All of it under the NIC's one lock.
//!
//! Where to find what: `nic` has the tables and verbs, `drive` the packets and the time, `qp` the states of a queue pair.
//! A reliable connection is `requester`, `responder`, and the `responses` and `saved` results of the latter; `uc`, `ud`
//! and `unreliable` are the other services, `multicast` the groups of UD; `inbound` puts messages together for RC and UC.
//! `keys` judges every access, `sges` makes the local ones.
#![forbid(unsafe_code)]

mod config;
mod counters;
mod cq;
mod drive;
mod emit;
mod events;
pub mod fault;
mod host;
mod inbound;
mod keys;
mod memory;
mod multicast;
mod nic;
mod patience;
mod post;
mod qp;
mod qpn;
mod recv_queue;
mod requester;
mod responder;
mod responses;
mod retransmit;
mod saved;
mod sges;
mod table;
mod timers;
mod tx;
mod uc;
mod ud;
mod unreliable;

pub use config::{NicConfig, Tuning};
pub use memory::{AtomicOp, Memory, MemoryFault};
pub use nic::Nic;
pub use tx::TxBatch;
