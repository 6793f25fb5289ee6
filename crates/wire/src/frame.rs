//! Finds the RoCEv2 datagram in a captured frame, and builds an Ethernet frame around a datagram.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

use crate::ROCE_PORT;
use crate::ip::{AddressPair, DONT_FRAGMENT, IPV4_LEN, IPV6_LEN, UDP_LEN, UDP_PROTOCOL, checksum};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// RoCE v1 (annex A16): InfiniBand's network header and the packet directly in the Ethernet frame.
const ETHERTYPE_ROCE_V1: u16 = 0x8915;
/// The Ethertypes of VLAN tags: 802.1Q, 802.1ad, and the one for double tags before 802.1ad.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// The total length of the Ethernet, IPv4 and UDP headers that [`encode`] puts before a datagram,
/// in bytes.
pub const IPV4_OVERHEAD: usize = 14 + IPV4_LEN + UDP_LEN;
/// The total length of the Ethernet, IPv6 and UDP headers that [`encode`] puts before a datagram,
/// in bytes.
pub const IPV6_OVERHEAD: usize = 14 + IPV6_LEN + UDP_LEN;

/// The link types that [`Frame::parse`] supports. The numbers in parentheses are from
/// tcpdump.org/linktypes.html.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkType {
    /// BSD loopback: four bytes with the address family before the IP packet (0, 108).
    Loopback,
    /// Ethernet, with or without VLAN tags (1).
    Ethernet,
    /// An IP packet without a link header (101; 228 for IPv4, 229 for IPv6; 12 and 14 in some
    /// files).
    RawIp,
    /// Linux "cooked" capture, which the device `any` produces (113).
    LinuxSll,
    /// Linux "cooked" capture, version 2 (276).
    LinuxSll2,
}

impl LinkType {
    /// Returns the link type with this number in a capture file, if it is supported.
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            0 | 108 => Some(LinkType::Loopback),
            1 => Some(LinkType::Ethernet),
            12 | 14 | 101 | 228 | 229 => Some(LinkType::RawIp),
            113 => Some(LinkType::LinuxSll),
            276 => Some(LinkType::LinuxSll2),
            _ => None,
        }
    }
}

/// Why [`Frame::parse`] found no complete RoCEv2 datagram in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum FrameError {
    /// The parser found no UDP header with destination port 4791. [`Frame::parse`] lists the
    /// packets that the parser does not read.
    #[error("not RoCEv2")]
    NotRoce,
    /// The frame has the Ethertype of RoCE v1, which has no IP header.
    #[error("RoCE v1, not RoCEv2")]
    RoceV1,
    /// The frame carries packets in a tunnel, which the parser does not open. The value names the
    /// kind of tunnel.
    #[error("{0} tunnel")]
    Tunnel(&'static str),
    /// The frame ends within a header, for example because the capture was taken with a small snap
    /// length. The value names the header.
    #[error("truncated {0}")]
    Truncated(&'static str),
    /// The fields of the headers contradict each other, or the frame is an IP fragment. The value
    /// describes the case.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// A RoCEv2 datagram with the headers around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The source address and port.
    pub src: SocketAddr,
    /// The destination address and port. The port is [`ROCE_PORT`].
    pub dst: SocketAddr,
    /// The IP header, including IPv4 options.
    pub ip: &'a [u8],
    /// The UDP header.
    pub udp: &'a [u8; UDP_LEN],
    /// The UDP payload: packet and ICRC. It is shorter than `datagram_len` if the capture was taken
    /// with a small snap length.
    pub datagram: &'a [u8],
    /// The length of the UDP payload when it was sent, in bytes.
    pub datagram_len: usize,
}

impl<'a> Frame<'a> {
    /// Finds the RoCEv2 datagram in a captured frame.
    ///
    /// # Errors
    /// See [`FrameError`]. The first fragment of an IPv4 datagram is
    /// [`Malformed`](FrameError::Malformed), because RoCEv2 forbids fragmentation (annex A17).
    /// Later fragments, which have no UDP header, and packets with IPv6 extension headers are
    /// [`NotRoce`](FrameError::NotRoce).
    pub fn parse(link: LinkType, bytes: &'a [u8]) -> Result<Self, FrameError> {
        match link {
            LinkType::Loopback => Self::parse_ip(skip(bytes, 4)?),
            LinkType::RawIp => Self::parse_ip(bytes),
            LinkType::Ethernet => {
                let mut rest = skip(bytes, 12)?;
                loop {
                    let (ethertype, after) = take_u16(rest)?;
                    if !ETHERTYPES_VLAN.contains(&ethertype) {
                        return Self::parse_ethertype(ethertype, after);
                    }
                    rest = skip(after, 2)?;
                }
            }
            LinkType::LinuxSll => {
                let (ethertype, ip) = take_u16(skip(bytes, 14)?)?;
                Self::parse_ethertype(ethertype, ip)
            }
            LinkType::LinuxSll2 => {
                let (ethertype, rest) = take_u16(bytes)?;
                Self::parse_ethertype(ethertype, skip(rest, 18)?)
            }
        }
    }

    /// Returns the IPv4 identification; 0 over IPv6.
    pub fn ident(&self) -> u16 {
        match self.ip {
            [_, _, _, _, high, low, ..] if self.dst.is_ipv4() => u16::from_be_bytes([*high, *low]),
            _ => 0,
        }
    }

    fn parse_ethertype(ethertype: u16, ip: &'a [u8]) -> Result<Self, FrameError> {
        match ethertype {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Self::parse_ip(ip),
            ETHERTYPE_ROCE_V1 => Err(FrameError::RoceV1),
            _ => Err(FrameError::NotRoce),
        }
    }

    fn parse_ip(ip: &'a [u8]) -> Result<Self, FrameError> {
        match ip.first().ok_or(FrameError::Truncated("IP header"))? >> 4 {
            4 => Self::parse_ipv4(ip),
            6 => Self::parse_ipv6(ip),
            _ => Err(FrameError::NotRoce),
        }
    }

    fn parse_ipv4(ip: &'a [u8]) -> Result<Self, FrameError> {
        let fixed: &[u8; IPV4_LEN] = ip.first_chunk().ok_or(FrameError::Truncated("IPv4 header"))?;
        let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff;
        let (more_fragments, offset) = (fragment & 0x2000 != 0, fragment & 0x1fff);
        if offset != 0 {
            return Err(FrameError::NotRoce);
        }
        expect_udp(fixed[9])?;
        let header_len = usize::from(fixed[0] & 0x0f) * 4;
        if header_len < IPV4_LEN {
            return Err(FrameError::Malformed("IPv4 header length below 20"));
        }
        let (header, rest) = ip.split_at_checked(header_len).ok_or(FrameError::Truncated("IPv4 options"))?;
        let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        let src = Ipv4Addr::from([fixed[12], fixed[13], fixed[14], fixed[15]]);
        let dst = Ipv4Addr::from([fixed[16], fixed[17], fixed[18], fixed[19]]);
        let frame = Self::parse_udp(src.into(), dst.into(), header, rest, total.checked_sub(header_len))?;
        if more_fragments { Err(FrameError::Malformed("IP fragment")) } else { Ok(frame) }
    }

    fn parse_ipv6(ip: &'a [u8]) -> Result<Self, FrameError> {
        let (header, rest) =
            ip.split_first_chunk::<IPV6_LEN>().ok_or(FrameError::Truncated("IPv6 header"))?;
        expect_udp(header[6])?;
        let address = |at: usize| Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| header[at + i]));
        let payload_len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        Self::parse_udp(address(8).into(), address(24).into(), header, rest, Some(payload_len))
    }

    /// `ip_payload_len` is the payload length according to the IP header. It is `None` if the
    /// header's total length is below the header's own length.
    fn parse_udp(
        src: IpAddr,
        dst: IpAddr,
        ip: &'a [u8],
        rest: &'a [u8],
        ip_payload_len: Option<usize>,
    ) -> Result<Self, FrameError> {
        let (udp, rest) = rest.split_first_chunk::<UDP_LEN>().ok_or(FrameError::Truncated("UDP header"))?;
        let field = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
        match field(2) {
            ROCE_PORT => {}
            // The port that IANA has assigned, and the older port that Linux uses.
            4789 | 8472 => return Err(FrameError::Tunnel("VXLAN")),
            6081 => return Err(FrameError::Tunnel("Geneve")),
            _ => return Err(FrameError::NotRoce),
        }
        let len =
            usize::from(field(4)).checked_sub(UDP_LEN).ok_or(FrameError::Malformed("UDP length below 8"))?;
        if ip_payload_len.is_none_or(|ip| ip != len + UDP_LEN) {
            return Err(FrameError::Malformed("IP and UDP lengths disagree"));
        }
        Ok(Frame {
            src: SocketAddr::new(src, field(0)),
            dst: SocketAddr::new(dst, field(2)),
            ip,
            udp,
            datagram: rest.get(..len).unwrap_or(rest),
            datagram_len: len,
        })
    }
}

const fn expect_udp(protocol: u8) -> Result<(), FrameError> {
    match protocol {
        UDP_PROTOCOL => Ok(()),
        4 | 41 => Err(FrameError::Tunnel("IP-in-IP")),
        47 => Err(FrameError::Tunnel("GRE")),
        _ => Err(FrameError::NotRoce),
    }
}

fn skip(bytes: &[u8], n: usize) -> Result<&[u8], FrameError> {
    bytes.get(n..).ok_or(FrameError::Truncated("link header"))
}

fn take_u16(bytes: &[u8]) -> Result<(u16, &[u8]), FrameError> {
    match bytes.split_first_chunk() {
        Some((head, rest)) => Ok((u16::from_be_bytes(*head), rest)),
        None => Err(FrameError::Truncated("link header")),
    }
}

/// Appends an Ethernet frame that contains `datagram`. The datagram has at most 65,507 bytes and
/// ends in an ICRC that was computed for the same addresses and identification.
///
/// Each hardware address ends in the last four bytes of its IP address. An IPv4 frame has the flag
/// "don't fragment", the identification `ident` and no UDP checksum, like a frame of the kernel's
/// soft-RoCE. An IPv6 frame has the UDP checksum that IPv6 requires.
/// [`IcrcPath::new`](crate::IcrcPath::new) defines the address family of a frame.
pub fn encode(src: SocketAddr, dst: SocketAddr, ident: u16, datagram: &[u8], out: &mut Vec<u8>) {
    let udp_len = (UDP_LEN + datagram.len()) as u16;
    let [l0, l1] = udp_len.to_be_bytes();
    let mut udp = [0; UDP_LEN];
    udp[0..2].copy_from_slice(&src.port().to_be_bytes());
    udp[2..4].copy_from_slice(&dst.port().to_be_bytes());
    udp[4..6].copy_from_slice(&[l0, l1]);
    out.reserve(IPV6_OVERHEAD + datagram.len());
    match AddressPair::new(src, dst) {
        AddressPair::V4(src, dst) => {
            let (src, dst) = (src.octets(), dst.octets());
            ethernet(src, dst, ETHERTYPE_IPV4, out);
            let [t0, t1] = udp_len.wrapping_add(IPV4_LEN as u16).to_be_bytes();
            let [i0, i1] = ident.to_be_bytes();
            let mut ip =
                [0x45, 0, t0, t1, i0, i1, DONT_FRAGMENT, 0, 64, UDP_PROTOCOL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            ip[12..16].copy_from_slice(&src);
            ip[16..20].copy_from_slice(&dst);
            let sum = checksum(&[&ip]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            out.extend_from_slice(&ip);
        }
        AddressPair::V6(src, dst) => {
            let (src, dst) = (src.octets(), dst.octets());
            let tail = |a: [u8; 16]| [a[12], a[13], a[14], a[15]];
            ethernet(tail(src), tail(dst), ETHERTYPE_IPV6, out);
            out.extend_from_slice(&[0x60, 0, 0, 0, l0, l1, UDP_PROTOCOL, 64]);
            out.extend_from_slice(&src);
            out.extend_from_slice(&dst);
            let sum = checksum(&[&src, &dst, &[0, 0, l0, l1, 0, 0, 0, UDP_PROTOCOL], &udp, datagram]);
            // A checksum of 0 is sent as all ones, because 0 means "no checksum" (RFC 768).
            udp[6..8].copy_from_slice(&if sum == 0 { !0 } else { sum }.to_be_bytes());
        }
    }
    out.extend_from_slice(&udp);
    out.extend_from_slice(datagram);
}

fn ethernet(src: [u8; 4], dst: [u8; 4], ethertype: u16, out: &mut Vec<u8>) {
    for address in [dst, src] {
        out.extend_from_slice(&[0x02, 0]);
        out.extend_from_slice(&address);
    }
    out.extend_from_slice(&ethertype.to_be_bytes());
}
