//! The input is a link type (first byte) and a frame. The parsed parts lie within the frame, and
//! the two ways to verify the ICRC agree.

use mitra_wire::frame::{Frame, LinkType};
use mitra_wire::icrc::verify_frame;
use mitra_wire::{ICRC_LEN, IcrcPath, Packet, Verdict};

pub(crate) fn run(data: &[u8]) {
    let Some((&link, bytes)) = data.split_first() else { return };
    let link = match link % 5 {
        0 => LinkType::Ethernet,
        1 => LinkType::RawIp,
        2 => LinkType::LinuxSll,
        3 => LinkType::LinuxSll2,
        _ => LinkType::Loopback,
    };
    let Ok(frame) = Frame::parse(link, bytes) else { return };
    assert_eq!(frame.dst.port(), mitra_wire::ROCE_PORT);
    assert!(frame.ip.len() + frame.udp.len() + frame.datagram.len() <= bytes.len());

    let verdict = verify_frame(&frame);
    if let Some((covered, _)) = frame.datagram.split_last_chunk::<ICRC_LEN>() {
        let _ = Packet::parse(covered).map(|packet| packet.to_string());
    }
    // `IcrcPath` covers only IPv4 headers without options, without a fragment offset, and with no
    // flag but "don't fragment". For IPv6, it covers every header.
    let flags = if frame.dst.is_ipv4() { [frame.ip[6], frame.ip[7]] } else { [0x40, 0] };
    let plain = matches!(frame.ip.len(), 20 | 40) && flags[0] & !0x40 == 0 && flags[1] == 0;
    // An IPv4 header of 40 bytes has options. Mitra sends no IPv4-mapped IPv6 packets.
    let same_family = frame.dst.is_ipv4() == (frame.ip.len() == 20)
        && IcrcPath::new(frame.src, frame.dst).is_ipv4() == frame.dst.is_ipv4();
    if plain && same_family {
        let path = IcrcPath::new(frame.src, frame.dst).with_dont_fragment(flags[0] == 0x40);
        match path.verify(frame.datagram, frame.ident()) {
            Verdict::Good { solved: true, .. } => assert_eq!(verdict, Verdict::Bad),
            other => assert_eq!(other, verdict),
        }
    }
}
