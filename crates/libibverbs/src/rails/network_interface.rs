//! The network interface that has the address of rail 0. Programs look it up as the network device of the RDMA device.

use std::net::{IpAddr, Ipv4Addr};

use mitra_control::{RailsConfig, Settings};
use mitra_softnic::{Interface, interface_of};

use crate::common::cancellation;

/// Returns the interface of rail 0 from the settings of `mitra run`, without opening the device. Returns `None` if the settings are malformed
/// or no interface has the address.
pub(crate) fn interface_of_rail_0() -> Option<Interface> {
    let address = match Settings::from_env().ok()?.rails {
        // The rails of `--rails N` are at loopback addresses, which one interface has.
        RailsConfig::Count(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
        RailsConfig::Addresses(addresses) => *addresses.first()?,
    };
    // The program may look for the interface on a thread that is cancelled.
    cancellation::held_off(|| interface_of(address)).ok()?
}
