#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod acceptor;
mod frame;
mod poller;

pub use acceptor::{Acceptor, Incoming, dial};
pub use frame::{read_frame, write_frame};
pub use poller::{Poller, ReadyCqs, Waker};
