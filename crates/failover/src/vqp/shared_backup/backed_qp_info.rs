use mitra_verbs::{Error, Result};

use super::message::MemberId;
use crate::completion_log::LogTerms;
use crate::control_message::{Reader, Rejected};
use crate::memory_region::RemoteRegion;

const MAGIC: [u8; 4] = *b"MBQ2";

/// The connection parameters of one end, for [`BackedQp::connect`](super::BackedQp::connect) at the other end. They contain no secret: they are valid on one
/// backup only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackedQpInfo {
    pub(super) id: MemberId,
    pub(super) rd_atomic: u8,
    /// Whether the end keeps a completion log.
    pub(super) log: bool,
    /// Whether the end is durable.
    pub(super) durable: bool,
    /// The completion log at this end, for the operations of the other end.
    pub(super) log_region: Option<RemoteRegion>,
}

impl BackedQpInfo {
    pub(super) fn log_terms(&self) -> LogTerms<'_> {
        LogTerms { is_kept: self.log, is_durable: self.durable, region: self.log_region.as_ref() }
    }

    /// Encodes the parameters, for the application to send to the other end.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.id.slot.to_le_bytes());
        out.extend_from_slice(&self.id.instance.to_le_bytes());
        out.extend_from_slice(&[
            self.rd_atomic,
            u8::from(self.log) | u8::from(self.log_region.is_some()) << 1 | u8::from(self.durable) << 2,
        ]);
        if let Some(region) = &self.log_region {
            out.extend_from_slice(&region.encode());
        }
        out
    }

    /// Decodes the bytes that [`BackedQpInfo::encode`] returned.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes are malformed or of another version.
    pub fn decode(bytes: &[u8]) -> Result<BackedQpInfo> {
        let malformed = Error::Invalid("malformed connection information, or of another version");
        parse(bytes).map_err(|_| malformed)
    }
}

fn parse(bytes: &[u8]) -> Result<BackedQpInfo, Rejected> {
    let r = &mut Reader(bytes);
    let magic = r.array::<4>()?;
    let [slot, instance] = [u32::from_le_bytes(r.array()?), u32::from_le_bytes(r.array()?)];
    let [rd_atomic, flags] = r.array()?;
    let log_region = if flags & 2 != 0 { Some(RemoteRegion::parse(r)?) } else { None };
    let is_valid = magic == MAGIC && r.0.is_empty() && flags < 8;
    let info = BackedQpInfo {
        id: MemberId { slot, instance },
        rd_atomic,
        log: flags & 1 != 0,
        durable: flags & 4 != 0,
        log_region,
    };
    if is_valid { Ok(info) } else { Err(Rejected::Malformed) }
}

#[cfg(test)]
mod tests {
    use mitra_verbs::{Key, RemoteAddr};

    use super::*;

    #[test]
    fn info_survives_encode_and_rejects_other_lengths() {
        let remote = RemoteAddr { addr: 9, rkey: Key(8) };
        let region = RemoteRegion::new(64, smallvec::smallvec![remote; 2]);
        for (log, durable, log_region) in
            [(false, false, None), (true, false, None), (true, true, Some(region))]
        {
            let info = BackedQpInfo {
                id: MemberId { slot: 7, instance: 8 },
                rd_atomic: 16,
                log,
                durable,
                log_region,
            };
            let bytes = info.encode();
            assert_eq!(BackedQpInfo::decode(&bytes), Ok(info));
            assert!((0..bytes.len()).all(|n| BackedQpInfo::decode(&bytes[..n]).is_err()));
            assert!(BackedQpInfo::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn encoding_stays_byte_for_byte() {
        let id = MemberId { slot: 7, instance: 8 };
        let info = BackedQpInfo { id, rd_atomic: 16, log: true, durable: true, log_region: None };
        assert_eq!(info.encode(), b"MBQ2\x07\0\0\0\x08\0\0\0\x10\x05");
    }
}
