//! The Global Route Header (GRH), which precedes a received datagram in the receive buffer.

use mitra_verbs::Gid;

pub(crate) use mitra_verbs::GRH_LEN;

use crate::abi::IB_GRH_FLOWLABEL_MASK;

/// The fields of the header that describe the way back to the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReceivedHeader {
    /// The sender's GID.
    pub(crate) source: [u8; 16],
    pub(crate) traffic_class: u8,
    /// The flow label of an IPv6 header, or 0.
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
}

impl ReceivedHeader {
    /// Reads the header, which is of IPv6 or of IPv4 as for [`Gid::from_grh`].
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
}
