//! What the machine has: addresses, interface MTUs, who holds a port, randomness.

use std::fs;
use std::io;
use std::net::IpAddr;

use mitra_wire::ROCE_PORT;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;

/// An address of this machine and the interface that has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// The address. The loopback interface has all of 127.0.0.0/8.
    pub address: IpAddr,
    /// Bytes of an IP packet, at most.
    pub mtu: usize,
    /// Whether it is switched on.
    pub up: bool,
    /// Whether it leads back to this machine.
    pub loopback: bool,
    /// Whether a NIC can have such an address; if not, why not.
    pub usable: Result<(), &'static str>,
}

/// All addresses of this machine's interfaces.
///
/// # Errors
/// The system does not list them.
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
                usable: usable(address),
            })
        })
        .collect()
}

/// Bytes of an IP packet that an interface carries. `/proc/sys/net` shows this process' network namespace; `/sys` shows the one
/// that it was mounted in, which may be another (`unshare --net`, `nsenter --net`), but knows interfaces without IPv6 too.
fn mtu_of(interface: &str) -> io::Result<usize> {
    let paths =
        [format!("/proc/sys/net/ipv6/conf/{interface}/mtu"), format!("/sys/class/net/{interface}/mtu")];
    let read = paths.iter().find_map(|path| fs::read_to_string(path).ok());
    let mtu = read.ok_or_else(|| {
        io::Error::other(format!(
            "neither {} nor {} can be read (mount -t sysfs sysfs /sys)",
            paths[0], paths[1]
        ))
    })?;
    mtu.trim().parse().map_err(io::Error::other)
}

/// The interface with this address. The loopback interface has its whole network.
pub(crate) fn interface_of(address: IpAddr) -> io::Result<Option<Interface>> {
    Ok(interfaces()?.into_iter().find(|interface| {
        let own = interface.address;
        let whole_net = interface.loopback && own.is_loopback();
        own == address || whole_net && address.is_loopback() && address.is_ipv4() == own.is_ipv4()
    }))
}

/// The number of the interface with this address.
pub(crate) fn interface_index(address: IpAddr) -> io::Result<u32> {
    let interface = interface_of(address)?.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(if_nametoindex(interface.name.as_str())?)
}

/// The addresses of this machine that a NIC can have, for an error message.
pub(crate) fn local_addresses() -> String {
    let own: Vec<String> = interfaces()
        .into_iter()
        .flatten()
        .filter(|interface| !interface.address.is_loopback() && interface.usable.is_ok())
        .map(|interface| interface.address.to_string())
        .collect();
    if own.is_empty() { "(no other interface has an address)".to_owned() } else { own.join(", ") }
}

/// Whether a NIC can have such an address, and why not.
pub(crate) fn usable(address: IpAddr) -> Result<(), &'static str> {
    match address {
        _ if address.is_unspecified() => Err("it stands for all addresses; name one"),
        _ if address.is_multicast() => Err("it is a multicast group; name the machine's own address"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Err(
            "link-local addresses need a scope, which a GID has no room for; use a global or unique-local one",
        ),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err("write it as the IPv4 address it is"),
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

/// Who has the RoCE port of an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RocePortOwner {
    /// The address; the unspecified one stands for all.
    pub address: IpAddr,
    /// Its socket, as `/proc` numbers them.
    inode: u64,
}

impl RocePortOwner {
    /// The process, as far as `/proc` tells this user.
    pub fn process(&self) -> String {
        let link = format!("socket:[{}]", self.inode);
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let mut fds = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
            if fds.any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == link.as_str())) {
                if pid == std::process::id() {
                    return "this process itself".to_owned();
                }
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return format!("process {pid} ({})", name.trim());
            }
        }
        "a process of another user, or the kernel itself (rdma_rxe)".to_owned()
    }
}

/// Who has the RoCE port, of which addresses of this machine.
pub fn roce_port_owners() -> Vec<RocePortOwner> {
    let tables = ["/proc/self/net/udp", "/proc/self/net/udp6"].map(fs::read_to_string);
    let lines = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    lines.filter_map(roce_socket).collect()
}

/// Who has the RoCE port of an address, or of all addresses.
pub(crate) fn port_holder(address: IpAddr) -> String {
    let stands_for_it = |user: &RocePortOwner| user.address == address || user.address.is_unspecified();
    let users = roce_port_owners();
    users
        .iter()
        .find(|user| stands_for_it(user))
        .map_or_else(|| "another process".to_owned(), RocePortOwner::process)
}

/// The socket in a line of `/proc/net/udp` or `udp6`, if it has the RoCE port.
fn roce_socket(line: &str) -> Option<RocePortOwner> {
    let mut fields = line.split_ascii_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != ROCE_PORT {
        return None;
    }
    // The kernel prints each 32-bit word of an address as its processor reads it.
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let address = match ip.len() {
        8 => IpAddr::from(word(0)?),
        _ => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            IpAddr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?)
        }
    };
    Some(RocePortOwner { address, inode: fields.nth(7)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loopback_address_is_on_the_loopback_interface() {
        let lo = interface_of("127.9.8.7".parse().unwrap()).unwrap().expect("a loopback interface");
        assert!(lo.mtu >= 1280, "{} has {}", lo.name, lo.mtu);
        assert!(interface_of("192.0.2.77".parse().unwrap()).unwrap().is_none());
    }

    #[test]
    fn a_line_of_proc_net_udp_names_its_socket() {
        let line = " 1234: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 98765 2 0 0";
        let user = |address: &str| Some(RocePortOwner { address: address.parse().unwrap(), inode: 98765 });
        assert_eq!(roce_socket(line), user("127.0.0.1"));
        assert_eq!(roce_socket(&line.replace("0100007F", "00000000")), user("0.0.0.0"));
        assert_eq!(
            roce_socket(&line.replace("0100007F", "000000FD000000000000000002000000")),
            user("fd00::2")
        );
        assert_eq!(roce_socket(&line.replace("12B7", "12B8")), None);
    }
}
