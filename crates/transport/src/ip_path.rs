use mitra_verbs::Gid;

/// The remote address of a packet, and its traffic class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IpPath {
    /// The address to which the packet is sent, or from which it came.
    pub address: Gid,
    /// The type of service of an IPv4 header, or the traffic class of an IPv6 header.
    pub traffic_class: u8,
}

impl From<Gid> for IpPath {
    /// Returns a path with the traffic class 0, which most packets have.
    fn from(address: Gid) -> IpPath {
        IpPath { address, traffic_class: 0 }
    }
}
