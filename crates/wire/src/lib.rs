#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod crc_rewind;
mod display;
mod error;
mod extension_headers;
pub mod frame;
pub mod icrc;
mod ip;
mod message;
pub mod opcode;
mod packet;
pub mod pcap;
mod placement;
mod psn;
pub mod ring;

pub use error::ParseError;
pub use extension_headers::{Aeth, AtomicEth, Deth, NakCode, Reth, Syndrome};
pub use icrc::{ICRC_LEN, IcrcPath, Verdict};
pub use message::{ExtensionHeader, Message, Transport};
pub use packet::{Packet, ReservedBits};
pub use placement::{Feth, PlacementOperation, PlacementRequest};
pub use psn::{Psn, Qpn, Srqn};

/// The UDP destination port of RoCEv2 (annex A17; IANA "ri-rocev2").
pub const ROCE_PORT: u16 = 4791;

/// The length of the base transport header, with which every packet begins, in bytes (IBTA 9.2).
pub const BTH_LEN: usize = 12;

/// The length of the longest headers of an opcode in bytes: a BTH, an XRCETH and an AtomicETH.
pub const MAX_HEADERS_LEN: usize = BTH_LEN + 4 + 28;
