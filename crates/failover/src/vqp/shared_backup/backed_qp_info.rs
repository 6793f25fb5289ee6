use mitra_verbs::{Codec, Error, Malformed, Reader, Result};

use super::message::MemberId;
use crate::completion_log::LogTerms;
use crate::memory_region::RemoteRegion;

const MAGIC: [u8; 4] = *b"MBQ2";

/// The parameters for [`BackedQp::connect`](super::BackedQp::connect) at the other end. They
/// contain no secret: they are valid on one backup only, whose own parameters contain the secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackedQpInfo {
    pub(super) id: MemberId,
    pub(super) rd_atomic: u8,
    pub(super) log: bool,
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
        self.to_bytes()
    }

    /// Decodes the bytes that [`BackedQpInfo::encode`] returned.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes are malformed or of another version.
    pub fn decode(bytes: &[u8]) -> Result<BackedQpInfo> {
        BackedQpInfo::from_bytes(bytes)
            .map_err(|_| Error::Invalid("malformed connection information, or of another version"))
    }
}

impl Codec<'_> for BackedQpInfo {
    fn put(&self, out: &mut impl Extend<u8>) {
        MAGIC.put(out);
        self.id.put(out);
        let has_region = self.log_region.is_some();
        let flags = u8::from(self.log) | u8::from(has_region) << 1 | u8::from(self.durable) << 2;
        [self.rd_atomic, flags].put(out);
        self.log_region.iter().for_each(|region| region.put(out));
    }

    fn take(reader: &mut Reader<'_>) -> Result<BackedQpInfo, Malformed> {
        let magic = <[u8; 4]>::take(reader)?;
        let (id, [rd_atomic, flags]) = (Codec::take(reader)?, Codec::take(reader)?);
        if magic != MAGIC || flags > 7 {
            return Err(Malformed::Field);
        }
        let log_region = (flags & 2 != 0).then(|| Codec::take(reader)).transpose()?;
        Ok(BackedQpInfo { id, rd_atomic, log: flags & 1 != 0, durable: flags & 4 != 0, log_region })
    }
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
