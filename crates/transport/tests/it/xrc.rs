//! Extended reliable connections: shared receive queues that messages name, XRC domains, and their
//! errors.

use crate::common::*;
use mitra_verbs::*;
use mitra_wire::{Aeth, Message, NakCode, Packet, Reth, Syndrome, Transport};

/// A connection from an XRC send queue pair (node 0) to an XRC receive queue pair (node 1).
struct Xrc {
    p: NicPair,
    domain: XrcdId,
    /// The handles, the numbers and the completion queues of two shared receive queues of the
    /// domain. The second is in another protection domain, without memory.
    srqs: [(SrqId, Srqn, CqId); 2],
    other_pd: PdId,
}

impl Xrc {
    fn with(setup: Setup) -> Xrc {
        let mut p = setup.pair();
        // A sending end uses no completion queue for receives. A receiving end uses neither
        // completion queues nor a protection domain.
        let init = |qp_type, pd, send_cq| QpInitAttr {
            qp_type,
            pd,
            send_cq,
            recv_cq: CqId(!0),
            srq: None,
            cap: setup.cap,
            sq_sig_all: setup.sq_sig_all,
        };
        let now = p.now;
        let [sender, receiver] = &mut p.nodes;
        let domain = receiver.nic.alloc_xrcd().unwrap();
        let other_pd = receiver.nic.alloc_pd().unwrap();
        let srqs = [receiver.pd, other_pd].map(|pd| {
            let cq = receiver.nic.create_cq(setup.cq_depth).unwrap();
            let srq = receiver.nic.create_xrc_srq(pd, domain, cq, 64).unwrap();
            (srq, receiver.nic.srq_number(srq).unwrap(), cq)
        });
        let sending = init(QpType::XrcSend, sender.pd, sender.send_cq);
        sender.qp = sender.nic.create_qp(now, &sending).unwrap();
        let receiving = init(QpType::XrcRecv(domain), PdId(!0), CqId(!0));
        receiver.qp = receiver.nic.create_qp(now, &receiving).unwrap();
        let responder = QpAttr {
            max_dest_rd_atomic: Some(setup.dest_rd_atomic),
            min_rnr_timer: Some(setup.min_rnr_timer),
            ..QpAttr::default()
        };
        let requester = Setup { qp_type: QpType::Rc, ..setup.clone() }.to_rts(setup.psn[0]);
        for i in 0..2 {
            let unreliable = Setup { qp_type: QpType::Uc, ..setup.clone() };
            let mut rtr = unreliable.to_rtr(&p.nodes[1 - i], setup.psn[1 - i]);
            if i == 1 {
                rtr.update(&responder);
            }
            p.modify(i, &setup.to_init());
            p.modify(i, &rtr);
        }
        p.modify(0, &requester);
        Xrc { p, domain, srqs, other_pd }
    }

    fn new() -> Xrc {
        Xrc::with(Setup::default())
    }

    /// Resets the receiving queue pair and connects it again, with the PSN 100.
    fn reconnect(&mut self) {
        let setup = Setup::default();
        let rtr = Setup { qp_type: QpType::Rc, ..setup.clone() }.to_rtr(&self.p.nodes[0], 100);
        for attr in [QpAttr::to(QpState::Reset), setup.to_init(), rtr] {
            self.p.modify(1, &attr);
        }
    }

    fn post(&mut self, i: usize, wr: SendWr) {
        let number = self.srqs[i].1;
        self.p.post(wr.to_srq(number));
    }

    /// Posts a receive of 4096 bytes at offset `4096 · wr_id` to shared receive queue 0.
    fn post_recv(&mut self, wr_id: u64) {
        let wr = RecvWr::new(wr_id, self.p.sge(1, 4096 * wr_id, 4096));
        self.p.nodes[1].nic.post_srq_recv(self.srqs[0].0, &[wr]).unwrap();
    }

    fn post_empty_recv(&mut self, i: usize, wr_id: u64) {
        let wr = RecvWr { wr_id, sges: SgeList::new() };
        self.p.nodes[1].nic.post_srq_recv(self.srqs[i].0, &[wr]).unwrap();
    }

    fn received(&mut self, i: usize) -> Vec<Wc> {
        let mut out = Vec::new();
        self.p.nodes[1].nic.poll_cq(self.srqs[i].2, usize::MAX, &mut out).unwrap();
        out
    }

    /// Returns a request packet for the receiving queue pair that names shared receive queue `i`.
    fn packet<'a>(&self, i: usize, psn: u32, message: Message, payload: &'a [u8]) -> Packet<'a> {
        let transport = Transport::Xrc(self.srqs[i].1);
        let packet = Packet::new(transport, self.p.nodes[1].qp, Psn::new(psn), message, payload);
        Packet { ack_req: true, ..packet }
    }
}

fn send(wr_id: u64, bytes: &[u8]) -> SendWr {
    SendWr::new(wr_id, SendOp::Send, Data::inline(bytes))
}

#[test]
fn each_operation_reaches_named_queue_and_memory() {
    let mut x = Xrc::new();
    (1..4).for_each(|wr_id| x.post_recv(wr_id));
    let long = pattern(3000, 7);
    x.p.bytes(0)[..3000].copy_from_slice(&long);
    x.p.set_word(1, 512, 40);
    let local = |x: &Xrc, offset, len| Data::sge(x.p.sge(0, offset, len));
    let remote = x.p.remote(512);
    let wrs = [
        SendWr::new(1, SendOp::Send, local(&x, 0, 3000)),
        SendWr::new(2, SendOp::SendWithImm(77), Data::inline(b"imm")),
        SendWr::new(3, SendOp::Write(x.p.remote(100_000)), local(&x, 0, 2500)),
        SendWr::new(4, SendOp::FetchAdd { remote, add: 2 }, local(&x, 8000, 8)),
        SendWr::new(5, SendOp::CompareSwap { remote, compare: 42, swap: 9 }, local(&x, 8008, 8)),
        SendWr::new(6, SendOp::Read(x.p.remote(100_000)), local(&x, 9000, 2500)),
        SendWr::new(7, SendOp::WriteWithImm(x.p.remote(200_000), 78), local(&x, 0, 1500)),
    ];
    for wr in wrs {
        x.post(0, wr);
    }
    x.p.run();
    let ok = |wr_id| (wr_id, WcStatus::Success);
    assert_eq!(statuses(&x.p.send_completions(0)), (1..8).map(ok).collect::<Vec<_>>());
    let received = x.received(0);
    assert_eq!(statuses(&received), (1..4).map(ok).collect::<Vec<_>>());
    assert!(received.iter().all(|wc| wc.qpn == x.p.nodes[1].qp && wc.src_qp == Qpn::new(0)));
    assert_eq!(received.iter().map(|wc| wc.imm).collect::<Vec<_>>(), [None, Some(77), Some(78)]);
    assert_eq!(received.iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [3000, 3, 1500]);
    assert_eq!(received[2].opcode, WcOpcode::RecvWithImm);
    assert_eq!(x.p.bytes(1)[4096..7096], long);
    assert_eq!(&x.p.bytes(1)[8192..8195], b"imm");
    assert_eq!(x.p.bytes(1)[100_000..102_500], long[..2500]);
    assert_eq!(x.p.bytes(0)[9000..11_500], long[..2500]);
    assert_eq!((x.p.word(0, 8000), x.p.word(0, 8008), x.p.word(1, 512)), (40, 42, 9));
    assert!(x.p.recv_completions(1).is_empty(), "the receives complete in the queue's own CQ");
    assert!(x.p.sent.iter().all(|sent| sent.opcode.starts_with("XRC_")), "{:?}", x.p.sent_opcodes(1));
    assert_eq!(x.p.events(1), [AsyncEvent::CommunicationEstablished(x.p.nodes[1].qp)]);
}

#[test]
fn named_queue_selects_receives_and_protection_domain() {
    let mut x = Xrc::new();
    x.post_recv(1);
    x.post_empty_recv(1, 2);
    x.post(1, SendWr::new(1, SendOp::SendWithImm(5), Data::empty()));
    x.post(0, send(2, b"first"));
    // A WRITE whose queue is in the protection domain of the key is executed.
    x.post(0, write(&x.p, 3, 50_000, 2000));
    x.p.run();
    assert_eq!(x.p.send_completions(0).len(), 3);
    assert_eq!(statuses(&x.received(0)), [(1, WcStatus::Success)]);
    assert_eq!(statuses(&x.received(1)), [(2, WcStatus::Success)]);
    let wr = write(&x.p, 4, 60_000, 2000);
    x.p.bytes(0)[60_000] = 1;
    x.post(1, wr);
    x.p.run();
    assert_eq!(statuses(&x.p.send_completions(0)), [(4, WcStatus::RemoteAccess)]);
    assert_eq!(x.p.bytes(1)[60_000], 0);
}

#[test]
fn request_for_unknown_queue_is_remote_access_error() {
    let mut x = Xrc::new();
    x.post_recv(1);
    let unknown = Srqn::new(x.srqs[0].1.value() ^ 0x1000);
    assert_ne!(unknown, x.srqs[1].1);
    x.p.post(send(1, b"lost").to_srq(unknown));
    x.p.run();
    assert_eq!(statuses(&x.p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
    assert_eq!((x.p.state(0), x.p.state(1)), (QpState::Err, QpState::Err));
    let qp = x.p.nodes[1].qp;
    assert!(x.p.events(1).contains(&AsyncEvent::QpAccessError(qp)));
    assert!(x.received(0).is_empty(), "no receive is consumed");
}

#[test]
fn request_for_queue_of_other_domain_is_remote_access_error() {
    let mut x = Xrc::new();
    let node = &mut x.p.nodes[1];
    let foreign = node.nic.alloc_xrcd().unwrap();
    let srq = node.nic.create_xrc_srq(node.pd, foreign, node.recv_cq, 4).unwrap();
    let number = node.nic.srq_number(srq).unwrap();
    let wr = RecvWr::new(1, node.mr.sge(0, 64));
    node.nic.post_srq_recv(srq, &[wr]).unwrap();
    x.p.post(send(1, b"lost").to_srq(number));
    x.p.run();
    assert_eq!(statuses(&x.p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
    assert!(x.p.recv_completions(1).is_empty());
    assert_eq!(x.p.bytes(1)[..4], [0; 4]);
}

#[test]
fn number_of_basic_queue_does_not_exist() {
    let mut x = Xrc::new();
    let node = &mut x.p.nodes[1];
    let basic = node.nic.create_srq(node.pd, 4).unwrap();
    assert!(matches!(node.nic.srq_number(basic), Err(Error::Invalid(_))));
    // The handle of a shared receive queue is not its number.
    x.p.post(send(1, b"lost").to_srq(Srqn::new(basic.0)));
    x.p.run();
    assert_eq!(statuses(&x.p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
}

#[test]
fn empty_queue_is_receiver_not_ready() {
    let mut x = Xrc::new();
    x.post_empty_recv(1, 9);
    x.post(0, send(1, b"wait"));
    x.p.run_for(core::time::Duration::from_micros(100));
    assert!(x.p.counter(1, "rnr_naks_sent") > 0);
    assert!(x.received(1).is_empty(), "the other queue of the domain keeps its receive");
    x.post_recv(2);
    x.p.run();
    assert_eq!(statuses(&x.received(0)), [(2, WcStatus::Success)]);
    assert_eq!(statuses(&x.p.send_completions(0)), [(1, WcStatus::Success)]);
}

#[test]
fn message_that_names_two_queues_is_invalid_request() {
    let mut x = Xrc::new();
    x.post_recv(1);
    x.post_empty_recv(1, 2);
    let first = x.packet(0, 100, Message::SendFirst, &[1; 1024]);
    let last = x.packet(1, 101, Message::SendLast, &[2; 8]);
    x.p.inject(1, &first);
    x.p.inject(1, &last);
    x.p.run();
    assert_eq!(x.p.state(1), QpState::Err);
    assert_eq!(statuses(&x.received(0)), [(1, WcStatus::Flushed)]);
    assert!(x.received(1).is_empty());
    let qp = x.p.nodes[1].qp;
    assert!(x.p.events(1).contains(&AsyncEvent::QpRequestError(qp)));
}

/// A message that is too long for its receive is refused after the response to an earlier READ.
/// Until then, another invalid request changes neither the refusal nor the status of the receive.
#[test]
fn request_behind_refused_request_is_dropped() {
    let mut x = Xrc::new();
    x.post_empty_recv(1, 2);
    let RemoteAddr { addr, rkey } = x.p.remote(0);
    let read = x.packet(0, 100, Message::ReadRequest(Reth { va: addr, rkey: rkey.0, len: 8 }), &[]);
    let too_long = x.packet(1, 101, Message::SendOnly, b"too long");
    let unknown = Packet { transport: Transport::Xrc(Srqn::new(1)), ..too_long };
    let other = x.packet(0, 101, Message::SendOnly, b"");
    for packet in [read, too_long, unknown, other] {
        x.p.inject(1, &packet);
    }
    assert_eq!(x.p.counter(1, "drop_qp_state"), 2);
    x.p.run();
    assert_eq!(statuses(&x.received(1)), [(2, WcStatus::LocalLength)]);
    assert_eq!(x.p.sent_opcodes(1), ["XRC_RDMA_READ_RESPONSE_ONLY", "XRC_ACKNOWLEDGE"]);
    let nak = x.p.sent.iter().rfind(|sent| sent.from == 1).unwrap();
    let invalid = Aeth { syndrome: Syndrome::Nak(NakCode::InvalidRequest), msn: 1 };
    assert_eq!(Packet::parse(&nak.bytes).unwrap().message, Message::Ack(invalid));
}

#[test]
fn duplicates_are_answered_and_not_delivered_again() {
    let mut x = Xrc::new();
    (1..3).for_each(|wr_id| x.post_recv(wr_id));
    let only = x.packet(0, 100, Message::SendOnly, b"once");
    x.p.inject(1, &only);
    x.p.run();
    x.p.inject(1, &only);
    // The acknowledgement of a duplicate does not need the queue.
    x.p.inject(1, &Packet { transport: Transport::Xrc(Srqn::new(1)), ..only });
    x.p.run();
    assert_eq!(statuses(&x.received(0)), [(1, WcStatus::Success)]);
    assert_eq!(x.p.counter(1, "duplicate_requests"), 2);
    assert!(x.p.sent_opcodes(1).len() >= 2);
    assert_eq!(x.p.state(1), QpState::Rtr);
}

#[test]
fn duplicate_read_in_other_message_uses_domain_of_its_own_queue() {
    let mut x = Xrc::new();
    x.post_recv(1);
    x.post_empty_recv(1, 2);
    x.p.bytes(1)[30_000..30_100].fill(0x5a);
    let RemoteAddr { addr, rkey } = x.p.remote(30_000);
    let reth = Reth { va: addr, rkey: rkey.0, len: 100 };
    let read = x.packet(0, 100, Message::ReadRequest(reth), &[]);
    let before = x.packet(1, 101, Message::SendOnlyImm(1), &[]);
    x.p.inject(1, &read);
    x.p.inject(1, &before);
    x.p.run();
    x.p.sent.clear();
    x.p.inject(1, &read);
    x.p.run();
    assert_eq!(x.p.sent_opcodes(1), ["XRC_RDMA_READ_RESPONSE_ONLY"]);
    // The same READ through a queue of a domain without the region gets no data.
    x.p.sent.clear();
    let through_other = x.packet(1, 100, Message::ReadRequest(reth), &[]);
    x.p.inject(1, &through_other);
    x.p.run();
    assert!(!x.p.sent_opcodes(1).contains(&"XRC_RDMA_READ_RESPONSE_ONLY"), "{:?}", x.p.sent_opcodes(1));
    // Through a queue that does not exist, the READ gets no answer.
    x.p.sent.clear();
    x.p.inject(1, &Packet { transport: Transport::Xrc(Srqn::new(1)), ..read });
    x.p.run();
    assert!(x.p.sent_opcodes(1).is_empty(), "{:?}", x.p.sent_opcodes(1));
}

#[test]
fn queue_destroyed_during_message_ends_connection() {
    let mut x = Xrc::new();
    x.post_recv(1);
    let first = x.packet(0, 100, Message::SendFirst, &[1; 1024]);
    x.p.inject(1, &first);
    let (srq, _, cq) = x.srqs[0];
    x.p.nodes[1].nic.destroy_srq(srq).unwrap();
    x.p.nodes[1].nic.destroy_cq(cq).unwrap();
    let last = x.packet(0, 101, Message::SendLast, &[2; 8]);
    x.p.inject(1, &last);
    x.p.run();
    assert_eq!(x.p.state(1), QpState::Err);
    assert_eq!(x.p.counter(1, "cq_overruns"), 0, "the receive has no completion queue any more");
}

#[test]
fn full_completion_queue_of_shared_queue_fails_queue_pair() {
    let mut x = Xrc::with(Setup { cq_depth: 2, ..Setup::default() });
    (1..4).for_each(|wr_id| x.post_recv(wr_id));
    for wr_id in 1..4 {
        let wr = send(wr_id, b"x").with_flags(SendFlags::empty());
        x.post(0, wr);
        x.p.run_for(core::time::Duration::from_micros(50));
    }
    assert_eq!(x.p.state(1), QpState::Err);
    assert!(x.p.events(1).contains(&AsyncEvent::CqError(x.srqs[0].2)));
}

#[test]
fn objects_in_use_are_busy() {
    let mut x = Xrc::new();
    let (domain, pd, [(srq, _, cq), (other, _, other_cq)]) = (x.domain, x.other_pd, x.srqs);
    let now = x.p.now;
    let node = &mut x.p.nodes[1];
    let nic = &mut node.nic;
    let busy = |result: Result<()>| assert!(matches!(result, Err(Error::Busy { .. })), "{result:?}");
    busy(nic.dealloc_xrcd(domain));
    busy(nic.destroy_cq(cq));
    busy(nic.dealloc_pd(pd));
    // A connection does not keep the queues that its messages name.
    nic.destroy_srq(srq).unwrap();
    nic.destroy_srq(other).unwrap();
    assert!(nic.destroy_srq(other).is_err());
    nic.destroy_cq(cq).unwrap();
    nic.destroy_cq(other_cq).unwrap();
    nic.dealloc_pd(pd).unwrap();
    busy(nic.dealloc_xrcd(domain));
    nic.destroy_qp(now, node.qp).unwrap();
    nic.dealloc_xrcd(domain).unwrap();
    assert!(matches!(nic.dealloc_xrcd(domain), Err(Error::NoSuchObject { .. })));
}

#[test]
fn calls_that_contradict_type_are_refused() {
    let mut x = Xrc::new();
    let recv = RecvWr::new(1, x.p.sge(1, 0, 64));
    assert!(x.p.nodes[1].nic.post_recv(x.p.nodes[1].qp, std::slice::from_ref(&recv)).is_err());
    assert!(x.p.nodes[0].nic.post_recv(x.p.nodes[0].qp, &[recv]).is_err());
    let number = x.srqs[0].1;
    x.p.modify(1, &QpAttr { sq_psn: Some(Psn::new(0)), timeout: Some(8), ..QpAttr::to(QpState::Rts) });
    assert!(x.p.post_on(1, &[send(1, b"x").to_srq(number)]).is_err(), "the receiving end sends nothing");
    let mut rc = pair();
    assert!(rc.post_on(0, &[send(1, b"x").to_srq(number)]).is_err(), "an RC send names no queue");
    let node = &mut x.p.nodes[1];
    let srq = Some(x.srqs[0].0);
    let (pd, send_cq, recv_cq) = (node.pd, node.send_cq, node.recv_cq);
    for qp_type in [QpType::Rc, QpType::XrcSend, QpType::XrcRecv(x.domain)] {
        let cap = QpCap::default();
        let init = QpInitAttr { qp_type, pd, send_cq, recv_cq, srq, cap, sq_sig_all: false };
        assert!(matches!(node.nic.create_qp(x.p.now, &init), Err(Error::Invalid(_))), "{qp_type:?}");
    }
    let no_such_cq = CqId(!0);
    assert!(node.nic.create_xrc_srq(pd, x.domain, no_such_cq, 4).is_err());
    assert!(node.nic.create_xrc_srq(pd, XrcdId(!0), recv_cq, 4).is_err());
}

#[test]
fn packets_of_other_services_are_dropped() {
    let mut x = Xrc::new();
    x.post_recv(1);
    let packet = x.packet(0, 100, Message::SendOnly, b"x");
    for transport in [Transport::Rc, Transport::Uc] {
        x.p.inject(1, &Packet { transport, ..packet });
    }
    x.p.inject(0, &Packet { dest_qp: x.p.nodes[0].qp, psn: Psn::new(0xff_fff0), ..packet });
    assert_eq!((x.p.counter(1, "drop_wrong_transport"), x.p.counter(0, "drop_wrong_transport")), (2, 1));
    assert!(x.received(0).is_empty());
    let mut rc = pair();
    let recv = RecvWr::new(1, rc.sge(1, 0, 64));
    rc.post_recv(recv);
    let dest_qp = rc.nodes[1].qp;
    rc.inject(1, &Packet { dest_qp, ..packet });
    assert_eq!(rc.counter(1, "drop_wrong_transport"), 1);
    assert!(rc.recv_completions(1).is_empty());
}

#[test]
fn reset_queue_pair_connects_again() {
    let mut x = Xrc::new();
    x.post_recv(1);
    x.post_recv(2);
    let first = x.packet(0, 100, Message::SendFirst, &[1; 1024]);
    x.p.inject(1, &first);
    x.reconnect();
    x.post(0, send(1, b"again"));
    x.p.run();
    assert_eq!(statuses(&x.received(0)), [(2, WcStatus::Success)]);
}

/// The connection continues with another queue. It ends at the next message for the overflowed
/// completion queue, and that message is not acknowledged.
#[test]
fn message_for_queue_whose_completion_queue_has_overflowed_is_not_acknowledged() {
    let mut x = Xrc::with(Setup { cq_depth: 1, retry_cnt: 1, ..Setup::default() });
    (1..4).for_each(|wr_id| x.post_recv(wr_id));
    x.post_empty_recv(1, 5);
    for psn in [100, 101] {
        let only = x.packet(0, psn, Message::SendOnly, b"x");
        x.p.inject(1, &only);
        x.p.run();
    }
    assert_eq!((x.p.state(1), x.received(0).len()), (QpState::Err, 1));
    x.reconnect();
    x.post(1, SendWr::new(1, SendOp::Send, Data::empty()));
    x.p.run();
    assert_eq!(statuses(&x.p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!((x.p.state(1), x.received(1).len()), (QpState::Rtr, 1));
    x.post(0, send(2, b"lost"));
    x.p.run();
    assert_eq!(x.p.state(1), QpState::Err);
    assert!(x.received(0).is_empty());
    assert_eq!(statuses(&x.p.send_completions(0)), [(2, WcStatus::RetryExceeded)]);
}

/// A reset queue pair no longer uses the completion queue of its last message.
#[test]
fn reset_queue_pair_does_not_fail_with_completion_queue_of_earlier_connection() {
    let mut x = Xrc::with(Setup { cq_depth: 1, ..Setup::default() });
    (1..4).for_each(|wr_id| x.post_recv(wr_id));
    let only = x.packet(0, 100, Message::SendOnly, b"x");
    x.p.inject(1, &only);
    x.p.run();
    x.reconnect();
    // A second connection overflows the queue's completion queue.
    let setup = Setup::default();
    let init = x.p.status(1).init;
    let rtr = Setup { qp_type: QpType::Rc, ..setup.clone() }.to_rtr(&x.p.nodes[0], 500);
    let now = x.p.now;
    let nic = &mut x.p.nodes[1].nic;
    let second = nic.create_qp(now, &init).unwrap();
    nic.modify_qp(now, second, &setup.to_init()).unwrap();
    nic.modify_qp(now, second, &rtr).unwrap();
    let only = Packet { dest_qp: second, ..x.packet(0, 500, Message::SendOnly, b"x") };
    x.p.inject(1, &only);
    x.p.run();
    assert_eq!(x.p.nodes[1].nic.query_qp(second).unwrap().state, QpState::Err);
    assert_eq!(x.p.state(1), QpState::Rtr);
}
