//! What crosses a rail, as a file that Wireshark reads.

mod common;

use common::{Link, pair_of};
use mitra_softnic::Config;
use mitra_verbs::*;
use mitra_wire::frame::{Frame, LinkType};
use mitra_wire::{Packet, Verdict, icrc, pcap};

#[test]
fn every_packet_is_in_the_file_with_a_good_icrc() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rail.pcap");
    let config = Config { capture: Some(path.clone()), ..Config::loopback() };
    let (a, b) = pair_of(config, Config::loopback(), Link { mtu: Mtu::M1024, ..Link::default() });
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 10_000);
    a.post(2, SendOp::Read(b.mr.remote(0)), 20_000, 10_000);
    a.success();
    a.success();
    let crossed = a.counter("tx_datagrams") + a.counter("rx_datagrams");
    let ip = a.ip();
    drop(a);

    let file = std::fs::read(&path).unwrap();
    let mut packets = 0;
    let mut last = 0;
    for record in pcap::records(&file) {
        let record = record.unwrap();
        let frame = Frame::parse(LinkType::Ethernet, record.bytes).unwrap();
        assert!(matches!(icrc::verify_frame(&frame), Verdict::Good { .. }), "{frame:?}");
        assert!(frame.src.ip() == ip || frame.dst.ip() == ip);
        Packet::parse(&frame.datagram[..frame.datagram.len() - 4]).unwrap();
        assert!(record.ts_ns >= last, "time goes on");
        last = record.ts_ns;
        packets += 1;
    }
    assert!(packets >= crossed && packets >= 21, "{packets} of {crossed}");
}
