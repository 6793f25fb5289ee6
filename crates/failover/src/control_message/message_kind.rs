//! The kinds of control messages. An observer of datagrams can read the kinds without the secrets
//! of a vQP.

use super::{EPOCH_OFFSET, HEADER, VERSION};

/// The kind of a control message. The value is the byte in the datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum MessageKind {
    /// [`Body::Heartbeat`](super::Body::Heartbeat).
    Heartbeat = 1,
    /// [`Body::Propose`](super::Body::Propose).
    Propose,
    /// [`Body::Evidence`](super::Body::Evidence).
    Evidence,
    /// [`Body::Resume`](super::Body::Resume).
    Resume,
    /// [`Body::Refuse`](super::Body::Refuse).
    Refuse,
    /// [`Body::Closed`](super::Body::Closed).
    Closed,
    /// [`Body::NewQp`](super::Body::NewQp).
    NewQp,
    /// [`Body::AskPlaced`](super::Body::AskPlaced).
    AskPlaced,
    /// [`Body::Placed`](super::Body::Placed).
    Placed,
    /// [`Body::Address`](super::Body::Address).
    Address,
    /// [`Body::AddressKnown`](super::Body::AddressKnown).
    AddressKnown,
    /// [`Body::Question`](super::Body::Question).
    Question,
    /// [`Body::Answer`](super::Body::Answer).
    Answer,
}

impl MessageKind {
    /// All kinds.
    pub const ALL: [MessageKind; 13] = [
        MessageKind::Heartbeat,
        MessageKind::Propose,
        MessageKind::Evidence,
        MessageKind::Resume,
        MessageKind::Refuse,
        MessageKind::Closed,
        MessageKind::NewQp,
        MessageKind::AskPlaced,
        MessageKind::Placed,
        MessageKind::Address,
        MessageKind::AddressKnown,
        MessageKind::Question,
        MessageKind::Answer,
    ];

    /// The kind that a datagram claims to have. `None` if it is no control message.
    pub fn of_datagram(bytes: &[u8]) -> Option<MessageKind> {
        let [VERSION, kind, ..] = *bytes else { return None };
        MessageKind::ALL.into_iter().find(|&known| known as u8 == kind && bytes.len() >= HEADER)
    }

    /// The epoch that a datagram claims to have. `None` if it is no control message.
    pub fn epoch_of_datagram(bytes: &[u8]) -> Option<u16> {
        MessageKind::of_datagram(bytes)?;
        let epoch = bytes.get(EPOCH_OFFSET..)?.first_chunk()?;
        Some(u16::from_le_bytes(*epoch))
    }
}

#[cfg(test)]
mod tests {
    use mitra_verbs::{Gid, Psn, Qpn};

    use super::super::{Address, Body, Message, NewQp};
    use super::*;
    use crate::ballot::{Ballot, Role};
    use crate::evidence::{Evidence, Placed};
    use crate::secret::SecretWord;

    #[test]
    fn kind_of_a_datagram_is_that_of_its_body() {
        let bodies = [
            (Body::Heartbeat { unusable: 0 }, MessageKind::Heartbeat),
            (Body::Propose { rail: 0, home: None }, MessageKind::Propose),
            (Body::Evidence { rail: 0, home: None, evidence: Evidence::default() }, MessageKind::Evidence),
            (Body::Resume { has_peer_resume: false, partial_imm_bytes: 0 }, MessageKind::Resume),
            (Body::Refuse { unusable: 0, promised_epoch: 0, home: None }, MessageKind::Refuse),
            (Body::Closed { evidence: None }, MessageKind::Closed),
            (
                Body::NewQp(NewQp {
                    rail: 0,
                    connected: false,
                    asks: false,
                    qpn: Qpn::new(0),
                    psn: Psn::new(0),
                }),
                MessageKind::NewQp,
            ),
            (Body::AskPlaced, MessageKind::AskPlaced),
            (Body::Placed(Placed::default()), MessageKind::Placed),
            (Body::Address(Address { rail: 0, change: 0, gid: Gid([0; 16]) }), MessageKind::Address),
            (Body::AddressKnown { rail: 0, change: 0 }, MessageKind::AddressKnown),
            (Body::Question { number: 1 }, MessageKind::Question),
            (Body::Answer { number: 1 }, MessageKind::Answer),
        ];
        for (body, kind) in bodies {
            let datagram = Message { ballot: Ballot { epoch: 0x1234, proposer: Role::One }, body }
                .encode(Role::Zero, SecretWord::new(7));
            assert_eq!(MessageKind::of_datagram(&datagram), Some(kind));
            assert_eq!(MessageKind::epoch_of_datagram(&datagram), Some(0x1234));
        }
        assert_eq!(MessageKind::of_datagram(&[VERSION, 1]), None, "too short");
        assert_eq!(MessageKind::of_datagram(&[VERSION, 99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
