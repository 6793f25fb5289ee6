//! The network interfaces and addresses of this machine.

use std::fs;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;

/// An address of this machine, with the interface that has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The name of the interface, such as `eth0`.
    pub name: String,
    /// The address. The loopback interface has all addresses of 127.0.0.0/8, of which one is
    /// listed.
    pub address: IpAddr,
    /// The largest IP packet that the interface carries, in bytes.
    pub mtu: usize,
    /// Whether the interface is up (`IFF_UP`).
    pub up: bool,
    /// Whether the interface is a loopback interface (`IFF_LOOPBACK`).
    pub loopback: bool,
    /// Whether a NIC can use the address. The error says why not.
    pub usable: Result<(), &'static str>,
}

/// Returns all addresses of this machine's interfaces.
///
/// # Errors
/// `getifaddrs(3)` fails, or the MTU of an interface cannot be read.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let with_address =
        getifaddrs()?.filter_map(|entry| Some((entry.address.as_ref().and_then(ip_of)?, entry)));
    with_address
        .map(|(address, entry)| {
            Ok(Interface {
                address,
                mtu: mtu_of(&entry.interface_name)?,
                name: entry.interface_name,
                up: entry.flags.contains(InterfaceFlags::IFF_UP),
                loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                usable: check_usable(address),
            })
        })
        .collect()
}

/// Returns the MTU of an interface, in bytes.
///
/// `/proc/sys/net` lists the interfaces in the network namespace of this process, but only the
/// interfaces with IPv6. `/sys` lists all interfaces in the namespace in which `/sys` was mounted.
/// The two namespaces differ after `unshare --net` or `nsenter --net`.
fn mtu_of(interface: &str) -> io::Result<usize> {
    let paths =
        [format!("/proc/sys/net/ipv6/conf/{interface}/mtu"), format!("/sys/class/net/{interface}/mtu")];
    let text = paths.iter().find_map(|path| fs::read_to_string(path).ok());
    let mtu = text.ok_or_else(|| {
        io::Error::other(format!("cannot read {} or {} (try: mount -t sysfs sysfs /sys)", paths[0], paths[1]))
    })?;
    mtu.trim().parse().map_err(io::Error::other)
}

/// Returns the interface that has an address. The loopback interface has every address of its
/// network.
///
/// # Errors
/// The errors of [`interfaces`].
pub fn interface_of(address: IpAddr) -> io::Result<Option<Interface>> {
    let mut interfaces = interfaces()?.into_iter();
    Ok(interfaces.find(|interface| covers(interface.address, interface.loopback, address)))
}

/// Returns whether an interface with the address `listed` has `address`.
fn covers(listed: IpAddr, is_loopback: bool, address: IpAddr) -> bool {
    let has_network = is_loopback && listed.is_loopback();
    listed == address || has_network && address.is_loopback() && address.is_ipv4() == listed.is_ipv4()
}

/// Returns the name of an interface that has the address, is up, and has a carrier. Soft-RoCE
/// derives the state of its port from the same conditions (`rxe_set_port_state`). `IFF_RUNNING` is
/// not used, because it can lag behind the carrier by a second.
///
/// # Errors
/// `getifaddrs(3)` fails.
pub fn live_interface(address: IpAddr) -> io::Result<Option<String>> {
    let needed = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_LOWER_UP;
    let found = getifaddrs()?.find(|entry| {
        let is_loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let listed = entry.address.as_ref().and_then(ip_of);
        entry.flags.contains(needed) && listed.is_some_and(|listed| covers(listed, is_loopback, address))
    });
    Ok(found.map(|entry| entry.interface_name))
}

/// Returns the index (`if_nametoindex(3)`) of the interface that has an address.
///
/// # Errors
/// `AddrNotAvailable` if no interface has the address; the errors of [`interfaces`] and of
/// `if_nametoindex(3)`.
pub fn interface_index(address: IpAddr) -> io::Result<u32> {
    let interface = interface_of(address)?.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(if_nametoindex(interface.name.as_str())?)
}

/// Checks that a RoCEv2 NIC can use an address of this kind.
///
/// # Errors
/// Why the NIC cannot, and what to use instead.
pub fn check_usable(address: IpAddr) -> Result<(), &'static str> {
    match address {
        _ if address.is_unspecified() => {
            Err("it is the unspecified address; use the address of one interface")
        }
        _ if address.is_multicast() => {
            Err("it is a multicast address; use the unicast address of an interface")
        }
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Err(
            "a link-local address needs a scope ID, and a GID cannot hold one; use a global or unique local address",
        ),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err("it is an IPv4-mapped IPv6 address; use the IPv4 address")
        }
        _ => Ok(()),
    }
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (_, Some(v6)) => Some(IpAddr::V6(v6.ip())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_interface_has_every_loopback_address() {
        let lo = interface_of("127.9.8.7".parse().unwrap()).unwrap().expect("a loopback interface");
        assert!(lo.mtu >= 1280, "{} has an MTU of {}", lo.name, lo.mtu);
        assert!(interface_of("192.0.2.77".parse().unwrap()).unwrap().is_none());
    }
}
