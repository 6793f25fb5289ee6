//! A simulated run as a capture file: what Wireshark would show.
//!
//! In a test binary of its own, since it sets an environment variable.

use std::sync::Arc;
use std::time::Duration;

use mitra_sim::workload::{Party, Plan, RcOptions, connect_rc};
use mitra_sim::{Config, Rig};
use mitra_verbs::Provider;
use mitra_wire::frame::{Frame, LinkType};
use mitra_wire::{Packet, icrc, pcap};

#[test]
fn a_run_can_be_captured() {
    let path = std::env::temp_dir().join(format!("mitra-sim-{}.pcap", std::process::id()));
    let mut args = std::env::args();
    if std::env::var_os("MITRA_SIM_PCAP").is_none() {
        // Once more, with the variable set from outside: the only safe way to set one.
        let status = std::process::Command::new(args.next().unwrap())
            .args(["--exact", "a_run_can_be_captured"])
            .env("MITRA_SIM_PCAP", &path)
            .status()
            .unwrap();
        assert!(status.success());
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        check(&bytes);
        return;
    }
    let mut config = Config::calm();
    config.wire.noise.corrupt_ppm = 50_000;
    let mut rig = Rig::with(1, config, 1);
    let plan = Plan::new(1, 50);
    let none = Plan { tag: 2, ..Plan::new(1, 0) };
    let mut parties = [Party::new(&plan, &none), Party::new(&none, &plan)];
    let nics = rig.nics.each_ref().map(|n| Arc::clone(&n[0]) as Arc<dyn Provider>);
    let [mut a, mut b] = connect_rc(nics, parties.each_mut(), &RcOptions::default()).unwrap();
    let [mut p, mut q] = parties;
    let done = |_: &mitra_sim::World| {
        q.step(&mut b);
        p.step(&mut a);
        p.is_done()
    };
    rig.world.run_until(done, Duration::from_secs(1)).unwrap_or_else(|e| panic!("{e}"));
}

fn check(bytes: &[u8]) {
    let (mut good, mut bad, mut last) = (0, 0, 0);
    for record in pcap::records(bytes) {
        let record = record.expect("a well-formed file");
        assert!(record.ts_ns >= last);
        last = record.ts_ns;
        let frame = Frame::parse(LinkType::Ethernet, record.bytes).expect("a RoCEv2 frame");
        assert!(frame.src.ip().to_string().starts_with("10.0."), "{}", frame.src);
        if icrc::verify_frame(&frame).is_good() {
            let covered = &frame.datagram[..frame.datagram.len() - mitra_wire::ICRC_LEN];
            Packet::parse(covered).expect("what is sealed well is a packet");
            good += 1;
        } else {
            bad += 1;
        }
    }
    assert!(good > 50 && bad > 0, "{good} good packets, {bad} corrupted ones");
}
