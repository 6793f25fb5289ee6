//! Shared receive queues.

use crate::common::*;
use mitra_verbs::*;

fn shared(qp_type: QpType) -> NicPair {
    Setup { qp_type, srq: Some(8), ..Setup::default() }.pair()
}

fn srq(p: &NicPair) -> SrqId {
    p.status(1).init.srq.unwrap()
}

fn post(p: &mut NicPair, wr_id: u64) {
    let (srq, wr) = (srq(p), RecvWr::new(wr_id, p.sge(1, 64 * wr_id, 64)));
    p.nodes[1].nic.post_srq_recv(srq, &[wr]).unwrap();
}

fn send(p: &mut NicPair, wr_id: u64) {
    p.post(SendWr::new(wr_id, SendOp::Send, Data::inline(b"hello")));
    p.run();
}

#[test]
fn send_waits_for_receive_in_shared_queue() {
    let mut p = shared(QpType::Rc);
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"hello")));
    p.run_for(core::time::Duration::from_micros(100));
    assert!(p.counter(1, "rnr_naks_sent") > 0);
    post(&mut p, 9);
    p.run();
    assert_eq!(statuses(&p.recv_completions(1)), [(9, WcStatus::Success)]);
    assert_eq!(&p.bytes(1)[576..581], b"hello");
}

#[test]
fn srq_limit_event_is_raised_once() {
    let mut p = shared(QpType::Rc);
    for i in 0..5 {
        post(&mut p, i);
    }
    let srq = srq(&p);
    p.nodes[1].nic.arm_srq(srq, 3).unwrap();
    send(&mut p, 1);
    send(&mut p, 2);
    assert!(p.events(1).is_empty(), "three receives are left");
    send(&mut p, 3);
    assert_eq!(p.events(1), [AsyncEvent::SrqLimitReached(srq)]);
    send(&mut p, 4);
    assert!(p.events(1).is_empty());
    p.nodes[1].nic.arm_srq(srq, 2).unwrap();
    assert_eq!(p.events(1), [AsyncEvent::SrqLimitReached(srq)], "one receive is left already");
    assert!(p.nodes[1].nic.arm_srq(srq, 9).is_err(), "the limit exceeds the depth");
}

#[test]
fn srq_is_resized_with_its_receives() {
    let mut p = shared(QpType::Rc);
    for i in 0..5 {
        post(&mut p, i);
    }
    let srq = srq(&p);
    let max = p.nodes[1].nic.attr().limits.wrs;
    let mut resize = |depth| p.nodes[1].nic.resize_srq(srq, depth).is_ok();
    assert!(!resize(0) && !resize(4) && !resize(max + 1), "no entries, too few, too many");
    assert!(resize(max) && resize(5));
    p.nodes[1].nic.arm_srq(srq, 4).unwrap();
    assert!(p.nodes[1].nic.arm_srq(srq, 6).is_err(), "the limit exceeds the new depth");
    send(&mut p, 1);
    send(&mut p, 2);
    assert_eq!(p.events(1), [AsyncEvent::SrqLimitReached(srq)]);
    assert_eq!(statuses(&p.recv_completions(1)), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    p.nodes[1].nic.arm_srq(srq, 3).unwrap();
    assert!(p.nodes[1].nic.resize_srq(srq, 2).is_err(), "the queue is armed for three");
    p.nodes[1].nic.arm_srq(srq, 0).unwrap();
    assert!(p.nodes[1].nic.resize_srq(srq, 3).is_ok());
    send(&mut p, 3);
    post(&mut p, 9);
    for i in 4..7 {
        send(&mut p, i);
    }
    let received = [2, 3, 4, 9].map(|wr_id| (wr_id, WcStatus::Success));
    assert_eq!(statuses(&p.recv_completions(1)), received);
}

#[test]
fn failed_qp_raises_last_wqe_event_and_leaves_srq_unchanged() {
    let mut p = shared(QpType::Rc);
    post(&mut p, 1);
    post(&mut p, 2);
    p.modify(1, &QpAttr::to(QpState::Err));
    let qp = p.nodes[1].qp;
    assert_eq!(p.events(1), [AsyncEvent::LastWqeReached(qp)]);
    assert!(p.recv_completions(1).is_empty());
    p.modify(1, &QpAttr::to(QpState::Err));
    assert!(p.events(1).is_empty());
}

#[test]
fn partly_received_message_flushes_its_shared_receive() {
    let mut p = Setup { srq: Some(8), mtu: Mtu::M256, ..Setup::default() }.pair();
    let srq = srq(&p);
    let wrs = [RecvWr::new(1, p.sge(1, 0, 4096)), RecvWr::new(2, p.sge(1, 0, 4096))];
    p.nodes[1].nic.post_srq_recv(srq, &wrs).unwrap();
    p.post(SendWr::new(1, SendOp::Send, Data::sge(p.sge(0, 0, 2000))));
    p.transmit_all();
    p.step();
    p.step();
    p.modify(1, &QpAttr::to(QpState::Err));
    assert_eq!(statuses(&p.recv_completions(1)), [(1, WcStatus::Flushed)]);
}

#[test]
fn uc_takes_receives_from_srq_and_returns_those_of_dropped_messages() {
    let mut p = shared(QpType::Uc);
    post(&mut p, 3);
    send(&mut p, 1);
    assert_eq!(statuses(&p.recv_completions(1)), [(3, WcStatus::Success)]);
    // A dropped message returns its receive to the queue.
    let mut p = shared(QpType::Uc);
    post(&mut p, 3);
    p.post(SendWr::new(1, SendOp::Send, Data::sge(p.sge(0, 0, 65))));
    send(&mut p, 2);
    assert_eq!(statuses(&p.recv_completions(1)), [(3, WcStatus::Success)]);
}

#[test]
fn used_srq_is_busy_and_full_srq_refuses_receives() {
    let mut p = shared(QpType::Rc);
    let srq = srq(&p);
    for i in 0..8 {
        post(&mut p, i);
    }
    let wr = RecvWr::new(9, p.sge(1, 0, 8));
    let node = &mut p.nodes[1];
    assert_eq!(node.nic.post_srq_recv(srq, std::slice::from_ref(&wr)).unwrap_err().index, 0);
    assert!(matches!(node.nic.destroy_srq(srq), Err(Error::Busy { .. })));
    assert!(node.nic.post_recv(node.qp, &[wr]).is_err());
    node.nic.destroy_qp(p.now, node.qp).unwrap();
    node.nic.destroy_srq(srq).unwrap();
    assert!(matches!(node.nic.destroy_srq(srq), Err(Error::NoSuchObject { .. })));
}

#[test]
fn invalid_shared_receive_fails_only_the_qp_that_takes_it() {
    let setup = Setup { qp_type: QpType::Ud, srq: Some(8), ..Setup::default() };
    let mut p = setup.pair();
    let srq = srq(&p);
    let init = p.status(1).init;
    let wrong = Sge { key: Key(1), ..p.sge(1, 0, 4096) };
    let wrs = [RecvWr::new(9, wrong), RecvWr::new(10, p.sge(1, 0, 4096))];
    let node = &mut p.nodes[1];
    let first = node.qp;
    let second = node.nic.create_qp(p.now, &init).unwrap();
    node.nic.modify_qp(p.now, second, &setup.to_init()).unwrap();
    node.nic.modify_qp(p.now, second, &QpAttr::to(QpState::Rtr)).unwrap();
    node.nic.post_srq_recv(srq, &wrs).unwrap();
    let ah = p.nodes[0].nic.create_ah(p.nodes[0].pd, gid(1)).unwrap();
    for qpn in [first, second] {
        let to = UdDestination { ah, qpn, qkey: 0x1234 };
        p.post(SendWr::new(1, SendOp::Send, Data::inline(b"hello")).to(to));
        p.run();
    }
    assert_eq!(p.nodes[1].nic.query_qp(second).unwrap().state, QpState::Rtr);
    assert_eq!(p.state(1), QpState::Err);
    assert_eq!(statuses(&p.recv_completions(1)), [(9, WcStatus::LocalProtection), (10, WcStatus::Success)]);
    assert!(p.events(1).contains(&AsyncEvent::LastWqeReached(first)));
}
