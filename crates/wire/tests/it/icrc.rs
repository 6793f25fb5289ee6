//! The ICRC: compared with an independent bit-by-bit computation, solved for the identification,
//! and verified for corrupt packets.

use std::net::SocketAddr;

use mitra_prng::Prng;
use mitra_wire::*;
use proptest::prelude::*;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Computes the ICRC bit by bit over the masked headers and the data (annex A17). `covered` is the
/// datagram without its ICRC.
fn reference(src: SocketAddr, dst: SocketAddr, ident: u16, dont_fragment: bool, covered: &[u8]) -> u32 {
    let udp_len = (8 + covered.len() + 4) as u16;
    let mut bytes = vec![0xff; 8];
    match (src, dst) {
        (SocketAddr::V4(src), SocketAddr::V4(dst)) => {
            bytes.extend([0x45, 0xff]);
            bytes.extend((udp_len + 20).to_be_bytes());
            bytes.extend(ident.to_be_bytes());
            bytes.extend([if dont_fragment { 0x40 } else { 0 }, 0, 0xff, 17, 0xff, 0xff]);
            bytes.extend(src.ip().octets());
            bytes.extend(dst.ip().octets());
        }
        (SocketAddr::V6(src), SocketAddr::V6(dst)) => {
            bytes.extend([0x6f, 0xff, 0xff, 0xff]);
            bytes.extend(udp_len.to_be_bytes());
            bytes.extend([17, 0xff]);
            bytes.extend(src.ip().octets());
            bytes.extend(dst.ip().octets());
        }
        _ => unreachable!(),
    }
    bytes.extend(src.port().to_be_bytes());
    bytes.extend(dst.port().to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0xff, 0xff]);
    bytes.extend(&covered[..4]);
    bytes.push(0xff);
    bytes.extend(&covered[5..]);
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| (c >> 1) ^ if c & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

fn v4_pair() -> (SocketAddr, SocketAddr) {
    (address("127.0.0.2:49152"), address("127.0.0.3:4791"))
}

fn v6_pair() -> (SocketAddr, SocketAddr) {
    (address("[fd00::1]:49152"), address("[fd00::2]:4791"))
}

fn sealed(path: &IcrcPath, ident: u16, len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
    let packet = Packet::new(Transport::Rc, Qpn::new(0x11), Psn::new(5), Message::SendOnly, &payload);
    let mut datagram = Vec::new();
    packet.emit_to(&mut datagram);
    datagram.extend([0; ICRC_LEN]);
    path.seal(&mut datagram, ident);
    datagram
}

#[test]
fn seal_matches_bit_by_bit_reference() {
    for (src, dst) in [v4_pair(), v6_pair()] {
        for len in (0..300).chain([1024, 4096, 65_000]) {
            for (ident, df) in [(0, true), (1, true), (0xa55a, false)] {
                let path = IcrcPath::new(src, dst).with_dont_fragment(df);
                let datagram = sealed(&path, ident, len);
                let (covered, icrc) = datagram.split_last_chunk().unwrap();
                let expected = reference(src, dst, ident, df, covered);
                assert_eq!(u32::from_le_bytes(*icrc), expected, "{src} {len} bytes");
            }
        }
    }
}

#[test]
fn congestion_marks_are_not_covered() {
    let (src, dst) = v4_pair();
    let path = IcrcPath::new(src, dst);
    let mut datagram = sealed(&path, 0, 64);
    datagram[4] |= 0xc0;
    assert!(path.verify(&datagram, 0).is_good());
}

#[test]
fn ipv4_mapped_addresses_count_as_ipv4() {
    let (src, dst) = v4_pair();
    let mapped = IcrcPath::new(address("[::ffff:127.0.0.2]:49152"), address("[::ffff:127.0.0.3]:4791"));
    assert_eq!(mapped, IcrcPath::new(src, dst));
    assert!(mapped.is_ipv4());
}

#[test]
fn every_identification_is_solved_for() {
    let (src, dst) = v4_pair();
    let path = IcrcPath::new(src, dst);
    for ident in (0..=u16::MAX).step_by(251).chain([1, 0xff, 0x100, 0xffff]) {
        let datagram = sealed(&path, ident, 256);
        let expected = Verdict::Good { ident, solved: ident != 7 };
        assert_eq!(path.verify(&datagram, 7), expected);
    }
    for len in (0..9000).step_by(113).chain([65_000]) {
        let datagram = sealed(&path, 0xbeef, len);
        assert_eq!(path.verify(&datagram, 0), Verdict::Good { ident: 0xbeef, solved: true }, "{len} bytes");
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    for (src, dst) in [v4_pair(), v6_pair()] {
        let path = IcrcPath::new(src, dst);
        let original = sealed(&path, 0, 1024);
        for bit in 0..original.len() * 8 {
            let mut datagram = original.clone();
            datagram[bit / 8] ^= 1 << (bit % 8);
            let verdict = path.verify(&datagram, 0);
            // The ICRC does not cover byte 4 of the BTH, which routers may change.
            assert_eq!(verdict.is_good(), bit / 8 == 4, "{src}: bit {bit}: {verdict:?}");
        }
    }
}

/// Solving for the identification uses up 16 of the 32 bits. About one random corruption in 2^16
/// therefore passes as solved.
#[test]
fn solving_misses_about_one_corruption_in_65536() {
    let (src, dst) = v4_pair();
    let path = IcrcPath::new(src, dst);
    let mut datagram = sealed(&path, 0, 16);
    let (mut missed, mut prng) = (0, Prng::new(1));
    const TRIES: u64 = 1 << 20;
    for _ in 0..TRIES {
        datagram[12..16].copy_from_slice(&(prng.bits() as u32).to_be_bytes());
        match path.verify(&datagram, 0) {
            Verdict::Good { solved: true, .. } => missed += 1,
            Verdict::Bad => {}
            other => panic!("a corrupted packet passed under the hint: {other:?}"),
        }
    }
    let expected = TRIES >> 16;
    assert!((1..4 * expected).contains(&missed), "{missed} missed, about {expected} expected");
}

#[test]
fn short_datagrams_are_neither_sealed_nor_verified() {
    let (src, dst) = v4_pair();
    let path = IcrcPath::new(src, dst);
    for len in 0..16 {
        let mut datagram = vec![0xee; len];
        path.seal(&mut datagram, 0);
        assert_eq!(datagram, vec![0xee; len]);
        assert_eq!(path.verify(&datagram, 0), Verdict::TooShort);
    }
    assert_ne!(path.verify(&[0xee; 16], 0), Verdict::TooShort);
}

proptest! {
    #[test]
    fn sealed_packets_verify_through_a_frame(
        (packet, payload) in crate::common::packet(), ident in any::<u16>(), hint in any::<u16>(), v4 in any::<bool>()
    ) {
        let (src, dst) = if v4 { v4_pair() } else { v6_pair() };
        let path = IcrcPath::new(src, dst);
        let mut datagram = Vec::new();
        Packet { payload: &payload, ..packet }.emit_to(&mut datagram);
        datagram.extend([0; ICRC_LEN]);
        path.seal(&mut datagram, ident);
        let ident = if v4 { ident } else { 0 };
        let expected = Verdict::Good { ident, solved: v4 && hint != ident };
        prop_assert_eq!(path.verify(&datagram, hint), expected);

        let mut bytes = Vec::new();
        frame::encode(src, dst, ident, &datagram, &mut bytes);
        let frame = frame::Frame::parse(frame::LinkType::Ethernet, &bytes).unwrap();
        prop_assert_eq!((frame.src, frame.dst, frame.datagram), (src, dst, &datagram[..]));
        prop_assert_eq!(icrc::verify_frame(&frame), Verdict::Good { ident, solved: false });
    }
}
