//! Parsing and emitting: packets given as literal bytes, malformed packets, and random packets.

use mitra_wire::*;
use proptest::prelude::*;

/// A WRITE of 5 bytes in one packet, with immediate data. It is solicited, requests an
/// acknowledgement and has three pad bytes.
const WRITE_ONLY_IMM: [u8; 40] = [
    0x0b, 0xb0, 0xff, 0xff, 0x00, 0x00, 0x01, 0x11, 0x80, 0xff, 0xff, 0xfe, // BTH
    0x00, 0x00, 0x7f, 0xdb, 0x99, 0x71, 0xc0, 0x00, 0x00, 0x00, 0x0a, 0x05, 0, 0, 0, 5, // RETH
    0xde, 0xad, 0xbe, 0xef, // ImmDt
    b'h', b'e', b'l', b'l', b'o', 0, 0, 0,
];

#[test]
fn write_with_immediate_round_trips() {
    let reth = Reth { va: 0x7fdb_9971_c000, rkey: 0xa05, len: 5 };
    let mut packet = Packet::new(
        Transport::Rc,
        Qpn::new(0x111),
        Psn::new(0xff_fffe),
        Message::WriteOnlyImm(reth, 0xdead_beef),
        b"hello",
    );
    (packet.solicited, packet.ack_req) = (true, true);
    assert_eq!(Packet::parse(&WRITE_ONLY_IMM), Ok(packet));
    let mut out = Vec::new();
    packet.emit_to(&mut out);
    assert_eq!(out, WRITE_ONLY_IMM);

    let mut gathered = Vec::new();
    packet.emit_headers_to(5, &mut gathered);
    gathered.extend_from_slice(b"hello");
    gathered.resize(gathered.len() + Packet::pad_for(5), 0);
    assert_eq!(gathered, WRITE_ONLY_IMM);
}

#[test]
fn ud_send_round_trips() {
    let bytes = [
        0x64, 0x40, 0x80, 0x01, 0xc0, 0, 0, 1, 0x00, 0, 0, 9, // BTH: migrated, FECN and BECN
        0x80, 0x01, 0, 0, 0, 0, 0, 1, // DETH
        1, 2, 3, 4,
    ];
    let deth = Deth { qkey: 0x8001_0000, src_qp: Qpn::new(1) };
    let mut packet =
        Packet::new(Transport::Ud(deth), Qpn::new(1), Psn::new(9), Message::SendOnly, &[1, 2, 3, 4]);
    (packet.mig_req, packet.fecn, packet.becn, packet.pkey) = (true, true, true, 0x8001);
    assert_eq!(Packet::parse(&bytes), Ok(packet));
    let mut out = Vec::new();
    packet.emit_to(&mut out);
    assert_eq!(out, bytes);
}

#[test]
fn xrc_write_with_immediate_has_xrceth_before_reth() {
    let bytes = [
        0xab, 0x00, 0xff, 0xff, 0, 0, 1, 0x11, 0x80, 0, 0, 9, // BTH
        0x00, 0x12, 0x34, 0x56, // XRCETH
        0, 0, 0x7f, 0xdb, 0x99, 0x71, 0xc0, 0, 0, 0, 0x0a, 5, 0, 0, 0, 4, // RETH
        0xde, 0xad, 0xbe, 0xef, // ImmDt
        1, 2, 3, 4,
    ];
    let reth = Reth { va: 0x7fdb_9971_c000, rkey: 0xa05, len: 4 };
    let transport = Transport::Xrc(Srqn::new(0x12_3456));
    let message = Message::WriteOnlyImm(reth, 0xdead_beef);
    let mut packet = Packet::new(transport, Qpn::new(0x111), Psn::new(9), message, &[1, 2, 3, 4]);
    packet.ack_req = true;
    assert_eq!(Packet::parse(&bytes), Ok(packet));
    let mut out = Vec::new();
    packet.emit_to(&mut out);
    assert_eq!(out, bytes);
    assert_eq!(Packet::parse(&bytes[..12]), Err(ParseError::Truncated { have: 12, need: 16 }));
}

#[test]
fn xrc_middle_packet_has_xrceth_and_response_has_none() {
    let middle = [0xa1, 0, 0xff, 0xff, 0, 0, 1, 0x11, 0, 0, 0, 9, 0x55, 0, 0, 7, 1, 2, 3, 4];
    let parsed = Packet::parse(&middle).unwrap();
    assert_eq!(
        (parsed.transport, parsed.message, parsed.payload),
        (Transport::Xrc(Srqn::new(7)), Message::SendMiddle, &[1, 2, 3, 4][..])
    );
    assert_eq!(parsed.reserved.extension, 0x55);
    let ack = [0xb1, 0, 0xff, 0xff, 0, 0, 1, 0x11, 0, 0, 0, 9, 0x1f, 0, 0, 7];
    let parsed = Packet::parse(&ack).unwrap();
    let message = Message::Ack(Aeth { syndrome: Syndrome::ACK, msn: 7 });
    assert_eq!((parsed.transport, parsed.message), (Transport::Xrc(Srqn::new(0)), message));
    // The number of a response is not emitted.
    let mut out = Vec::new();
    Packet { transport: Transport::Xrc(Srqn::new(7)), ..parsed }.emit_to(&mut out);
    assert_eq!(out, ack);
    assert_eq!(parsed.headers_len(), ack.len());
}

#[test]
fn atomic_acknowledgement_round_trips() {
    let bytes = [
        0x12, 0x00, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0, 0x10, 0, // BTH
        0x1f, 0, 0, 7, // AETH
        0, 0, 0, 0, 0, 0, 0, 41, // AtomicAckETH
    ];
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: 7 };
    let packet =
        Packet::new(Transport::Rc, Qpn::new(0x12), Psn::new(0x1000), Message::AtomicAck(aeth, 41), &[]);
    assert_eq!(Packet::parse(&bytes), Ok(packet));
    // `emit_to` ignores the payload if the operation has none.
    let mut out = Vec::new();
    Packet { payload: b"stray", ..packet }.emit_to(&mut out);
    assert_eq!(out, bytes);
}

#[test]
fn malformed_packets_are_refused() {
    let edited = |edits: &[(usize, u8)]| {
        let mut bytes = WRITE_ONLY_IMM.to_vec();
        edits.iter().for_each(|&(at, byte)| bytes[at] = byte);
        bytes
    };
    let parse = |bytes: &[u8]| Packet::parse(bytes).map(|packet| packet.opcode());
    assert_eq!(parse(&[]), Err(ParseError::Truncated { have: 0, need: 12 }));
    assert_eq!(parse(&WRITE_ONLY_IMM[..24]), Err(ParseError::Truncated { have: 24, need: 28 }));
    assert_eq!(parse(&WRITE_ONLY_IMM[..28]), Err(ParseError::Truncated { have: 28, need: 32 }));
    assert_eq!(parse(&edited(&[(1, 0xb1)])), Err(ParseError::BadVersion(1)));
    assert_eq!(parse(&WRITE_ONLY_IMM[..39]), Err(ParseError::BadLength(39)));
    // A pad count above the number of bytes after the headers; a pad count and a payload after the
    // headers of an opcode without payload.
    assert_eq!(parse(&WRITE_ONLY_IMM[..32]), Err(ParseError::BadPad { pad: 3, available: 0 }));
    assert_eq!(parse(&edited(&[(0, 0x0c)])), Err(ParseError::BadPad { pad: 3, available: 12 }));
    assert_eq!(parse(&edited(&[(0, 0x0c), (1, 0)])), Err(ParseError::UnexpectedPayload(12)));
    // Reserved operations, READ and invalidate on UC, WRITE on UD, reliable datagram, XRC's
    // reserved operations, congestion notification.
    for code in [
        0x15, 0x18, 0x1c, 0x1d, 0x1f, 0x2c, 0x2d, 0x31, 0x36, 0x37, 0x60, 0x63, 0x66, 0x6a, 0x77, 0x44, 0xb5,
        0xb8, 0xbf, 0x81,
    ] {
        assert_eq!(parse(&edited(&[(0, code)])), Err(ParseError::UnknownOpcode(code)));
    }
}

#[test]
fn exactly_the_named_opcodes_parse() {
    for code in 0..=255u8 {
        // A packet of an opcode without payload parses only if it has the exact length of its
        // headers. All lengths are therefore tried.
        let parsed = (12..=44).step_by(4).find_map(|len| {
            let mut bytes = vec![0; len];
            bytes[0] = code;
            Packet::parse(&bytes).ok().map(|packet| packet.opcode())
        });
        let named = opcode::name(code).is_some()
            && ![opcode::CNP, opcode::FLUSH, opcode::ATOMIC_WRITE].contains(&code);
        assert_eq!(parsed, named.then_some(code), "opcode 0x{code:02x}");
    }
}

proptest! {
    #[test]
    fn packets_round_trip((packet, payload) in crate::common::packet()) {
        let packet = Packet { payload: &payload, ..packet };
        let mut out = Vec::new();
        packet.emit_to(&mut out);
        prop_assert_eq!(out.len(), packet.emitted_len());
        prop_assert_eq!(out.len() % 4, 0);
        prop_assert_eq!(Packet::parse(&out), Ok(packet));
        prop_assert!(!packet.to_string().is_empty());

        let mut buf = vec![0xee; out.len() + 3];
        prop_assert_eq!(packet.emit(&mut buf), out.len());
        prop_assert_eq!(&buf[..out.len()], &out[..]);
        prop_assert_eq!(&buf[out.len()..], &[0xee; 3]);
    }

    #[test]
    fn parsed_bytes_are_re_emitted_unchanged(mut bytes in prop::collection::vec(any::<u8>(), 12..80), code in any::<u8>()) {
        bytes.truncate(bytes.len() & !3);
        bytes[0] = code & 0xbf; // RC, UC and XRC
        bytes[1] &= 0xc0;
        if let Ok(packet) = Packet::parse(&bytes) {
            let mut out = Vec::new();
            packet.emit_to(&mut out);
            prop_assert_eq!(out, bytes);
        }
    }

    #[test]
    fn any_transport_and_message_emit((transport, message) in (crate::common::packet(), crate::common::message())
        .prop_map(|((packet, _), message)| (packet.transport, message)))
    {
        let packet = Packet::new(transport, Qpn::new(1), Psn::new(2), message, b"x");
        let mut out = Vec::new();
        packet.emit_to(&mut out);
        prop_assert_eq!(out.len(), packet.emitted_len());
        prop_assert_eq!(Packet::parse(&out).is_ok(), transport.carries(&message));
    }
}
