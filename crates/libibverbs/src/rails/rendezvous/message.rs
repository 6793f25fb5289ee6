//! The encoding and decoding of the datagrams of a rendezvous.

use mitra_verbs::{Codec, Gid, Key, Kinds, Malformed, Qpn, Reader, Srqn, codec};

use super::device_gid::DeviceGid;
use super::reach_message::Reach;
use super::terms::Terms;

/// The object that a query asks about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rails) enum Subject {
    /// The connection data of the queue pair `qpn` (an encoded [`ConnectionData`]). `terms` are the
    /// terms of the asking queue pair.
    Connection { qpn: Qpn, terms: Terms },
    /// Whether the queue pair `qpn` is connected to the asking queue pair `asker`. The positive
    /// answer is empty.
    Connected { qpn: Qpn, asker: Qpn },
    /// The keys of a memory region on all rails (an encoded [`mitra_failover::RemoteRegion`]).
    /// `key` is its rkey on rail 0. The region must be in the protection domain of the queue pair
    /// `qpn`.
    Region { qpn: Qpn, key: Key },
    /// Whether there is a shared receive queue with this number in the XRC domain of the queue pair
    /// `qpn`. The positive answer is empty.
    SharedReceiveQueue { qpn: Qpn, number: Srqn },
}

/// The answer to a query for connection data.
pub(in crate::rails) struct ConnectionData {
    pub(in crate::rails) terms: Terms,
    /// An encoded [`mitra_failover::ConnectInfo`]. Empty from a device with one rail.
    pub(in crate::rails) info: Vec<u8>,
}

codec! { struct ConnectionData { terms, info } }

/// The answer to a query: the encoded data, or `None` if the answering end has no such object.
pub(super) type Answer = Option<Vec<u8>>;

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// A query from the device with this GID.
    Query(Subject, DeviceGid),
    Answer(Answer),
    /// The connection of the queue pair has ended, and the program has not reset it yet. Contains
    /// the encoded data of the ended connection.
    Ended(Vec<u8>),
    /// Asks a multicast group which device has this GID.
    WhoHas(Gid),
    /// Answers [`Message::WhoHas`] with the present GID of the device.
    Owner(Gid),
    /// Where UD queue pairs can be reached.
    Reach(Reach),
    /// The communication ids of connections of `rdma_cm` between the two devices, the sender's
    /// first.
    CmConnections(Vec<(u32, u32)>),
    /// Answers [`Message::CmConnections`] with those connections that the receiver does not have,
    /// as it has received them.
    UnknownCmConnections(Vec<(u32, u32)>),
}

const MAGIC: [u8; 4] = *b"MMT4";

const ANSWER_NONE: u8 = 3;
const ANSWER_SOME: u8 = 4;
const WHO_HAS: u8 = 5;
const OWNER: u8 = 6;
const ENDED: u8 = 7;
const REACH: u8 = 8;
const CM_CONNECTIONS: u8 = 11;
const UNKNOWN_CM_CONNECTIONS: u8 = 12;

// A message of any other kind is a query. Its kind names the subject.
codec! {
    enum Subject {
        1 => Connection { qpn, terms },
        2 => Region { qpn, key },
        9 => SharedReceiveQueue { qpn, number },
        10 => Connected { qpn, asker },
    }
}

/// The kind and its fields. Between the kind and the fields of a query is the device's GID.
impl Codec<'_> for Message {
    fn put(&self, out: &mut impl Extend<u8>) {
        match self {
            Message::Query(subject, device) => {
                subject.kind().put(out);
                device.put(out);
                subject.put_fields(out);
            }
            Message::Answer(None) => ANSWER_NONE.put(out),
            Message::Answer(Some(data)) => {
                ANSWER_SOME.put(out);
                data.put(out);
            }
            Message::Ended(data) => {
                ENDED.put(out);
                data.put(out);
            }
            Message::WhoHas(gid) => {
                WHO_HAS.put(out);
                gid.put(out);
            }
            Message::Owner(gid) => {
                OWNER.put(out);
                gid.put(out);
            }
            Message::Reach(reach) => {
                REACH.put(out);
                reach.put(out);
            }
            Message::CmConnections(connections) => put_connections(CM_CONNECTIONS, connections, out),
            Message::UnknownCmConnections(connections) => {
                put_connections(UNKNOWN_CM_CONNECTIONS, connections, out);
            }
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Message, Malformed> {
        Ok(match Codec::take(reader)? {
            ANSWER_NONE => Message::Answer(None),
            ANSWER_SOME => Message::Answer(Some(Codec::take(reader)?)),
            ENDED => Message::Ended(Codec::take(reader)?),
            WHO_HAS => Message::WhoHas(Codec::take(reader)?),
            OWNER => Message::Owner(Codec::take(reader)?),
            REACH => Message::Reach(Codec::take(reader)?),
            CM_CONNECTIONS => Message::CmConnections(take_connections(reader)?),
            UNKNOWN_CM_CONNECTIONS => Message::UnknownCmConnections(take_connections(reader)?),
            query => {
                let device = Codec::take(reader)?;
                Message::Query(Subject::take_fields(query, reader)?, device)
            }
        })
    }
}

fn put_connections(kind: u8, connections: &[(u32, u32)], out: &mut impl Extend<u8>) {
    kind.put(out);
    (connections.len() as u8).put(out);
    connections.iter().for_each(|ids| ids.put(out));
}

fn take_connections(reader: &mut Reader<'_>) -> Result<Vec<(u32, u32)>, Malformed> {
    let count = u8::take(reader)?;
    reader.list(count.into())
}

/// Encodes a message as [`MAGIC`], the query's id, and the message. An `Answer` has the id of the
/// `Query`, and an `Owner` the id of the `WhoHas`.
pub(super) fn encode(id: u64, message: &Message) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    id.put(&mut out);
    message.put(&mut out);
    out
}

/// Decodes a datagram to the query's id and the message. Returns `None` for a datagram that is
/// truncated or not a rendezvous message.
pub(super) fn decode(bytes: &[u8]) -> Option<(u64, Message)> {
    let (magic, identified): ([u8; 4], _) = Codec::from_bytes(bytes).ok()?;
    (magic == MAGIC).then_some(identified)
}

/// Returns whether a datagram is a rendezvous message of another version.
pub(super) fn is_of_other_version(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC[..3]) && !bytes.starts_with(&MAGIC)
}

#[cfg(test)]
mod tests {
    use super::super::terms::tests::terms;
    use super::*;

    fn samples() -> Vec<Message> {
        let mut device = DeviceGid::new(Gid([9; 16]));
        device.set(Gid([8; 16]));
        vec![
            Message::Query(
                Subject::Connection { qpn: Qpn::new(0x12_3456), terms: terms() },
                DeviceGid::new(Gid([9; 16])),
            ),
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
            Message::CmConnections(vec![(1, 2), (0xa0b0_c0d0, 4)]),
            Message::UnknownCmConnections(vec![(1, 2)]),
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
    fn messages_of_unknown_kinds_are_rejected() {
        for kind in [0, 13, u8::MAX] {
            let mut bytes = encode(1, &Message::Answer(Some(vec![0; 256])));
            bytes[4 + 8] = kind;
            assert_eq!(decode(&bytes), None, "kind {kind}");
        }
    }

    #[test]
    fn encodings_stay_byte_for_byte() {
        let encodings: Vec<_> =
            samples().iter().map(|message| format!("{:02x?}", encode(7, message))).collect();
        assert_eq!(encodings, include_str!("message_encodings.txt").lines().collect::<Vec<_>>());
    }

    #[test]
    fn corpus_of_messages() {
        crate::replay::replay("messages", |data| {
            if let [8, bytes @ ..] = data {
                crate::round_trip::round_trip::<Message>(bytes);
            }
        });
    }
}
