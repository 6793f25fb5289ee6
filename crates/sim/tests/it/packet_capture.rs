//! Captures a simulated run in a pcap file, and parses the file.

use std::sync::Arc;
use std::time::Duration;

use mitra_sim::workload::{Plan, RcOptions, WorkloadPeer, connect_rc};
use mitra_sim::{Config, Testbed};
use mitra_test_process::{command, output};
use mitra_verbs::Provider;
use mitra_wire::frame::{Frame, LinkType};
use mitra_wire::{Packet, icrc, pcap};

#[test]
fn run_is_captured_to_pcap() {
    if std::env::var_os("MITRA_SIM_PCAP").is_none() {
        // The test runs itself again in another process, because setting a variable in a running
        // process is not safe.
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let mut again = command(std::env::current_exe().unwrap());
        again.args(["--exact", "packet_capture::run_is_captured_to_pcap"]).env("MITRA_SIM_PCAP", &path);
        let output = output(&mut again);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        check(&std::fs::read(&path).unwrap());
        return;
    }
    let mut config = Config::fault_free();
    config.link.noise.corrupt_ppm = 50_000;
    let mut testbed = Testbed::with_config(1, config, 1);
    let plan = Plan::new(1, 50);
    let none = Plan { tag: 2, ..Plan::new(1, 0) };
    let mut peers = [WorkloadPeer::new(&plan, &none), WorkloadPeer::new(&none, &plan)];
    let nics = testbed.nics.each_ref().map(|n| Arc::clone(&n[0]) as Arc<dyn Provider>);
    let [mut a, mut b] = connect_rc(nics, peers.each_mut(), &RcOptions::default()).unwrap();
    let [mut requester, mut responder] = peers;
    let done = |_: &mitra_sim::World| {
        responder.step(&mut b);
        requester.step(&mut a);
        requester.is_done()
    };
    testbed.world.run_until(done, Duration::from_secs(1)).unwrap_or_else(|e| panic!("{e}"));
}

fn check(bytes: &[u8]) {
    let (mut good, mut bad, mut last_ts_ns) = (0, 0, 0);
    for record in pcap::records(bytes) {
        let record = record.expect("the capture is well-formed");
        assert!(record.ts_ns >= last_ts_ns);
        last_ts_ns = record.ts_ns;
        let frame = Frame::parse(LinkType::Ethernet, record.bytes).expect("the record is a RoCEv2 frame");
        assert!(frame.src.ip().to_string().starts_with("10.0."), "{}", frame.src);
        if icrc::verify_frame(&frame).is_good() {
            let covered = &frame.datagram[..frame.datagram.len() - mitra_wire::ICRC_LEN];
            Packet::parse(covered).expect("a packet with a correct ICRC parses");
            good += 1;
        } else {
            bad += 1;
        }
    }
    assert!(good > 50 && bad > 0, "{good} good packets, {bad} corrupted ones");
}
