//! The pcap capture of a NIC.

use crate::common::{LinkAttr, connected_pair_with, loopback};
use mitra_softnic::Config;
use mitra_verbs::*;
use mitra_wire::frame::{Frame, LinkType};
use mitra_wire::{Packet, Verdict, icrc, pcap};

#[test]
fn capture_holds_every_packet_with_valid_icrc() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rail.pcap");
    let config = Config { capture: Some(path.clone()), ..loopback() };
    let (a, b) = connected_pair_with(config, loopback(), LinkAttr { mtu: Mtu::M1024, ..LinkAttr::default() });
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 10_000);
    a.post(2, SendOp::Read(b.mr.remote(0)), 20_000, 10_000);
    a.wait_success();
    a.wait_success();
    let datagrams = a.counter("tx_datagrams") + a.counter("rx_datagrams");
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
        assert!(record.ts_ns >= last, "timestamps decrease");
        last = record.ts_ns;
        packets += 1;
    }
    assert!(packets >= datagrams && packets >= 21, "{packets} of {datagrams}");
}
