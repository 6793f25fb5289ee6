//! RoCEv2 headers and ICRC, parse and emit; never does I/O.
#![forbid(unsafe_code)]

mod number;
pub use number::{Psn, Qpn};

/// Placeholder until the wire room lands.
pub struct Packet<'a>(pub &'a [u8]);
