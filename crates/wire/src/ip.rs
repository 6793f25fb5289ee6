//! Constants, addresses and the checksum of IP and UDP, which the ICRC and frames use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) const UDP_LEN: usize = 8;
pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;
pub(crate) const UDP_PROTOCOL: u8 = 17;
/// The IPv4 flag "don't fragment", as a bit of byte 6 of the header.
pub(crate) const DONT_FRAGMENT: u8 = 0x40;

/// The source and the destination address of a path, in the address family of its packets.
pub(crate) enum AddressPair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl AddressPair {
    /// Creates the pair. An IPv4-mapped address is converted to IPv4. If the families then differ,
    /// as in no real packet, the IPv4 address is mapped to IPv6.
    pub(crate) fn new(src: SocketAddr, dst: SocketAddr) -> Self {
        match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => AddressPair::V4(src, dst),
            (src, dst) => AddressPair::V6(to_v6(src), to_v6(dst)),
        }
    }
}

fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Returns the Internet checksum (RFC 1071) of the concatenation of `parts`: the complement of the
/// ones' complement sum of its 16-bit words. Only the last part may have an odd length.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u64 = words.map(|w| u64::from(w[0]) << 8 | u64::from(w.get(1).copied().unwrap_or(0))).sum();
    let mut folded = sum;
    while folded >> 16 != 0 {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    !(folded as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_matches_captured_header() {
        // The IP header of the first packet in tests/data/captures/mixed.pcap, with the checksum
        // field 0. The kernel computed 0xec99.
        let header = [0x45, 0, 0x04, 0x3c, 0x35, 0x7b, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
        assert_eq!(checksum(&[&header]), 0xec99);
        assert_eq!(checksum(&[&header[..12], &header[12..]]), 0xec99);
        assert_eq!(checksum(&[&[0xff, 0xff], &[1]]), !0x0100);
    }
}
