//! The extension headers with more than one field, the XRCETH, and their encoding (IBTA 9.3, annex
//! A14).
//!
//! Multi-byte fields are big-endian in a packet.

use crate::psn::{Qpn, Srqn};

/// RDMA extended transport header (IBTA 9.3): the responder's memory that an operation accesses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reth {
    /// The virtual address of the first byte at the responder.
    pub va: u64,
    /// The remote key of the region or window.
    pub rkey: u32,
    /// The length of the complete message in bytes. IBTA allows at most 2^31; the parser does not
    /// check it.
    pub len: u32,
}

/// Atomic extended transport header (IBTA 9.3): the operands of an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AtomicEth {
    /// The virtual address of the 8-byte operand at the responder. The responder refuses an address
    /// that is not a multiple of 8.
    pub va: u64,
    /// The remote key of the region or window.
    pub rkey: u32,
    /// The new value of a compare-and-swap, or the addend of a fetch-and-add.
    pub swap_add: u64,
    /// The value that a compare-and-swap expects. A fetch-and-add ignores it.
    pub compare: u64,
}

/// Datagram extended transport header (IBTA 9.3): the Q_Key and the sender of a UD packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Deth {
    /// The queue key. The receiving queue pair accepts the packet only if the key equals its own.
    pub qkey: u32,
    /// The sender's queue pair.
    pub src_qp: Qpn,
}

/// ACK extended transport header (IBTA 9.3): the responder's acknowledgement or refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Aeth {
    /// The kind of acknowledgement.
    pub syndrome: Syndrome,
    /// The message sequence number: the number of messages that the responder has completed, modulo
    /// 2^24.
    pub msn: u32,
}

/// The AETH's syndrome (IBTA 9.3, AETH).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Positive acknowledgement.
    Ack {
        /// The encoded receive credits, 5 bits; 31 means no credit information.
        credits: u8,
    },
    /// The responder has no receive posted. The requester retries after the time that `timer`
    /// encodes.
    RnrNak {
        /// The encoded time, 5 bits (IBTA 9.3, AETH).
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// Any other byte.
    Reserved(u8),
}

/// Why a responder refused a request (IBTA 9.3, AETH).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// The PSN is later than the expected one, because a packet was lost.
    PsnSequence = 0,
    /// The request is malformed, unsupported or out of order within its message.
    InvalidRequest = 1,
    /// The remote key is invalid, or its bounds or access flags forbid the access.
    RemoteAccess = 2,
    /// The responder has an error of its own that prevents it from executing the request.
    RemoteOperational = 3,
    /// A request on a reliable datagram queue pair is invalid. Mitra does not support reliable
    /// datagrams.
    InvalidRdRequest = 4,
}

impl Syndrome {
    /// The value of `credits` that gives no credit information.
    pub const NO_CREDITS: u8 = 31;

    /// A positive acknowledgement without credit information.
    pub const ACK: Syndrome = Syndrome::Ack { credits: Self::NO_CREDITS };

    /// Decodes a syndrome byte. [`to_raw`](Self::to_raw) returns the same byte again.
    pub const fn from_raw(raw: u8) -> Self {
        match (raw >> 5, raw & 0x1f) {
            (0, credits) => Syndrome::Ack { credits },
            (1, timer) => Syndrome::RnrNak { timer },
            (3, 0) => Syndrome::Nak(NakCode::PsnSequence),
            (3, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (3, 2) => Syndrome::Nak(NakCode::RemoteAccess),
            (3, 3) => Syndrome::Nak(NakCode::RemoteOperational),
            (3, 4) => Syndrome::Nak(NakCode::InvalidRdRequest),
            _ => Syndrome::Reserved(raw),
        }
    }

    /// Encodes the syndrome as a byte. Of `credits` and `timer`, only the low 5 bits are used.
    pub const fn to_raw(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0x20 | (timer & 0x1f),
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(raw) => raw,
        }
    }
}

/// Replaces slicing and `try_into`, which are not `const`.
const fn array<const N: usize, const L: usize>(b: &[u8; L], at: usize) -> [u8; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        out[i] = b[at + i];
        i += 1;
    }
    out
}

impl Reth {
    pub(crate) const LEN: usize = 16;

    pub(crate) fn decode(b: &[u8; Self::LEN]) -> Self {
        Reth {
            va: u64::from_be_bytes(array(b, 0)),
            rkey: u32::from_be_bytes(array(b, 8)),
            len: u32::from_be_bytes(array(b, 12)),
        }
    }

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..16].copy_from_slice(&self.len.to_be_bytes());
        b
    }
}

impl AtomicEth {
    pub(crate) const LEN: usize = 28;

    pub(crate) fn decode(b: &[u8; Self::LEN]) -> Self {
        AtomicEth {
            va: u64::from_be_bytes(array(b, 0)),
            rkey: u32::from_be_bytes(array(b, 8)),
            swap_add: u64::from_be_bytes(array(b, 12)),
            compare: u64::from_be_bytes(array(b, 20)),
        }
    }

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        b[20..28].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}

impl Deth {
    pub(crate) const LEN: usize = 8;

    /// Returns the header and its reserved byte.
    pub(crate) fn decode(b: &[u8; Self::LEN]) -> (Self, u8) {
        let src_qp = Qpn::new(u32::from_be_bytes(array(b, 4)));
        (Deth { qkey: u32::from_be_bytes(array(b, 0)), src_qp }, b[4])
    }

    pub(crate) fn encode(self, reserved: u8) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0..4].copy_from_slice(&self.qkey.to_be_bytes());
        b[4..8].copy_from_slice(&(u32::from(reserved) << 24 | self.src_qp.value()).to_be_bytes());
        b
    }
}

/// The length of the XRCETH: a reserved byte and the number of the shared receive queue.
pub(crate) const XRCETH_LEN: usize = 4;

/// Returns the number and the reserved byte.
pub(crate) fn decode_xrceth(b: &[u8; XRCETH_LEN]) -> (Srqn, u8) {
    (Srqn::new(u32::from_be_bytes(*b)), b[0])
}

pub(crate) fn encode_xrceth(srqn: Srqn, reserved: u8) -> [u8; XRCETH_LEN] {
    (u32::from(reserved) << 24 | srqn.value()).to_be_bytes()
}

impl Aeth {
    pub(crate) const LEN: usize = 4;

    pub(crate) fn decode(b: &[u8; Self::LEN]) -> Self {
        let word = u32::from_be_bytes(*b);
        Aeth { syndrome: Syndrome::from_raw(b[0]), msn: word & 0x00ff_ffff }
    }

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        (u32::from(self.syndrome.to_raw()) << 24 | self.msn & 0x00ff_ffff).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_round_trips() {
        for raw in 0..=255 {
            assert_eq!(Syndrome::from_raw(raw).to_raw(), raw);
        }
        assert_eq!(Syndrome::from_raw(0x1f), Syndrome::ACK);
        assert_eq!(Syndrome::from_raw(0x2e), Syndrome::RnrNak { timer: 14 });
        assert_eq!(Syndrome::from_raw(0x60), Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(Syndrome::from_raw(0x62), Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(Syndrome::from_raw(0x65), Syndrome::Reserved(0x65));
        assert_eq!(Syndrome::from_raw(0x40), Syndrome::Reserved(0x40));
        assert_eq!(Syndrome::from_raw(0x9f), Syndrome::Reserved(0x9f));
    }

    #[test]
    fn headers_have_layout_of_specification() {
        let reth = Reth { va: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c, len: 0x0d0e_0f10 };
        let bytes: [u8; 16] = std::array::from_fn(|i| i as u8 + 1);
        assert_eq!(reth.encode(), bytes);
        assert_eq!(Reth::decode(&bytes), reth);

        let atomic = AtomicEth {
            va: 0x0102_0304_0506_0708,
            rkey: 0x090a_0b0c,
            swap_add: 0x0d0e_0f10_1112_1314,
            compare: 0x1516_1718_191a_1b1c,
        };
        let bytes: [u8; 28] = std::array::from_fn(|i| i as u8 + 1);
        assert_eq!(atomic.encode(), bytes);
        assert_eq!(AtomicEth::decode(&bytes), atomic);

        let deth = Deth { qkey: 0x0102_0304, src_qp: Qpn::new(0x06_0708) };
        assert_eq!(deth.encode(5), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Deth::decode(&[1, 2, 3, 4, 5, 6, 7, 8]), (deth, 5));

        assert_eq!(encode_xrceth(Srqn::new(0x02_0304), 1), [1, 2, 3, 4]);
        assert_eq!(decode_xrceth(&[1, 2, 3, 4]), (Srqn::new(0x02_0304), 1));

        let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 0x01_0203 };
        assert_eq!(aeth.encode(), [0x62, 1, 2, 3]);
        assert_eq!(Aeth::decode(&[0x62, 1, 2, 3]), aeth);
    }
}
