//! Control messages: datagrams of at most 256 bytes between the two ends of a vQP, on every rail.
//!
//! Layout, little-endian: version 1 · type 1 · role 1 · zero 1 · cookie 8 · epoch 2 · proposer 1 · body. The cookie is
//! the receiver's secret: what does not carry it is not looked at. Everything is bounded and parsed as hostile.

use mitra_verbs::{Psn, Qpn, SavedResult};
use smallvec::SmallVec;

use crate::ballot::{Ballot, Role};
use crate::evidence::Evidence;

/// The longest control message in bytes.
pub const MAX_LEN: usize = 256;
/// The most saved results that one message carries; a vQP's `rd_atomic` is at most this.
pub const MAX_SAVED: usize = 16;
const VERSION: u8 = 1;
const HEADER: usize = 15;

/// What one end tells the other.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// The ballot it belongs to.
    pub ballot: Ballot,
    /// The rest.
    pub body: Body,
}

/// What a control message says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// "I am here", on the rail that it arrives by.
    Heartbeat,
    /// "Let us move to this rail": the sender is freezing.
    Propose {
        /// The new rail.
        rail: u8,
    },
    /// "I promise this ballot, have fenced, and this is what I executed for you."
    Evidence {
        /// The rail that the sender takes the ballot to name.
        rail: u8,
        /// What it executed.
        evidence: Evidence,
    },
    /// "I have your evidence, and have moved."
    Resume {
        /// Whether the sender has the other's Resume.
        seen: bool,
        /// Bytes of the sender's torn WRITE with immediate that are not sent again: its receive counts them too.
        torn: u32,
    },
    /// "I cannot use that rail": a bit for each rail that the sender cannot use.
    Refuse {
        /// Rail i is bit i.
        dead: u8,
    },
    /// "This vQP has ended here": nothing will be answered any more.
    Closed,
    /// "This is my next queue pair of the rail that this came by", which the ballot left.
    Path(Path),
}

/// One end of a rail that is to be used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// The rail: a probe of it that came another way proves nothing.
    pub rail: u8,
    /// Whether the queue pair is connected to the other end's.
    pub connected: bool,
    /// Whether the sender has still to hear that the other end's is.
    pub asks: bool,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its first PSN.
    pub psn: Psn,
}

/// Why a datagram is not a control message of this vQP; all the same to the sender: it is dropped and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejected {
    /// Not well-formed, or of another version.
    Malformed,
    /// Not from this vQP's peer.
    Foreign,
}

impl Message {
    /// The bytes, for a peer that expects `cookie`.
    pub fn encode(&self, sender: Role, cookie: u64) -> SmallVec<[u8; MAX_LEN]> {
        let mut out = SmallVec::new();
        let kind = match self.body {
            Body::Heartbeat => 1,
            Body::Propose { .. } => 2,
            Body::Evidence { .. } => 3,
            Body::Resume { .. } => 4,
            Body::Refuse { .. } => 5,
            Body::Closed => 6,
            Body::Path(_) => 7,
        };
        out.extend_from_slice(&[VERSION, kind, sender as u8, 0]);
        out.extend_from_slice(&cookie.to_le_bytes());
        out.extend_from_slice(&self.ballot.epoch.to_le_bytes());
        out.push(self.ballot.proposer as u8);
        match &self.body {
            Body::Heartbeat | Body::Closed => {}
            Body::Propose { rail } => out.push(*rail),
            Body::Resume { seen, torn } => {
                out.push(u8::from(*seen));
                out.extend_from_slice(&torn.to_le_bytes());
            }
            Body::Refuse { dead } => out.push(*dead),
            Body::Path(path) => {
                out.extend_from_slice(&[path.rail, u8::from(path.connected) | u8::from(path.asks) << 1]);
                put_u24(&mut out, path.qpn.value());
                put_u24(&mut out, path.psn.value());
            }
            Body::Evidence { rail, evidence } => {
                let saved = &evidence.saved[..evidence.saved.len().min(MAX_SAVED)];
                let flags = u8::from(evidence.psn.is_some()) | u8::from(evidence.log.is_some()) << 1;
                out.extend_from_slice(&[*rail, flags, saved.len() as u8]);
                put_u24(&mut out, evidence.psn.unwrap_or_default().value());
                out.extend_from_slice(&evidence.log.unwrap_or(0).to_le_bytes());
                out.extend_from_slice(&evidence.received.to_le_bytes());
                out.extend_from_slice(&evidence.torn.to_le_bytes());
                for s in saved {
                    put_u24(&mut out, s.psn.value());
                    out.extend_from_slice(&s.value.to_le_bytes());
                }
            }
        }
        debug_assert!(out.len() <= MAX_LEN);
        out
    }

    /// Parses a datagram that must carry `cookie` and come from the end with `sender`'s role.
    pub fn decode(bytes: &[u8], sender: Role, cookie: u64) -> Result<Message, Rejected> {
        let mut r = Reader(bytes);
        let [version, kind, role, _] = r.array::<4>()?;
        if version != VERSION || bytes.len() > MAX_LEN || bytes.len() < HEADER {
            return Err(Rejected::Malformed);
        }
        // The cookie is compared whole, so that timing tells nothing about how much of a guess was right.
        let difference = u64::from_le_bytes(r.array()?) ^ cookie;
        if difference != 0 || role != sender as u8 {
            return Err(Rejected::Foreign);
        }
        let epoch = u16::from_le_bytes(r.array()?);
        let proposer = match r.byte()? {
            0 => Role::Zero,
            1 => Role::One,
            _ => return Err(Rejected::Malformed),
        };
        let body = match kind {
            1 => Body::Heartbeat,
            2 => Body::Propose { rail: r.byte()? },
            3 => {
                let [rail, flags, count] = r.array()?;
                let psn = Psn::new(r.u24()?);
                let log = u64::from_le_bytes(r.array()?);
                let received = u64::from_le_bytes(r.array()?);
                let torn = u32::from_le_bytes(r.array()?);
                if usize::from(count) > MAX_SAVED || flags > 3 {
                    return Err(Rejected::Malformed);
                }
                let mut saved = Vec::new();
                for _ in 0..count {
                    saved
                        .push(SavedResult { psn: Psn::new(r.u24()?), value: u64::from_le_bytes(r.array()?) });
                }
                let psn = (flags & 1 != 0).then_some(psn);
                let log = (flags & 2 != 0).then_some(log);
                Body::Evidence { rail, evidence: Evidence { psn, log, received, saved, torn } }
            }
            4 => Body::Resume { seen: r.byte()? != 0, torn: u32::from_le_bytes(r.array()?) },
            5 => Body::Refuse { dead: r.byte()? },
            6 => Body::Closed,
            7 => {
                let [rail, flags] = r.array()?;
                if flags > 3 {
                    return Err(Rejected::Malformed);
                }
                let (connected, asks) = (flags & 1 != 0, flags & 2 != 0);
                let (qpn, psn) = (Qpn::new(r.u24()?), Psn::new(r.u24()?));
                Body::Path(Path { rail, connected, asks, qpn, psn })
            }
            _ => return Err(Rejected::Malformed),
        };
        if r.0.is_empty() {
            Ok(Message { ballot: Ballot { epoch, proposer }, body })
        } else {
            Err(Rejected::Malformed)
        }
    }
}

fn put_u24(out: &mut SmallVec<[u8; MAX_LEN]>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes()[..3]);
}

/// Takes bytes off the front.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Rejected> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Rejected::Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Rejected> {
        self.array::<1>().map(|[b]| b)
    }

    pub(crate) fn u24(&mut self) -> Result<u32, Rejected> {
        self.array::<3>().map(|[a, b, c]| u32::from_le_bytes([a, b, c, 0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let saved: Vec<SavedResult> = (0..16)
            .map(|i| SavedResult { psn: Psn::new(0xff_fff8 + i), value: u64::MAX - u64::from(i) })
            .collect();
        let evidence = Evidence { psn: Some(Psn::new(7)), log: Some(1 << 47), received: 9, saved, torn: 8 };
        [
            Body::Heartbeat,
            Body::Propose { rail: 3 },
            Body::Evidence { rail: 1, evidence },
            Body::Evidence { rail: 1, evidence: Evidence::default() },
            Body::Resume { seen: true, torn: 4096 },
            Body::Refuse { dead: 0x81 },
            Body::Closed,
            Body::Path(Path {
                rail: 7,
                connected: true,
                asks: false,
                qpn: Qpn::new(0x12_3456),
                psn: Psn::new(0xff_fffe),
            }),
        ]
        .map(|body| Message { ballot: Ballot { epoch: 0x1234, proposer: Role::One }, body })
        .to_vec()
    }

    #[test]
    fn every_message_comes_back_and_fits() {
        for m in all() {
            let bytes = m.encode(Role::One, 42);
            assert!(bytes.len() <= MAX_LEN, "{} bytes", bytes.len());
            assert_eq!(Message::decode(&bytes, Role::One, 42), Ok(m));
        }
    }

    #[test]
    fn truncated_extended_and_foreign_ones_are_rejected() {
        for m in all() {
            let bytes = m.encode(Role::One, 42);
            for n in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..n], Role::One, 42), Err(Rejected::Malformed));
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert_eq!(Message::decode(&longer, Role::One, 42), Err(Rejected::Malformed));
            assert_eq!(Message::decode(&bytes, Role::One, 43), Err(Rejected::Foreign));
            assert_eq!(Message::decode(&bytes, Role::Zero, 42), Err(Rejected::Foreign));
        }
    }

    #[test]
    fn a_count_beyond_the_bound_is_rejected() {
        let mut bytes = all()[2].encode(Role::Zero, 1);
        bytes[HEADER + 2] = 17;
        bytes.extend_from_slice(&[0; 11]);
        assert_eq!(Message::decode(&bytes, Role::Zero, 1), Err(Rejected::Malformed));
    }
}
