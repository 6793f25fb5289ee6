use mitra_verbs::{Error, Result};

use super::message::MemberId;
use crate::control_message::{Reader, Rejected};

const MAGIC: [u8; 4] = *b"MBQ1";

/// The connection parameters of one end, for [`BackedQp::connect`](super::BackedQp::connect) at the other end. They contain no secret: they are valid on one
/// backup only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackedQpInfo {
    pub(super) id: MemberId,
    pub(super) rd_atomic: u8,
}

impl BackedQpInfo {
    /// Encodes the parameters, for the application to send to the other end.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.id.slot.to_le_bytes());
        out.extend_from_slice(&self.id.instance.to_le_bytes());
        out.push(self.rd_atomic);
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
    let mut r = Reader(bytes);
    let magic = r.array::<4>()?;
    let [slot, instance] = [u32::from_le_bytes(r.array()?), u32::from_le_bytes(r.array()?)];
    let rd_atomic = r.byte()?;
    let is_valid = magic == MAGIC && r.0.is_empty();
    let info = BackedQpInfo { id: MemberId { slot, instance }, rd_atomic };
    if is_valid { Ok(info) } else { Err(Rejected::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_survives_encode_and_rejects_other_lengths() {
        let info = BackedQpInfo { id: MemberId { slot: 7, instance: 8 }, rd_atomic: 16 };
        let bytes = info.encode();
        assert_eq!(BackedQpInfo::decode(&bytes), Ok(info));
        assert!((0..bytes.len()).all(|n| BackedQpInfo::decode(&bytes[..n]).is_err()));
        assert!(BackedQpInfo::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}
