//! The Global Route Header (GRH), which precedes a received datagram in the receive buffer.

use crate::abi::ibv_grh;

/// The length of the header, in bytes (IBTA volume 1, 11.4.1.1).
pub(crate) const GRH_LEN: usize = size_of::<ibv_grh>();

/// Returns the sender's GID.
///
/// The header is either an IPv6 header, or 20 unused bytes followed by an IPv4 header (IBTA annex A17.4). An IPv4 address becomes an
/// IPv4-mapped GID.
pub(crate) fn source_gid(grh: &[u8; GRH_LEN]) -> [u8; 16] {
    if grh[0] >> 4 == 6 {
        return grh[8..24].try_into().unwrap_or_default();
    }
    let mut mapped = [0; 16];
    mapped[10..12].fill(0xff);
    mapped[12..].copy_from_slice(&grh[32..36]);
    mapped
}

#[cfg(test)]
mod tests {
    use mitra_verbs::Gid;

    use super::*;

    #[test]
    fn source_gid_is_read_from_ipv4_and_ipv6_headers() {
        let mut grh = [0; GRH_LEN];
        grh[20] = 0x45;
        grh[32..36].copy_from_slice(&[10, 1, 2, 3]);
        assert_eq!(source_gid(&grh), Gid::from(std::net::IpAddr::from([10, 1, 2, 3])).0);
        grh[0] = 0x60;
        grh[8..24].copy_from_slice(&[7; 16]);
        assert_eq!(source_gid(&grh), [7; 16]);
    }
}
