//! The configuration of a NIC.

use std::net::IpAddr;
use std::path::PathBuf;

use mitra_transport::{NicConfig, Tuning};
use mitra_verbs::{AtomicScope, Gid, Limits, Links, Mtu};

/// The configuration of a [`SoftNic`](crate::SoftNic). [`Config::loopback`] and [`Config::at`]
/// return the defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The NIC's IP address. `None` selects a free address in 127.0.0.0/8.
    pub address: Option<IpAddr>,
    /// The device name. `None` selects `mitra-` followed by the address.
    pub name: Option<String>,
    /// An upper bound on the port's MTU. `None` selects the largest MTU that the interface can
    /// carry.
    pub max_mtu: Option<Mtu>,
    /// The scope in which atomics are atomic. Default: [`AtomicScope::Nic`], as on hardware, where
    /// the NIC loads, computes and stores under its own lock. With [`AtomicScope::Global`] the NIC
    /// uses the CPU's atomic instructions.
    pub atomic_scope: AtomicScope,
    /// The value that the NIC reports as
    /// [`Capabilities::ack_after_placement`](mitra_verbs::Capabilities): whether an ACK proves that
    /// the data is in memory. Default: true. False models a device without this guarantee. The
    /// fault [`Failure::NotPlaced`](mitra_transport::fault::Failure) breaks the guarantee.
    pub ack_after_placement: bool,
    /// The device limits.
    pub limits: Limits,
    /// The pacing parameters. The NIC reduces the send window if it exceeds a quarter of the
    /// socket's receive buffer.
    pub tuning: Tuning,
    /// Segmentation offload. Default: [`Offload::Auto`].
    pub offload: Offload,
    /// How datagrams reach the NICs of this host. Default: [`Links::Auto`].
    pub links: Links,
    /// The pcap file to which the NIC writes every packet that it sends or receives. `None`
    /// captures nothing.
    pub capture: Option<PathBuf>,
}

/// Whether the NIC uses UDP segmentation offload (`UDP_SEGMENT` and `UDP_GRO`, `udp(7)`), which
/// sends or receives several datagrams of equal length in one system call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Offload {
    /// The NIC uses segmentation offload if the kernel supports it.
    #[default]
    Auto,
    /// The NIC does not use segmentation offload.
    Off,
}

impl Config {
    /// Returns the configuration of a NIC at a free loopback address. Only this machine can reach
    /// it.
    pub fn loopback() -> Config {
        let defaults = NicConfig::new("", Gid([0; 16]), [0; 32]);
        Config {
            address: None,
            name: None,
            max_mtu: None,
            atomic_scope: AtomicScope::Nic,
            ack_after_placement: true,
            limits: defaults.limits,
            tuning: Tuning { send_window: 1 << 20, ..defaults.tuning },
            offload: Offload::Auto,
            links: Links::Auto,
            capture: None,
        }
    }

    /// Returns the configuration of a NIC at an address, which is in 127.0.0.0/8 or belongs to one
    /// of this machine's interfaces. No two NICs can have the same address.
    pub fn at(address: IpAddr) -> Config {
        Config { address: Some(address), ..Config::loopback() }
    }
}
