//! Whether a host exists, as the address resolution of the kernel's `rdma_cm` finds out: by the
//! neighbour table of the next hop's interface (`rtnetlink(7)`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// The UDP port of RoCE v2.
const ROCE_PORT: u16 = 4791;

/// The lengths of `struct nlmsghdr`, and of `struct rtmsg` and `struct ndmsg`, in bytes.
const HEADER: usize = 16;
const FIXED: usize = 12;
const NDA_DST: u16 = 1;
/// The states of an entry whose link-layer address is known, or that needs none (`NUD_VALID`).
const VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;

/// Makes the system ask for the host's link-layer address, by an empty datagram to the RoCE port. A
/// NIC ignores it.
pub fn ask_for(host: IpAddr) {
    let any: IpAddr =
        if host.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A failure shows in the neighbour table.
    let _ = UdpSocket::bind((any, 0)).and_then(|probe| probe.send_to(&[], (host, ROCE_PORT)));
}

/// Whether the next hop to the host has answered lately. A system that does not tell counts as one
/// that says so, for instance a sandbox.
pub fn is_resolved(host: IpAddr) -> bool {
    let host = host.to_canonical();
    if host.is_loopback() {
        return true;
    }
    let Some(netlink) = Netlink::open() else { return true };
    let Some(Answer::Message(route)) = netlink.ask(libc::RTM_GETROUTE, route_request(host)) else {
        return true;
    };
    // `rtm_type`
    if route.get(7) != Some(&libc::RTN_UNICAST) {
        return true;
    }
    let Some(interface) = attribute(&route, libc::RTA_OIF).and_then(|value| value.first_chunk()) else {
        return true;
    };
    let next_hop = attribute(&route, libc::RTA_GATEWAY).map_or_else(|| octets(host), <[u8]>::to_vec);
    match netlink.ask(libc::RTM_GETNEIGH, neighbour_request(host, *interface, &next_hop)) {
        Some(Answer::Message(entry)) => match entry.get(8..10) {
            // `ndm_state`
            Some(&[low, high]) => u16::from_ne_bytes([low, high]) & VALID != 0,
            _ => true,
        },
        Some(Answer::Error(errno)) => errno != libc::ENOENT,
        None => true,
    }
}

enum Answer {
    /// The bytes after the header.
    Message(Vec<u8>),
    Error(i32),
}

struct Netlink(OwnedFd);

impl Netlink {
    fn open() -> Option<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute).ok().map(Self)
    }

    /// Sends a request, which the kernel answers before the call returns. `None` if there is no
    /// answer.
    fn ask(&self, kind: u16, body: Vec<u8>) -> Option<Answer> {
        let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        message.extend([0; 8]); // sequence number, port id
        message.extend(body);
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.0.as_raw_fd(), &message, &kernel, MsgFlags::empty()).ok()?;
        let mut buffer = [0; 4096];
        let length = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()).ok()?;
        parse(&buffer[..length])
    }
}

fn parse(message: &[u8]) -> Option<Answer> {
    let (header, body) = message.split_first_chunk::<HEADER>()?;
    let [_, _, _, _, k0, k1, ..] = *header;
    match u16::from_ne_bytes([k0, k1]) {
        kind if i32::from(kind) == libc::NLMSG_ERROR => {
            Some(Answer::Error(-i32::from_ne_bytes(*body.first_chunk()?)))
        }
        libc::RTM_NEWROUTE | libc::RTM_NEWNEIGH => Some(Answer::Message(body.to_vec())),
        _ => None,
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn route_request(host: IpAddr) -> Vec<u8> {
    let address = octets(host);
    let mut body = vec![0; FIXED];
    body[0] = family(host);
    body[1] = 8 * address.len() as u8; // `rtm_dst_len`, in bits
    put_attribute(&mut body, libc::RTA_DST, &address);
    body
}

fn neighbour_request(host: IpAddr, interface: [u8; 4], next_hop: &[u8]) -> Vec<u8> {
    let mut body = vec![0; FIXED];
    body[0] = family(host);
    body[4..8].copy_from_slice(&interface);
    put_attribute(&mut body, NDA_DST, next_hop);
    body
}

/// Appends an attribute, whose value has a multiple of four bytes.
fn put_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend((4 + value.len() as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
}

/// Returns the value of an attribute after the fixed part of a message.
fn attribute(message: &[u8], kind: u16) -> Option<&[u8]> {
    let mut rest = message.get(FIXED..)?;
    loop {
        let [l0, l1, k0, k1] = *rest.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = rest.get(4..length)?;
        if u16::from_ne_bytes([k0, k1]) == kind {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_needs_no_neighbour() {
        assert!(is_resolved(Ipv4Addr::LOCALHOST.into()));
        assert!(is_resolved(IpAddr::from([127, 3, 4, 5])));
    }

    #[test]
    fn attributes_of_malformed_messages_are_not_found() {
        let message = route_request(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(attribute(&message, libc::RTA_DST), Some(&[10, 0, 0, 1][..]));
        assert_eq!(attribute(&message, libc::RTA_OIF), None);
        for length in 0..message.len() {
            assert_eq!(attribute(&message[..length], libc::RTA_DST), None);
        }
        let mut endless = message.clone();
        endless[FIXED..FIXED + 2].copy_from_slice(&0u16.to_ne_bytes());
        assert_eq!(attribute(&endless, libc::RTA_OIF), None);
        assert!(parse(&[0; HEADER + 3]).is_none());
    }
}
