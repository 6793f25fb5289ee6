//! The message by which devices tell each other where their UD queue pairs can be reached: the
//! addresses of the device by rail, which of its rails are up, and the numbers of one queue pair by
//! rail.

use mitra_failover::MAX_RAILS;
use mitra_verbs::{Codec, Gid, Malformed, Qpn, Reader, codec};

use super::device_gid::DeviceGid;

/// A set of rails, one bit each. Rail 0 is the lowest bit.
pub(in crate::rails) type RailMask = u8;

const _: () = assert!(MAX_RAILS <= RailMask::BITS as usize);

/// Where a device can be reached.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::rails) struct DeviceAddress {
    /// The GIDs by rail, at least one. Programs know the device by the first.
    pub(in crate::rails) gids: Vec<Gid>,
    /// The rails whose ports are up at this device.
    pub(in crate::rails) up: RailMask,
    /// The GID of rail 0, and its former GIDs. Programs may know the device by any of them.
    pub(in crate::rails) device: DeviceGid,
}

impl DeviceAddress {
    /// Returns the address of a device that has these GIDs by rail, and no former GIDs.
    pub(in crate::rails) fn new(gids: Vec<Gid>, up: RailMask) -> DeviceAddress {
        let device = DeviceGid::new(gids[0]);
        DeviceAddress { gids, up, device }
    }

    pub(in crate::rails) fn set_gids(&mut self, gids: Vec<Gid>) {
        self.device.set(gids[0]);
        self.gids = gids;
    }

    /// Returns the first rail whose port is up, or rail 0.
    pub(in crate::rails) fn first_up(&self) -> usize {
        (0..self.gids.len()).find(|rail| self.up & 1 << rail != 0).unwrap_or(0)
    }
}

/// The numbers of a UD queue pair.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::rails) struct QpNumbers {
    /// The number that programs know.
    pub(in crate::rails) qpn: Qpn,
    /// The numbers by rail, as many as the device has rails. 0 on a rail without a queue pair.
    pub(in crate::rails) on_rails: Vec<Qpn>,
}

/// A message about a device, and possibly about one of its queue pairs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::rails) struct Reach {
    pub(in crate::rails) kind: ReachKind,
    pub(in crate::rails) device: DeviceAddress,
    /// The sender's queue pair that sends datagrams, or that was asked for.
    pub(in crate::rails) qp: Option<QpNumbers>,
}

/// The purpose of a [`Reach`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::rails) enum ReachKind {
    /// Asks the device with this GID for the queue pair with this number. If the number is 0, asks
    /// only whether the device can be reached.
    Ask { device: Gid, qpn: Qpn },
    /// Answers [`ReachKind::Ask`] for this number. The device has no such queue pair if
    /// [`Reach::qp`] is `None`.
    Answer { qpn: Qpn },
    /// States the sender's data, and needs no answer.
    Tell,
}

codec! { enum ReachKind { 1 => Ask { device, qpn }, 2 => Answer { qpn }, 3 => Tell } }

/// The kind, the number of rails, the rails that are up, the GID of rail 0 with the former ones,
/// the other GIDs, and the numbers of the queue pair if there is one.
impl Codec<'_> for Reach {
    fn put(&self, out: &mut impl Extend<u8>) {
        let DeviceAddress { gids, up, device } = &self.device;
        self.kind.put(out);
        [gids.len() as u8, *up].put(out);
        device.put(out);
        gids[1..].iter().for_each(|gid| gid.put(out));
        if let Some(QpNumbers { qpn, on_rails }) = &self.qp {
            qpn.put(out);
            on_rails.iter().for_each(|qpn| qpn.put(out));
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Reach, Malformed> {
        let (kind, [rails, up]) = (Codec::take(reader)?, <[u8; 2]>::take(reader)?);
        let rails = usize::from(rails);
        if !(1..=MAX_RAILS).contains(&rails) {
            return Err(Malformed::Field);
        }
        let device = DeviceGid::take(reader)?;
        let mut gids = vec![device.current];
        gids.extend(reader.list::<Gid, Vec<_>>(rails - 1)?);
        let qp = match reader.is_empty() {
            true => None,
            false => Some(QpNumbers { qpn: Codec::take(reader)?, on_rails: reader.list(rails)? }),
        };
        Ok(Reach { kind, device: DeviceAddress { gids, up, device }, qp })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_malformed_ones_are_rejected() {
        let mut device = DeviceAddress::new(vec![Gid([3; 16]), Gid([2; 16])], 2);
        device.set_gids(vec![Gid([1; 16]), Gid([2; 16])]);
        let qp = QpNumbers { qpn: Qpn::new(0x12_3456), on_rails: vec![Qpn::new(0x12_3456), Qpn::new(7)] };
        for kind in [
            ReachKind::Ask { device: Gid([9; 16]), qpn: Qpn::new(5) },
            ReachKind::Answer { qpn: Qpn::new(6) },
            ReachKind::Tell,
        ] {
            let without = Reach { kind, device: device.clone(), qp: None };
            let with = Reach { qp: Some(qp.clone()), ..without.clone() };
            let prefix = without.to_bytes().len();
            for message in [without, with] {
                let bytes = message.to_bytes();
                for len in (0..bytes.len()).filter(|len| *len != prefix) {
                    assert!(Reach::from_bytes(&bytes[..len]).is_err(), "{len} bytes of {message:?}");
                }
                assert!(Reach::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
                assert_eq!(Reach::from_bytes(&bytes), Ok(message));
            }
        }
        assert_eq!(Reach::from_bytes(&[3, 0, 0]), Err(Malformed::Field), "a device has a rail");
        let many = [&[3, MAX_RAILS as u8 + 1, 0][..], &[0; 16 * (MAX_RAILS + 1)]].concat();
        assert_eq!(Reach::from_bytes(&many), Err(Malformed::Field), "too many rails");
    }

    #[test]
    fn encoding_stays_byte_for_byte() {
        let mut device = DeviceAddress::new(vec![Gid([3; 16]), Gid([2; 16])], 2);
        device.set_gids(vec![Gid([1; 16]), Gid([2; 16])]);
        let kind = ReachKind::Ask { device: Gid([9; 16]), qpn: Qpn::new(5) };
        let qp =
            Some(QpNumbers { qpn: Qpn::new(0x12_3456), on_rails: vec![Qpn::new(0x12_3456), Qpn::new(7)] });
        let expected = [
            &[1][..],
            &[9; 16],
            &[5, 0, 0, 0],
            &[2, 2],
            &[1; 16],
            &[1],
            &[3; 16],
            &[2; 16],
            &[0x56, 0x34, 0x12, 0],
            &[0x56, 0x34, 0x12, 0],
            &[7, 0, 0, 0],
        ];
        assert_eq!(Reach { kind, device, qp }.to_bytes(), expected.concat());
    }
}
