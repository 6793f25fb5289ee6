//! Bytes of a datagram without ICRC. A packet that parses is emitted again, prints, and survives
//! sealing.

use std::net::SocketAddr;

use mitra_wire::{ICRC_LEN, IcrcPath, Packet, Verdict};

pub(crate) fn run(data: &[u8]) {
    let Ok(packet) = Packet::parse(data) else { return };
    assert!(packet.transport.carries(&packet.message));
    assert_eq!(packet.opcode(), data[0]);
    assert!(!packet.to_string().is_empty());

    let mut out = Vec::new();
    packet.emit_to(&mut out);
    // Only the content of the pad may change.
    let pad = Packet::pad_for(packet.payload.len());
    assert_eq!(out.len(), data.len());
    assert_eq!(out[..out.len() - pad], data[..out.len() - pad]);
    assert_eq!(Packet::parse(&out), Ok(packet));
    let mut exact = vec![0xee; packet.emitted_len()];
    assert_eq!(packet.emit(&mut exact), out.len());
    assert_eq!(exact, out);

    if out.len() > 65_000 {
        return;
    }
    let ident = u16::from_be_bytes([data[2], data[11]]);
    let (src, dst) = (SocketAddr::from(([127, 0, 0, 2], 49152)), SocketAddr::from(([127, 0, 0, 3], 4791)));
    let path = IcrcPath::new(src, dst);
    out.extend_from_slice(&[0; ICRC_LEN]);
    path.seal(&mut out, ident);
    assert_eq!(path.verify(&out, ident), Verdict::Good { ident, solved: false });
    assert_eq!(path.verify(&out, !ident), Verdict::Good { ident, solved: true });
}
