//! Parsing and building of frames: link layers, malformed headers, and the fields that the ICRC
//! covers.

use std::cmp::Ordering;

use mitra_wire::frame::{Frame, FrameError, LinkType, encode};
use mitra_wire::icrc::verify_frame;
use mitra_wire::*;

fn ip_packet() -> Vec<u8> {
    let (src, dst) = ("10.0.0.1:50000".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: 1 };
    let packet = Packet::new(Transport::Rc, Qpn::new(0x11), Psn::new(1), Message::Ack(aeth), &[]);
    let mut datagram = Vec::new();
    packet.emit_to(&mut datagram);
    datagram.extend_from_slice(&[0; 4]);
    IcrcPath::new(src, dst).seal(&mut datagram, 7);
    let mut frame = Vec::new();
    encode(src, dst, 7, &datagram, &mut frame);
    assert_eq!(frame.len(), frame::IPV4_OVERHEAD + datagram.len());
    frame.split_off(14)
}

fn prepend(link: &[u8], ip: &[u8]) -> Vec<u8> {
    [link, ip].concat()
}

fn edited(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut ip = ip_packet();
    ip[at..at + bytes.len()].copy_from_slice(bytes);
    ip
}

#[test]
fn datagram_is_found_after_every_link_header() {
    let ip = ip_packet();
    let cooked = |protocol: [u8; 2]| [[0; 14].as_slice(), &protocol].concat();
    let cooked2 = |protocol: [u8; 2]| [protocol.as_slice(), &[0; 18]].concat();
    let ethernet = |rest: &[u8]| [[2; 12].as_slice(), rest].concat();
    let cases = [
        (1, ethernet(&[0x08, 0x00])),
        (1, ethernet(&[0x81, 0x00, 0, 5, 0x08, 0x00])),
        (1, ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0x00, 0, 6, 0x08, 0x00])),
        (101, vec![]),
        (228, vec![]),
        (113, cooked([0x08, 0x00])),
        (276, cooked2([0x08, 0x00])),
        (0, vec![2, 0, 0, 0]),
        (108, vec![0, 0, 0, 2]),
    ];
    for (number, header) in cases {
        let bytes = prepend(&header, &ip);
        let link = LinkType::from_number(number).unwrap();
        let frame = Frame::parse(link, &bytes).unwrap_or_else(|error| panic!("link {number}: {error}"));
        assert_eq!(frame.src, "10.0.0.1:50000".parse().unwrap());
        assert_eq!(frame.dst, "10.0.0.2:4791".parse().unwrap());
        assert_eq!(frame.ident(), 7);
        assert_eq!(frame.datagram, &ip[28..]);
        assert_eq!(verify_frame(&frame), Verdict::Good { ident: 7, solved: false });
        // A sender pads a short Ethernet frame to the minimum length. The padding is not part of
        // the datagram.
        let padded = prepend(&bytes, &[0xee; 9]);
        assert_eq!(Frame::parse(link, &padded).unwrap().datagram, frame.datagram);
        for len in 0..bytes.len() {
            // The datagram may be truncated, the headers may not.
            match (Frame::parse(link, &bytes[..len]), (header.len() + 28).cmp(&len)) {
                (Ok(frame), Ordering::Less | Ordering::Equal) => {
                    assert_eq!(frame.datagram, &bytes[header.len() + 28..len]);
                    assert_eq!(frame.datagram_len, ip.len() - 28);
                }
                (Err(FrameError::Truncated(_)), Ordering::Greater) => {}
                (parsed, _) => panic!("link {number}, {len} bytes: {parsed:?}"),
            }
        }
    }
    assert_eq!(LinkType::from_number(147), None);
    let arp = ethernet(&[0x08, 0x06, 0, 1]);
    assert_eq!(Frame::parse(LinkType::Ethernet, &arp), Err(FrameError::NotRoce));
}

#[test]
fn other_traffic_is_not_roce_even_when_truncated() {
    let parse = |ip: &[u8]| Frame::parse(LinkType::RawIp, ip).map(|frame| frame.datagram.len());
    assert_eq!(parse(&edited(9, &[6])), Err(FrameError::NotRoce), "TCP");
    assert_eq!(parse(&edited(9, &[6])[..20]), Err(FrameError::NotRoce), "TCP, cut");
    assert_eq!(parse(&edited(22, &[0x12, 0xb6])), Err(FrameError::NotRoce), "another port");
    assert_eq!(parse(&edited(22, &[0x12, 0xb6])[..28]), Err(FrameError::NotRoce), "another port, cut");
    assert_eq!(parse(&edited(6, &[0, 1])), Err(FrameError::NotRoce), "a later fragment has no ports");
    assert_eq!(parse(&edited(0, &[0x35])), Err(FrameError::NotRoce), "IP version 3");
}

#[test]
fn contradictory_headers_are_malformed() {
    let parse = |ip: &[u8]| Frame::parse(LinkType::RawIp, ip).map(|frame| frame.datagram.len());
    let malformed = |ip: &[u8]| matches!(parse(ip), Err(FrameError::Malformed(_)));
    assert!(malformed(&edited(0, &[0x44])), "a header of 16 bytes");
    assert!(malformed(&edited(6, &[0x20, 0])), "a first fragment");
    assert!(malformed(&edited(24, &[0, 7])), "a UDP length below its header");
    assert!(malformed(&edited(2, &[0, 47])), "IP one shorter than UDP");
    assert!(malformed(&edited(2, &[0, 10])), "IP shorter than itself");
}

#[test]
fn icrc_covers_ipv4_options_and_invariant_fields() {
    // Inserts four "no operation" options and corrects the header length and the total length.
    let mut ip = ip_packet();
    ip.splice(20..20, [1, 1, 1, 1]);
    ip[0] = 0x46;
    ip[3] += 4;
    let frame = Frame::parse(LinkType::RawIp, &ip).unwrap();
    assert_eq!(frame.ip.len(), 24);
    assert_eq!(verify_frame(&frame), Verdict::Bad, "sealed for a header without options");
    let end = ip.len() - ICRC_LEN;
    let mut pseudo = [&[0xff; 8][..], &ip[..end]].concat();
    for at in [1, 8, 10, 11, 24 + 6, 24 + 7, 24 + 8 + 4] {
        pseudo[8 + at] = 0xff;
    }
    ip[end..].copy_from_slice(&crc32fast::hash(&pseudo).to_le_bytes());
    let frame = Frame::parse(LinkType::RawIp, &ip).unwrap();
    assert_eq!(verify_frame(&frame), Verdict::Good { ident: 7, solved: false });

    // The ICRC does not cover the type of service, the time to live, both checksums and byte 4 of
    // the BTH. The ICRC covers all other bytes, except the bytes whose change makes `parse` fail.
    let ip = ip_packet();
    let mut not_covered = Vec::new();
    for (at, byte) in ip.iter().enumerate() {
        let changed = edited(at, &[byte ^ 0x01]);
        if Frame::parse(LinkType::RawIp, &changed).is_ok_and(|frame| verify_frame(&frame).is_good()) {
            not_covered.push(at);
        }
    }
    assert_eq!(not_covered, [1, 8, 10, 11, 26, 27, 28 + 4]);
}

#[test]
fn ipv6_frame_has_udp_checksum_and_icrc_covers_invariant_fields() {
    let (src, dst) = ("[fd00::1]:50000".parse().unwrap(), "[fd00::2]:4791".parse().unwrap());
    let packet = Packet::new(Transport::Uc, Qpn::new(0x11), Psn::new(1), Message::SendOnly, b"odd");
    let mut datagram = Vec::new();
    packet.emit_to(&mut datagram);
    datagram.extend_from_slice(&[0; 4]);
    IcrcPath::new(src, dst).seal(&mut datagram, 0xffff);
    let mut bytes = Vec::new();
    encode(src, dst, 0, &datagram, &mut bytes);
    assert_eq!(bytes.len(), frame::IPV6_OVERHEAD + datagram.len());
    let frame = Frame::parse(LinkType::Ethernet, &bytes).unwrap();
    assert_eq!((frame.src, frame.dst, frame.ident()), (src, dst, 0));
    assert_ne!(frame.udp[6..8], [0, 0]);
    assert_eq!(verify_frame(&frame), Verdict::Good { ident: 0, solved: false });
    let not_covered: Vec<usize> = (14..bytes.len())
        .filter(|&at| {
            let mut changed = bytes.clone();
            changed[at] ^= 0x01;
            Frame::parse(LinkType::Ethernet, &changed).is_ok_and(|frame| verify_frame(&frame).is_good())
        })
        .map(|at| at - 14)
        .collect();
    // The traffic class and the flow label, the hop limit, the UDP checksum, and byte 4 of the BTH.
    assert_eq!(not_covered, [0, 1, 2, 3, 7, 46, 47, 48 + 4]);
}
