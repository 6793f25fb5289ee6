//! Virtual queue pairs: exactly once across a lost link or NIC, or an honest error.
//!
//! A [`VirtualQp`] spans two or more rails. When the active one fails it freezes, agrees with the peer on the next
//! (`agreement`), fences the old one, reads the evidence of what was executed (`evidence`), decides each operation
//! (`decide`, `ledger`), replays only what was not executed, and recovers return values. What cannot be known ends in
//! a [`UnresolvedError`].
//!
//! Everything here is a state machine that never does I/O: NICs are known by the [`mitra_verbs::Provider`] trait alone,
//! and time is asked of them, so that the simulator drives the code that users run.
#![forbid(unsafe_code)]

mod agreement;
mod ballot;
mod config;
mod connect;
mod decide;
mod domain;
mod evidence;
mod failback;
mod ledger;
#[cfg(test)]
mod ledger_tests;
mod log;
mod message;
mod outcome;
mod rail;
mod recovery;
mod traffic;
mod translate;
mod vqp;

pub use agreement::{CloseReason, MAX_RAILS};
pub use config::{Config, DetectorConfig, Fencing, ParsePolicyError, Policy, WritePolicy};
pub use connect::ConnectInfo;
pub use domain::{Domain, LocalNic, RemoteRegion, VirtualMr};
pub use evidence::Contradiction;
pub use ledger::RecoveryStats;
pub use outcome::{Completion, Outcome, Resolution, UnresolvedError};
pub use recovery::{Cause, FailoverReport};
pub use vqp::VirtualQp;
