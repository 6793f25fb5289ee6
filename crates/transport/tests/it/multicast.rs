//! Multicast: each attached queue pair receives one copy of a message, and no other queue pair
//! does.

use crate::common::*;
use mitra_transport::TxBatch;
use mitra_verbs::*;
use mitra_wire::{ICRC_LEN, Message, Packet, Transport};

const MULTICAST: Qpn = Qpn::new(0xff_ffff);
const QKEY: u32 = 0x1234;

fn ud() -> NicPair {
    Setup { qp_type: QpType::Ud, ..Setup::default() }.pair()
}

fn group(last: u8) -> Gid {
    std::net::IpAddr::from([239, 1, 2, last]).into()
}

fn create_ud_qp(p: &mut NicPair, i: usize, srq: Option<SrqId>) -> Qpn {
    let setup = Setup { qp_type: QpType::Ud, ..Setup::default() };
    let init = QpInitAttr { srq, ..p.status(i).init };
    let (to_init, to_rtr) = (setup.to_init(), setup.to_rtr(&p.nodes[1 - i], 0));
    let node = &mut p.nodes[i];
    let qp = node.nic.create_qp(p.now, &init).unwrap();
    for attr in [to_init, to_rtr, setup.to_rts(7)] {
        node.nic.modify_qp(p.now, qp, &attr).unwrap();
    }
    qp
}

fn attach(p: &mut NicPair, i: usize, qp: Qpn) {
    p.nodes[i].nic.attach_mcast(qp, group(1), true).unwrap();
}

fn recv(p: &mut NicPair, i: usize, qp: Qpn, wr_id: u64, offset: u64) {
    let wr = RecvWr::new(wr_id, p.sge(i, offset, 100));
    p.nodes[i].nic.post_recv(qp, &[wr]).unwrap();
}

/// Sends a message from node 0 to the group with this Q_Key and delivers the message to both NICs.
fn send(p: &mut NicPair, message: &[u8], qkey: u32) -> Vec<u8> {
    let node = &mut p.nodes[0];
    let ah = node.nic.create_ah(node.pd, group(1)).unwrap();
    let to = UdDestination { ah, qpn: MULTICAST, qkey };
    node.nic
        .post_send(p.now, node.qp, &[SendWr::new(1, SendOp::SendWithImm(6), Data::inline(message)).to(to)])
        .unwrap();
    let mut batch = TxBatch::new();
    assert!(node.nic.poll_transmit(p.now, &mut node.memory, &mut batch));
    assert_eq!((batch.destination, batch.ends.len()), (group(1), 1));
    let datagram = batch.bytes[..batch.bytes.len() - ICRC_LEN].to_vec();
    deliver_to_both(p, group(1), &datagram);
    datagram
}

fn deliver_to_both(p: &mut NicPair, to: Gid, datagram: &[u8]) {
    let packet = Packet::parse(datagram).unwrap();
    for node in &mut p.nodes {
        node.nic.handle_multicast(p.now, gid(0), to, &packet, &mut node.memory);
    }
}

#[test]
fn each_attached_qp_receives_copy_with_addresses() {
    let mut p = ud();
    let (first, own) = (p.nodes[1].qp, p.nodes[0].qp);
    let (second, third) = (create_ud_qp(&mut p, 1, None), create_ud_qp(&mut p, 1, None));
    for (wr_id, qp) in [(1, first), (2, second), (3, third)] {
        recv(&mut p, 1, qp, wr_id, wr_id * 1000);
    }
    recv(&mut p, 0, own, 9, 9000);
    // The first queue pair is attached twice and receives one copy. The third queue pair is not
    // attached.
    for qp in [first, first, second] {
        attach(&mut p, 1, qp);
    }
    attach(&mut p, 0, own);
    send(&mut p, b"to all", QKEY);
    let received = p.recv_completions(1);
    assert_eq!(statuses(&received), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!([received[0].qpn, received[1].qpn], [first, second]);
    for wc in &received {
        assert_eq!((wc.byte_len, wc.imm, wc.src_qp), (46, Some(6), own));
    }
    assert_eq!(
        statuses(&p.recv_completions(0)),
        [(9, WcStatus::Success)],
        "the sender receives its own message"
    );
    for (i, at) in [(1, 1000), (1, 2000), (0, 9000)] {
        let buffer = p.bytes(i)[at..at + 46].to_vec();
        assert_eq!(buffer[40..], *b"to all");
        assert_eq!(buffer[32..40], [127, 0, 0, 1, 239, 1, 2, 1], "from the sender to the group");
    }
    assert_eq!(p.bytes(1)[3000..3100], [0; 100]);
    assert_eq!(p.counter(1, "messages_executed"), 2);
}

#[test]
fn detached_qp_receives_nothing() {
    let mut p = ud();
    let (first, second) = (p.nodes[1].qp, create_ud_qp(&mut p, 1, None));
    for (wr_id, qp) in [(1, first), (2, second), (3, second)] {
        recv(&mut p, 1, qp, wr_id, 0);
    }
    attach(&mut p, 1, first);
    attach(&mut p, 1, first);
    attach(&mut p, 1, second);
    // One detach suffices, even though the queue pair was attached twice.
    p.nodes[1].nic.detach_mcast(first, group(1)).unwrap();
    send(&mut p, b"one", QKEY);
    assert_eq!(statuses(&p.recv_completions(1)), [(2, WcStatus::Success)]);
    p.nodes[1].nic.detach_mcast(second, group(1)).unwrap();
    assert!(!p.nodes[1].nic.has_mcast_members(group(1)));
    send(&mut p, b"none", QKEY);
    assert!(p.recv_completions(1).is_empty());
    assert_eq!(p.counter(1, "drop_no_qp"), 1);
    for (qp, of) in [(first, 1), (second, 1), (second, 2), (MULTICAST, 1)] {
        assert!(matches!(p.nodes[1].nic.detach_mcast(qp, group(of)), Err(Error::Invalid(_))));
    }
}

#[test]
fn sender_attached_without_loopback_receives_no_copy() {
    let mut p = ud();
    let (own, other) = (p.nodes[0].qp, create_ud_qp(&mut p, 0, None));
    for (wr_id, qp) in [(1, own), (2, other)] {
        recv(&mut p, 0, qp, wr_id, wr_id * 1000);
        p.nodes[0].nic.attach_mcast(qp, group(1), false).unwrap();
    }
    let sent = send(&mut p, b"hello", QKEY);
    assert_eq!(statuses(&p.recv_completions(0)), [(2, WcStatus::Success)]);
    let packet = Packet::parse(&sent).unwrap();
    let node = &mut p.nodes[0];
    // From another address, the same source number is another queue pair, so `own` receives a copy.
    node.nic.handle_multicast(p.now, gid(1), group(1), &packet, &mut node.memory);
    assert_eq!(statuses(&p.recv_completions(0)), [(1, WcStatus::Success)]);
}

#[test]
fn each_member_checks_q_key_receive_and_state() {
    let mut p = ud();
    let first = p.nodes[1].qp;
    let others: Vec<Qpn> = (0..3).map(|_| create_ud_qp(&mut p, 1, None)).collect();
    for (wr_id, qp) in [(1, first), (2, others[0]), (3, others[1])] {
        recv(&mut p, 1, qp, wr_id, 0);
    }
    for qp in [others[2], others[1], others[0], first] {
        attach(&mut p, 1, qp); // `others[2]` has no receive
    }
    let other_key = QpAttr { qkey: Some(QKEY + 1), ..QpAttr::to(QpState::Rts) };
    p.nodes[1].nic.modify_qp(p.now, others[0], &other_key).unwrap();
    p.nodes[1].nic.modify_qp(p.now, others[1], &QpAttr::to(QpState::Err)).unwrap();
    assert_eq!(statuses(&p.recv_completions(1)), [(3, WcStatus::Flushed)]);
    send(&mut p, b"hello", QKEY);
    assert_eq!(statuses(&p.recv_completions(1)), [(1, WcStatus::Success)]);
    for drop in ["drop_qkey", "drop_no_receive", "drop_qp_state"] {
        assert_eq!(p.counter(1, drop), 1, "{drop}");
    }
    assert_eq!(p.counter(1, "packets_received"), 1);
}

#[test]
fn two_members_with_one_srq_take_one_receive_each() {
    let mut p = ud();
    let node = &mut p.nodes[1];
    let srq = node.nic.create_srq(node.pd, 4).unwrap();
    let sharers = [create_ud_qp(&mut p, 1, Some(srq)), create_ud_qp(&mut p, 1, Some(srq))];
    let wrs: Vec<RecvWr> = (0..3).map(|i| RecvWr::new(i, p.sge(1, i * 1000, 100))).collect();
    p.nodes[1].nic.post_srq_recv(srq, &wrs).unwrap();
    for qp in sharers {
        attach(&mut p, 1, qp);
    }
    send(&mut p, b"hello", QKEY);
    let received = p.recv_completions(1);
    assert_eq!(statuses(&received), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    assert_eq!([received[0].qpn, received[1].qpn], sharers);
}

#[test]
fn failed_member_does_not_affect_other_members() {
    let mut p = ud();
    let (first, second) = (p.nodes[1].qp, create_ud_qp(&mut p, 1, None));
    let wrong = Sge { addr: BASE, len: 100, key: Key(0xdead) };
    p.nodes[1].nic.post_recv(first, &[RecvWr::new(1, wrong)]).unwrap();
    recv(&mut p, 1, second, 2, 0);
    attach(&mut p, 1, first);
    attach(&mut p, 1, second);
    send(&mut p, b"hello", QKEY);
    assert_eq!(statuses(&p.recv_completions(1)), [(1, WcStatus::LocalProtection), (2, WcStatus::Success)]);
    assert_eq!(p.state(1), QpState::Err);
}

#[test]
fn packets_not_for_the_group_are_dropped() {
    let mut p = ud();
    let qp = p.nodes[1].qp;
    attach(&mut p, 1, qp);
    recv(&mut p, 1, qp, 1, 0);
    let sent = send(&mut p, b"hello", QKEY);
    assert_eq!(statuses(&p.recv_completions(1)), [(1, WcStatus::Success)]);
    recv(&mut p, 1, qp, 2, 0);
    // Dropped: a packet to the group with the queue pair's own number, a packet to another group,
    // and two packets to the multicast number at a unicast address.
    let direct = Packet { dest_qp: qp, ..Packet::parse(&sent).unwrap() };
    let node = &mut p.nodes[1];
    node.nic.handle_multicast(p.now, gid(0), group(1), &direct, &mut node.memory);
    deliver_to_both(&mut p, group(2), &sent);
    deliver_to_both(&mut p, gid(1), &sent);
    p.inject(1, &Packet::parse(&sent).unwrap());
    assert!(p.recv_completions(1).is_empty());
    assert_eq!(p.counter(1, "drop_no_qp"), 4);
    let reliable = Packet::new(Transport::Rc, MULTICAST, Psn::new(0), Message::SendOnly, b"hello");
    let node = &mut p.nodes[1];
    node.nic.handle_multicast(p.now, gid(0), group(1), &reliable, &mut node.memory);
    assert!(p.recv_completions(1).is_empty());
    assert_eq!(p.counter(1, "drop_wrong_transport"), 1);
    p.nodes[1].nic.handle_link(false);
    deliver_to_both(&mut p, group(1), &sent);
    assert!(p.recv_completions(1).is_empty());
    assert_eq!(p.counter(1, "drop_link_down"), 1);
}

#[test]
fn attach_refuses_wrong_qp_type_and_invalid_groups() {
    let mut rc = pair();
    let qp = rc.nodes[0].qp;
    assert!(matches!(rc.nodes[0].nic.attach_mcast(qp, group(1), true), Err(Error::Invalid(_))));
    let mut p = ud();
    let qp = p.nodes[0].qp;
    let nic = &mut p.nodes[0].nic;
    let gid = |text: &str| Gid::from(text.parse::<std::net::IpAddr>().unwrap());
    // A NIC with an IPv4 address cannot receive from an IPv6 group.
    for wrong in ["127.0.0.1", "240.0.0.1", "fe80::1", "::", "ff0e::1"] {
        assert!(matches!(nic.attach_mcast(qp, gid(wrong), true), Err(Error::Invalid(_))), "{wrong}");
    }
    assert!(matches!(nic.attach_mcast(MULTICAST, group(1), true), Err(Error::NoSuchObject { .. })));
    assert!(!nic.has_mcast_members(group(1)));
}

#[test]
fn attached_qp_cannot_be_destroyed() {
    let mut p = ud();
    let qp = p.nodes[0].qp;
    attach(&mut p, 0, qp);
    let nic = &mut p.nodes[0].nic;
    let busy = nic.destroy_qp(p.now, qp).unwrap_err();
    assert!(matches!(busy, Error::Busy { kind: "queue pair", user: "a multicast group", .. }), "{busy}");
    nic.modify_qp(p.now, qp, &QpAttr::to(QpState::Reset)).unwrap();
    assert!(nic.has_mcast_members(group(1)), "a queue pair in RESET stays attached");
    nic.detach_mcast(qp, group(1)).unwrap();
    nic.destroy_qp(p.now, qp).unwrap();
}

#[test]
fn general_services_queue_pair_can_be_attached() {
    let p = &mut Setup { qp_type: QpType::Gsi, ..Setup::default() }.pair();
    let qp = p.nodes[1].qp;
    attach(p, 1, qp);
    let mut rc = pair();
    let qp = rc.nodes[1].qp;
    assert!(matches!(rc.nodes[1].nic.attach_mcast(qp, group(1), true), Err(Error::Invalid(_))));
}
