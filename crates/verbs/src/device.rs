use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// A global identifier. In RoCEv2, it is the IP address of a NIC or a multicast group. An IPv4
/// address has the form `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Gid(pub [u8; 16]);

/// The length of the Global Route Header that precedes a received datagram in the receive buffer,
/// in bytes (IBTA volume 1, 11.4.1.1).
pub const GRH_LEN: usize = 40;

impl Gid {
    /// Returns the sender of a received datagram.
    ///
    /// The header is either an IPv6 header, or 20 unused bytes followed by an IPv4 header (IBTA
    /// annex A17.4). An IPv4 address becomes an IPv4-mapped GID.
    pub fn from_grh(grh: &[u8; GRH_LEN]) -> Gid {
        let mut gid = [0; 16];
        if grh[0] >> 4 == 6 {
            gid.copy_from_slice(&grh[8..24]);
        } else {
            gid[10..12].fill(0xff);
            gid[12..].copy_from_slice(&grh[32..36]);
        }
        Gid(gid)
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Gid {
        Gid(match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }
}

impl From<Gid> for IpAddr {
    fn from(gid: Gid) -> IpAddr {
        Ipv6Addr::from(gid.0).to_canonical()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// A path MTU, which is the maximum payload of a packet (IBTA volume 1, 9.7.4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mtu {
    /// 256 bytes.
    M256,
    /// 512 bytes.
    M512,
    /// 1024 bytes.
    M1024,
    /// 2048 bytes.
    M2048,
    /// 4096 bytes.
    M4096,
}

impl Mtu {
    /// All MTUs, in ascending order.
    pub const ALL: [Mtu; 5] = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];

    /// Returns the MTU in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        256 << self as u32
    }

    /// Returns the MTU of exactly `bytes` bytes, or `None` if there is none.
    pub fn from_bytes(bytes: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// Returns the largest path MTU for an interface with the MTU `interface_mtu`, or `None` if
    /// even 256 bytes are too many. The payload, the IP and UDP headers, 40 bytes of RoCE headers
    /// and the ICRC must fit into the interface's MTU (annex A17.3).
    pub fn for_interface(interface_mtu: usize, v6: bool) -> Option<Mtu> {
        let headers = if v6 { 40 } else { 20 } + 8 + 12 + 28 + 4;
        Mtu::ALL.into_iter().rev().find(|m| m.bytes() + headers <= interface_mtu)
    }

    /// Returns the number of packets of a message of `len` bytes. It is 1 for an empty message.
    #[inline]
    pub fn packets(self, len: u64) -> u64 {
        len.div_ceil(self.bytes() as u64).max(1)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// The accesses with respect to which a NIC's atomics are atomic (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicScope {
    /// The NIC has no atomics (`IBV_ATOMIC_NONE`).
    None,
    /// Atomics of the same NIC, but not accesses of a CPU or another NIC (`IBV_ATOMIC_HCA`).
    Nic,
    /// Atomics of all CPUs and NICs of the host (`IBV_ATOMIC_GLOB`).
    Global,
}

/// Capabilities of a device on which failover depends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Capabilities {
    /// The accesses with respect to which atomics are atomic.
    pub atomic_scope: AtomicScope,
    /// Whether [`crate::QpStatus::rq_psn`] is the PSN that the responder expects next, in every
    /// state including ERR.
    pub psn_query: bool,
    /// Whether [`crate::Provider::saved_results`] works, in every state including ERR.
    pub saved_results: bool,
    /// Whether the responder acknowledges a request only after the data of the request is in
    /// memory. IBTA allows it to acknowledge earlier.
    pub ack_after_placement: bool,
    /// Whether the responder writes the data of a queue pair's requests to memory in the order in
    /// which they were posted (no relaxed ordering).
    pub write_order: bool,
    /// Whether [`crate::Provider::reset`] works.
    pub reset: bool,
    /// Whether the device has memory windows of type 2B.
    pub windows: bool,
    /// Whether the memory of a region may be mapped after the region is registered, or have no
    /// address in the process. A device without this needs the pages when it registers them, and
    /// NICs of the kernel lock them until the region is deregistered.
    pub on_demand: bool,
}

/// The limits of a device. A call that would exceed a limit fails with
/// [`Error::Limit`](crate::Error::Limit).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// The maximum number of protection domains. The same limit applies to XRC domains.
    pub pds: u32,
    /// The maximum number of memory regions.
    pub mrs: u32,
    /// The maximum number of memory windows.
    pub mws: u32,
    /// The maximum number of completion queues.
    pub cqs: u32,
    /// The maximum number of entries in a completion queue.
    pub cqe: u32,
    /// The maximum number of queue pairs.
    pub qps: u32,
    /// The maximum number of entries in a send queue, a receive queue or a shared receive queue.
    pub wrs: u32,
    /// The maximum number of scatter/gather entries in a work request.
    pub sges: u32,
    /// The maximum length of inline data in a send request, in bytes.
    pub inline: u32,
    /// The maximum number of shared receive queues.
    pub srqs: u32,
    /// The maximum number of address handles.
    pub ahs: u32,
    /// The maximum number of multicast groups to which queue pairs are attached.
    pub mcast_groups: u32,
    /// The maximum number of queue pairs that are attached to one multicast group.
    pub mcast_qps: u32,
    /// The maximum number of attachments of queue pairs to multicast groups.
    pub mcast_attached: u32,
    /// The maximum number of READs and atomics that a queue pair has outstanding as requester and,
    /// separately, accepts at once as responder.
    pub rd_atomic: u8,
    /// The maximum length of a message in bytes.
    pub message_bytes: u32,
}

/// The attributes of a NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceAttr {
    /// The name, unique in the process.
    pub name: String,
    /// The limits.
    pub limits: Limits,
    /// The capabilities.
    pub capabilities: Capabilities,
}

/// Whether a port can carry packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortState {
    /// No link.
    Down,
    /// Up and ready.
    Active,
}

/// The state of a NIC's one port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortAttr {
    /// Whether the link is up.
    pub state: PortState,
    /// The largest path MTU.
    pub max_mtu: Mtu,
    /// The address: the GID at index 0.
    pub gid: Gid,
}

/// A counter of a NIC, which `mitra devices` prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter {
    /// The name, in snake case. It does not change between versions.
    pub name: &'static str,
    /// The number of occurrences since the NIC was created.
    pub value: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_is_read_from_ipv4_and_ipv6_headers() {
        let mut grh = [0; GRH_LEN];
        grh[20] = 0x45;
        grh[32..36].copy_from_slice(&[10, 1, 2, 3]);
        assert_eq!(Gid::from_grh(&grh), Gid::from(IpAddr::from([10, 1, 2, 3])));
        grh[0] = 0x60;
        grh[8..24].copy_from_slice(&[7; 16]);
        assert_eq!(Gid::from_grh(&grh), Gid([7; 16]));
    }
}
