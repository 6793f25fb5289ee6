//! What the machine has: addresses, interface MTUs, who holds a port, randomness.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::IpAddr;

use mitra_wire::ROCE_PORT;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// An interface that has an address.
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) mtu: usize,
}

/// The interface with this address. The loopback interface has its whole network.
pub(crate) fn interface_of(address: IpAddr) -> io::Result<Option<Interface>> {
    for entry in getifaddrs()? {
        let Some(own) = entry.address.as_ref().and_then(ip_of) else { continue };
        let whole_net = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK) && own.is_loopback();
        if own == address || whole_net && address.is_loopback() && address.is_ipv4() == own.is_ipv4() {
            let mtu = fs::read_to_string(format!("/sys/class/net/{}/mtu", entry.interface_name))?;
            let mtu = mtu.trim().parse().map_err(io::Error::other)?;
            return Ok(Some(Interface { name: entry.interface_name, mtu }));
        }
    }
    Ok(None)
}

/// The addresses of this machine that a NIC can have, for an error message.
pub(crate) fn local_addresses() -> String {
    let entries = getifaddrs().into_iter().flatten();
    let own: Vec<String> = entries
        .filter_map(|entry| entry.address.as_ref().and_then(ip_of))
        .filter(|ip| !ip.is_loopback() && usable(*ip).is_ok())
        .map(|ip| ip.to_string())
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

/// Who has the RoCE port of an address, or of all addresses, as far as `/proc` tells this user.
pub(crate) fn port_holder(address: IpAddr) -> String {
    let table = if address.is_ipv4() { "/proc/self/net/udp" } else { "/proc/self/net/udp6" };
    let sockets = fs::read_to_string(table).unwrap_or_default();
    let Some(inode) = sockets.lines().skip(1).find_map(|line| holder_inode(line, address)) else {
        return "another process".to_owned();
    };
    let link = format!("socket:[{inode}]");
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
    "a process of another user".to_owned()
}

/// The socket in a line of `/proc/net/udp`, if it has the RoCE port of the address.
fn holder_inode(line: &str, address: IpAddr) -> Option<&str> {
    let mut fields = line.split_ascii_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    let words = match address {
        IpAddr::V4(v4) => format!("{:08X}", u32::from_ne_bytes(v4.octets())),
        IpAddr::V6(v6) => {
            let word = |chunk: &[u8]| {
                format!("{:08X}", u32::from_ne_bytes(chunk.try_into().expect("four bytes at a time")))
            };
            v6.octets().chunks_exact(4).map(word).collect()
        }
    };
    let has_address = ip == words || ip.bytes().all(|digit| digit == b'0');
    let has_port = u16::from_str_radix(port, 16).ok()? == ROCE_PORT;
    if has_address && has_port { fields.nth(7) } else { None }
}

/// 32 unpredictable bytes.
pub(crate) fn seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    Ok(seed)
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
        assert_eq!(holder_inode(line, "127.0.0.1".parse().unwrap()), Some("98765"));
        assert_eq!(holder_inode(line, "127.0.0.2".parse().unwrap()), None);
        let any = line.replace("0100007F", "00000000");
        assert_eq!(holder_inode(&any, "127.0.0.2".parse().unwrap()), Some("98765"));
        assert_eq!(holder_inode(&any.replace("12B7", "12B8"), "127.0.0.2".parse().unwrap()), None);
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(seed().unwrap(), seed().unwrap());
    }
}
