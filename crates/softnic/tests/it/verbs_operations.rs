//! Every operation over UDP sockets, on every path MTU, with and without segmentation offload.

use std::net::IpAddr;

use crate::common::{
    Endpoint, LinkAttr, at, connect, connected_pair, connected_pair_with, loopback, open, pattern, poll_until,
};
use mitra_softnic::{Config, Links, Offload, OpenError, SoftNic};
use mitra_verbs::*;

/// Runs all operations, with lengths around multiples of the MTU.
fn run_all_operations(a: &Endpoint, b: &Endpoint, mtu: Mtu) {
    let m = mtu.bytes();
    for (i, len) in [0, 1, 8, m - 1, m, m + 1, 3 * m, 20 * m + 5].into_iter().enumerate() {
        let seed = i as u8;
        let wr_id = i as u64;
        a.fill(0, len, seed);
        a.post(wr_id, SendOp::Write(b.mr.remote(64)), 0, len as u32);
        assert_eq!(a.wait_success().opcode, WcOpcode::Write);
        assert_eq!(b.bytes(64, len), pattern(len, seed), "WRITE of {len}");

        b.fill(200_000, len, seed ^ 0xff);
        a.post(wr_id, SendOp::Read(b.mr.remote(200_000)), 300_000, len as u32);
        let wc = a.wait_success();
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Read, len as u32));
        assert_eq!(a.bytes(300_000, len), pattern(len, seed ^ 0xff), "READ of {len}");

        b.post_recv(wr_id + 100, 400_000, len as u32);
        a.post(wr_id, SendOp::Send, 0, len as u32);
        let wc = b.wait_success();
        assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (wr_id + 100, WcOpcode::Recv, len as u32));
        assert_eq!(a.wait_success().opcode, WcOpcode::Send);
        assert_eq!(b.bytes(400_000, len), pattern(len, seed), "SEND of {len}");

        b.post_recv(wr_id, 0, 0);
        a.post(wr_id, SendOp::WriteWithImm(b.mr.remote(500_000), 0x1234_5678), 0, len as u32);
        let wc = b.wait_success();
        assert_eq!((wc.opcode, wc.imm), (WcOpcode::RecvWithImm, Some(0x1234_5678)));
        assert_eq!(b.bytes(500_000, len), pattern(len, seed), "WRITE with immediate of {len}");
        a.wait_success();
    }
    b.memory.store(8, 41);
    a.post(1, SendOp::FetchAdd { remote: b.mr.remote(8), add: 2 }, 16, 8);
    assert_eq!(a.wait_success().opcode, WcOpcode::FetchAdd);
    assert_eq!((a.memory.load(16), b.memory.load(8)), (41, 43));
    a.post(2, SendOp::CompareSwap { remote: b.mr.remote(8), compare: 43, swap: 7 }, 16, 8);
    assert_eq!(a.wait_success().opcode, WcOpcode::CompareSwap);
    assert_eq!((a.memory.load(16), b.memory.load(8)), (43, 7));
    a.post(3, SendOp::CompareSwap { remote: b.mr.remote(8), compare: 43, swap: 8 }, 16, 8);
    a.wait_success();
    assert_eq!((a.memory.load(16), b.memory.load(8)), (7, 7));
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
            let config = |offload| Config { offload, ..loopback() };
            let (a, b) = connected_pair_with(config(a), config(b), LinkAttr { mtu, ..LinkAttr::default() });
            run_all_operations(&a, &b, mtu);
            for end in [&a, &b] {
                assert_eq!(end.counter("rx_icrc_bad") + end.counter("rx_malformed"), 0);
                assert_eq!(
                    end.counter("rx_icrc_solved"),
                    0,
                    "identifications of a SoftNic were not predicted"
                );
            }
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
fn concurrent_requests_complete_in_order() {
    let (a, b) = connected_pair();
    for i in 0..200 {
        a.memory.store(i * 8, i as u64 + 1);
        a.post(i as u64, SendOp::Write(b.mr.remote(i as u64 * 8)), i as u64 * 8, 8);
    }
    for i in 0..200 {
        assert_eq!(a.wait_success().wr_id, i);
    }
    for i in 0..200 {
        assert_eq!(b.memory.load(i * 8), i as u64 + 1);
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
fn nic_connects_to_itself() {
    let (a, b) = self_pair(open(loopback()));
    run_all_operations(&a, &b, Mtu::M4096);
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
    let (a, b) = self_pair(nic);
    run_all_operations(&a, &b, Mtu::M4096);
    assert_eq!(a.counter("rx_icrc_bad"), 0);
}

fn self_pair(nic: std::sync::Arc<SoftNic>) -> (Endpoint, Endpoint) {
    // Each endpoint has a completion queue of its own, and so sees only its own completions.
    let (a, b) = (Endpoint::new(nic.clone()), Endpoint::new(nic));
    connect(&a, &b, LinkAttr::default());
    (a, b)
}

#[test]
fn ud_and_gsi_datagrams_arrive() {
    check_datagram(QpType::Ud, 0x11);
    check_datagram(QpType::Gsi, GSI_QKEY);
}

fn check_datagram(qp_type: QpType, qkey: u32) {
    let (a, b) = (open(loopback()), open(loopback()));
    let side = |nic: &std::sync::Arc<SoftNic>| {
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(16, None).unwrap();
        let memory = std::sync::Arc::new(Buffer::new(4096));
        let mr = nic.reg_mr(pd, memory.clone(), Access::LOCAL_WRITE).unwrap();
        let init = QpInitAttr {
            qp_type,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCap::default(),
            sq_sig_all: true,
        };
        let qp = nic.create_qp(&init).unwrap();
        let (pkey_index, port, qkey) = (Some(0), Some(1), Some(qkey));
        let init = QpAttr { pkey_index, port, qkey, ..QpAttr::to(QpState::Init) };
        nic.modify_qp(qp, &init).unwrap();
        nic.modify_qp(qp, &QpAttr::to(QpState::Rtr)).unwrap();
        nic.modify_qp(qp, &QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) }).unwrap();
        (pd, cq, memory, mr, qp)
    };
    let (a_pd, _, _, _, a_qp) = side(&a);
    let (_, b_cq, b_memory, b_mr, b_qp) = side(&b);
    b.post_recv(b_qp, &[RecvWr::new(5, b_mr.sge(0, 256))]).unwrap();
    let ah = a.create_ah(a_pd, b.query_port().unwrap().gid).unwrap();
    let wr = SendWr::new(1, SendOp::Send, Data::inline(b"a word")).to(UdDestination { ah, qpn: b_qp, qkey });
    a.post_send(a_qp, &[wr]).unwrap();
    let mut wcs = Vec::new();
    poll_until("the datagram", || b.poll_cq(b_cq, 1, &mut wcs).unwrap() == 1);
    assert_eq!((wcs[0].wr_id, wcs[0].byte_len, wcs[0].src_qp), (5, 46, a_qp));
    let mut bytes = [0; 6];
    b_memory.read_at(40, &mut bytes);
    assert_eq!(&bytes, b"a word");
}

#[test]
fn deregistered_region_is_not_accessed() {
    let (a, b) = connected_pair();
    b.nic.dereg_mr(b.mr.id).unwrap();
    a.memory.store(0, 7);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    assert_eq!(a.wait_completion().status, WcStatus::RemoteAccess);
    assert_eq!(b.memory.load(0), 0);
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
