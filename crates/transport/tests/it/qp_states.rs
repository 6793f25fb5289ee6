//! Queue pair states, and the state of the link.

use crate::common::*;
use core::time::Duration;
use mitra_transport::{Nic, NicConfig, TxBatch};
use mitra_verbs::*;
use mitra_wire::{Message, Packet, Transport};

fn write(p: &NicPair, wr_id: u64, len: u32) -> SendWr {
    SendWr::new(wr_id, SendOp::Write(p.remote(0)), Data::sge(p.sge(0, 0, len)))
}

#[test]
fn error_state_flushes_posted_and_later_work_requests_in_order() {
    let mut p = pair();
    p.set_link(|_, _| LinkAction::Drop);
    for i in 0..3 {
        p.post(write(&p, i, 8));
        let node = &mut p.nodes[0];
        node.nic.post_recv(node.qp, &[RecvWr::new(10 + i, node.mr.sge(0, 8))]).unwrap();
    }
    p.modify(0, &QpAttr::to(QpState::Err));
    let flushed = |ids: core::ops::Range<u64>| ids.map(|i| (i, WcStatus::Flushed)).collect::<Vec<_>>();
    assert_eq!(statuses(&p.send_completions(0)), flushed(0..3));
    assert_eq!(statuses(&p.recv_completions(0)), flushed(10..13));
    p.post(write(&p, 3, 8));
    let node = &mut p.nodes[0];
    node.nic.post_recv(node.qp, &[RecvWr::new(13, node.mr.sge(0, 8))]).unwrap();
    assert_eq!(
        (statuses(&p.send_completions(0)), statuses(&p.recv_completions(0))),
        (flushed(3..4), flushed(13..14))
    );
}

#[test]
fn error_state_stops_all_responses() {
    let mut p = pair();
    p.post(SendWr::new(1, SendOp::Read(p.remote(0)), Data::sge(p.sge(0, 0, 5000))));
    p.post(write(&p, 2, 8));
    p.transmit_all();
    for seen in p.sent.clone() {
        p.inject(1, &Packet::parse(&seen.bytes).unwrap());
    }
    // The responder has accepted the READ, executed the WRITE, and has an acknowledgement pending.
    let status = p.status(1);
    assert_eq!(status.rq_psn, Psn::new(106));
    let accesses = p.nodes[1].memory.accesses;
    p.modify(1, &QpAttr::to(QpState::Err));
    for seen in p.sent.clone() {
        p.inject(1, &Packet::parse(&seen.bytes).unwrap());
    }
    let mut batch = TxBatch::new();
    let node = &mut p.nodes[1];
    node.nic.handle_idle(p.now);
    assert!(!node.nic.poll_transmit(p.now, &mut node.memory, &mut batch));
    assert_eq!(node.memory.accesses, accesses);
    assert_eq!(p.status(1).rq_psn, status.rq_psn, "the expected PSN is readable in ERR");
}

/// A SEND arrives after the change to ERR, before the flush. It takes a receive only if one was
/// posted before the change.
#[test]
fn packet_that_had_begun_takes_no_receive_posted_in_error_state() {
    let marker = RecvWr { wr_id: 2, sges: SgeList::new() };
    for (posted, sent_bytes, expected) in [
        (false, 8, vec![(2, WcStatus::Flushed)]),
        (true, 8, vec![(1, WcStatus::Success), (2, WcStatus::Flushed)]),
        (true, 9, vec![(1, WcStatus::LocalLength), (2, WcStatus::Flushed)]),
    ] {
        let mut p = pair();
        if posted {
            let node = &mut p.nodes[1];
            node.nic.post_recv(node.qp, &[RecvWr::new(1, node.mr.sge(0, 8))]).unwrap();
        }
        p.post(SendWr::new(3, SendOp::Send, Data::sge(p.sge(0, 0, sent_bytes))));
        p.transmit_all();
        let node = &mut p.nodes[1];
        assert!(node.nic.begin_error(p.now, node.qp).unwrap());
        node.nic.post_recv(node.qp, core::slice::from_ref(&marker)).unwrap();
        for seen in p.sent.clone() {
            p.inject(1, &Packet::parse(&seen.bytes).unwrap());
        }
        let node = &mut p.nodes[1];
        node.nic.flush_receives_of_error(node.qp);
        assert_eq!(statuses(&p.recv_completions(1)), expected, "{posted} {sent_bytes}");
    }
}

#[test]
fn saved_results_and_expected_psn_are_readable_in_error_state() {
    let mut p = pair();
    p.set_word(1, 0, 9);
    for i in 0..3 {
        let op = SendOp::FetchAdd { remote: p.remote(0), add: 1 };
        p.post(SendWr::new(i, op, Data::sge(p.sge(0, 0, 8))));
    }
    p.run();
    p.modify(1, &QpAttr::to(QpState::Err));
    let node = &p.nodes[1];
    let saved: Vec<_> =
        node.nic.saved_results(node.qp).unwrap().iter().map(|s| (s.psn.value(), s.value)).collect();
    assert_eq!(saved, [(100, 9), (101, 10), (102, 11)]);
    assert_eq!(p.status(1).rq_psn, Psn::new(103));
}

#[test]
fn draining_finishes_started_sends_and_holds_others() {
    // The window holds one packet, so that at most one request is started.
    let mut p = Setup { send_window: 1024, ..Setup::default() }.pair();
    let qp = p.nodes[0].qp;
    for i in 0..3 {
        p.post(write(&p, i, 3000));
    }
    p.transmit_all();
    p.modify(0, &QpAttr::to(QpState::Sqd));
    assert_eq!(p.status(0).sq_drain, SqDrain::Draining);
    p.post(write(&p, 3, 8));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(0, WcStatus::Success)]);
    assert_eq!((p.status(0).sq_drain, p.events(0)), (SqDrain::Drained, vec![AsyncEvent::SqDrained(qp)]));
    // The responder still executes requests.
    let remote = p.nodes[0].mr.remote(0x1000);
    p.post_on(1, &[SendWr::new(7, SendOp::Write(remote), Data::inline(b"still"))]).unwrap();
    p.run();
    assert_eq!(&p.bytes(0)[0x1000..0x1005], b"still");
    p.modify(0, &QpAttr { timeout: Some(9), ..QpAttr::to(QpState::Sqd) });
    assert_eq!(p.status(0).sq_drain, SqDrain::Drained);
    p.modify(0, &QpAttr::to(QpState::Rts));
    p.run();
    assert_eq!(p.send_completions(0).len(), 3);
    assert_eq!(p.status(0).sq_drain, SqDrain::NotInSqd);
}

#[test]
fn idle_send_queue_drains_at_once() {
    let mut p = pair();
    let qp = p.nodes[0].qp;
    p.modify(0, &QpAttr::to(QpState::Sqd));
    assert_eq!(p.events(0), [AsyncEvent::SqDrained(qp)]);
    p.modify(0, &QpAttr::to(QpState::Sqd));
    assert_eq!(p.events(0), []);
}

#[test]
fn draining_send_queue_retransmits() {
    let mut p = pair();
    let mut n = 0;
    p.set_link(move |_, _| {
        n += 1;
        if n < 3 { LinkAction::Drop } else { LinkAction::Pass }
    });
    p.post(write(&p, 1, 8));
    p.transmit_all();
    p.modify(0, &QpAttr::to(QpState::Sqd));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!(p.status(0).sq_drain, SqDrain::Drained);
}

#[test]
fn reset_drops_work_requests_without_completion() {
    let mut p = pair();
    p.set_link(|_, _| LinkAction::Drop);
    p.post(write(&p, 1, 8));
    p.post_recv(RecvWr::new(5, p.sge(1, 0, 8)));
    p.transmit_all();
    let setup = Setup { psn: [500, 600], ..Setup::default() };
    for i in 0..2 {
        p.modify(i, &QpAttr::to(QpState::Reset));
        assert_eq!(p.status(i).attr, QpAttr::default());
        let rtr = setup.to_rtr(&p.nodes[1 - i], setup.psn[1 - i]);
        for attr in [setup.to_init(), rtr, setup.to_rts(setup.psn[i])] {
            p.modify(i, &attr);
        }
    }
    p.set_link(|_, _| LinkAction::Pass);
    p.run();
    assert!(p.send_completions(0).is_empty() && p.recv_completions(1).is_empty());
    p.post(write(&p, 2, 8));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(2, WcStatus::Success)]);
    assert_eq!(p.status(1).rq_psn, Psn::new(501));
}

#[test]
fn packets_are_accepted_only_in_receiving_states_and_from_peer() {
    let setup = Setup::default();
    let mut p = pair();
    let packet = |p: &NicPair| {
        let reth = mitra_wire::Reth { va: BASE, rkey: p.nodes[1].mr.rkey.0, len: 1 };
        Packet::new(Transport::Rc, p.nodes[1].qp, Psn::new(100), Message::WriteOnly(reth), b"x")
    };
    let attempt = |p: &mut NicPair, accepted: bool| {
        p.bytes(1)[0] = 0;
        let packet = packet(p);
        p.inject(1, &packet);
        assert_eq!(p.bytes(1)[0] == b'x', accepted, "packet in {:?}", p.state(1));
        p.modify(1, &QpAttr::to(QpState::Reset));
        let rtr = setup.to_rtr(&p.nodes[0], 100);
        p.events(1);
        [setup.to_init(), rtr, setup.to_rts(7), QpAttr::to(QpState::Sqd), QpAttr::to(QpState::Err)]
    };
    let transitions = attempt(&mut p, true);
    for (reached, accepted) in [(0, false), (1, false), (2, true), (3, true), (4, true), (5, false)] {
        for attr in &transitions[..reached] {
            p.modify(1, attr);
        }
        attempt(&mut p, accepted);
    }
    for attr in &transitions[..2] {
        p.modify(1, attr);
    }
    let good = packet(&p);
    p.inject_from(1, gid(7), &good);
    p.inject(1, &Packet { pkey: 0x8001, ..good });
    p.inject(1, &Packet { transport: Transport::Uc, ..good });
    p.inject(1, &Packet { dest_qp: Qpn::new(good.dest_qp.value() ^ 1 << 20), ..good });
    assert_eq!(p.bytes(1)[0], 0);
    for name in ["drop_foreign_source", "drop_pkey", "drop_wrong_transport", "drop_no_qp"] {
        assert_eq!(p.counter(1, name), 1, "{name}");
    }
    assert_eq!(p.events(1), []);
    // A P_Key without the membership bit is accepted: limited membership of the default partition
    // suffices.
    p.inject(1, &Packet { pkey: 0x7fff, ..good });
    assert_eq!(p.bytes(1)[0], b'x');
    let qp = p.nodes[1].qp;
    assert_eq!(p.events(1), [AsyncEvent::CommunicationEstablished(qp)]);
}

#[test]
fn posting_requires_valid_state() {
    let setup = Setup::default();
    let mut p = pair();
    p.modify(0, &QpAttr::to(QpState::Reset));
    let rtr = setup.to_rtr(&p.nodes[1], 3);
    let steps = [setup.to_init(), rtr, setup.to_rts(7)];
    let send = write(&p, 1, 8);
    let recv = RecvWr::new(1, p.sge(0, 0, 8));
    for reached in 0..=3 {
        if reached > 0 {
            p.modify(0, &steps[reached - 1]);
        }
        let sent = p.post_on(0, std::slice::from_ref(&send));
        let node = &mut p.nodes[0];
        let received = node.nic.post_recv(node.qp, std::slice::from_ref(&recv));
        assert_eq!((sent.is_ok(), received.is_ok()), (reached == 3, reached >= 1));
    }
    p.modify(0, &QpAttr::to(QpState::Reset));
    let refused = p.post_on(0, &[send]).unwrap_err().error.to_string();
    assert_eq!(
        refused,
        format!(
            "post_send on {} needs state RTS, SQD, SQE or ERR, and it is in RESET; modify the queue pair first",
            p.nodes[0].qp
        )
    );
}

#[test]
fn refused_modify_leaves_qp_unchanged() {
    let mut p = pair();
    let before = p.status(0);
    let node = &mut p.nodes[0];
    let mut refuse = |attr: &QpAttr| node.nic.modify_qp(p.now, node.qp, attr).unwrap_err().to_string();
    assert!(refuse(&QpAttr::to(QpState::Init)).contains("cannot go from RTS to INIT"));
    assert_eq!(p.status(0), before);

    let setup = Setup::default();
    let mut config = NicConfig::new("small", gid(3), [0; 32]);
    config.max_mtu = Mtu::M2048;
    let mut nic = Nic::new(config);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(4).unwrap());
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: QpCap::default(),
        sq_sig_all: false,
    };
    let qp = nic.create_qp(p.now, &init).unwrap();
    nic.modify_qp(p.now, qp, &setup.to_init()).unwrap();
    let rtr = setup.to_rtr(&p.nodes[0], 0);
    for (attr, message) in [
        (QpAttr { path_mtu: Some(Mtu::M4096), ..rtr }, "path_mtu must be at most the MTU of the port"),
        (
            QpAttr { max_dest_rd_atomic: Some(17), ..rtr },
            "max_dest_rd_atomic must be at most the limit `rd_atomic` of the device",
        ),
    ] {
        assert_eq!(nic.modify_qp(p.now, qp, &attr).unwrap_err().to_string(), message);
        assert_eq!(nic.query_qp(qp).unwrap().state, QpState::Init);
    }
    nic.modify_qp(p.now, qp, &rtr).unwrap();
    let rts = QpAttr { max_rd_atomic: Some(17), ..setup.to_rts(0) };
    assert!(nic.modify_qp(p.now, qp, &rts).is_err());
}

#[test]
fn posted_read_requires_max_rd_atomic_of_one() {
    let mut p = pair();
    p.modify(0, &QpAttr::to(QpState::Sqd));
    p.post(SendWr::new(1, SendOp::Read(p.remote(0)), Data::sge(p.sge(0, 0, 8))));
    let none = QpAttr { max_rd_atomic: Some(0), ..QpAttr::to(QpState::Sqd) };
    let node = &mut p.nodes[0];
    let refused = node.nic.modify_qp(p.now, node.qp, &none).unwrap_err();
    assert_eq!(refused.to_string(), "max_rd_atomic must be at least 1 while READs or atomics are posted");
    p.modify(0, &QpAttr::to(QpState::Rts));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    p.modify(0, &QpAttr::to(QpState::Sqd));
    p.modify(0, &none);
}

#[test]
fn link_down_drops_packets_and_raises_event() {
    let mut p = Setup { retry_cnt: 1, ..Setup::default() }.pair();
    p.nodes[1].nic.handle_link(false);
    p.nodes[1].nic.handle_link(false);
    assert_eq!(p.events(1), [AsyncEvent::PortError]);
    assert_eq!(p.nodes[1].nic.query_port().state, PortState::Down);
    p.post(write(&p, 1, 8));
    p.run_for(Duration::from_micros(10));
    assert_eq!(p.counter(1, "drop_link_down"), 1);
    p.nodes[1].nic.handle_link(true);
    assert_eq!(p.events(1), [AsyncEvent::PortActive]);
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    // With its own link down, a requester's packets are lost and time out.
    p.nodes[0].nic.handle_link(false);
    p.post(write(&p, 2, 8));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(2, WcStatus::RetryExceeded)]);
}
