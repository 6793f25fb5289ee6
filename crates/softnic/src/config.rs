use std::net::IpAddr;
use std::path::PathBuf;

use mitra_transport::{NicConfig, Tuning};
use mitra_verbs::{AtomicScope, Gid, Limits, Mtu};

/// What a [`SoftNic`](crate::SoftNic) is opened with. All fields have defaults: see [`Config::loopback`] and
/// [`Config::at`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The NIC's own address; none takes a free one in 127.0.0.0/8.
    pub address: Option<IpAddr>,
    /// Its name; by default `mitra-` and the address.
    pub name: Option<String>,
    /// An upper bound on the port's MTU, which otherwise is the largest that the interface carries.
    pub max_mtu: Option<Mtu>,
    /// Against whom its atomics are atomic. By default [`AtomicScope::Nic`], as on real NICs: load, compute and store
    /// under this NIC's lock. [`AtomicScope::Global`] uses the processor's atomic instructions.
    pub atomic_scope: AtomicScope,
    /// What [`Capabilities::ack_after_placement`](mitra_verbs::Capabilities) reports: whether an acknowledgement proves
    /// that the data is in memory. True unless [`Failure::NotPlaced`](mitra_transport::fault::Failure) makes it a lie,
    /// which an honest device would have said beforehand: here.
    pub ack_after_placement: bool,
    /// Limits on everything.
    pub limits: Limits,
    /// Pacing. The send window is cut to what a receive buffer of the size granted to this NIC holds.
    pub tuning: Tuning,
    /// Segmentation by the kernel.
    pub offload: Offload,
    /// Write every packet that crosses the rail to this pcap file.
    pub capture: Option<PathBuf>,
}

/// Whether runs of equal datagrams go to the kernel, and come from it, in one piece (UDP_SEGMENT and UDP_GRO).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Offload {
    /// Where the kernel can.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl Config {
    /// A NIC at a free loopback address of its own, reachable from this machine only.
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
            capture: None,
        }
    }

    /// A NIC at this address: any in 127.0.0.0/8, or one that an interface of this machine has. One address carries
    /// one NIC.
    pub fn at(address: IpAddr) -> Config {
        Config { address: Some(address), ..Config::loopback() }
    }
}
