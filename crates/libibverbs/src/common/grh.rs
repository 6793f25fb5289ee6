//! The Global Route Header (GRH) in front of a received datagram in the receive buffer. The header
//! is of IPv6 or of IPv4, as for [`Gid::from_grh`].

use std::net::{IpAddr, Ipv4Addr};

use mitra_verbs::{GRH_LEN, Gid};

use mitra_verbs_abi::IB_GRH_FLOWLABEL_MASK;

/// The fields of the header that describe the way back to the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReceivedHeader {
    pub(crate) source: [u8; 16],
    pub(crate) traffic_class: u8,
    /// The flow label of an IPv6 header, or 0.
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
}

impl ReceivedHeader {
    pub(crate) fn read(grh: &[u8; GRH_LEN]) -> ReceivedHeader {
        let source = Gid::from_grh(grh).0;
        let first = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
        if first >> 28 == 6 {
            let (traffic_class, flow_label) = ((first >> 20) as u8, first & IB_GRH_FLOWLABEL_MASK);
            return ReceivedHeader { source, traffic_class, flow_label, hop_limit: grh[7] };
        }
        ReceivedHeader { source, traffic_class: grh[21], flow_label: 0, hop_limit: grh[28] }
    }
}

/// Returns the GID to which a datagram was sent.
pub(crate) fn destination(grh: &[u8; GRH_LEN]) -> Gid {
    if grh[0] >> 4 == 6 {
        let mut gid = [0; 16];
        gid.copy_from_slice(&grh[24..]);
        return Gid(gid);
    }
    IpAddr::from(Ipv4Addr::new(grh[36], grh[37], grh[38], grh[39])).into()
}

/// Replaces the addresses of a header. The new addresses determine the IP version. The fields that
/// both versions have keep their values.
pub(crate) fn replace_addresses(grh: &mut [u8; GRH_LEN], source: Gid, destination: Gid) {
    const UDP: u8 = 17;
    const IPV4_LEN: u16 = 20;
    let is_v6 = grh[0] >> 4 == 6;
    let header = ReceivedHeader::read(grh);
    let len = if is_v6 {
        u16::from_be_bytes([grh[4], grh[5]])
    } else {
        u16::from_be_bytes([grh[22], grh[23]]).wrapping_sub(IPV4_LEN)
    };
    *grh = [0; GRH_LEN];
    let (class, hops) = (header.traffic_class, header.hop_limit);
    if let (IpAddr::V4(from), IpAddr::V4(to)) = (IpAddr::from(source), IpAddr::from(destination)) {
        let ip = &mut grh[20..];
        let [l0, l1] = len.wrapping_add(IPV4_LEN).to_be_bytes();
        ip[..12].copy_from_slice(&[0x45, class, l0, l1, 0, 0, 0x40, 0, hops, UDP, 0, 0]);
        ip[12..16].copy_from_slice(&from.octets());
        ip[16..].copy_from_slice(&to.octets());
        let sum: u32 = ip.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let first = 6 << 28 | u32::from(class) << 20 | header.flow_label;
        grh[..4].copy_from_slice(&first.to_be_bytes());
        grh[4..6].copy_from_slice(&len.to_be_bytes());
        (grh[6], grh[7]) = (UDP, hops);
        grh[8..24].copy_from_slice(&source.0);
        grh[24..].copy_from_slice(&destination.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_label_and_hops_are_read_from_ipv4_and_ipv6_headers() {
        let mut grh = [0; GRH_LEN];
        (grh[20], grh[21], grh[28]) = (0x45, 0xb8, 63);
        let header = ReceivedHeader::read(&grh);
        assert_eq!((header.traffic_class, header.flow_label, header.hop_limit), (0xb8, 0, 63));
        grh[..8].copy_from_slice(&[0x6b, 0x81, 0x23, 0x45, 0, 0, 17, 62]);
        let header = ReceivedHeader::read(&grh);
        assert_eq!((header.traffic_class, header.flow_label, header.hop_limit), (0xb8, 0x1_2345, 62));
    }

    #[test]
    fn addresses_are_replaced_within_and_between_ip_versions() {
        let v4 = |last| Gid::from(IpAddr::from([10, 0, 0, last]));
        let v6 = |last| Gid::from(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]));
        let mut grh = [0; GRH_LEN];
        grh[20..32].copy_from_slice(&[0x45, 0xb8, 0, 100, 0, 0, 0x40, 0, 63, 17, 0, 0]);
        for (source, target) in [(v4(1), v4(2)), (v6(3), v6(4)), (v6(5), v6(6)), (v4(7), v4(8))] {
            replace_addresses(&mut grh, source, target);
            assert_eq!((Gid::from_grh(&grh), destination(&grh)), (source, target));
            let header = ReceivedHeader::read(&grh);
            assert_eq!((header.traffic_class, header.hop_limit), (0xb8, 63));
            if IpAddr::from(source).is_ipv6() {
                assert_eq!((&grh[4..6], grh[6]), (&[0, 80][..], 17));
                continue;
            }
            assert_eq!((&grh[22..24], grh[29]), (&[0, 100][..], 17));
            // The ones' complement sum over a header with its checksum is 0xffff (RFC 1071).
            let words =
                grh[20..].chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
            let sum: u32 = words.sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        }
    }
}
