//! What two ends tell each other about shared backups.
//!
//! An end with several queue pairs between two protection domains asks twice for each. The answer to the query for connection data is an [`Announcement`]: the queue pair
//! has a shared backup with each protection domain of a peer. The second query ([`Subject::Member`](super::Subject::Member)) contains an [`Offer`] of the asking end's backup. The
//! [`MemberAnswer`] has the other end of that backup, and the queue pair's parameters there.

use mitra_failover::{BackedQpInfo, ConnectInfo};
use mitra_verbs::{Error, Gid, Result};

const MAGIC: [u8; 4] = *b"MSB1";
/// The maximum number of rails.
const MAX_GIDS: usize = mitra_failover::MAX_RAILS;

/// The answer of a queue pair that has a shared backup to a query for connection data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::rails) struct Announcement {
    /// The token of its protection domain.
    pub(in crate::rails) pd: u64,
    /// The addresses of the device by rail. A dead NIC keeps its address.
    pub(in crate::rails) gids: Vec<Gid>,
}

impl Announcement {
    pub(in crate::rails) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.pd.to_le_bytes());
        self.gids.iter().for_each(|gid| out.extend_from_slice(&gid.0));
        out
    }

    pub(in crate::rails) fn decode(bytes: &[u8]) -> Option<Announcement> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (pd, gids) = rest.split_first_chunk::<8>()?;
        let (gids, []) = gids.as_chunks::<16>() else { return None };
        let is_valid = *magic == MAGIC && (1..=MAX_GIDS).contains(&gids.len());
        is_valid.then(|| Announcement {
            pd: u64::from_le_bytes(*pd),
            gids: gids.iter().map(|gid| Gid(*gid)).collect(),
        })
    }
}

/// One end of a shared backup, for the end that connects to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::rails) struct Offer {
    /// The token of its protection domain.
    pub(in crate::rails) pd: u64,
    /// Tells the two ends apart if both are in the same protection domain.
    pub(in crate::rails) is_second: bool,
    /// The number of this end.
    pub(in crate::rails) id: u64,
    pub(in crate::rails) info: ConnectInfo,
}

impl Offer {
    pub(in crate::rails) fn encode(&self) -> Vec<u8> {
        let mut out = self.pd.to_le_bytes().to_vec();
        out.push(u8::from(self.is_second));
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.info.encode());
        out
    }

    pub(in crate::rails) fn decode(bytes: &[u8]) -> Option<Offer> {
        let (pd, rest) = bytes.split_first_chunk::<8>()?;
        let (is_second, rest) = rest.split_first()?;
        let (id, info) = rest.split_first_chunk::<8>()?;
        Some(Offer {
            pd: u64::from_le_bytes(*pd),
            is_second: match is_second {
                0 => false,
                1 => true,
                _ => return None,
            },
            id: u64::from_le_bytes(*id),
            info: ConnectInfo::decode(info).ok()?,
        })
    }
}

/// The answer to a query for a queue pair with a shared backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::rails) enum MemberAnswer {
    /// The other end of the backup, and the queue pair.
    Member { offer: Box<Offer>, member: BackedQpInfo },
    /// The other end of the backup has closed. The asking end takes another one.
    Gone,
}

impl MemberAnswer {
    pub(in crate::rails) fn encode(&self) -> Vec<u8> {
        let MemberAnswer::Member { offer, member } = self else { return Vec::new() };
        let member = member.encode();
        let mut out = (member.len() as u16).to_le_bytes().to_vec();
        out.extend_from_slice(&member);
        out.extend_from_slice(&offer.encode());
        out
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub(in crate::rails) fn decode(bytes: &[u8]) -> Result<MemberAnswer> {
        if bytes.is_empty() {
            return Ok(MemberAnswer::Gone);
        }
        let malformed = || Error::Invalid("malformed connection information, or of another version");
        let (len, rest) = bytes.split_first_chunk::<2>().ok_or_else(malformed)?;
        let (member, offer) = rest.split_at_checked(u16::from_le_bytes(*len).into()).ok_or_else(malformed)?;
        let member = BackedQpInfo::decode(member)?;
        let offer = Box::new(Offer::decode(offer).ok_or_else(malformed)?);
        Ok(MemberAnswer::Member { offer, member })
    }
}

/// Returns the addresses by rail in an answer to a query for connection data, or for a member of a shared backup.
pub(super) fn gids_in(answer: &[u8]) -> Option<Vec<Gid>> {
    if let Ok(info) = ConnectInfo::decode(answer) {
        return Some(info.gids().collect());
    }
    Announcement::decode(answer).map(|announcement| announcement.gids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_survive_encode_and_truncated_ones_are_rejected() {
        let announcement = Announcement { pd: 7, gids: vec![Gid([1; 16]), Gid([2; 16])] };
        let bytes = announcement.encode();
        assert_eq!(gids_in(&bytes), Some(announcement.gids.clone()));
        assert_eq!(Announcement::decode(&bytes), Some(announcement));
        // A shorter one with a whole number of addresses is one of a device with fewer rails.
        let complete = |n: usize| n > 12 && (n - 12).is_multiple_of(16);
        for n in (0..bytes.len()).filter(|n| !complete(*n)) {
            assert_eq!(Announcement::decode(&bytes[..n]), None, "{n} bytes");
        }
        let many = Announcement { pd: 7, gids: vec![Gid([1; 16]); MAX_GIDS + 1] };
        assert_eq!(Announcement::decode(&many.encode()), None);
    }

    #[test]
    fn malformed_offers_and_answers_are_rejected() {
        for n in 0..64 {
            assert_eq!(Offer::decode(&vec![0; n]), None, "{n} bytes");
        }
        assert_eq!(MemberAnswer::decode(&[]), Ok(MemberAnswer::Gone));
        for bytes in [&[1][..], &[0, 0], &[9, 0, 1], &[255, 255, 0, 0]] {
            assert!(MemberAnswer::decode(bytes).is_err(), "{bytes:?}");
        }
    }
}
