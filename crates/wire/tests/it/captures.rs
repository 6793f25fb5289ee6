//! Parses, verifies and re-emits every packet of the captures of the kernel's soft-RoCE.

use mitra_wire::frame::{Frame, LinkType, encode};
use mitra_wire::icrc::verify_frame;
use mitra_wire::*;

/// The number of packets in all captures, from tests/data/captures/README.md.
const PACKETS: usize = 40 + 20 + 30 + 40 + 30 + 20 + 40 + 40 + 168 + 64 + 8 + 8 + 40;

/// `f` takes the capture's name, the frame's bytes and the parsed frame.
fn each_frame(mut f: impl FnMut(&str, &[u8], Frame<'_>)) {
    let mut count = 0;
    for (name, file) in crate::common::captures() {
        for record in pcap::records(&file) {
            let record = record.unwrap();
            assert_eq!(record.original_len as usize, record.bytes.len(), "{name}: captured whole");
            let link = LinkType::from_number(record.link).unwrap();
            f(&name, record.bytes, Frame::parse(link, record.bytes).unwrap());
            count += 1;
        }
    }
    assert_eq!(count, PACKETS);
}

#[test]
fn packets_are_re_emitted_byte_for_byte() {
    each_frame(|name, _, frame| {
        let (bytes, _) = frame.datagram.split_last_chunk::<ICRC_LEN>().unwrap();
        let packet = Packet::parse(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut out = Vec::new();
        packet.emit_to(&mut out);
        assert_eq!(out, bytes, "{name}: {packet}");
        assert_eq!(packet.opcode(), bytes[0]);

        let mut exact = vec![0xee; packet.emitted_len()];
        assert_eq!(packet.emit(&mut exact), bytes.len());
        assert_eq!(exact, bytes, "{name}: {packet}");
        let mut short = vec![0xee; bytes.len() - 1];
        assert_eq!(packet.emit(&mut short), 0);
        assert!(short.iter().all(|&b| b == 0xee), "nothing is written to a buffer that is too short");
    });
}

#[test]
fn icrcs_verify_and_seal_reproduces_them() {
    each_frame(|name, _, frame| {
        let ident = frame.ident();
        let good = Verdict::Good { ident, solved: false };
        assert_eq!(verify_frame(&frame), good, "{name}");
        let path = IcrcPath::new(frame.src, frame.dst);
        assert_eq!(path.verify(frame.datagram, ident), good, "{name}");
        let mut datagram = frame.datagram.to_vec();
        let len = datagram.len();
        datagram[len - ICRC_LEN..].fill(0);
        path.seal(&mut datagram, ident);
        assert_eq!(datagram, frame.datagram, "{name}");
    });
}

#[test]
fn unknown_identifications_are_solved_for() {
    let mut idents = std::collections::HashSet::new();
    each_frame(|name, _, frame| {
        let ident = frame.ident();
        idents.insert(ident);
        let path = IcrcPath::new(frame.src, frame.dst);
        for hint in [0, 1, 0x8000, !ident, ident ^ 0x0100] {
            let expected = Verdict::Good { ident, solved: hint != ident };
            assert_eq!(path.verify(frame.datagram, hint), expected, "{name}, hint {hint}");
        }
    });
    assert!(idents.len() > 300, "the captures have too few different identifications for this test");
}

#[test]
fn icrc_covers_port_and_dont_fragment_flag() {
    each_frame(|name, _, frame| {
        let ident = frame.ident();
        let path = IcrcPath::new(frame.src, frame.dst);
        let mut other = frame.src;
        other.set_port(other.port() ^ 1);
        assert_eq!(IcrcPath::new(other, frame.dst).verify(frame.datagram, ident), Verdict::Bad, "{name}");
        // The flag "don't fragment" follows the identification field. A wrong flag cannot be
        // compensated by another identification.
        let path = path.with_dont_fragment(false);
        assert_eq!(path.verify(frame.datagram, ident), Verdict::Bad, "{name}");
    });
}

#[test]
fn encoded_frames_equal_captured_frames_except_for_hardware_addresses() {
    each_frame(|name, bytes, frame| {
        let mut out = Vec::new();
        encode(frame.src, frame.dst, frame.ident(), frame.datagram, &mut out);
        assert_eq!(out[12..], bytes[12..], "{name}");
    });
}
