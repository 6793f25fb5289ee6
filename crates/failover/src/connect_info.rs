use core::fmt;
use core::time::Duration;

use mitra_verbs::{Codec, Error, Gid, Malformed, Mtu, Psn, Qpn, Reader, Result, codec};

use crate::completion_log::LogTerms;
use crate::config::MAX_RAILS;
use crate::config::{Policy, Service};
use crate::memory_region::RemoteRegion;
use crate::secret::SecretWord;

/// The connection parameters of one end, which the application sends to the other end for
/// [`VirtualQp::connect`](crate::VirtualQp::connect).
///
/// The parameters contain the secret cookie that authenticates control messages to this end. They
/// must be sent over a confidential channel. The `Debug` text names only the addresses.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectInfo {
    pub(crate) cookie: SecretWord,
    pub(crate) service: Service,
    pub(crate) policy: Policy,
    pub(crate) log: bool,
    pub(crate) durable: bool,
    /// [`Failback::rail`](crate::Failback::rail).
    pub(crate) preferred_rail: Option<u8>,
    pub(crate) rd_atomic: u8,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) max_missed_heartbeats: u32,
    pub(crate) rails: Vec<RailInfo>,
    /// The completion log at this end for the operations of the other end.
    pub(crate) log_region: Option<RemoteRegion>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RailInfo {
    pub(crate) gid: Gid,
    pub(crate) mtu: Mtu,
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) control_qpn: Qpn,
    pub(crate) qkey: u32,
    /// Whether the NIC acknowledges data only after the data is in memory.
    pub(crate) acks_after_placement: bool,
}

const MAGIC: [u8; 4] = *b"MVQ3";

impl ConnectInfo {
    /// The addresses of the end's NICs, in the order of rails.
    pub fn gids(&self) -> impl Iterator<Item = Gid> {
        self.rails.iter().map(|rail| rail.gid)
    }

    pub(crate) fn log_terms(&self) -> LogTerms<'_> {
        LogTerms { is_kept: self.log, is_durable: self.durable, region: self.log_region.as_ref() }
    }

    /// Encodes the parameters, to be sent to the other end.
    pub fn encode(&self) -> Vec<u8> {
        self.to_bytes()
    }

    /// Decodes the bytes of [`ConnectInfo::encode`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes are malformed or of another version.
    pub fn decode(bytes: &[u8]) -> Result<ConnectInfo> {
        ConnectInfo::from_bytes(bytes)
            .map_err(|_| Error::Invalid("malformed connection information, or of another version"))
    }
}

impl fmt::Debug for ConnectInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gids: Vec<_> = self.gids().collect();
        f.debug_struct("ConnectInfo").field("gids", &gids).finish_non_exhaustive()
    }
}

impl Codec<'_> for ConnectInfo {
    fn put(&self, out: &mut impl Extend<u8>) {
        MAGIC.put(out);
        self.cookie.expose().put(out);
        let flags = u8::from(self.log)
            | u8::from(self.durable) << 1
            | (self.service as u8) << 2
            | self.preferred_rail.map_or(0, |rail| rail + 1) << 4;
        [self.policy as u8, flags, self.rd_atomic, self.rails.len() as u8].put(out);
        self.rails.iter().for_each(|rail| rail.put(out));
        self.log_region.put(out);
        u64::try_from(self.heartbeat_interval.as_nanos()).unwrap_or(u64::MAX).put(out);
        self.max_missed_heartbeats.put(out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<ConnectInfo, Malformed> {
        if <[u8; 4]>::take(reader)? != MAGIC {
            return Err(Malformed::Field);
        }
        let cookie = SecretWord::new(Codec::take(reader)?);
        let [policy, flags, rd_atomic, rails] = Codec::take(reader)?;
        if !(1..=MAX_RAILS).contains(&usize::from(rails)) || flags >> 4 > rails {
            return Err(Malformed::Field);
        }
        Ok(ConnectInfo {
            cookie,
            service: match flags >> 2 & 3 {
                0 => Service::Reliable,
                1 => Service::Unreliable,
                2 => Service::XrcSend,
                _ => Service::XrcReceive,
            },
            policy: Policy::from_code(policy).ok_or(Malformed::Field)?,
            log: flags & 1 != 0,
            durable: flags & 2 != 0,
            preferred_rail: (flags >> 4).checked_sub(1),
            rd_atomic,
            // The fields from here on are read in their order on the wire.
            rails: reader.list(rails.into())?,
            log_region: Codec::take(reader)?,
            heartbeat_interval: Duration::from_nanos(Codec::take(reader)?),
            max_missed_heartbeats: Codec::take(reader)?,
        })
    }
}

codec! { struct RailInfo { gid, mtu, qpn, psn, control_qpn, qkey, acks_after_placement } }

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr};
    use mitra_verbs::{Key, RemoteAddr};

    pub(crate) fn info() -> ConnectInfo {
        let rail = RailInfo {
            gid: IpAddr::V4(Ipv4Addr::LOCALHOST).into(),
            mtu: Mtu::M2048,
            qpn: Qpn::new(3),
            psn: Psn::new(4),
            control_qpn: Qpn::new(5),
            qkey: 6,
            acks_after_placement: true,
        };
        let region = RemoteRegion::new(64, smallvec::smallvec![RemoteAddr { addr: 9, rkey: Key(8) }; 2]);
        ConnectInfo {
            cookie: SecretWord::new(7),
            service: Service::Unreliable,
            policy: Policy::Blanket,
            log: true,
            durable: true,
            preferred_rail: Some(1),
            rd_atomic: 16,
            heartbeat_interval: Duration::from_millis(20),
            max_missed_heartbeats: 5,
            rails: vec![rail; 2],
            log_region: Some(region),
        }
    }

    #[test]
    fn connect_info_survives_encode_and_rejects_other_lengths() {
        let bytes = info().encode();
        assert_eq!(ConnectInfo::decode(&bytes), Ok(info()));
        for n in 0..bytes.len() {
            assert!(ConnectInfo::decode(&bytes[..n]).is_err());
        }
        assert!(ConnectInfo::decode(&[&bytes[..], &[0]].concat()).is_err());
        for service in [Service::Reliable, Service::XrcSend, Service::XrcReceive] {
            let info = ConnectInfo { service, ..info() };
            assert_eq!(ConnectInfo::decode(&info.encode()), Ok(info));
        }
    }

    #[test]
    fn encodings_stay_byte_for_byte() {
        let encodings: Vec<_> = vec![format!("{:02x?}", info().encode())];
        assert_eq!(encodings, include_str!("encodings/connect_info.txt").lines().collect::<Vec<_>>());
    }
}
