#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod acceptor;
mod frame;

pub use acceptor::{Acceptor, Incoming, dial};
pub use frame::{read_frame, write_frame};
