//! The messages between the two ends of queue pairs with a shared backup, and their encoding.
//!
//! A SEND on the backup carries as many messages as fit. A message has these fields, in
//! little-endian byte order, with their lengths in bytes:
//! receiver's slot 4 · receiver's instance 4 · kind 1 · body.

use mitra_verbs::{Codec, Key, Malformed, Psn, Qpn, Reader, codec};

use crate::evidence::{Evidence, Placed};
use crate::memory_region::RemoteRegion;

/// The maximum length of a message, in bytes.
pub(crate) const MAX_MESSAGE_LEN: usize = 256;

/// A queue pair of a process with a shared backup: its slot, and the number of its predecessors in
/// this slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MemberId {
    pub(crate) slot: u32,
    pub(crate) instance: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Message {
    pub(crate) to: MemberId,
    pub(crate) body: Body,
}

/// The parameters of an end's queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OfferedQp {
    /// The rail of the queue pair.
    pub rail: u8,
    /// The queue pair number.
    pub qpn: Qpn,
    /// The first PSN that the queue pair sends.
    pub psn: Psn,
}

/// The content of a message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// The sender has fenced its queue pair of this epoch.
    Evidence {
        /// The epoch of the queue pair.
        epoch: u16,
        /// What the queue pair executed for the receiver.
        evidence: Evidence,
    },
    /// The sender has decided its operations on the queue pair of this epoch. The receiver adds
    /// `partial_imm_bytes` to the length of the next receive of a WRITE with immediate.
    Resumed {
        /// The epoch of the queue pair.
        epoch: u16,
        /// The number of bytes that are not sent again.
        partial_imm_bytes: u32,
    },
    /// The sender has made a queue pair in this epoch. The queue pair of a sender with
    /// [`Role::One`](crate::ballot::Role) is already connected.
    Offered {
        /// The epoch of the queue pair.
        epoch: u16,
        /// The queue pair.
        qp: OfferedQp,
    },
    /// The sender's queue pair of this epoch is connected.
    Confirmed {
        /// The epoch of the queue pair.
        epoch: u16,
    },
    /// The sender has closed.
    Closed {
        /// The epoch and the evidence of the sender's queue pair, if the evidence is complete and
        /// was not sent before.
        evidence: Option<(u16, Evidence)>,
    },
    /// The sender asks for a key by which it can access memory of the receiver on the backup.
    AskGrant {
        /// The key of the memory on rail 0.
        rkey: Key,
    },
    /// The sender grants access to memory on the backup.
    Grant(Grant),
    /// Mode `durable`: what the sender's processor has seen of the receiver's operations on the
    /// queue pair of this epoch.
    Placed {
        /// The epoch of the queue pair.
        epoch: u16,
        /// What the processor has seen.
        placed: Placed,
    },
}

/// The right of one queue pair to access memory of the peer on the backup.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// The key with which the requests of the queue pair name the memory.
    pub rkey: Key,
    /// Whether the memory may be written.
    pub writable: bool,
    /// Whether the memory may be read.
    pub readable: bool,
    /// The memory as requests on the backup name it.
    pub region: RemoteRegion,
}

codec! { struct MemberId { slot, instance } }
codec! { struct Message { to, body } }
codec! { struct OfferedQp { rail, qpn, psn } }

codec! {
    enum Body {
        1 => Evidence { epoch, evidence },
        2 => Resumed { epoch, partial_imm_bytes },
        3 => Offered { epoch, qp },
        4 => Confirmed { epoch },
        5 => Closed { evidence },
        6 => AskGrant { rkey },
        7 => Grant(grant),
        8 => Placed { epoch, placed },
    }
}

impl Codec<'_> for Grant {
    fn put(&self, out: &mut impl Extend<u8>) {
        self.rkey.put(out);
        (u8::from(self.writable) | u8::from(self.readable) << 1).put(out);
        self.region.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Grant, Malformed> {
        let (rkey, rights) = (Codec::take(reader)?, u8::take(reader)?);
        if rights > 3 {
            return Err(Malformed::Field);
        }
        let region = Codec::take(reader)?;
        Ok(Grant { rkey, writable: rights & 1 != 0, readable: rights & 2 != 0, region })
    }
}

#[cfg(test)]
mod tests {
    use mitra_verbs::RemoteAddr;
    use smallvec::SmallVec;

    use super::*;

    fn all_bodies() -> Vec<Body> {
        let qp = OfferedQp { rail: 7, qpn: Qpn::new(0x12_3456), psn: Psn::new(0xff_fffe) };
        let remote = RemoteAddr { addr: u64::MAX, rkey: Key(9) };
        let region = RemoteRegion::new(64, SmallVec::from_elem(remote, 8));
        let saved = vec![mitra_verbs::SavedResult { psn: Psn::new(3), value: 5 }; 16];
        let evidence = Evidence { psn: Some(Psn::new(7)), log: Some(1 << 47), saved, ..Evidence::default() };
        vec![
            Body::Evidence { epoch: 3, evidence: evidence.clone() },
            Body::Evidence { epoch: 3, evidence: Evidence::default() },
            Body::Resumed { epoch: u16::MAX, partial_imm_bytes: 4096 },
            Body::Offered { epoch: 4, qp },
            Body::Confirmed { epoch: 5 },
            Body::Closed { evidence: None },
            Body::Closed { evidence: Some((9, evidence)) },
            Body::AskGrant { rkey: Key(u32::MAX) },
            Body::Grant(Grant { rkey: Key(1), writable: true, readable: false, region }),
            Body::Placed { epoch: 6, placed: Placed { log: Some(1 << 47), received: u64::MAX } },
            Body::Placed { epoch: 7, placed: Placed::default() },
        ]
    }

    #[test]
    fn messages_survive_encode_and_parse_and_truncated_ones_are_rejected() {
        let mut all = Vec::new();
        for body in all_bodies() {
            let message = Message { to: MemberId { slot: 7, instance: 8 }, body };
            let mut bytes = message.to_bytes();
            assert!(bytes.len() <= MAX_MESSAGE_LEN, "{} bytes", bytes.len());
            for n in 0..bytes.len() {
                assert_eq!(Message::from_bytes(&bytes[..n]), Err(Malformed::Short), "{n} bytes");
            }
            assert_eq!(Message::from_bytes(&bytes), Ok(message));
            all.append(&mut bytes);
        }
        let mut reader = Reader::new(&all);
        let parsed = core::iter::from_fn(|| (!reader.is_empty()).then(|| Message::take(&mut reader)));
        assert_eq!(parsed.map(|m| m.map(|m| m.body)).collect::<Result<Vec<_>, _>>(), Ok(all_bodies()));
    }

    #[test]
    fn encodings_stay_byte_for_byte() {
        let encodings: Vec<_> = all_bodies()
            .into_iter()
            .map(|body| {
                let message = Message { to: MemberId { slot: 7, instance: 8 }, body };
                format!("{:02x?}", message.to_bytes())
            })
            .collect();
        assert_eq!(
            encodings,
            include_str!("../../encodings/shared_backup_messages.txt").lines().collect::<Vec<_>>()
        );
    }
}
