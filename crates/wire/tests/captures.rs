//! Every captured packet of the kernel's soft-RoCE parses, re-emits byte for byte and verifies (classic pcap,
//! Ethernet, IPv4 without options).
use mitra_wire::*;
use std::net::SocketAddr;

#[test]
fn captures() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/captures");
    let mut n = 0;
    for f in std::fs::read_dir(dir).unwrap() {
        let f = f.unwrap().path();
        if f.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        let b = std::fs::read(&f).unwrap();
        let mut at = 24;
        while at < b.len() {
            let len = u32::from_le_bytes(b[at + 8..at + 12].try_into().unwrap()) as usize;
            let fr = &b[at + 16..at + 16 + len];
            at += 16 + len;
            let ip = &fr[14..];
            let ident = u16::from_be_bytes([ip[4], ip[5]]);
            let a = |o: usize, p: usize| -> SocketAddr {
                let o: [u8; 4] = ip[o..o + 4].try_into().unwrap();
                (o, u16::from_be_bytes([ip[p], ip[p + 1]])).into()
            };
            let path = IcrcPath::new(a(12, 20), a(16, 22)).with_dont_fragment(ip[6] & 0x40 != 0);
            let total = u16::from_be_bytes([ip[2], ip[3]]) as usize;
            let d = &ip[28..total];
            assert_eq!(path.verify(d, ident), Verdict::Good { ident, solved: false }, "{f:?}");
            assert_eq!(path.verify(d, !ident), Verdict::Good { ident, solved: true }, "{f:?}");
            let p = Packet::parse(&d[..d.len() - 4]).unwrap();
            let mut out = vec![];
            p.emit_to(&mut out);
            out.extend([0; 4]);
            path.seal(&mut out, ident);
            assert_eq!(out, d);
            n += 1;
        }
    }
    assert_eq!(n, 548, "packets in all captures");
}
