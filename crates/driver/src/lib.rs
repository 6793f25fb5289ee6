#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod background;
mod connection;
mod driven_qp;
mod pollable_qp;
mod poller;
mod queue_pair;
mod slot;

/// The lock of a vQP. `tests/slot_orders.rs` compiles the slot with a lock of loom instead.
mod sync {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
}

pub use background::Driver;
pub use connection::{Connection, Event, Staged};
pub use driven_qp::{DrivenQp, DrivenQpGuard};
pub use pollable_qp::{PollableQp, PollableQpGuard};
pub use poller::{Poller, Waker};
pub use queue_pair::{ConnectionError, QpInfo, QpKind, QueuePair};

use std::io;

use mitra_verbs::Error;
use nix::errno::Errno;

/// Returns the error of a failed call of the operating system.
fn system(operation: &'static str) -> impl FnOnce(Errno) -> Error {
    move |e| Error::system(operation, &io::Error::from(e))
}
