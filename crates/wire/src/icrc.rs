//! The invariant CRC (ICRC, annex A17 and IBTA 7.8): computes and verifies it, if necessary without
//! the IPv4 identification.
//!
//! The ICRC is the CRC-32 of Ethernet over the following bytes. Fields that a router may change are
//! replaced by ones (*masked*).
//!
//! 1. Eight bytes 0xff, in place of InfiniBand's local route header.
//! 2. The IP header. Masked are, in IPv4, the type of service, the time to live and the header
//!    checksum; in IPv6, the traffic class, the flow label and the hop limit.
//! 3. The UDP header. The checksum is masked.
//! 4. The BTH. Byte 4 (FECN, BECN and reserved bits) is masked.
//! 5. The extension headers, the payload and the pad.
//!
//! The last four bytes of the datagram contain the ICRC, least significant byte first.
//!
//! # Solving for the identification
//! Over IPv4, the ICRC covers the identification field, which a UDP socket does not return to a
//! receiver. [`IcrcPath::verify`] therefore computes the ICRC with a guessed identification (the
//! *hint*). A CRC is affine, so the XOR of the computed and the received ICRC is a linear function
//! of the XOR of the guessed and the true identification. To invert this function, `verify` rewinds
//! the CRC register from the end of the datagram to the field. If the result has no more than the
//! 16 bits of the field, it is the XOR of the two identifications. Otherwise the datagram is
//! corrupt.
//!
//! **Weaker detection.** A check against a *known* identification misses a random corruption with
//! probability 2^-32. A check that solves for the identification uses up 16 of the 32 bits and
//! misses a random corruption with probability 2^-16. It still detects every single flipped bit in
//! a datagram of up to 26,744 bytes, but not every burst or combination of flipped bits that a
//! CRC-32 detects. [`Verdict::Good`] therefore reports whether the identification was solved for,
//! so that callers can count such packets.

use std::net::SocketAddr;

use crc32fast::Hasher;

use crate::frame::Frame;
use crate::ip::{AddressPair, DONT_FRAGMENT, IPV4_LEN, IPV6_LEN, UDP_LEN, UDP_PROTOCOL};
use crate::{BTH_LEN, crc_rewind, opcode};

/// The length of the ICRC at the end of every datagram, in bytes.
pub const ICRC_LEN: usize = 4;

/// The CRC of the eight bytes 0xff in place of the local route header.
const AFTER_LRH: u32 = 0x2144_df1c;

/// The IP and UDP headers of the datagrams from one UDP endpoint to another, as far as the ICRC
/// covers them.
///
/// The path is directed. To verify datagrams from a peer, use the path whose source is the peer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IcrcPath {
    /// The masked IP and UDP headers, followed by space for a BTH. `compute` fills in the lengths,
    /// the identification and the BTH of each datagram.
    template: [u8; IPV6_LEN + UDP_LEN + BTH_LEN],
    v4: bool,
}

/// The result of [`IcrcPath::verify`] and [`verify_frame`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The ICRC is correct.
    Good {
        /// The IPv4 identification for which the ICRC is correct; 0 over IPv6.
        ident: u16,
        /// Whether `verify` solved for the identification. If so, the check has the strength of 16
        /// bits only, unless the caller knows by other means that `ident` is the true
        /// identification.
        solved: bool,
    },
    /// The ICRC is wrong. For an IPv4 path, `verify` has found it wrong for every identification.
    Bad,
    /// The datagram is shorter than a BTH and an ICRC.
    TooShort,
}

impl Verdict {
    /// Whether the ICRC is correct.
    pub const fn is_good(&self) -> bool {
        matches!(self, Verdict::Good { .. })
    }
}

impl IcrcPath {
    /// Creates the path of datagrams from `src` to `dst`. Over IPv4, the flag "don't fragment" is
    /// set, as annex A17 requires. The socket option `IP_MTU_DISCOVER` with the value
    /// `IP_PMTUDISC_DO` sets the flag in sent packets.
    ///
    /// IPv4-mapped IPv6 addresses count as IPv4, because a dual-stack socket sends IPv4 packets to
    /// them. The path between an IPv4 and an IPv6 address, which no network has, is an IPv6 path.
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

    /// Returns the path with the IPv4 flag "don't fragment" set to this value. An IPv6 path is
    /// returned unchanged.
    #[must_use]
    pub fn with_dont_fragment(mut self, dont_fragment: bool) -> Self {
        if self.v4 {
            self.template[6] = if dont_fragment { DONT_FRAGMENT } else { 0 };
        }
        self
    }

    /// Whether datagrams on the path are sent over IPv4. If so, the ICRC depends on the IP
    /// identification.
    pub const fn is_ipv4(&self) -> bool {
        self.v4
    }

    /// Writes the ICRC into the last four bytes of `datagram`, which is the complete UDP payload. A
    /// datagram that is shorter than a BTH and an ICRC remains unchanged.
    ///
    /// `ident` is the IPv4 identification with which the datagram will be sent. On Linux, an
    /// unconnected socket with `IP_MTU_DISCOVER=IP_PMTUDISC_DO` sends the identification 0, and the
    /// nth segment of a GSO send has the identification n − 1. Over IPv6, `ident` is ignored.
    pub fn seal(&self, datagram: &mut [u8], ident: u16) {
        if let Some((covered, icrc)) = if_long_enough(datagram.len(), datagram.split_last_chunk_mut()) {
            *icrc = self.compute(covered, ident).to_le_bytes();
        }
    }

    /// Verifies the ICRC in the last four bytes of `datagram`, which is the complete UDP payload.
    /// If the ICRC is wrong for the IPv4 identification `hint`, the method solves for the
    /// identification. Over IPv6, `hint` is ignored.
    ///
    /// Both checks together take one pass over the bytes. Solving detects fewer corruptions (see
    /// the [module](self)).
    pub fn verify(&self, datagram: &[u8], hint: u16) -> Verdict {
        let Some((covered, icrc)) = if_long_enough(datagram.len(), datagram.split_last_chunk()) else {
            return Verdict::TooShort;
        };
        let difference = self.compute(covered, hint) ^ u32::from_le_bytes(*icrc);
        if difference == 0 {
            return Verdict::Good { ident: if self.v4 { hint } else { 0 }, solved: false };
        }
        if !self.v4 {
            return Verdict::Bad;
        }
        // The identification begins at byte 4 of the IP header. After the rewind to the start of
        // the field, the low eight bits of the register apply to the first byte of the field.
        let ident_difference = crc_rewind::rewind(difference, IPV4_LEN - 4 + UDP_LEN + covered.len());
        if ident_difference >> 16 != 0 {
            return Verdict::Bad;
        }
        Verdict::Good { ident: hint ^ (ident_difference as u16).swap_bytes(), solved: true }
    }

    /// `covered` is the datagram without its ICRC. It begins with a complete BTH.
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

/// Returns `parts` if a datagram of `len` bytes is long enough for a BTH and an ICRC. `parts` are
/// the covered bytes and the ICRC, shared or mutable.
fn if_long_enough<T>(len: usize, parts: Option<T>) -> Option<T> {
    parts.filter(|_| len >= BTH_LEN + ICRC_LEN)
}

/// Verifies the ICRC of a frame that was captured completely. The frame contains the
/// identification, so the function does not solve for it. The ICRC covers IPv4 options without a
/// mask.
pub fn verify_frame(frame: &Frame<'_>) -> Verdict {
    verify_segment(frame, frame.datagram, 0)
}

/// Returns the length of the datagrams in a frame. The last datagram may be shorter. A capture at
/// the sender, on loopback or behind GRO shows a GSO run as one long frame. The frame has the
/// headers of the run's first datagram, and no field with the length of the datagrams.
///
/// The function returns the shortest length at which a packet begins at every multiple and at least
/// one ICRC is correct. If there is no such length, it returns the length of the UDP payload.
pub fn segment_len(frame: &Frame<'_>) -> usize {
    /// `UDP_MAX_SEGMENTS` of Linux.
    const MAX_SEGMENTS: usize = 128;
    let all = frame.datagram;
    if verify_frame(frame).is_good() {
        return all.len();
    }
    let is_packet = |datagram: &[u8]| match datagram {
        [code, flags, pkey @ ..] if datagram.len() >= BTH_LEN + ICRC_LEN => {
            opcode::name(*code).is_some() && flags & 0x0f == 0 && pkey[..2] == all[2..4]
        }
        _ => false,
    };
    let shortest = all.len().div_ceil(MAX_SEGMENTS).next_multiple_of(4).max(BTH_LEN + ICRC_LEN);
    let mut lengths = (shortest..all.len()).step_by(4).filter(|&len| all.chunks(len).all(is_packet));
    let is_sealed = |&len: &usize| {
        all.chunks(len).zip(0..).any(|(datagram, index)| verify_segment(frame, datagram, index).is_good())
    };
    lengths.find(is_sealed).unwrap_or(all.len())
}

/// Verifies the ICRC of the datagram with this index in a GSO run. The kernel sends each datagram
/// with the headers of the frame and the datagram's own length. Over IPv4, the identification is
/// the frame's identification plus the index.
pub fn verify_segment(frame: &Frame<'_>, datagram: &[u8], index: u16) -> Verdict {
    let Some((covered, icrc)) = if_long_enough(datagram.len(), datagram.split_last_chunk()) else {
        return Verdict::TooShort;
    };
    // An IPv4 header with options has at most 60 bytes.
    let mut head = [0; 60 + UDP_LEN + BTH_LEN];
    let udp = frame.ip.len().min(60);
    let udp_len = (UDP_LEN + datagram.len()) as u16;
    let ident = frame.ident().wrapping_add(index);
    head[..udp].copy_from_slice(&frame.ip[..udp]);
    let v4 = frame.dst.is_ipv4();
    if v4 {
        head[2..4].copy_from_slice(&udp_len.wrapping_add(udp as u16).to_be_bytes());
        head[4..6].copy_from_slice(&ident.to_be_bytes());
        for at in [1, 8, 10, 11] {
            head[at] = 0xff;
        }
    } else {
        head[0] |= 0x0f;
        head[4..6].copy_from_slice(&udp_len.to_be_bytes());
        for at in [1, 2, 3, 7] {
            head[at] = 0xff;
        }
    }
    let bth = udp + UDP_LEN;
    head[udp..bth].copy_from_slice(frame.udp);
    head[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
    head[udp + 6..bth].fill(0xff);
    let crc = masked_crc(&mut head[..bth + BTH_LEN], covered);
    if crc == u32::from_le_bytes(*icrc) {
        Verdict::Good { ident: if v4 { ident } else { 0 }, solved: false }
    } else {
        Verdict::Bad
    }
}

/// Returns the CRC over eight bytes 0xff, the headers in `head` and the bytes of `covered` after
/// its BTH. `head` contains the masked IP and UDP headers, and space for the masked BTH at its end.
/// `covered` begins with a complete BTH.
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
