use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// A global identifier: for RoCEv2, the IP address of a NIC or multicast group (IPv4 as `::ffff:a.b.c.d`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Gid(pub [u8; 16]);

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

/// A path MTU: payload bytes per packet (IBTA volume 1, 9.7.4.1).
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
    pub const fn bytes(self) -> usize {
        match self {
            Mtu::M256 => 256,
            Mtu::M512 => 512,
            Mtu::M1024 => 1024,
            Mtu::M2048 => 2048,
            Mtu::M4096 => 4096,
        }
    }

    /// Returns the MTU of exactly `bytes` bytes.
    pub fn from_bytes(bytes: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// Returns the largest MTU that fits into an interface's MTU together with the IP and UDP headers, at most 40 bytes of RoCE
    /// headers and the ICRC (annex A17.3).
    pub fn for_interface(interface_mtu: usize, v6: bool) -> Option<Mtu> {
        let headers = if v6 { 40 } else { 20 } + 8 + 12 + 28 + 4;
        Mtu::ALL.into_iter().rev().find(|m| m.bytes() + headers <= interface_mtu)
    }

    /// Returns the number of packets of a message of `len` bytes, at least 1.
    pub fn packets(self, len: u64) -> u64 {
        len.div_ceil(self.bytes() as u64).max(1)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// The scope in which a NIC's atomics are atomic (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicScope {
    /// The NIC has no atomics (`IBV_ATOMIC_NONE`).
    None,
    /// Among atomics of the same NIC only, not with the CPU or another NIC (`IBV_ATOMIC_HCA`).
    Nic,
    /// Among all CPUs and NICs of the host (`IBV_ATOMIC_GLOB`).
    Global,
}

/// Capabilities of a device on which failover depends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Capabilities {
    /// The scope of the atomics.
    pub atomic_scope: AtomicScope,
    /// [`crate::QpStatus::rq_psn`] is the responder's next expected PSN, also in ERR.
    pub psn_query: bool,
    /// [`crate::Provider::saved_results`] works, also in ERR.
    pub saved_results: bool,
    /// The responder acknowledges a request only after its data is in memory. (IBTA allows the acknowledgement before.)
    pub ack_after_placement: bool,
    /// Data of work requests of one queue pair is placed in posting order (no relaxed ordering).
    pub write_order: bool,
    /// [`crate::Provider::reset`] works: after it returns, the NIC no longer accesses host memory.
    pub reset: bool,
    /// The device has memory windows of type 2B.
    pub windows: bool,
}

/// Limits of a device. A call that would exceed one fails with [`Error::Limit`](crate::Error::Limit).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// Protection domains.
    pub pds: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Memory windows.
    pub mws: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Entries of a completion queue.
    pub cqe: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Entries of a send or receive queue.
    pub wrs: u32,
    /// Scatter/gather entries of a request.
    pub sges: u32,
    /// Bytes of inline data.
    pub inline: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Address handles.
    pub ahs: u32,
    /// Multicast groups with queue pairs attached to them.
    pub mcast_groups: u32,
    /// Queue pairs attached to one multicast group.
    pub mcast_qps: u32,
    /// Attachments of queue pairs to multicast groups, in total.
    pub mcast_attached: u32,
    /// READs and atomics outstanding on a queue pair, at either end.
    pub rd_atomic: u8,
    /// Bytes of a message.
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

/// A named count, for metrics and `mitra devices`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter {
    /// A stable snake_case name.
    pub name: &'static str,
    /// The number of occurrences since the NIC was created.
    pub value: u64,
}
