//! The encoding and decoding of the datagrams of a rendezvous.

use mitra_verbs::{Gid, Key, Qpn, Srqn};

use super::backed_messages::Offer;
use super::device_gid::DeviceGid;
use super::reach_message::{self, Reach};

/// The object that a query asks about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::rails) enum Subject {
    /// The connection data of a queue pair (an encoded [`mitra_failover::ConnectInfo`]).
    Connection(Qpn),
    /// Whether the queue pair `qpn` is connected to the asking queue pair `asker`. The answer that it is has no content.
    Connected { qpn: Qpn, asker: Qpn },
    /// The keys of a memory region on all rails (an encoded [`mitra_failover::RemoteRegion`]). `key` is its rkey on rail 0. The region must be
    /// in the protection domain of the queue pair `qpn`.
    Region { qpn: Qpn, key: Key },
    /// Whether there is a shared receive queue with this number in the XRC domain of the queue pair `qpn`. The answer that there is has no
    /// content.
    SharedReceiveQueue { qpn: Qpn, number: Srqn },
    /// The parameters of the queue pair `qpn` with the shared backup of which the asking end offers its end (an encoded [`MemberAnswer`](super::MemberAnswer)).
    Member { qpn: Qpn, offer: Box<Offer> },
}

/// The answer to a query: the encoded data, or `None` if the answering end has no such object.
pub(in crate::rails) type Answer = Option<Vec<u8>>;

/// The content of a datagram.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// A query of the device that has this GID.
    Query(Subject, DeviceGid),
    Answer(Answer),
    /// The answer that the connection of the queue pair has ended, and that the program has not reset it yet. The content is the encoded data
    /// of that connection.
    Ended(Vec<u8>),
    /// The question to a multicast group which device has this GID.
    WhoHas(Gid),
    /// The answer of that device, which has this GID now.
    Owner(Gid),
    /// Where UD queue pairs can be reached.
    Reach(Reach),
}

const MAGIC: [u8; 4] = *b"MMT3";

const QUERY_CONNECTION: u8 = 1;
const QUERY_REGION: u8 = 2;
const ANSWER_NONE: u8 = 3;
const ANSWER_SOME: u8 = 4;
const WHO_HAS: u8 = 5;
const OWNER: u8 = 6;
const ENDED: u8 = 7;
const REACH: u8 = 8;
const QUERY_SHARED_RECEIVE_QUEUE: u8 = 9;
const QUERY_CONNECTED: u8 = 10;
const QUERY_MEMBER: u8 = 11;

/// Encodes a message as [`MAGIC`], the query's id (64 bits, little-endian), the kind of the message (8 bits), and the body. An answer has the
/// id of its query, an owner's answer that of the question.
pub(super) fn encode(id: u64, message: &Message) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&id.to_le_bytes());
    match message {
        Message::Query(Subject::Connection(qpn), device) => {
            out.push(QUERY_CONNECTION);
            device.put(&mut out);
            out.extend_from_slice(&qpn.value().to_le_bytes());
        }
        Message::Query(Subject::Connected { qpn, asker }, device) => {
            out.push(QUERY_CONNECTED);
            device.put(&mut out);
            out.extend_from_slice(&qpn.value().to_le_bytes());
            out.extend_from_slice(&asker.value().to_le_bytes());
        }
        Message::Query(Subject::Region { qpn, key }, device) => {
            out.push(QUERY_REGION);
            device.put(&mut out);
            out.extend_from_slice(&qpn.value().to_le_bytes());
            out.extend_from_slice(&key.0.to_le_bytes());
        }
        Message::Query(Subject::SharedReceiveQueue { qpn, number }, device) => {
            out.push(QUERY_SHARED_RECEIVE_QUEUE);
            device.put(&mut out);
            out.extend_from_slice(&qpn.value().to_le_bytes());
            out.extend_from_slice(&number.value().to_le_bytes());
        }
        Message::Query(Subject::Member { qpn, offer }, device) => {
            out.push(QUERY_MEMBER);
            device.put(&mut out);
            out.extend_from_slice(&qpn.value().to_le_bytes());
            out.extend(offer.encode());
        }
        Message::WhoHas(device) => {
            out.push(WHO_HAS);
            out.extend_from_slice(&device.0);
        }
        Message::Owner(current) => {
            out.push(OWNER);
            out.extend_from_slice(&current.0);
        }
        Message::Answer(None) => out.push(ANSWER_NONE),
        Message::Answer(Some(body)) => {
            out.push(ANSWER_SOME);
            out.extend_from_slice(body);
        }
        Message::Ended(body) => {
            out.push(ENDED);
            out.extend_from_slice(body);
        }
        Message::Reach(reach) => {
            out.push(REACH);
            out.extend(reach_message::encode(reach));
        }
    }
    out
}

/// Decodes a datagram to the query's id and the message. Returns `None` for a datagram that is truncated or not a rendezvous message.
pub(super) fn decode(bytes: &[u8]) -> Option<(u64, Message)> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (id, rest) = rest.split_first_chunk::<8>()?;
    let (kind, body) = rest.split_first()?;
    let word = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_le_bytes);
    let message = match *kind {
        _ if *magic != MAGIC => return None,
        QUERY_CONNECTION => {
            let (device, qpn) = DeviceGid::take(body)?;
            Message::Query(Subject::Connection(Qpn::new(word(qpn)?)), device)
        }
        QUERY_CONNECTED => {
            let (device, qps) = DeviceGid::take(body)?;
            let (qpn, asker) = qps.split_at_checked(4)?;
            let (qpn, asker) = (Qpn::new(word(qpn)?), Qpn::new(word(asker)?));
            Message::Query(Subject::Connected { qpn, asker }, device)
        }
        QUERY_REGION => {
            let (device, region) = DeviceGid::take(body)?;
            let (qpn, key) = region.split_at_checked(4)?;
            Message::Query(Subject::Region { qpn: Qpn::new(word(qpn)?), key: Key(word(key)?) }, device)
        }
        QUERY_SHARED_RECEIVE_QUEUE => {
            let (device, queue) = DeviceGid::take(body)?;
            let (qpn, number) = queue.split_at_checked(4)?;
            let (qpn, number) = (Qpn::new(word(qpn)?), Srqn::new(word(number)?));
            Message::Query(Subject::SharedReceiveQueue { qpn, number }, device)
        }
        QUERY_MEMBER => {
            let (device, member) = DeviceGid::take(body)?;
            let (qpn, offer) = member.split_at_checked(4)?;
            let (qpn, offer) = (Qpn::new(word(qpn)?), Box::new(Offer::decode(offer)?));
            Message::Query(Subject::Member { qpn, offer }, device)
        }
        WHO_HAS => Message::WhoHas(Gid(body.try_into().ok()?)),
        OWNER => Message::Owner(Gid(body.try_into().ok()?)),
        ANSWER_NONE if body.is_empty() => Message::Answer(None),
        ANSWER_SOME => Message::Answer(Some(body.to_vec())),
        ENDED => Message::Ended(body.to_vec()),
        REACH => Message::Reach(reach_message::decode(body)?),
        _ => return None,
    };
    Some((u64::from_le_bytes(*id), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Message> {
        let mut device = DeviceGid::new(Gid([9; 16]));
        device.set(Gid([8; 16]));
        vec![
            Message::Query(Subject::Connection(Qpn::new(0x12_3456)), DeviceGid::new(Gid([9; 16]))),
            Message::Query(
                Subject::Connected { qpn: Qpn::new(0x12_3456), asker: Qpn::new(0x65_4321) },
                DeviceGid::new(Gid([9; 16])),
            ),
            Message::Query(Subject::Region { qpn: Qpn::new(0x65_4321), key: Key(0x1234_5678) }, device),
            Message::Query(
                Subject::SharedReceiveQueue { qpn: Qpn::new(0x65_4321), number: Srqn::new(0x12_3456) },
                DeviceGid::new(Gid([8; 16])),
            ),
            Message::Answer(None),
            Message::Answer(Some(vec![1, 2, 3])),
            Message::Ended(vec![4, 5]),
            Message::WhoHas(Gid([7; 16])),
            Message::Owner(Gid([6; 16])),
        ]
    }

    #[test]
    fn messages_round_trip_and_truncated_messages_are_rejected() {
        for message in samples() {
            let bytes = encode(7, &message);
            let header_len = 4 + 8 + 1;
            for n in 0..header_len {
                assert_eq!(decode(&bytes[..n]), None);
            }
            if let Message::Query(..) | Message::WhoHas(_) | Message::Owner(_) = message {
                assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
                assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
            }
            assert_eq!(decode(&bytes), Some((7, message)));
        }
        let mut wrong_magic = encode(1, &Message::Answer(None));
        wrong_magic[0] ^= 1;
        assert_eq!(decode(&wrong_magic), None);
    }

    #[test]
    fn encodings_stay_byte_for_byte() {
        let encodings: Vec<_> = samples().iter().map(|message| format!("{:02x?}", encode(7, message))).collect();
        assert_eq!(encodings, include_str!("message_encodings.txt").lines().collect::<Vec<_>>());
    }
}
