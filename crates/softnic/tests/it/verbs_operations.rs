//! Every operation over UDP sockets, on every path MTU, with and without segmentation offload.

use std::net::IpAddr;
use std::sync::Arc;

use crate::common::{
    Endpoint, LinkAttr, at, connect, connected_pair, connected_pair_with, loopback, open, pattern, poll_until,
};
use crate::conformance::SoftNics;
use mitra_conformance::rc_operations;
use mitra_softnic::{Config, Links, Offload, OpenError, SoftNic};
use mitra_verbs::*;

/// Runs the operations of a reliable connection between two NICs, or of a NIC with itself.
fn run_rc_operations(nics: [&Arc<SoftNic>; 2], mtu: Mtu) {
    rc_operations(&SoftNics, nics.map(|nic| Arc::clone(nic) as Arc<dyn Provider>), mtu).unwrap();
    for nic in nics {
        for name in ["rx_icrc_bad", "rx_malformed", "rx_icrc_solved"] {
            let count = nic.counters().iter().find(|counter| counter.name == name).unwrap().value;
            assert_eq!(count, 0, "{name}: identifications of a SoftNic are predicted");
        }
    }
}

#[test]
fn all_operations_work_on_every_mtu() {
    for mtu in Mtu::ALL {
        for (a, b) in [
            (Offload::Auto, Offload::Auto),
            (Offload::Off, Offload::Off),
            (Offload::Auto, Offload::Off),
            (Offload::Off, Offload::Auto),
        ] {
            let [a, b] = [a, b].map(|offload| open(Config { offload, ..loopback() }));
            run_rc_operations([&a, &b], mtu);
        }
    }
}

#[test]
fn offload_setting_controls_gso_and_gro() {
    for (offload, runs) in [(Offload::Auto, true), (Offload::Off, false)] {
        let (a, b) = connected_pair_with(
            Config { offload, links: Links::Udp, ..loopback() },
            Config { offload, links: Links::Udp, ..loopback() },
            LinkAttr::default(),
        );
        a.fill(0, 1 << 19, 3);
        // The receiver enables UDP_GRO during the first bulk write at the earliest, and before the
        // second at the latest.
        for _ in 0..2 {
            a.post(1, SendOp::Write(b.mr.remote(0)), 0, 1 << 19);
            a.wait_success();
        }
        assert_eq!(b.bytes(0, 1 << 19), pattern(1 << 19, 3));
        assert_eq!((a.counter("tx_runs") > 0, b.counter("rx_runs") > 0), (runs, runs));
        assert!(a.counter("tx_datagrams") >= 256);
        assert_eq!(b.counter("rx_icrc_bad"), 0);
    }
}

#[test]
fn response_and_preceding_ack_arrive_in_one_gro_run() {
    for (offload, runs) in [(Offload::Auto, true), (Offload::Off, false)] {
        let config = || Config { offload, links: Links::Udp, ..loopback() };
        let (a, b) = connected_pair_with(config(), config(), LinkAttr::default());
        let mut rounds = 0;
        poll_until("a GRO run at both endpoints", || {
            rounds += 1;
            for (from, to, has_posted) in [(&a, &b, rounds > 1), (&b, &a, true)] {
                from.memory.store(0, rounds);
                to.post_recv(rounds, 8, 8);
                from.post(rounds, SendOp::Send, 0, 8);
                to.wait_success();
                // The completion of this endpoint's previous send.
                if has_posted {
                    to.wait_success();
                }
                assert_eq!(to.memory.load(8), rounds);
            }
            if runs { a.counter("rx_runs").min(b.counter("rx_runs")) > 0 } else { rounds == 2000 }
        });
        assert_eq!((a.counter("tx_runs") > 0, b.counter("tx_runs") > 0), (runs, runs));
        assert_eq!(a.counter("rx_icrc_bad") + b.counter("rx_icrc_bad"), 0);
    }
}

#[test]
fn one_nic_serves_several_peers() {
    let hub = Endpoint::new(open(loopback()));
    let spokes: Vec<(Endpoint, Endpoint)> = (0..4)
        .map(|_| {
            let at_hub = Endpoint::with(hub.nic.clone(), hub.memory.clone(), hub.cq);
            let spoke = Endpoint::new(open(loopback()));
            connect(&at_hub, &spoke, LinkAttr::default());
            (at_hub, spoke)
        })
        .collect();
    for (i, (_, spoke)) in spokes.iter().enumerate() {
        spoke.memory.store(0, i as u64 + 1);
        spoke.post(1, SendOp::Write(hub.mr.remote(i as u64 * 8)), 0, 8);
    }
    for (_, spoke) in &spokes {
        // The key belongs to another protection domain than the queue pair.
        assert_eq!(spoke.wait_completion().status, WcStatus::RemoteAccess);
    }
    for (i, (at_hub, spoke)) in spokes.iter().enumerate() {
        reconnect(at_hub, spoke);
        spoke.post(1, SendOp::Write(at_hub.mr.remote(i as u64 * 8)), 0, 8);
        spoke.wait_success();
    }
    for i in 0..4 {
        assert_eq!(hub.memory.load(i * 8), i as u64 + 1);
    }
}

fn reconnect(a: &Endpoint, b: &Endpoint) {
    for end in [a, b] {
        end.nic.modify_qp(end.qp, &QpAttr::to(QpState::Reset)).unwrap();
    }
    connect(a, b, LinkAttr::default());
}

#[test]
fn ipv6_loopback_works() {
    // IPv6 has a single loopback address, so another test may have its port.
    let nic = match SoftNic::open(at("::1".parse().unwrap())) {
        Ok(nic) => nic,
        Err(OpenError::AddressNotLocal { .. } | OpenError::System { .. }) => return, // this machine has no IPv6
        Err(OpenError::PortTaken { .. }) => return,
        Err(e) => panic!("{e}"),
    };
    run_rc_operations([&nic, &nic], Mtu::M4096);
}

#[test]
fn open_errors_name_address_and_alternative() {
    let nic = open(loopback());
    let ip = IpAddr::from(nic.query_port().unwrap().gid);
    let taken = SoftNic::open(at(ip)).unwrap_err().to_string();
    assert!(taken.contains(&format!("UDP port 4791 of {ip} is in use by this process itself")), "{taken}");
    drop(nic);
    drop(open(at(ip)));

    let message = |ip: &str| SoftNic::open(at(ip.parse().unwrap())).unwrap_err().to_string();
    let foreign = message("192.0.2.1");
    assert!(foreign.contains("not an address of this machine; use one in 127.0.0.0/8"), "{foreign}");
    assert!(message("0.0.0.0").contains("unspecified"));
    assert!(message("224.0.0.1").contains("multicast"));
    assert!(message("fe80::1").contains("scope"));
    let nowhere = Config { capture: Some("/nonexistent/x.pcap".into()), ..loopback() };
    let message = SoftNic::open(nowhere).unwrap_err().to_string();
    assert!(message.contains("/nonexistent/x.pcap"), "{message}");
}

#[test]
fn port_mtu_follows_interface_and_bound() {
    let nic = open(loopback());
    let port = nic.query_port().unwrap();
    assert_eq!((port.state, port.max_mtu), (PortState::Active, Mtu::M4096));
    assert!(IpAddr::from(port.gid).is_loopback());
    let nic = open(Config { max_mtu: Some(Mtu::M1024), ..loopback() });
    assert_eq!(nic.query_port().unwrap().max_mtu, Mtu::M1024);
}

/// A receiver that closes its queue pair or NIC right after a receive completion first acknowledges
/// the message.
#[test]
fn closing_receiver_acknowledges_received_messages() {
    let close: [fn(Endpoint); 4] = [
        |b| b.nic.destroy_qp(b.qp).unwrap(),
        |b| b.nic.modify_qp(b.qp, &QpAttr::to(QpState::Err)).unwrap(),
        |b| b.nic.modify_qp(b.qp, &QpAttr::to(QpState::Reset)).unwrap(),
        drop,
    ];
    for close in close {
        let (a, b) = connected_pair();
        // After enough messages the receiver delays its ACKs.
        for i in 0..200 {
            b.post_recv(i, 0, 64);
            a.post(i, SendOp::Send, 0, 8);
            b.wait_success();
            if i < 199 {
                a.wait_success();
            }
        }
        close(b);
        assert_eq!(a.wait_success().wr_id, 199);
    }
}
