//! RoCEv2 headers and ICRC, parse and emit; never does I/O.
//!
//! A RoCEv2 datagram is the payload of a UDP packet to port [`ROCE_PORT`]:
//!
//! ```text
//! BTH │ extension headers │ payload │ pad to 4 bytes │ ICRC
//! └──────────── Packet::parse / Packet::emit ───────┘└ IcrcPath::verify / IcrcPath::seal
//! ```
//!
//! - [`Packet`] is one such datagram without its ICRC: parsing borrows the payload, emitting appends or
//!   writes in place, neither allocates. What an opcode may carry is said by [`Message`] and
//!   [`Transport`], so that a SEND with a RETH cannot be written down.
//! - [`IcrcPath`] seals and verifies the invariant CRC, and finds the IPv4 identification that a UDP
//!   socket does not show.
//! - [`frame`] goes from a captured frame to the datagram and back, [`pcap`] from a capture file to
//!   frames and back; both work on bytes in memory.
//!
//! Sources: InfiniBand Architecture Specification volume 1 (chapters 7.8 and 9) and its annexes A16
//! (RoCE) and A17 (RoCEv2). `docs/wire.md` has the tables.
#![forbid(unsafe_code)]

mod crc;
mod display;
mod error;
pub mod frame;
mod headers;
pub mod icrc;
mod ip;
mod message;
pub mod opcode;
mod packet;
pub mod pcap;
mod psn;

pub use error::ParseError;
pub use headers::{Aeth, AtomicEth, Deth, NakCode, Reth, Syndrome};
pub use icrc::{ICRC_LEN, IcrcPath, Verdict};
pub use message::{ExtensionHeader, Message, Transport};
pub use packet::{Packet, ReservedBits};
pub use psn::{Psn, Qpn};

/// The UDP destination port of RoCEv2 (annex A17; IANA "ri-rocev2").
pub const ROCE_PORT: u16 = 4791;

/// Bytes of the base transport header, with which every packet begins (IBTA 9.2).
pub const BTH_LEN: usize = 12;

/// The most bytes that can stand before a payload: BTH and AtomicETH.
pub const MAX_HEADERS_LEN: usize = BTH_LEN + 28;
