//! Control messages: datagrams of at most 256 bytes between the two ends of a vQP, on the UD queue pair of each rail.
//!
//! Layout, little-endian, lengths in bytes: version 1 · type 1 · sender's role 1 · zero 1 · receiver's cookie 8 · epoch 2 · proposer 1 ·
//! body. The cookie is the receiver's secret, and a datagram without it is rejected. The parser checks every length and count, because a
//! datagram may come from any host.

use core::cmp::Ordering;

use mitra_verbs::{Gid, Psn, Qpn, SavedResult};
use smallvec::SmallVec;

mod message_kind;

use crate::ballot::{Ballot, Role};
use crate::evidence::{Evidence, Placed};
use crate::home_rail::Home;
use crate::negotiation::MAX_RAILS;
use crate::secret::SecretWord;

pub use message_kind::MessageKind;

/// The maximum length of a control message, in bytes.
pub const MAX_LEN: usize = 256;
/// The maximum number of saved results in a message, which is also the maximum `rd_atomic` of a vQP.
pub const MAX_SAVED: usize = 16;
const VERSION: u8 = 4;
/// The length of everything before the body, in bytes.
const HEADER: usize = 15;
/// The position of the epoch in a message.
const EPOCH_OFFSET: usize = 12;

/// A control message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// The ballot that the message belongs to.
    pub ballot: Ballot,
    /// The content.
    pub body: Body,
}

/// The content of a control message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// The sender is alive and the rail that carries the message works.
    Heartbeat {
        /// Bit i: the sender cannot use rail i.
        unusable: u8,
    },
    /// The sender proposes to move and has stopped posting.
    Propose {
        /// The new rail.
        rail: u8,
        /// The newest home that the sender knows. If it is on another rail, the sender proposes the next generation on the new rail. `None` if neither end
        /// is known to share atomics.
        home: Option<Home>,
    },
    /// The sender promises the ballot and has fenced the old rail.
    Evidence {
        /// The rail of the ballot.
        rail: u8,
        /// The home, as in a proposal.
        home: Option<Home>,
        /// The record of the operations that the sender executed for the receiver on the old rail.
        evidence: Evidence,
    },
    /// The sender has the receiver's evidence and has moved.
    Resume {
        /// Whether the sender has the receiver's Resume.
        has_peer_resume: bool,
        /// The number of payload bytes of its torn WRITE with immediate that the sender does not send again. The receiver adds this number to
        /// the length of its next receive. 0 if there is no such WRITE.
        partial_imm_bytes: u32,
    },
    /// The sender declines the ballot.
    Refuse {
        /// Bit i: the sender cannot use rail i.
        unusable: u8,
        /// The epoch of the highest ballot that the sender promised. The next proposal must be above it.
        promised_epoch: u16,
        /// The home rail of the sender's vQPs. `None` if they do not share atomics.
        home: Option<Home>,
    },
    /// Asks the receiver for [`Body::Placed`], because operations wait for it.
    AskPlaced,
    /// What the sender's processor has seen of the receiver's operations in the epoch of the ballot. See [`Config::durable`](crate::Config::durable).
    Placed(Placed),
    /// The sender's NIC of a rail has another address than before.
    Address(Address),
    /// The sender knows the address of this [`Body::Address`].
    AddressKnown {
        /// The rail.
        rail: u8,
        /// `Address::change`.
        change: u32,
    },
    /// The vQP has closed at the sender, which answers every further message with Closed.
    Closed {
        /// The final record of the operations that the sender executed for the receiver on the rail that the ballot binds. `None` if it is not
        /// known to be complete.
        evidence: Option<Evidence>,
    },
    /// The parameters of the sender's new queue pair on the rail that carries the message. The ballot of the message is the ballot by which the
    /// vQP left that rail.
    NewQp(NewQp),
}

impl Body {
    /// Returns whether the message is sent as a solicited event, which wakes a receiver that waits for events. A heartbeat is not: it needs no
    /// answer, and the receiver reads it when its own next heartbeat is due.
    pub fn wakes(&self) -> bool {
        !matches!(self, Body::Heartbeat { .. })
    }
}

/// The address of the sender's NIC of a rail. It is sent on every rail, because the receiver may have no other way to the sender on that rail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The rail.
    pub rail: u8,
    /// The number of the change. The receiver ignores all but the highest that it has seen, because messages may be delayed.
    pub change: u32,
    /// The address.
    pub gid: Gid,
}

/// The parameters of a queue pair that replaces a fenced one, and the state of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NewQp {
    /// The rail of the queue pair. The receiver ignores the message if it arrives on another rail, because it then does not prove that this
    /// rail works.
    pub rail: u8,
    /// Whether the sender's queue pair is connected to the receiver's.
    pub connected: bool,
    /// Whether the sender requests an answer, because it does not know yet that the receiver's queue pair is connected.
    pub asks: bool,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The first PSN that the queue pair sends.
    pub psn: Psn,
}

/// The reason why a datagram is not a control message of this vQP. The vQP drops and counts such datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejected {
    /// The datagram is malformed or of another version.
    Malformed,
    /// The datagram is not from this vQP's peer.
    Foreign,
}

/// Messages are ordered by their encoding, so that a model can keep those in transit in a set.
impl Ord for Message {
    fn cmp(&self, other: &Message) -> Ordering {
        let encode = |message: &Message| message.encode(Role::Zero, SecretWord::new(0));
        encode(self).cmp(&encode(other))
    }
}

impl PartialOrd for Message {
    fn partial_cmp(&self, other: &Message) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Message {
    /// Encodes the message for a receiver with this cookie.
    pub(crate) fn encode(&self, sender: Role, cookie: SecretWord) -> SmallVec<[u8; MAX_LEN]> {
        let mut out = SmallVec::new();
        let kind = match self.body {
            Body::Heartbeat { .. } => 1,
            Body::Propose { .. } => 2,
            Body::Evidence { .. } => 3,
            Body::Resume { .. } => 4,
            Body::Refuse { .. } => 5,
            Body::Closed { .. } => 6,
            Body::NewQp(_) => 7,
            Body::AskPlaced => 8,
            Body::Placed(_) => 9,
            Body::Address(_) => 10,
            Body::AddressKnown { .. } => 11,
        };
        out.extend_from_slice(&[VERSION, kind, sender as u8, 0]);
        out.extend_from_slice(&cookie.expose().to_le_bytes());
        out.extend_from_slice(&self.ballot.epoch.to_le_bytes());
        out.push(self.ballot.proposer as u8);
        match &self.body {
            Body::AskPlaced => {}
            Body::Closed { evidence } => {
                out.push(u8::from(evidence.is_some()));
                if let Some(evidence) = evidence {
                    put_evidence(&mut out, evidence);
                }
            }
            Body::Placed(placed) => put_placed(&mut out, *placed),
            Body::Propose { rail, home } => {
                out.push(*rail);
                put_home(&mut out, *home);
            }
            Body::Address(address) => {
                out.push(address.rail);
                out.extend_from_slice(&address.change.to_le_bytes());
                out.extend_from_slice(&address.gid.0);
            }
            Body::AddressKnown { rail, change } => {
                out.push(*rail);
                out.extend_from_slice(&change.to_le_bytes());
            }
            Body::Resume { has_peer_resume, partial_imm_bytes } => {
                out.push(u8::from(*has_peer_resume));
                out.extend_from_slice(&partial_imm_bytes.to_le_bytes());
            }
            Body::Heartbeat { unusable } => out.push(*unusable),
            Body::Refuse { unusable, promised_epoch, home } => {
                out.push(*unusable);
                out.extend_from_slice(&promised_epoch.to_le_bytes());
                put_home(&mut out, *home);
            }
            Body::NewQp(qp) => {
                out.extend_from_slice(&[qp.rail, u8::from(qp.connected) | u8::from(qp.asks) << 1]);
                put_u24(&mut out, qp.qpn.value());
                put_u24(&mut out, qp.psn.value());
            }
            Body::Evidence { rail, home, evidence } => {
                out.push(*rail);
                put_home(&mut out, *home);
                put_evidence(&mut out, evidence);
            }
        }
        debug_assert!(out.len() <= MAX_LEN);
        out
    }

    /// Parses a datagram from the end with the role `sender` to the end with this cookie.
    ///
    /// # Errors
    /// [`Rejected::Foreign`] for another cookie or role; [`Rejected::Malformed`] for anything else that [`Message::encode`] does not
    /// produce.
    pub(crate) fn decode(bytes: &[u8], sender: Role, cookie: SecretWord) -> Result<Message, Rejected> {
        let mut r = Reader(bytes);
        let [version, kind, role, _] = r.array::<4>()?;
        if version != VERSION || bytes.len() > MAX_LEN || bytes.len() < HEADER {
            return Err(Rejected::Malformed);
        }
        if SecretWord::new(u64::from_le_bytes(r.array()?)) != cookie || role != sender as u8 {
            return Err(Rejected::Foreign);
        }
        let epoch = u16::from_le_bytes(r.array()?);
        let proposer = match r.byte()? {
            0 => Role::Zero,
            1 => Role::One,
            _ => return Err(Rejected::Malformed),
        };
        let body = match kind {
            1 => Body::Heartbeat { unusable: r.byte()? },
            2 => Body::Propose { rail: r.byte()?, home: read_home(&mut r)? },
            3 => {
                let (rail, home) = (r.byte()?, read_home(&mut r)?);
                Body::Evidence { rail, home, evidence: read_evidence(&mut r)? }
            }
            4 => Body::Resume {
                has_peer_resume: r.byte()? != 0,
                partial_imm_bytes: u32::from_le_bytes(r.array()?),
            },
            5 => {
                let (unusable, promised_epoch) = (r.byte()?, u16::from_le_bytes(r.array()?));
                Body::Refuse { unusable, promised_epoch, home: read_home(&mut r)? }
            }
            6 => Body::Closed {
                evidence: match r.byte()? {
                    0 => None,
                    1 => Some(read_evidence(&mut r)?),
                    _ => return Err(Rejected::Malformed),
                },
            },
            7 => {
                let [rail, flags] = r.array()?;
                if flags > 3 {
                    return Err(Rejected::Malformed);
                }
                let (connected, asks) = (flags & 1 != 0, flags & 2 != 0);
                let (qpn, psn) = (Qpn::new(r.u24()?), Psn::new(r.u24()?));
                Body::NewQp(NewQp { rail, connected, asks, qpn, psn })
            }
            8 => Body::AskPlaced,
            9 => Body::Placed(read_placed(&mut r)?),
            10 => {
                let (rail, change) = (r.byte()?, u32::from_le_bytes(r.array()?));
                Body::Address(Address { rail, change, gid: Gid(r.array()?) })
            }
            11 => Body::AddressKnown { rail: r.byte()?, change: u32::from_le_bytes(r.array()?) },
            _ => return Err(Rejected::Malformed),
        };
        if r.0.is_empty() {
            Ok(Message { ballot: Ballot { epoch, proposer }, body })
        } else {
            Err(Rejected::Malformed)
        }
    }
}

/// Returns the cookie in a datagram, which names the vQP that the message is for. `None` if the datagram is too short for a message.
pub(crate) fn receiver_cookie(bytes: &[u8]) -> Option<SecretWord> {
    let cookie = bytes.get(4..12)?;
    Some(SecretWord::new(u64::from_le_bytes(cookie.try_into().ok()?)))
}

/// Appends the encoding of what a processor has seen to `out`.
pub(crate) fn put_placed(out: &mut impl Extend<u8>, placed: Placed) {
    out.extend([u8::from(placed.log.is_some())]);
    out.extend(placed.log.unwrap_or(0).to_le_bytes());
    out.extend(placed.received.to_le_bytes());
}

/// Removes what [`put_placed`] appended from `r`.
///
/// # Errors
/// [`Rejected::Malformed`] for anything that [`put_placed`] does not produce.
pub(crate) fn read_placed(r: &mut Reader<'_>) -> Result<Placed, Rejected> {
    let is_logged = r.byte()?;
    if is_logged > 1 {
        return Err(Rejected::Malformed);
    }
    let log = u64::from_le_bytes(r.array()?);
    let received = u64::from_le_bytes(r.array()?);
    Ok(Placed { log: (is_logged == 1).then_some(log), received })
}

/// Appends the encoding of evidence to `out`, with at most [`MAX_SAVED`] saved results.
pub(crate) fn put_evidence(out: &mut impl Extend<u8>, evidence: &Evidence) {
    let saved = &evidence.saved[..evidence.saved.len().min(MAX_SAVED)];
    let flags = u8::from(evidence.psn.is_some())
        | u8::from(evidence.log.is_some()) << 1
        | u8::from(evidence.lacks_receive) << 2;
    out.extend([flags, saved.len() as u8]);
    put_u24(out, evidence.psn.unwrap_or_default().value());
    out.extend(evidence.log.unwrap_or(0).to_le_bytes());
    out.extend(evidence.received.to_le_bytes());
    out.extend(evidence.partial_imm_bytes.to_le_bytes());
    for s in saved {
        put_u24(out, s.psn.value());
        out.extend(s.value.to_le_bytes());
    }
}

/// Removes the encoding of evidence from `r`.
///
/// # Errors
/// [`Rejected::Malformed`] for anything that [`put_evidence`] does not produce.
pub(crate) fn read_evidence(r: &mut Reader<'_>) -> Result<Evidence, Rejected> {
    let [flags, count] = r.array()?;
    let psn = Psn::new(r.u24()?);
    let log = u64::from_le_bytes(r.array()?);
    let received = u64::from_le_bytes(r.array()?);
    let partial_imm_bytes = u32::from_le_bytes(r.array()?);
    if usize::from(count) > MAX_SAVED || flags > 7 {
        return Err(Rejected::Malformed);
    }
    let mut saved = Vec::new();
    for _ in 0..count {
        saved.push(SavedResult { psn: Psn::new(r.u24()?), value: u64::from_le_bytes(r.array()?) });
    }
    let psn = (flags & 1 != 0).then_some(psn);
    let log = (flags & 2 != 0).then_some(log);
    let lacks_receive = flags & 4 != 0;
    Ok(Evidence { psn, log, received, lacks_receive, saved, partial_imm_bytes })
}

/// Writes whether there is a home, its rail, and its generation.
fn put_home(out: &mut impl Extend<u8>, home: Option<Home>) {
    let Home { generation, rail } = home.unwrap_or_default();
    out.extend([u8::from(home.is_some()), rail]);
    out.extend(generation.to_le_bytes());
}

fn read_home(r: &mut Reader<'_>) -> Result<Option<Home>, Rejected> {
    let ([is_known, rail], generation) = (r.array()?, u64::from_le_bytes(r.array()?));
    match is_known {
        0 => Ok(None),
        1 if usize::from(rail) < MAX_RAILS => Ok(Some(Home { generation, rail })),
        _ => Err(Rejected::Malformed),
    }
}

fn put_u24(out: &mut impl Extend<u8>, number: u32) {
    let [a, b, c, _] = number.to_le_bytes();
    out.extend([a, b, c]);
}

/// Reads fields from the front of a byte string.
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

    fn all_messages() -> Vec<Message> {
        let saved: Vec<SavedResult> = (0..16)
            .map(|i| SavedResult { psn: Psn::new(0xff_fff8 + i), value: u64::MAX - u64::from(i) })
            .collect();
        let evidence = Evidence {
            psn: Some(Psn::new(7)),
            log: Some(1 << 47),
            received: 9,
            lacks_receive: true,
            saved,
            partial_imm_bytes: 8,
        };
        [
            Body::Heartbeat { unusable: 0x42 },
            Body::Propose { rail: 3, home: Some(Home { generation: 1 << 40, rail: 2 }) },
            Body::Evidence {
                rail: 1,
                home: Some(Home { generation: 7, rail: 1 }),
                evidence: evidence.clone(),
            },
            Body::Evidence { rail: 1, home: None, evidence: Evidence::default() },
            Body::Resume { has_peer_resume: true, partial_imm_bytes: 4096 },
            Body::Refuse { unusable: 0x81, promised_epoch: 0x1235, home: None },
            Body::Refuse { unusable: 0, promised_epoch: 1, home: Some(Home { generation: 9, rail: 2 }) },
            Body::Closed { evidence: None },
            Body::Closed { evidence: Some(evidence) },
            Body::AskPlaced,
            Body::Placed(Placed::default()),
            Body::Address(Address { rail: 6, change: 0x1234_5678, gid: Gid([7; 16]) }),
            Body::AddressKnown { rail: 6, change: 0x1234_5678 },
            Body::Placed(Placed { log: Some(1 << 47), received: u64::MAX }),
            Body::NewQp(NewQp {
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
    fn every_message_survives_encode_and_decode_within_max_len() {
        for m in all_messages() {
            let bytes = m.encode(Role::One, SecretWord::new(42));
            assert!(bytes.len() <= MAX_LEN, "{} bytes", bytes.len());
            assert_eq!(Message::decode(&bytes, Role::One, SecretWord::new(42)), Ok(m));
        }
    }

    #[test]
    fn truncated_extended_and_foreign_messages_are_rejected() {
        for m in all_messages() {
            let bytes = m.encode(Role::One, SecretWord::new(42));
            for n in 0..bytes.len() {
                assert_eq!(
                    Message::decode(&bytes[..n], Role::One, SecretWord::new(42)),
                    Err(Rejected::Malformed)
                );
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert_eq!(Message::decode(&longer, Role::One, SecretWord::new(42)), Err(Rejected::Malformed));
            assert_eq!(Message::decode(&bytes, Role::One, SecretWord::new(43)), Err(Rejected::Foreign));
            assert_eq!(Message::decode(&bytes, Role::Zero, SecretWord::new(42)), Err(Rejected::Foreign));
        }
    }

    #[test]
    fn saved_result_count_beyond_max_saved_is_rejected() {
        let mut bytes = all_messages()[2].encode(Role::Zero, SecretWord::new(1));
        bytes[HEADER + 2] = 17;
        bytes.extend_from_slice(&[0; 11]);
        assert_eq!(Message::decode(&bytes, Role::Zero, SecretWord::new(1)), Err(Rejected::Malformed));
    }

    #[test]
    fn encodings_stay_byte_for_byte() {
        let encodings: Vec<_> = all_messages()
            .iter()
            .map(|message| format!("{:02x?}", message.encode(Role::One, SecretWord::new(42)).as_slice()))
            .collect();
        assert_eq!(encodings, include_str!("encodings/control_messages.txt").lines().collect::<Vec<_>>());
    }
}
