//! Opcode numbers and names (IBTA 9.2, opcode table). The names are from Linux's `ib_pack.h`,
//! without `IB_OPCODE_`.

use crate::message::{Message, Transport};

/// Congestion notification packet (annex A17): a BTH and 16 reserved bytes. Mitra neither sends it
/// nor reacts to it, and [`Packet::parse`](crate::Packet::parse) refuses it.
pub const CNP: u8 = 0x81;

/// FLUSH on a reliable connection (annex A19). Mitra's NICs do not execute it.
pub const FLUSH: u8 = 0x1c;
/// ATOMIC WRITE on a reliable connection (annex A19). Mitra's NICs do not execute it.
pub const ATOMIC_WRITE: u8 = 0x1d;

// The services: the top three bits of the opcode.
pub(crate) const RC: u8 = 0x00;
pub(crate) const UC: u8 = 0x20;
pub(crate) const UD: u8 = 0x60;
pub(crate) const XRC: u8 = 0xa0;

// The operations: the low five bits of the opcode.
pub(crate) const SEND_FIRST: u8 = 0x00;
pub(crate) const SEND_MIDDLE: u8 = 0x01;
pub(crate) const SEND_LAST: u8 = 0x02;
pub(crate) const SEND_LAST_IMM: u8 = 0x03;
pub(crate) const SEND_ONLY: u8 = 0x04;
pub(crate) const SEND_ONLY_IMM: u8 = 0x05;
pub(crate) const WRITE_FIRST: u8 = 0x06;
pub(crate) const WRITE_MIDDLE: u8 = 0x07;
pub(crate) const WRITE_LAST: u8 = 0x08;
pub(crate) const WRITE_LAST_IMM: u8 = 0x09;
pub(crate) const WRITE_ONLY: u8 = 0x0a;
pub(crate) const WRITE_ONLY_IMM: u8 = 0x0b;
pub(crate) const READ_REQUEST: u8 = 0x0c;
pub(crate) const READ_FIRST: u8 = 0x0d;
pub(crate) const READ_MIDDLE: u8 = 0x0e;
pub(crate) const READ_LAST: u8 = 0x0f;
pub(crate) const READ_ONLY: u8 = 0x10;
pub(crate) const ACK: u8 = 0x11;
pub(crate) const ATOMIC_ACK: u8 = 0x12;
pub(crate) const COMPARE_SWAP: u8 = 0x13;
pub(crate) const FETCH_ADD: u8 = 0x14;
pub(crate) const SEND_LAST_INV: u8 = 0x16;
pub(crate) const SEND_ONLY_INV: u8 = 0x17;

/// Returns whether the opcode in the first byte of a BTH belongs to a response: data of a READ or
/// an atomic, an ACK or a NAK.
pub const fn is_response(code: u8) -> bool {
    matches!(code & 0x1f, READ_FIRST..=ATOMIC_ACK)
}

/// Returns whether the opcode in the first byte of a BTH belongs to the last request packet of a
/// message that consumes a receive.
pub const fn completes_receive(code: u8) -> bool {
    matches!(
        code & 0x1f,
        SEND_LAST
            | SEND_LAST_IMM
            | SEND_LAST_INV
            | SEND_ONLY
            | SEND_ONLY_IMM
            | SEND_ONLY_INV
            | WRITE_LAST_IMM
            | WRITE_ONLY_IMM
    )
}

impl Message {
    /// Returns the low five bits of the opcode, which select the operation.
    pub const fn operation(&self) -> u8 {
        match self {
            Message::SendFirst => SEND_FIRST,
            Message::SendMiddle => SEND_MIDDLE,
            Message::SendLast => SEND_LAST,
            Message::SendLastImm(_) => SEND_LAST_IMM,
            Message::SendLastInv(_) => SEND_LAST_INV,
            Message::SendOnly => SEND_ONLY,
            Message::SendOnlyImm(_) => SEND_ONLY_IMM,
            Message::SendOnlyInv(_) => SEND_ONLY_INV,
            Message::WriteFirst(_) => WRITE_FIRST,
            Message::WriteMiddle => WRITE_MIDDLE,
            Message::WriteLast => WRITE_LAST,
            Message::WriteLastImm(_) => WRITE_LAST_IMM,
            Message::WriteOnly(_) => WRITE_ONLY,
            Message::WriteOnlyImm(_, _) => WRITE_ONLY_IMM,
            Message::ReadRequest(_) => READ_REQUEST,
            Message::ReadFirst(_) => READ_FIRST,
            Message::ReadMiddle => READ_MIDDLE,
            Message::ReadLast(_) => READ_LAST,
            Message::ReadOnly(_) => READ_ONLY,
            Message::Ack(_) => ACK,
            Message::AtomicAck(_, _) => ATOMIC_ACK,
            Message::CompareSwap(_) => COMPARE_SWAP,
            Message::FetchAdd(_) => FETCH_ADD,
        }
    }
}

impl Transport {
    /// Returns the top three bits of the opcode, which select the service.
    pub const fn service(&self) -> u8 {
        match self {
            Transport::Rc => RC,
            Transport::Uc => UC,
            Transport::Ud(_) => UD,
            Transport::Xrc(_) => XRC,
        }
    }
}

/// Returns the name of an opcode, such as `RC_RDMA_WRITE_FIRST`. All opcodes that
/// [`Packet::parse`](crate::Packet::parse) accepts have a name, and so have [`CNP`], [`FLUSH`] and
/// [`ATOMIC_WRITE`]. For any other opcode, the function returns `None`.
pub const fn name(opcode: u8) -> Option<&'static str> {
    Some(match opcode {
        0x00 => "RC_SEND_FIRST",
        0x01 => "RC_SEND_MIDDLE",
        0x02 => "RC_SEND_LAST",
        0x03 => "RC_SEND_LAST_WITH_IMMEDIATE",
        0x04 => "RC_SEND_ONLY",
        0x05 => "RC_SEND_ONLY_WITH_IMMEDIATE",
        0x06 => "RC_RDMA_WRITE_FIRST",
        0x07 => "RC_RDMA_WRITE_MIDDLE",
        0x08 => "RC_RDMA_WRITE_LAST",
        0x09 => "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE",
        0x0a => "RC_RDMA_WRITE_ONLY",
        0x0b => "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
        0x0c => "RC_RDMA_READ_REQUEST",
        0x0d => "RC_RDMA_READ_RESPONSE_FIRST",
        0x0e => "RC_RDMA_READ_RESPONSE_MIDDLE",
        0x0f => "RC_RDMA_READ_RESPONSE_LAST",
        0x10 => "RC_RDMA_READ_RESPONSE_ONLY",
        0x11 => "RC_ACKNOWLEDGE",
        0x12 => "RC_ATOMIC_ACKNOWLEDGE",
        0x13 => "RC_COMPARE_SWAP",
        0x14 => "RC_FETCH_ADD",
        0x16 => "RC_SEND_LAST_WITH_INVALIDATE",
        0x17 => "RC_SEND_ONLY_WITH_INVALIDATE",
        FLUSH => "RC_FLUSH",
        ATOMIC_WRITE => "RC_ATOMIC_WRITE",
        0x20 => "UC_SEND_FIRST",
        0x21 => "UC_SEND_MIDDLE",
        0x22 => "UC_SEND_LAST",
        0x23 => "UC_SEND_LAST_WITH_IMMEDIATE",
        0x24 => "UC_SEND_ONLY",
        0x25 => "UC_SEND_ONLY_WITH_IMMEDIATE",
        0x26 => "UC_RDMA_WRITE_FIRST",
        0x27 => "UC_RDMA_WRITE_MIDDLE",
        0x28 => "UC_RDMA_WRITE_LAST",
        0x29 => "UC_RDMA_WRITE_LAST_WITH_IMMEDIATE",
        0x2a => "UC_RDMA_WRITE_ONLY",
        0x2b => "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
        0x64 => "UD_SEND_ONLY",
        0x65 => "UD_SEND_ONLY_WITH_IMMEDIATE",
        0xa0 => "XRC_SEND_FIRST",
        0xa1 => "XRC_SEND_MIDDLE",
        0xa2 => "XRC_SEND_LAST",
        0xa3 => "XRC_SEND_LAST_WITH_IMMEDIATE",
        0xa4 => "XRC_SEND_ONLY",
        0xa5 => "XRC_SEND_ONLY_WITH_IMMEDIATE",
        0xa6 => "XRC_RDMA_WRITE_FIRST",
        0xa7 => "XRC_RDMA_WRITE_MIDDLE",
        0xa8 => "XRC_RDMA_WRITE_LAST",
        0xa9 => "XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE",
        0xaa => "XRC_RDMA_WRITE_ONLY",
        0xab => "XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
        0xac => "XRC_RDMA_READ_REQUEST",
        0xad => "XRC_RDMA_READ_RESPONSE_FIRST",
        0xae => "XRC_RDMA_READ_RESPONSE_MIDDLE",
        0xaf => "XRC_RDMA_READ_RESPONSE_LAST",
        0xb0 => "XRC_RDMA_READ_RESPONSE_ONLY",
        0xb1 => "XRC_ACKNOWLEDGE",
        0xb2 => "XRC_ATOMIC_ACKNOWLEDGE",
        0xb3 => "XRC_COMPARE_SWAP",
        0xb4 => "XRC_FETCH_ADD",
        0xb6 => "XRC_SEND_LAST_WITH_INVALIDATE",
        0xb7 => "XRC_SEND_ONLY_WITH_INVALIDATE",
        CNP => "CNP",
        _ => return None,
    })
}
