//! The unreliable services UC and UD: they drop lost and invalid messages without a report to the
//! sender.

use crate::common::*;
use mitra_transport::TxBatch;
use mitra_verbs::*;
use mitra_wire::{Deth, Message, Packet, Reth, Transport};

fn uc() -> NicPair {
    Setup { qp_type: QpType::Uc, ..Setup::default() }.pair()
}

/// Drops packet number `lost`, counted from 0 in both directions.
fn drop_packet(p: &mut NicPair, lost: usize) {
    let mut n = 0;
    p.set_link(move |_, _| {
        n += 1;
        if n - 1 == lost { LinkAction::Drop } else { LinkAction::Pass }
    });
}

#[test]
fn uc_executes_sends_and_writes_at_every_mtu_and_length() {
    for mtu in Mtu::ALL {
        let m = mtu.bytes();
        for len in [0, 1, m - 1, m, m + 1, 5 * m + 3] {
            let mut p = Setup { qp_type: QpType::Uc, mtu, psn: [0xff_fffe, 3], ..Setup::default() }.pair();
            let data = pattern(len, 7);
            p.bytes(0)[..len].copy_from_slice(&data);
            p.post_recv(RecvWr::new(9, p.sge(1, 0, len as u32)));
            p.post_recv(RecvWr::new(10, p.sge(1, 0, 0)));
            let from = || Data::sge(Sge { addr: BASE, len: len as u32, key: p.nodes[0].mr.lkey });
            let wrs = [
                SendWr::new(1, SendOp::SendWithImm(3), from()),
                SendWr::new(2, SendOp::Write(p.remote(0x10000)), from()),
                SendWr::new(3, SendOp::WriteWithImm(p.remote(0x20000), 4), from()),
            ];
            p.post_on(0, &wrs).unwrap();
            p.run();
            let completed: Vec<_> = (1..4).map(|i| (i, WcStatus::Success)).collect();
            assert_eq!(statuses(&p.send_completions(0)), completed);
            let received = p.recv_completions(1);
            assert_eq!(statuses(&received), [(9, WcStatus::Success), (10, WcStatus::Success)]);
            assert_eq!((received[0].imm, received[0].byte_len), (Some(3), len as u32));
            assert_eq!((received[1].imm, received[1].opcode), (Some(4), WcOpcode::RecvWithImm));
            for at in [0, 0x10000, 0x20000] {
                assert_eq!(p.bytes(1)[at..at + len], data);
            }
            assert!(p.sent_opcodes(1).is_empty(), "UC sends no acknowledgements");
            assert_eq!(p.status(0).sq_psn, p.status(1).rq_psn);
        }
    }
}

#[test]
fn uc_drops_message_with_lost_packet() {
    for lost in 0..4 {
        let mut p = uc();
        p.bytes(0)[..4096].fill(7);
        drop_packet(&mut p, lost);
        p.post_recv(RecvWr::new(8, p.sge(1, 0, 4096)));
        p.post_recv(RecvWr::new(9, p.sge(1, 0x10000, 4096)));
        for i in 1..3 {
            let data = Data::sge(p.sge(0, 0, 4000));
            p.post(SendWr::new(i, SendOp::SendWithImm(i as u32), data));
        }
        p.run();
        assert_eq!(p.send_completions(0).len(), 2, "the sender does not learn of the loss");
        let received = p.recv_completions(1);
        // The next message uses the receive of the dropped message.
        assert_eq!(
            received.iter().map(|wc| (wc.wr_id, wc.imm)).collect::<Vec<_>>(),
            [(8, Some(2))],
            "{lost}"
        );
        assert_eq!(p.bytes(1)[0x10000], 0);
        assert_eq!(p.state(1), QpState::Rts);
    }
}

#[test]
fn uc_drops_denied_writes_and_stays_usable() {
    let mut p = uc();
    p.bytes(0)[..4096].fill(7);
    let bad = RemoteAddr { rkey: Key(1), ..p.remote(0) };
    let beyond = p.remote(SIZE as u64 - 3999);
    for remote in [bad, beyond] {
        p.post(SendWr::new(1, SendOp::Write(remote), Data::sge(p.sge(0, 0, 4000))));
    }
    p.post(SendWr::new(2, SendOp::Send, Data::inline(b"nobody receives this")));
    p.run();
    assert!(p.bytes(1).iter().all(|&b| b == 0));
    assert_eq!(p.counter(1, "drop_no_receive"), 1);
    p.post_recv(RecvWr::new(5, p.sge(1, 0, 2)));
    p.post(SendWr::new(3, SendOp::Send, Data::inline(b"too long")));
    p.post(SendWr::new(4, SendOp::Send, Data::inline(b"ok")));
    p.run();
    assert_eq!(statuses(&p.recv_completions(1)), [(5, WcStatus::Success)]);
    assert_eq!(&p.bytes(1)[..2], b"ok");
    assert!(p.sent_opcodes(1).is_empty());
    assert!(p.events(1).is_empty());
}

#[test]
fn uc_first_packet_restarts_unfinished_message() {
    let mut p = uc();
    p.post_recv(RecvWr::new(8, p.sge(1, 0, 4096)));
    let full: &[u8] = &[7; 1024];
    let packets = [(Message::SendFirst, full), (Message::SendFirst, full), (Message::SendLast, &full[..3])];
    for (i, (message, payload)) in (0..).zip(packets) {
        let psn = Psn::new(100 + i);
        p.inject(1, &Packet::new(Transport::Uc, p.nodes[1].qp, psn, message, payload));
    }
    let received = p.recv_completions(1);
    assert_eq!((statuses(&received), received[0].byte_len), (vec![(8, WcStatus::Success)], 1027));
}

#[test]
fn uc_completes_reads_and_atomics_with_error() {
    for n in 0..4 {
        let mut p = uc();
        let remote = p.remote(0);
        let op = [
            SendOp::Read(remote),
            SendOp::FetchAdd { remote, add: 1 },
            SendOp::CompareSwap { remote, compare: 0, swap: 0 },
            SendOp::SendWithInvalidate(Key(1)),
        ][n];
        p.post_recv(RecvWr::new(9, p.sge(1, 0, 8)));
        let before = SendWr::new(1, SendOp::Send, Data::inline(b"before"));
        let refused = SendWr::new(2, op, Data::sge(p.sge(0, 0, 8)));
        p.post_on(0, &[before, refused, SendWr::new(3, SendOp::Send, Data::empty())]).unwrap();
        p.run();
        let completed = p.send_completions(0);
        let expected = [(1, WcStatus::Success), (2, WcStatus::LocalQpOperation), (3, WcStatus::Flushed)];
        assert_eq!(statuses(&completed), expected);
        assert_eq!(statuses(&p.recv_completions(1)), [(9, WcStatus::Success)]);
    }
}

#[test]
fn uc_binds_and_invalidates_windows_without_packets() {
    let mut p = uc();
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 100)));
    let node = &mut p.nodes[0];
    let mw = node.nic.alloc_mw(p.now, node.pd, WindowType::Type2).unwrap();
    let (mr, access) = (node.mr.id, Access::REMOTE_WRITE);
    let bind = WindowBind { mw: mw.id, rkey: mw.rkey, mr, addr: BASE, len: 64, access, zero_based: false };
    let through = SendOp::Write(RemoteAddr { addr: BASE, rkey: mw.rkey });
    p.post(SendWr::new(1, SendOp::BindWindow(bind), Data::empty()));
    p.run();
    p.post_on(1, &[SendWr::new(5, through, Data::inline(b"in"))]).unwrap();
    p.run();
    assert_eq!(&p.bytes(0)[..2], b"in");
    p.post(SendWr::new(2, SendOp::LocalInvalidate(mw.rkey), Data::empty()));
    p.run();
    p.post_on(1, &[SendWr::new(6, through, Data::inline(b"no"))]).unwrap();
    p.run();
    assert_eq!(&p.bytes(0)[..2], b"in");
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    // The key is no longer bound.
    p.post(SendWr::new(3, SendOp::LocalInvalidate(mw.rkey), Data::empty()));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(3, WcStatus::LocalQpOperation)]);
    assert_eq!(p.state(0), QpState::Sqe);
    assert!(p.sent_opcodes(0).is_empty() && p.recv_completions(1).is_empty());
}

#[test]
fn uc_local_error_stops_sends_only() {
    let mut p = uc();
    p.post(SendWr::new(1, SendOp::Send, Data::sge(Sge { key: Key(0), ..p.sge(0, 0, 8) })));
    p.post(SendWr::new(2, SendOp::Send, Data::inline(b"x")));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::LocalProtection), (2, WcStatus::Flushed)]);
    assert_eq!(p.state(0), QpState::Sqe);
    p.post(SendWr::new(3, SendOp::Send, Data::inline(b"x")));
    assert_eq!(statuses(&p.send_completions(0)), [(3, WcStatus::Flushed)]);
    // The queue pair still receives, and returns to RTS.
    let packet = Packet::new(
        Transport::Uc,
        p.nodes[0].qp,
        p.status(0).rq_psn,
        Message::WriteOnly(Reth { va: BASE, rkey: p.nodes[0].mr.rkey.0, len: 2 }),
        b"hi",
    );
    p.inject(0, &packet);
    assert_eq!(&p.bytes(0)[..2], b"hi");
    p.modify(0, &QpAttr::to(QpState::Rts));
    p.post(SendWr::new(4, SendOp::Write(p.remote(0)), Data::inline(b"back")));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(4, WcStatus::Success)]);
    assert_eq!(&p.bytes(1)[..4], b"back");
}

#[test]
fn uc_local_error_ends_draining() {
    let mut p = uc();
    let wrong = Sge { key: Key(0), ..p.sge(0, 0, 4096) };
    let list = SgeList::from_slice(&[p.sge(0, 0, 200 << 10), wrong]);
    p.post(SendWr::new(1, SendOp::Send, Data::Sges(list)));
    // Send a part of the message.
    let node = &mut p.nodes[0];
    assert!(node.nic.poll_transmit(p.now, &mut node.memory, &mut TxBatch::new()));
    p.modify(0, &QpAttr::to(QpState::Sqd));
    assert_eq!(p.status(0).sq_drain, SqDrain::Draining);
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::LocalProtection)]);
    assert_eq!((p.state(0), p.status(0).sq_drain), (QpState::Sqe, SqDrain::NotInSqd));
    assert!(p.events(0).is_empty(), "a failed queue pair raises no drained event");
}

const QKEY: u32 = 0x1234;

fn ud() -> NicPair {
    Setup { qp_type: QpType::Ud, ..Setup::default() }.pair()
}

fn to_peer(p: &mut NicPair, qkey: u32) -> UdDestination {
    let (gid, qpn) = (p.nodes[1].gid, p.nodes[1].qp);
    let node = &mut p.nodes[0];
    UdDestination { ah: node.nic.create_ah(node.pd, gid).unwrap(), qpn, qkey }
}

#[test]
fn ud_delivers_message_with_addresses() {
    for len in [0, 1, 4095, 4096] {
        let mut p = ud();
        let to = to_peer(&mut p, QKEY);
        let data = pattern(len, 3);
        p.bytes(0)[..len].copy_from_slice(&data);
        p.bytes(1)[..40].fill(0xee);
        p.post_recv(RecvWr::new(9, p.sge(1, 0, 40 + len as u32)));
        p.post(SendWr::new(1, SendOp::SendWithImm(6), Data::sge(p.sge(0, 0, len as u32))).to(to));
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
        let received = p.recv_completions(1);
        assert_eq!(statuses(&received), [(9, WcStatus::Success)]);
        assert_eq!(
            (received[0].byte_len, received[0].imm, received[0].src_qp),
            (40 + len as u32, Some(6), p.nodes[0].qp)
        );
        assert_eq!(p.bytes(1)[40..40 + len], data);
        // The last 20 bytes hold an IPv4 header from 127.0.0.1 to 127.0.0.2 with a valid checksum.
        let ip = p.bytes(1)[20..40].to_vec();
        assert_eq!((ip[0], ip[9]), (0x45, 17));
        assert_eq!(ip[12..], [127, 0, 0, 1, 127, 0, 0, 2]);
        let sum: u32 = ip.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let wire = 20 + 8 + 12 + 8 + 4 + len.next_multiple_of(4) + 4;
        assert_eq!(usize::from(ip[2]) << 8 | usize::from(ip[3]), wire);
    }
}

#[test]
fn ud_checks_q_key() {
    let mut p = ud();
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 100)));
    let to = to_peer(&mut p, QKEY + 1);
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"wrong")).to(to));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert!(p.recv_completions(1).is_empty());
    assert_eq!(p.counter(1, "drop_qkey"), 1);
    // A Q_Key with the top bit set stands for the Q_Key of the sender.
    let to = UdDestination { qkey: 1 << 31 | 77, ..to };
    p.post(SendWr::new(2, SendOp::Send, Data::inline(b"right")).to(to));
    p.run();
    assert_eq!(statuses(&p.recv_completions(1)), [(9, WcStatus::Success)]);
    let sent = Packet::parse(&p.sent[1].bytes).unwrap().transport;
    assert_eq!(sent, Transport::Ud(Deth { qkey: QKEY, src_qp: p.nodes[0].qp }));
}

#[test]
fn ud_drops_message_longer_than_receive_and_keeps_receive() {
    let mut p = ud();
    let to = to_peer(&mut p, QKEY);
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"no receive")).to(to));
    p.run();
    assert_eq!(p.counter(1, "drop_no_receive"), 1);
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 44)));
    p.post(SendWr::new(2, SendOp::Send, Data::inline(b"5 byt")).to(to));
    p.post(SendWr::new(3, SendOp::Send, Data::inline(b"fits")).to(to));
    p.run();
    let received = p.recv_completions(1);
    assert_eq!(statuses(&received), [(9, WcStatus::Success)]);
    assert_eq!((received[0].byte_len, &p.bytes(1)[40..44]), (44, &b"fits"[..]));
}

#[test]
fn ud_refuses_invalid_sends() {
    let mut p = ud();
    let to = to_peer(&mut p, QKEY);
    let nowhere = SendWr::new(1, SendOp::Send, Data::inline(b"x"));
    assert!(p.post_on(0, &[nowhere]).is_err());
    let invalidate = SendWr::new(1, SendOp::LocalInvalidate(Key(1)), Data::empty());
    assert!(p.post_on(0, &[invalidate]).is_err());
    p.nodes[0].nic.destroy_ah(to.ah).unwrap();
    let stale = SendWr::new(1, SendOp::Send, Data::inline(b"x")).to(to);
    let refused = p.post_on(0, &[stale]).unwrap_err();
    assert!(matches!(refused.error, Error::NoSuchObject { kind: "address handle", .. }), "{refused}");
}

#[test]
fn ud_message_beyond_mtu_is_dropped_without_error() {
    let mut p = ud();
    let to = to_peer(&mut p, QKEY);
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 4200)));
    p.post(SendWr::new(1, SendOp::Send, Data::sge(p.sge(0, 0, 4097))).to(to));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert!(p.recv_completions(1).is_empty());
    p.post(SendWr::new(2, SendOp::Send, Data::sge(p.sge(0, 0, 4096))).to(to));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(2, WcStatus::Success)]);
    assert_eq!(p.recv_completions(1)[0].byte_len, 4136);
}

#[test]
fn ud_completes_other_operations_than_send_with_error() {
    for with_destination in [true, false] {
        let mut p = ud();
        let to = to_peer(&mut p, QKEY);
        p.post_recv(RecvWr::new(9, p.sge(1, 0, 100)));
        p.post(SendWr::new(1, SendOp::Send, Data::inline(b"before")).to(to));
        let mut read = SendWr::new(2, SendOp::Read(p.remote(0)), Data::sge(p.sge(0, 0, 8)));
        read.ud = with_destination.then_some(to);
        p.post(read);
        p.run();
        let expected = [(1, WcStatus::Success), (2, WcStatus::LocalQpOperation)];
        assert_eq!(statuses(&p.send_completions(0)), expected);
        assert_eq!(statuses(&p.recv_completions(1)), [(9, WcStatus::Success)]);
    }
}

#[test]
fn ud_sends_in_posting_order_with_one_destination_per_batch() {
    let mut p = ud();
    let to = to_peer(&mut p, QKEY);
    let node = &mut p.nodes[0];
    let elsewhere = node.nic.create_ah(node.pd, gid(5)).unwrap();
    for i in 0..6 {
        let ah = if i % 3 == 2 { elsewhere } else { to.ah };
        let wr = SendWr::new(i, SendOp::Send, Data::inline(&[i as u8])).to(UdDestination { ah, ..to });
        node.nic.post_send(p.now, node.qp, &[wr]).unwrap();
    }
    let mut batch = mitra_transport::TxBatch::new();
    let mut seen = Vec::new();
    while node.nic.poll_transmit(p.now, &mut node.memory, &mut batch) {
        seen.push((batch.destination, batch.ends.len()));
    }
    assert_eq!(seen, [(gid(1), 2), (gid(5), 1), (gid(1), 2), (gid(5), 1)]);
    assert_eq!(p.send_completions(0).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn gsi_qp_exchanges_management_datagrams() {
    let mut p = Setup { qp_type: QpType::Gsi, ..Setup::default() }.pair();
    assert_eq!((p.nodes[0].qp, p.nodes[1].qp), (Qpn::new(1), Qpn::new(1)));
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 100)));
    let to = to_peer(&mut p, GSI_QKEY);
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"hello")).to(to));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    let received = p.recv_completions(1);
    assert_eq!(statuses(&received), [(9, WcStatus::Success)]);
    assert_eq!((received[0].byte_len, received[0].src_qp), (45, Qpn::new(1)));
    assert_eq!(p.bytes(1)[40..45], *b"hello");
    let sent = Packet::parse(&p.sent[0].bytes).unwrap();
    let deth = Deth { qkey: GSI_QKEY, src_qp: Qpn::new(1) };
    assert_eq!((sent.dest_qp, sent.transport), (Qpn::new(1), Transport::Ud(deth)));
    // GSI supports only SEND, as UD does.
    let wr = SendWr::new(2, SendOp::Write(p.remote(0)), Data::empty()).to(to);
    p.post(wr);
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(2, WcStatus::LocalQpOperation)]);
}

#[test]
fn gsi_qp_exists_once() {
    let mut p = Setup { qp_type: QpType::Gsi, ..Setup::default() }.pair();
    let node = &mut p.nodes[0];
    let init = QpInitAttr {
        qp_type: QpType::Gsi,
        pd: node.pd,
        send_cq: node.send_cq,
        recv_cq: node.recv_cq,
        srq: None,
        cap: QpCap::default(),
        sq_sig_all: false,
    };
    let second = node.nic.create_qp(p.now, &init).unwrap_err();
    assert!(matches!(second, Error::Busy { kind: "queue pair", id: 1, .. }), "{second}");
    // Ordinary queue pairs never get number 1. After the GSI queue pair is destroyed, the number is
    // free again.
    for _ in 0..100 {
        let other = node.nic.create_qp(p.now, &QpInitAttr { qp_type: QpType::Ud, ..init }).unwrap();
        assert_ne!(other, Qpn::new(1));
        assert_eq!(node.nic.query_qp(Qpn::new(1)).unwrap().state, QpState::Rts);
    }
    node.nic.destroy_qp(p.now, Qpn::new(1)).unwrap();
    assert!(node.nic.query_qp(Qpn::new(1)).is_err());
    assert_eq!(node.nic.create_qp(p.now, &init), Ok(Qpn::new(1)));
    assert_eq!(node.nic.query_qp(Qpn::new(1)).unwrap().state, QpState::Reset);
}

#[test]
fn gsi_qp_accepts_only_its_q_key() {
    let mut p = Setup { qp_type: QpType::Gsi, ..Setup::default() }.pair();
    let other = QpAttr { qkey: Some(QKEY), ..QpAttr::to(QpState::Rts) };
    let refused = p.nodes[1].nic.modify_qp(p.now, Qpn::new(1), &other);
    assert!(matches!(refused, Err(Error::Modify(ModifyError::OutOfRange { .. }))), "{refused:?}");
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 100)));
    let to = to_peer(&mut p, QKEY);
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"hello")).to(to));
    p.run();
    assert!(p.recv_completions(1).is_empty());
    assert_eq!(p.counter(1, "drop_qkey"), 1);
}
