//! The invariant CRC (annex A17, IBTA 7.8): seal and verify, also without knowing the IPv4 identification.
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
//! **Weaker detection.** A check against a *known* identification misses a random corruption with probability 2^-32. A check that
//! solves for the identification uses 16 of the 32 bits for that and misses a corruption with probability 2^-16. It still detects
//! every single flipped bit in a datagram of up to 26,744 bytes, but not every burst or combination of flipped bits that a CRC-32
//! detects. [`Verdict::Good`] therefore reports whether the identification was solved for, and callers should count such packets.

use std::net::SocketAddr;

use crc32fast::Hasher;

use crate::frame::Frame;
use crate::ip::{AddressPair, DONT_FRAGMENT, IPV4_LEN, IPV6_LEN, UDP_LEN, UDP_PROTOCOL};
use crate::{BTH_LEN, crc_rewind};

/// Bytes of the ICRC at the end of every datagram.
pub const ICRC_LEN: usize = 4;

/// The CRC of the eight bytes 0xff that stand for the local route header.
const AFTER_LRH: u32 = 0x2144_df1c;

/// The invariant header fields of a path between two UDP endpoints, prepared to seal and verify datagrams.
///
/// The path is directed. To verify datagrams from a peer, use the path whose source is the peer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IcrcPath {
    /// IP header, UDP header and room for a BTH, masked; lengths and identification are filled in per datagram.
    template: [u8; IPV6_LEN + UDP_LEN + BTH_LEN],
    v4: bool,
}

/// The result of [`IcrcPath::verify`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The ICRC is correct.
    Good {
        /// The IPv4 identification for which the ICRC is correct; 0 over IPv6.
        ident: u16,
        /// Whether `verify` solved for the identification, which leaves only 16 bits of check. If `ident` equals another value that
        /// the caller expected, the check is as strong as with a correct hint.
        solved: bool,
    },
    /// The ICRC is wrong for every identification.
    Bad,
    /// The datagram has no room for a BTH and an ICRC.
    TooShort,
}

impl Verdict {
    /// Whether the ICRC is correct.
    pub const fn is_good(&self) -> bool {
        matches!(self, Verdict::Good { .. })
    }
}

impl IcrcPath {
    /// Creates the path of datagrams from `src` to `dst`, with the IPv4 flag "don't fragment", which the socket option
    /// `IP_MTU_DISCOVER=DO` sets and annex A17 requires.
    ///
    /// IPv4-mapped IPv6 addresses count as IPv4, because a dual-stack socket sends IPv4 packets for them. No network has a path
    /// between an IPv4 and an IPv6 address.
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Self {
        let mut template = [0xff; IPV6_LEN + UDP_LEN + BTH_LEN];
        let (v4, udp) = match AddressPair::new(src, dst) {
            AddressPair::V4(src, dst) => {
                template[0] = 0x45;
                template[4..8].copy_from_slice(&[0, 0, DONT_FRAGMENT, 0]);
                template[9] = UDP_PROTOCOL;
                template[12..16].copy_from_slice(&src.octets());
                template[16..20].copy_from_slice(&dst.octets());
                (true, IPV4_LEN)
            }
            AddressPair::V6(src, dst) => {
                template[0] = 0x6f;
                template[6] = UDP_PROTOCOL;
                template[8..24].copy_from_slice(&src.octets());
                template[24..40].copy_from_slice(&dst.octets());
                (false, IPV6_LEN)
            }
        };
        template[udp..udp + 2].copy_from_slice(&src.port().to_be_bytes());
        template[udp + 2..udp + 4].copy_from_slice(&dst.port().to_be_bytes());
        IcrcPath { template, v4 }
    }

    /// Returns the path with the IPv4 flag "don't fragment" set to this value. No effect over IPv6.
    #[must_use]
    pub fn with_dont_fragment(mut self, dont_fragment: bool) -> Self {
        if self.v4 {
            self.template[6] = if dont_fragment { DONT_FRAGMENT } else { 0 };
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
    /// socket with `IP_MTU_DISCOVER=DO`, and the index of the segment in a GSO send. IPv6 ignores it. A datagram without room for BTH
    /// and ICRC is left unchanged.
    pub fn seal(&self, datagram: &mut [u8], ident: u16) {
        if let Some((covered, icrc)) = split(datagram.len(), datagram.split_last_chunk_mut()) {
            *icrc = self.compute(covered, ident).to_le_bytes();
        }
    }

    /// Checks the ICRC in the last four bytes of `datagram`, the whole UDP payload, first under the
    /// identification `hint`, then by solving for it (IPv4 only).
    ///
    /// Both cases take one pass over the bytes. Solving detects fewer corruptions; see the [module](self).
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
        let before = crc_rewind::rewind(difference, IPV4_LEN - 4 + UDP_LEN + covered.len());
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
        masked_crc(&mut head[..udp + UDP_LEN + BTH_LEN], covered)
    }
}

/// The covered bytes and the ICRC of a datagram of `len` bytes, if it has room for BTH and ICRC.
fn split<T>(len: usize, parts: Option<T>) -> Option<T> {
    parts.filter(|_| len >= BTH_LEN + ICRC_LEN)
}

/// Checks the ICRC of a captured frame. All headers are known, so the identification is not solved for. IPv4 options are covered
/// unchanged.
pub fn verify_frame(frame: &Frame<'_>) -> Verdict {
    let Some((covered, icrc)) = split(frame.datagram.len(), frame.datagram.split_last_chunk()) else {
        return Verdict::TooShort;
    };
    // The longest IPv4 header has 60 bytes.
    let mut head = [0; 60 + UDP_LEN + BTH_LEN];
    let udp = frame.ip.len().min(60);
    head[..udp].copy_from_slice(&frame.ip[..udp]);
    if frame.dst.is_ipv4() {
        for at in [1, 8, 10, 11] {
            head[at] = 0xff;
        }
    } else {
        head[0] |= 0x0f;
        for at in [1, 2, 3, 7] {
            head[at] = 0xff;
        }
    }
    let bth = udp + UDP_LEN;
    head[udp..bth].copy_from_slice(frame.udp);
    head[udp + 6..bth].fill(0xff);
    let crc = masked_crc(&mut head[..bth + BTH_LEN], covered);
    if crc == u32::from_le_bytes(*icrc) {
        Verdict::Good { ident: frame.ident(), solved: false }
    } else {
        Verdict::Bad
    }
}

/// The CRC over the eight ones, `head` (whose last bytes are room for the BTH) and the covered bytes of a datagram, at
/// least a BTH.
fn masked_crc(head: &mut [u8], covered: &[u8]) -> u32 {
    let (bth, rest) = covered.split_at(BTH_LEN);
    let at = head.len() - BTH_LEN;
    head[at..].copy_from_slice(bth);
    head[at + 4] = 0xff;
    let mut crc = Hasher::new_with_initial(AFTER_LRH);
    crc.update(head);
    crc.update(rest);
    crc.finalize()
}
