//! The invariant CRC (annex A17.3.3, IBTA 7.8.1): seal, verify, and find the identification that a socket hides.
//!
//! The ICRC is CRC-32 (as in Ethernet) over, in this order,
//! 1. eight bytes 0xff (where InfiniBand has its local route header),
//! 2. the IP header with everything that a router may change all ones: IPv4 type of service, time to live and
//!    header checksum; IPv6 traffic class, flow label and hop limit,
//! 3. the UDP header with the checksum all ones,
//! 4. the BTH with byte 4 (FECN, BECN, reserved) all ones,
//! 5. extension headers, payload and pad as they are;
//!
//! it is stored least significant byte first in the last four bytes of the datagram.
//!
//! # Solving for the identification
//! Over IPv4 the ICRC covers the identification field, which a UDP socket does not show. As a CRC is affine,
//! the difference between the ICRC received and the one expected is a linear function of the difference of
//! identifications, and that function can be inverted: rewind the register by the bytes between the field
//! and the end, and the difference must fit the field's 16 bits. If it does, that was the identification.
//!
//! **What this weakens.** A check against a *known* identification misses a random corruption with
//! probability 2^-32. A solved one leaves 16 of the 32 bits to check: it misses 2^-16, and the CRC's
//! guarantees for few flipped bits do not hold. So [`Verdict::Good`] says whether the identification was the
//! caller's, and callers should count the solved ones.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crc32fast::Hasher;

use crate::{BTH_LEN, crc};

/// Bytes of the ICRC at the end of every datagram.
pub const ICRC_LEN: usize = 4;

/// The CRC of the eight bytes 0xff that stand for the local route header.
const AFTER_LRH: u32 = 0x2144_df1c;

const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_PROTOCOL: u8 = 17;

/// The invariant fields of the way from one UDP endpoint to another, ready to seal and verify datagrams.
///
/// The path is directed: one that verifies what a peer sends has the peer as its source.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IcrcPath {
    /// IP header, UDP header and room for a BTH, masked; lengths and identification are filled in per datagram.
    template: [u8; IPV6_LEN + UDP_LEN + BTH_LEN],
    v4: bool,
}

/// What [`IcrcPath::verify`] found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The ICRC is right.
    Good {
        /// The IPv4 identification under which it is right; 0 over IPv6.
        ident: u16,
        /// Whether the identification had to be solved for, which leaves only 16 bits of check. A caller with
        /// further candidates can compare them with `ident`: one that it foresaw is as good as the hint.
        solved: bool,
    },
    /// The ICRC is wrong under every identification.
    Bad,
    /// No room for a BTH and an ICRC.
    TooShort,
}

impl Verdict {
    /// Whether the packet may be believed.
    pub const fn is_good(&self) -> bool {
        matches!(self, Verdict::Good { .. })
    }
}

impl IcrcPath {
    /// The path of datagrams from `src` to `dst`, with IPv4's "don't fragment" set, as
    /// `IP_MTU_DISCOVER=DO` sends and annex A17.3.2 demands.
    ///
    /// IPv4-mapped IPv6 addresses are IPv4, since that is what a dual-stack socket sends for them. An IPv4 and an
    /// IPv6 address have no path between them; such a path seals and verifies what no network carries.
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Self {
        let mut template = [0xff; IPV6_LEN + UDP_LEN + BTH_LEN];
        let (from, to) = (src.ip().to_canonical(), dst.ip().to_canonical());
        let (v4, udp) = if let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) {
            template[0] = 0x45;
            template[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
            template[9] = UDP_PROTOCOL;
            template[12..16].copy_from_slice(&from.octets());
            template[16..20].copy_from_slice(&to.octets());
            (true, IPV4_LEN)
        } else {
            template[0] = 0x6f;
            template[6] = UDP_PROTOCOL;
            template[8..24].copy_from_slice(&ipv6(from).octets());
            template[24..40].copy_from_slice(&ipv6(to).octets());
            (false, IPV6_LEN)
        };
        template[udp..udp + 2].copy_from_slice(&src.port().to_be_bytes());
        template[udp + 2..udp + 4].copy_from_slice(&dst.port().to_be_bytes());
        IcrcPath { template, v4 }
    }

    /// The same path with IPv4's "don't fragment" flag as given; no effect over IPv6.
    #[must_use]
    pub fn with_dont_fragment(mut self, dont_fragment: bool) -> Self {
        if self.v4 {
            self.template[6] = if dont_fragment { 0x40 } else { 0 };
        }
        self
    }

    /// Whether the path is over IPv4, whose identification the ICRC covers.
    pub const fn is_ipv4(&self) -> bool {
        self.v4
    }

    /// Writes the ICRC into the last four bytes of `datagram`, the whole UDP payload.
    ///
    /// `ident` is the IPv4 identification with which the datagram will leave: 0 from an unconnected Linux
    /// socket with `IP_MTU_DISCOVER=DO`, the index of the segment in a GSO send; IPv6 ignores it. A datagram
    /// without room for BTH and ICRC is left alone.
    pub fn seal(&self, datagram: &mut [u8], ident: u16) {
        if let Some((covered, icrc)) = split(datagram.len(), datagram.split_last_chunk_mut()) {
            *icrc = self.compute(covered, ident).to_le_bytes();
        }
    }

    /// Checks the ICRC in the last four bytes of `datagram`, the whole UDP payload, first under the
    /// identification `hint`, then by solving for it (IPv4 only).
    ///
    /// One pass over the bytes either way. Solving is weaker, see the [module](self).
    pub fn verify(&self, datagram: &[u8], hint: u16) -> Verdict {
        let Some((covered, icrc)) = split(datagram.len(), datagram.split_last_chunk()) else {
            return Verdict::TooShort;
        };
        let difference = self.compute(covered, hint) ^ u32::from_le_bytes(*icrc);
        if difference == 0 {
            return Verdict::Good { ident: if self.v4 { hint } else { 0 }, solved: false };
        }
        if !self.v4 {
            return Verdict::Bad;
        }
        // The field begins at byte 4 of the IP header; rewinding to before it leaves its two bytes, first in
        // the low eight bits.
        let before = crc::rewind(difference, IPV4_LEN - 4 + UDP_LEN + covered.len());
        if before >> 16 != 0 {
            return Verdict::Bad;
        }
        Verdict::Good { ident: hint ^ (before as u16).swap_bytes(), solved: true }
    }

    /// The ICRC of a datagram whose covered bytes are at least a BTH.
    fn compute(&self, covered: &[u8], ident: u16) -> u32 {
        let mut head = self.template;
        let udp_len = (UDP_LEN + covered.len() + ICRC_LEN) as u16;
        let udp = if self.v4 {
            head[2..4].copy_from_slice(&(udp_len.wrapping_add(IPV4_LEN as u16)).to_be_bytes());
            head[4..6].copy_from_slice(&ident.to_be_bytes());
            IPV4_LEN
        } else {
            head[4..6].copy_from_slice(&udp_len.to_be_bytes());
            IPV6_LEN
        };
        head[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        let (bth, rest) = covered.split_at(BTH_LEN);
        let end = udp + UDP_LEN + BTH_LEN;
        head[udp + UDP_LEN..end].copy_from_slice(bth);
        head[udp + UDP_LEN + 4] = 0xff;
        let mut crc = Hasher::new_with_initial(AFTER_LRH);
        crc.update(&head[..end]);
        crc.update(rest);
        crc.finalize()
    }
}

/// The covered bytes and the ICRC of a datagram of `len` bytes, if it has room for BTH and ICRC.
fn split<T>(len: usize, parts: Option<T>) -> Option<T> {
    parts.filter(|_| len >= BTH_LEN + ICRC_LEN)
}

fn ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
