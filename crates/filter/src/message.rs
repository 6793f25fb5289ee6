//! The messages between a sender and a filter, and their encoding.
//!
//! ```text
//! offset  0        1     2         4       8
//!         version  kind  reserved  CRC-32  fields of the kind, little endian; then the body
//! ```
//!
//! The checksum covers the whole message, with 0 in its own place. Unlike a NIC's ICRC, the
//! checksum is end to end: it also detects a bit that flips in host memory.

use core::fmt;

use mitra_verbs::{Codec, Kinds, Malformed, Reader, codec};

/// The version of the encoding.
pub const VERSION: u8 = 1;
/// The length of the longest message without a body, in bytes.
pub const MAX_HEADER: usize = 56;
/// The length of the part that all kinds share, in bytes.
const COMMON: usize = 8;

/// One attempt of a sender to arbitrate for a grant. A later attempt of the same node is greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Attempt {
    /// A number that orders the incarnations of a node: at first the incarnation. A sender whose
    /// attempt is refused because of a greater era takes the next number above this greater era.
    pub era: u64,
    /// The incarnation of the sender, which no other sender with the same node has.
    pub incarnation: u64,
    /// The number of the attempt in this incarnation, from 1.
    pub number: u32,
}

/// The identity of a row of a filter table. No identity is used for two rows, even if the filter
/// restarts, as long as its incarnations differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Grant {
    /// The incarnation of the filter.
    pub receiver: u64,
    /// The number of the row in this incarnation, from 1.
    pub number: u64,
}

/// The limits of a grant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Terms {
    /// The maximum number of requests whose replies the sender does not yet have. At least 1.
    pub window: u16,
    /// The last sequence number, after which the sender arbitrates again. The first is 1.
    pub last_seq: u32,
    /// The time in milliseconds for which the filter keeps the row although the sender is silent.
    pub lease_ms: u32,
}

/// A message with a body of type `B`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message<B> {
    /// The sender asks for a grant.
    Open(Attempt),
    /// The filter's answer: a fresh sequence.
    Offer(Attempt, Grant, Terms),
    /// The filter's refusal of an `Open`: no row is free.
    Full(Attempt),
    /// The filter's refusal of an `Open`: another incarnation of the node has a row. The number is
    /// the era of this incarnation, which is not below the era of the attempt.
    Superseded(Attempt, u64),
    /// A request that must be executed exactly once.
    Request {
        /// The sender's grant.
        grant: Grant,
        /// The sequence number.
        seq: u32,
        /// The sender has the replies to all requests up to this sequence number.
        confirmed: u32,
        /// The content.
        body: B,
    },
    /// The reply to a [`Message::Request`].
    Reply {
        /// The grant of the request.
        grant: Grant,
        /// The sequence number of the request.
        seq: u32,
        /// The content.
        body: B,
    },
    /// The filter's refusal of a request: the filter has no row with this grant, and never will.
    NoGrant(Grant),
    /// The filter asks an idle sender to give its row back.
    Reclaim(Grant),
    /// The sender gives its row back. The sender sends nothing under this grant any more.
    Release(Grant),
    /// An idempotent request, which no filter sees.
    Call {
        /// The sender's incarnation.
        incarnation: u64,
        /// The number of the call in this incarnation.
        id: u64,
        /// The content.
        body: B,
    },
    /// The reply to a [`Message::Call`].
    CallReply {
        /// The incarnation of the call.
        incarnation: u64,
        /// The number of the call.
        id: u64,
        /// The content.
        body: B,
    },
    /// A request over an ordered connection with one message outstanding: consecutive requests have
    /// different bits.
    BitRequest {
        /// The bit.
        bit: bool,
        /// The content.
        body: B,
    },
    /// The reply to a [`Message::BitRequest`].
    BitReply {
        /// The bit of the request.
        bit: bool,
        /// The content.
        body: B,
    },
}

/// The reason why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ParseError {
    /// The message is shorter than its kind requires.
    #[error("a message of {0} bytes is too short for its kind")]
    Short(usize),
    /// The version is not [`VERSION`].
    #[error("version {0} of the messages is unknown; both ends need version {VERSION}")]
    Version(u8),
    /// The checksum does not match: the message was corrupted.
    #[error("the checksum does not match, so the message was corrupted")]
    Checksum,
    /// The kind is unknown.
    #[error("the kind {0} of a message is unknown")]
    Kind(u8),
    /// A field has a value that no sender and no filter sends.
    #[error("a field has a value that is not allowed")]
    Field,
}

impl<B> Message<B> {
    /// Returns the message with another body.
    pub fn map<C>(self, f: impl FnOnce(B) -> C) -> Message<C> {
        match self {
            Message::Open(attempt) => Message::Open(attempt),
            Message::Offer(attempt, grant, terms) => Message::Offer(attempt, grant, terms),
            Message::Full(attempt) => Message::Full(attempt),
            Message::Superseded(attempt, latest) => Message::Superseded(attempt, latest),
            Message::Request { grant, seq, confirmed, body } => {
                Message::Request { grant, seq, confirmed, body: f(body) }
            }
            Message::Reply { grant, seq, body } => Message::Reply { grant, seq, body: f(body) },
            Message::NoGrant(grant) => Message::NoGrant(grant),
            Message::Reclaim(grant) => Message::Reclaim(grant),
            Message::Release(grant) => Message::Release(grant),
            Message::Call { incarnation, id, body } => Message::Call { incarnation, id, body: f(body) },
            Message::CallReply { incarnation, id, body } => {
                Message::CallReply { incarnation, id, body: f(body) }
            }
            Message::BitRequest { bit, body } => Message::BitRequest { bit, body: f(body) },
            Message::BitReply { bit, body } => Message::BitReply { bit, body: f(body) },
        }
    }
}

impl<'a, B: Codec<'a>> Message<B> {
    /// Replaces the content of `out` by the encoded message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.clear();
        [VERSION, self.kind(), 0, 0, 0, 0, 0, 0].put(out);
        self.put_fields(out);
        let checksum = checksum(out);
        out[4..8].copy_from_slice(&checksum.to_le_bytes());
    }
}

impl<'a> Message<&'a [u8]> {
    /// Parses a message.
    ///
    /// # Errors
    /// `Short`, `Version`, `Checksum`, `Kind` and `Field`, tested in this order.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<&'a [u8]>, ParseError> {
        let error = |malformed| match malformed {
            Malformed::Short => ParseError::Short(bytes.len()),
            Malformed::Kind(kind) => ParseError::Kind(kind),
            Malformed::Field | Malformed::Surplus => ParseError::Field,
        };
        let mut reader = Reader::new(bytes);
        let [version, kind, reserved @ ..] = <[u8; 4]>::take(&mut reader).map_err(error)?;
        if version != VERSION {
            return Err(ParseError::Version(version));
        }
        if u32::take(&mut reader).map_err(error)? != checksum(bytes) {
            return Err(ParseError::Checksum);
        }
        let message = Message::take_fields(kind, &mut reader).map_err(error)?;
        reader.finish().map_err(error)?;
        if reserved == [0, 0] { Ok(message) } else { Err(ParseError::Field) }
    }
}

codec! {
    enum Message<B> {
        1 => Open(attempt),
        2 => Offer(attempt, grant, terms),
        3 => Full(attempt),
        4 => Superseded(attempt, era),
        5 => Request { grant, seq, confirmed, body } if confirmed < seq,
        6 => Reply { grant, seq, body },
        7 => NoGrant(grant),
        8 => Reclaim(grant),
        9 => Release(grant),
        10 => Call { incarnation, id, body },
        11 => CallReply { incarnation, id, body },
        12 => BitRequest { bit, body },
        13 => BitReply { bit, body },
    }
}

codec! { struct Attempt { era, incarnation, number } }
codec! { struct Grant { receiver, number } }
// `last_seq` is below `u32::MAX`, because the sender computes the number after it.
codec! { struct Terms { window, last_seq, lease_ms } if window != 0 && (1..u32::MAX).contains(&last_seq) }

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "grant {} of {:016x}", self.number, self.receiver)
    }
}

/// Returns the checksum of a message of at least 8 bytes.
fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..4]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[COMMON..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Vec<Message<&'static [u8]>> {
        let attempt = Attempt { era: 3, incarnation: 1 << 60, number: 7 };
        let grant = Grant { receiver: u64::MAX, number: 3 };
        let terms = Terms { window: 4, last_seq: 9, lease_ms: 250 };
        let body: &[u8] = b"body";
        vec![
            Message::Open(attempt),
            Message::Offer(attempt, grant, terms),
            Message::Full(attempt),
            Message::Superseded(attempt, 5),
            Message::Request { grant, seq: 2, confirmed: 1, body },
            Message::Reply { grant, seq: 2, body },
            Message::NoGrant(grant),
            Message::Reclaim(grant),
            Message::Release(grant),
            Message::Call { incarnation: 4, id: 5, body },
            Message::CallReply { incarnation: 4, id: 5, body: b"" },
            Message::BitRequest { bit: true, body },
            Message::BitReply { bit: false, body },
        ]
    }

    #[test]
    fn every_kind_survives_emit_and_parse() {
        for message in every_kind() {
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            assert_eq!(Message::parse(&bytes), Ok(message.clone()));
            assert!(bytes.len() <= MAX_HEADER + b"body".len(), "{message:?} has {} bytes", bytes.len());
        }
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        for message in every_kind() {
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            for bit in 0..bytes.len() * 8 {
                let mut corrupt = bytes.clone();
                corrupt[bit / 8] ^= 1 << (bit % 8);
                assert!(Message::parse(&corrupt).is_err(), "{message:?}: bit {bit}");
            }
        }
    }

    #[test]
    fn every_shortened_message_is_refused() {
        for message in every_kind() {
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            for len in 0..bytes.len() {
                assert!(Message::parse(&bytes[..len]).is_err(), "{message:?}: {len} bytes");
            }
        }
    }

    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let checksum = checksum(&bytes);
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn forged_fields_are_refused() {
        let emitted = |message: Message<&[u8]>| {
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            bytes
        };
        let (grant, attempt) =
            (Grant { receiver: 1, number: 1 }, Attempt { era: 1, incarnation: 1, number: 1 });
        let offer = |window, last_seq| {
            emitted(Message::Offer(attempt, grant, Terms { window, last_seq, lease_ms: 0 }))
        };
        assert_eq!(Message::parse(&offer(0, 1)), Err(ParseError::Field));
        assert_eq!(Message::parse(&offer(1, 0)), Err(ParseError::Field));
        assert_eq!(Message::parse(&offer(1, u32::MAX)), Err(ParseError::Field));
        // A request confirms only replies to earlier requests.
        let request = emitted(Message::Request { grant, seq: 3, confirmed: 3, body: b"" });
        assert_eq!(Message::parse(&request), Err(ParseError::Field));
        let mut longer = emitted(Message::NoGrant(grant));
        longer.push(0);
        assert_eq!(Message::parse(&sealed(longer)), Err(ParseError::Field));
        let mut reserved = emitted(Message::NoGrant(grant));
        reserved[2] = 1;
        assert_eq!(Message::parse(&sealed(reserved)), Err(ParseError::Field));
        let mut kind = emitted(Message::NoGrant(grant));
        kind[1] = 99;
        assert_eq!(Message::parse(&sealed(kind)), Err(ParseError::Kind(99)));
        let mut version = emitted(Message::NoGrant(grant));
        version[0] = 2;
        assert_eq!(Message::parse(&version), Err(ParseError::Version(2)));
        let mut bit = emitted(Message::BitReply { bit: true, body: b"" });
        bit[8] = 2;
        assert_eq!(Message::parse(&sealed(bit)), Err(ParseError::Field));
    }

    #[test]
    fn encodings_stay_byte_for_byte() {
        let encodings: Vec<_> = every_kind()
            .iter()
            .map(|message| {
                let mut bytes = Vec::new();
                message.emit(&mut bytes);
                format!("{bytes:02x?}")
            })
            .collect();
        assert_eq!(encodings, include_str!("message_encodings.txt").lines().collect::<Vec<_>>());
    }
}
