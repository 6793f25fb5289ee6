//! The message by which devices tell each other where their UD queue pairs can be reached: the addresses of the device by rail, which of its
//! rails are up, and the numbers of one queue pair by rail.

use mitra_failover::MAX_RAILS;
use mitra_verbs::{Gid, Qpn};

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
    /// The first GID, and the former ones.
    device: DeviceGid,
}

impl DeviceAddress {
    /// Returns the address of a device with these GIDs, by rail, that had no others before.
    pub(in crate::rails) fn new(gids: Vec<Gid>, up: RailMask) -> DeviceAddress {
        let device = DeviceGid::new(gids[0]);
        DeviceAddress { gids, up, device }
    }

    /// Changes the GIDs.
    pub(in crate::rails) fn set_gids(&mut self, gids: Vec<Gid>) {
        self.device.set(gids[0]);
        self.gids = gids;
    }

    /// Returns whether programs may know the device by this GID: rail 0 has it, or had it.
    pub(in crate::rails) fn is_at(&self, gid: Gid) -> bool {
        self.device.includes(gid)
    }

    /// Returns the GIDs that rail 0 had before.
    pub(in crate::rails) fn former(&self) -> &[Gid] {
        self.device.former()
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
    /// A queue pair of the sender: the one that sends, or the one that was asked for.
    pub(in crate::rails) qp: Option<QpNumbers>,
}

/// The purpose of a [`Reach`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::rails) enum ReachKind {
    /// Asks the device with this GID for the queue pair with this number, or only whether it can be reached if the number is 0.
    Ask { device: Gid, qpn: Qpn },
    /// Answers [`ReachKind::Ask`] for this number. The device has no such queue pair if [`Reach::qp`] is `None`.
    Answer { qpn: Qpn },
    /// Asks nothing.
    Tell,
}

const ASK: u8 = 1;
const ANSWER: u8 = 2;
const TELL: u8 = 3;

fn put_qpn(out: &mut Vec<u8>, qpn: Qpn) {
    out.extend_from_slice(&qpn.value().to_le_bytes());
}

/// Encodes a message: its kind with the GID and the number that it asks for, the number of rails, the rails that are up, the GID of rail 0 with
/// the former ones, the other GIDs, and the numbers of the queue pair. All numbers are little-endian.
pub(super) fn encode(message: &Reach) -> Vec<u8> {
    let mut out = Vec::new();
    match message.kind {
        ReachKind::Ask { device, qpn } => {
            out.push(ASK);
            out.extend_from_slice(&device.0);
            put_qpn(&mut out, qpn);
        }
        ReachKind::Answer { qpn } => {
            out.push(ANSWER);
            put_qpn(&mut out, qpn);
        }
        ReachKind::Tell => out.push(TELL),
    }
    out.extend([message.device.gids.len() as u8, message.device.up]);
    message.device.device.put(&mut out);
    message.device.gids[1..].iter().for_each(|gid| out.extend_from_slice(&gid.0));
    if let Some(QpNumbers { qpn, on_rails }) = &message.qp {
        put_qpn(&mut out, *qpn);
        on_rails.iter().for_each(|qpn| put_qpn(&mut out, *qpn));
    }
    out
}

/// Decodes a message. Returns `None` if it is malformed.
pub(super) fn decode(bytes: &[u8]) -> Option<Reach> {
    let mut rest = bytes;
    let kind = match take::<1>(&mut rest)?[0] {
        ASK => ReachKind::Ask { device: Gid(take(&mut rest)?), qpn: take_qpn(&mut rest)? },
        ANSWER => ReachKind::Answer { qpn: take_qpn(&mut rest)? },
        TELL => ReachKind::Tell,
        _ => return None,
    };
    let [rails, up] = take(&mut rest)?;
    if !(1..=MAX_RAILS).contains(&rails.into()) {
        return None;
    }
    let (device, mut rest) = DeviceGid::take(rest)?;
    let others = (1..rails).map(|_| take(&mut rest).map(Gid));
    let gids = [Some(device.current)].into_iter().chain(others).collect::<Option<Vec<_>>>()?;
    let qp = if rest.is_empty() {
        None
    } else {
        let qpn = take_qpn(&mut rest)?;
        let on_rails = (0..rails).map(|_| take_qpn(&mut rest)).collect::<Option<Vec<_>>>()?;
        Some(QpNumbers { qpn, on_rails })
    };
    rest.is_empty().then_some(Reach { kind, device: DeviceAddress { gids, up, device }, qp })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}

/// Takes a number of a queue pair. One of more than 24 bits is malformed.
fn take_qpn(rest: &mut &[u8]) -> Option<Qpn> {
    let number = u32::from_le_bytes(take(rest)?);
    (number >> 24 == 0).then(|| Qpn::new(number))
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
            let prefix = encode(&without).len();
            for message in [without, with] {
                let bytes = encode(&message);
                for len in (0..bytes.len()).filter(|len| *len != prefix) {
                    assert_eq!(decode(&bytes[..len]), None, "{len} bytes of {message:?}");
                }
                assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
                assert_eq!(decode(&bytes), Some(message));
            }
        }
        assert_eq!(decode(&[TELL, 0, 0]), None, "a device has a rail");
        let many = [&[TELL, MAX_RAILS as u8 + 1, 0][..], &[0; 16 * (MAX_RAILS + 1)]].concat();
        assert_eq!(decode(&many), None, "too many rails");
    }

    #[test]
    fn encoding_stays_byte_for_byte() {
        let mut device = DeviceAddress::new(vec![Gid([3; 16]), Gid([2; 16])], 2);
        device.set_gids(vec![Gid([1; 16]), Gid([2; 16])]);
        let kind = ReachKind::Ask { device: Gid([9; 16]), qpn: Qpn::new(5) };
        let qp = Some(QpNumbers { qpn: Qpn::new(0x12_3456), on_rails: vec![Qpn::new(0x12_3456), Qpn::new(7)] });
        let expected = [
            &[ASK][..], &[9; 16], &[5, 0, 0, 0], &[2, 2], &[1; 16], &[1], &[3; 16], &[2; 16],
            &[0x56, 0x34, 0x12, 0], &[0x56, 0x34, 0x12, 0], &[7, 0, 0, 0],
        ];
        assert_eq!(encode(&Reach { kind, device, qp }), expected.concat());
    }
}
