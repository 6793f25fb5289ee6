//! Control messages: datagrams of at most 256 bytes between the two ends of a vQP, on the UD queue
//! pair of each rail.
//!
//! Layout, little-endian, lengths in bytes: version 1 · type 1 · sender's role 1 · zero 1 ·
//! receiver's cookie 8 · epoch 2 · proposer 1 · body. The cookie is the receiver's secret. A
//! datagram may come from any host, so the parser checks every length and count and rejects a
//! datagram with another cookie.

use core::cmp::Ordering;

use mitra_verbs::{Codec, Gid, Kinds, Malformed, Psn, Qpn, Reader, SavedResult, codec};
use smallvec::SmallVec;

mod message_kind;

use crate::ballot::{Ballot, Role};
use crate::config::MAX_RAILS;
use crate::evidence::{Evidence, Placed};
use crate::home_rail::Home;
use crate::secret::SecretWord;

pub use message_kind::MessageKind;

/// In bytes.
pub const MAX_LEN: usize = 256;
/// The maximum number of saved results in a message, and the maximum `rd_atomic` of a vQP.
pub const MAX_SAVED: usize = 16;
const VERSION: u8 = 5;
/// In bytes.
const HEADER: usize = 15;
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
    /// The sender is alive, and the rail of the message works.
    Heartbeat {
        /// Bit i: the sender cannot use rail i.
        unusable: u8,
    },
    /// The sender proposes to move and has stopped posting.
    Propose {
        /// The new rail.
        rail: u8,
        /// The newest home that the sender knows: the rail on which the atomics that ends share are
        /// executed. If this home is on another rail, the proposal means a new home on `rail`,
        /// whose generation is one higher. `None` if the sender knows of no end that shares
        /// atomics.
        home: Option<Home>,
    },
    /// The sender promises the ballot and has fenced the old rail.
    Evidence {
        /// The rail of the ballot.
        rail: u8,
        /// The home, as in [`Body::Propose`].
        home: Option<Home>,
        /// The record of the operations that the sender executed for the receiver on the old rail.
        evidence: Evidence,
    },
    /// The sender has the receiver's evidence and has moved.
    Resume {
        /// Whether the sender has the receiver's Resume.
        has_peer_resume: bool,
        /// The number of payload bytes that the sender leaves out when it sends the rest of a torn
        /// WRITE with immediate. The receiver adds this number to the byte count of its next
        /// receive completion. 0 without such a WRITE.
        partial_imm_bytes: u32,
    },
    /// The sender declines the ballot.
    Refuse {
        /// Bit i: the sender cannot use rail i.
        unusable: u8,
        /// The epoch of the highest ballot that the sender promised. The next proposal needs a
        /// higher one.
        promised_epoch: u16,
        /// The home rail of the sender's vQPs. `None` if they do not share atomics.
        home: Option<Home>,
    },
    /// Asks the receiver for [`Body::Placed`], because operations wait for it.
    AskPlaced,
    /// What the sender's processor has seen of the receiver's operations in the epoch of the ballot
    /// ([`Config::is_durable`](crate::Config::is_durable)).
    Placed(Placed),
    /// The address of the sender's NIC of a rail has changed.
    Address(Address),
    /// The answer to [`Body::Address`]: the sender knows the new address.
    AddressKnown {
        /// The rail.
        rail: u8,
        /// `Address::change`.
        change: u32,
    },
    /// The vQP has closed at the sender. A closed end answers every message but Closed with this
    /// one.
    Closed {
        /// The final record of the operations that the sender executed for the receiver, on the
        /// rail of the ballot. `None` if the record may be incomplete.
        evidence: Option<Evidence>,
    },
    /// The parameters of the sender's new queue pair on the rail of the message. The ballot is the
    /// one by which the vQP left that rail.
    NewQp(NewQp),
    /// Asks the receiver for [`Body::Answer`] on the rail of the message.
    Question {
        /// Counted from 1 by the sender.
        number: u64,
    },
    /// The sender has read this question, and the messages that had arrived on all rails by then.
    /// The message is sent on the rail of the question only.
    Answer {
        /// The number of the question.
        number: u64,
    },
}

impl Body {
    /// Whether the message is a solicited event, which wakes a receiver that waits for events. A
    /// heartbeat needs no answer, and the receiver reads it when its own next heartbeat is due.
    pub fn wakes(&self) -> bool {
        !matches!(self, Body::Heartbeat { .. })
    }
}

/// The address of the sender's NIC of a rail. The message goes out on every rail, because it may
/// not reach the receiver on the rail whose address changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    pub rail: u8,
    /// The number of the change. Messages may be delayed, so the receiver ignores all changes but
    /// the one with the highest number.
    pub change: u32,
    pub gid: Gid,
}

/// The parameters of a queue pair that replaces a fenced one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NewQp {
    /// The rail of the queue pair. The receiver ignores a message that arrives on another rail,
    /// because such a message does not prove that this rail works.
    pub rail: u8,
    /// Whether the sender's queue pair is connected to the receiver's.
    pub connected: bool,
    /// Whether the sender requests an answer, because it does not know whether the receiver's queue
    /// pair is connected.
    pub asks: bool,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The first PSN that the queue pair sends.
    pub psn: Psn,
}

/// The reason why a datagram is not a control message of this vQP. The vQP counts such datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejected {
    Malformed,
    Foreign,
}

impl From<Malformed> for Rejected {
    fn from(_: Malformed) -> Rejected {
        Rejected::Malformed
    }
}

/// Messages are ordered by their encoding, so that a model checker can keep the messages in transit
/// in a set.
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
    pub(crate) fn encode(&self, sender: Role, cookie: SecretWord) -> SmallVec<[u8; MAX_LEN]> {
        let mut out = SmallVec::new();
        [VERSION, self.body.kind(), sender as u8, 0].put(&mut out);
        cookie.expose().put(&mut out);
        self.ballot.put(&mut out);
        self.body.put_fields(&mut out);
        debug_assert!(out.len() <= MAX_LEN);
        out
    }

    /// `sender` is the role of the expected sender, and `cookie` belongs to the receiver.
    ///
    /// # Errors
    /// [`Rejected::Foreign`] for another cookie or role; [`Rejected::Malformed`] for anything else
    /// that [`Message::encode`] does not produce.
    pub(crate) fn decode(bytes: &[u8], sender: Role, cookie: SecretWord) -> Result<Message, Rejected> {
        let mut reader = Reader::new(bytes);
        let [version, kind, role, _] = Codec::take(&mut reader)?;
        if version != VERSION || bytes.len() > MAX_LEN || bytes.len() < HEADER {
            return Err(Rejected::Malformed);
        }
        if SecretWord::new(Codec::take(&mut reader)?) != cookie || role != sender as u8 {
            return Err(Rejected::Foreign);
        }
        let ballot = Ballot::take(&mut reader)?;
        let body = Body::take_fields(kind, &mut reader)?;
        reader.finish()?;
        Ok(Message { ballot, body })
    }
}

/// Returns the cookie, which names the vQP that the message is for. `None` if the datagram is too
/// short.
pub(crate) fn receiver_cookie(bytes: &[u8]) -> Option<SecretWord> {
    let cookie = bytes.get(4..12)?;
    Some(SecretWord::new(u64::from_le_bytes(cookie.try_into().ok()?)))
}

codec! {
    enum Body {
        1 => Heartbeat { unusable },
        2 => Propose { rail, home as fixed_home },
        3 => Evidence { rail, home as fixed_home, evidence },
        4 => Resume { has_peer_resume, partial_imm_bytes },
        5 => Refuse { unusable, promised_epoch, home as fixed_home },
        6 => Closed { evidence },
        7 => NewQp(qp),
        8 => AskPlaced,
        9 => Placed(placed),
        10 => Address(address),
        11 => AddressKnown { rail, change },
        12 => Question { number },
        13 => Answer { number },
    }
}

codec! { struct Ballot { epoch, proposer } }
codec! { struct Address { rail, change, gid } }

impl Codec<'_> for Role {
    fn put(&self, out: &mut impl Extend<u8>) {
        (*self as u8).put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Role, Malformed> {
        bool::take(reader).map(|is_one| if is_one { Role::One } else { Role::Zero })
    }
}

impl Codec<'_> for NewQp {
    fn put(&self, out: &mut impl Extend<u8>) {
        [self.rail, u8::from(self.connected) | u8::from(self.asks) << 1].put(out);
        put_24(self.qpn.value(), out);
        put_24(self.psn.value(), out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<NewQp, Malformed> {
        let [rail, flags] = Codec::take(reader)?;
        if flags > 3 {
            return Err(Malformed::Field);
        }
        let (qpn, psn) = (Qpn::new(take_24(reader)?), Psn::new(take_24(reader)?));
        Ok(NewQp { rail, connected: flags & 1 != 0, asks: flags & 2 != 0, qpn, psn })
    }
}

/// Encoding: whether there is a log, its highest sequence number or 0, the number of receives.
impl Codec<'_> for Placed {
    fn put(&self, out: &mut impl Extend<u8>) {
        self.log.is_some().put(out);
        self.log.unwrap_or(0).put(out);
        self.received.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Placed, Malformed> {
        let (has_log, log) = (bool::take(reader)?, Codec::take(reader)?);
        Ok(Placed { log: has_log.then_some(log), received: Codec::take(reader)? })
    }
}

/// Absent fields are encoded as 0. At most `MAX_SAVED` saved results are written.
impl Codec<'_> for Evidence {
    fn put(&self, out: &mut impl Extend<u8>) {
        let saved = &self.saved[..self.saved.len().min(MAX_SAVED)];
        let flags = u8::from(self.psn.is_some())
            | u8::from(self.log.is_some()) << 1
            | u8::from(self.lacks_receive) << 2
            | u8::from(self.is_all_placed) << 3;
        [flags, saved.len() as u8].put(out);
        put_24(self.psn.unwrap_or_default().value(), out);
        self.log.unwrap_or(0).put(out);
        self.received.put(out);
        self.partial_imm_bytes.put(out);
        for result in saved {
            put_24(result.psn.value(), out);
            result.value.put(out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Evidence, Malformed> {
        let [flags, saved] = Codec::take(reader)?;
        if usize::from(saved) > MAX_SAVED || flags > 15 {
            return Err(Malformed::Field);
        }
        let (psn, log) = (Psn::new(take_24(reader)?), Codec::take(reader)?);
        Ok(Evidence {
            psn: (flags & 1 != 0).then_some(psn),
            log: (flags & 2 != 0).then_some(log),
            lacks_receive: flags & 4 != 0,
            is_all_placed: flags & 8 != 0,
            // The fields from here on are read in their order on the wire.
            received: Codec::take(reader)?,
            partial_imm_bytes: Codec::take(reader)?,
            saved: (0..saved)
                .map(|_| Ok(SavedResult { psn: Psn::new(take_24(reader)?), value: Codec::take(reader)? }))
                .collect::<Result<_, Malformed>>()?,
        })
    }
}

/// Encoding of fixed length: whether there is a home, its rail, its generation.
mod fixed_home {
    use super::{Codec, Home, MAX_RAILS, Malformed, Reader};

    pub(super) fn put(home: &Option<Home>, out: &mut impl Extend<u8>) {
        let Home { generation, rail } = home.unwrap_or_default();
        home.is_some().put(out);
        rail.put(out);
        generation.put(out);
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Option<Home>, Malformed> {
        let (is_known, rail) = (bool::take(reader)?, u8::take(reader)?);
        let home = Home { generation: Codec::take(reader)?, rail };
        if is_known && usize::from(rail) >= MAX_RAILS {
            return Err(Malformed::Field);
        }
        Ok(is_known.then_some(home))
    }
}

fn put_24(number: u32, out: &mut impl Extend<u8>) {
    let [a, b, c, _] = number.to_le_bytes();
    [a, b, c].put(out);
}

fn take_24(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    <[u8; 3]>::take(reader).map(|[a, b, c]| u32::from_le_bytes([a, b, c, 0]))
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
            is_all_placed: true,
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
            Body::Question { number: 0x0102_0304_0506_0708 },
            Body::Answer { number: u64::MAX },
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
