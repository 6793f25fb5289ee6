//! The errors of a reliable connection: statuses, NAKs and events, and that no memory was accessed.

mod common;

use common::*;
use core::time::Duration;
use mitra_verbs::*;
use mitra_wire::{Aeth, AtomicEth, Message, NakCode, Packet, Reth, Syndrome, Transport};

fn write(p: &NicPair, wr_id: u64, remote: RemoteAddr, len: u32) -> SendWr {
    SendWr::new(wr_id, SendOp::Write(remote), Data::sge(p.sge(0, 0, len)))
}

/// Creates a request on remote memory.
type MakeRequest = fn(&NicPair, RemoteAddr) -> SendWr;

/// Posts `wr` and two more sends. Checks that `wr` fails with `status`, that the other sends are flushed, and that the
/// memory of node 1 is unchanged.
fn assert_send_fails(p: &mut NicPair, wr: SendWr, status: WcStatus) {
    p.bytes(0)[..0x4000].fill(0xee);
    let before = p.bytes(1).to_vec();
    let behind = [write(p, 2, p.remote(0), 8), write(p, 3, p.remote(0), 8).with_flags(SendFlags::empty())];
    p.post_on(0, &[wr]).unwrap();
    p.post_on(0, &behind).unwrap();
    p.run();
    assert_eq!(
        statuses(&p.send_completions(0)),
        [(1, status), (2, WcStatus::Flushed), (3, WcStatus::Flushed)]
    );
    assert_eq!(p.state(0), QpState::Err);
    assert!(p.bytes(1) == before, "memory was accessed");
}

/// Returns the last NAK that node 1 has sent.
fn last_nak(p: &NicPair) -> Option<Syndrome> {
    let mut syndromes = p.sent.iter().filter(|s| s.from == 1).filter_map(|s| {
        match Packet::parse(&s.bytes).unwrap().message {
            Message::Ack(aeth) if !matches!(aeth.syndrome, Syndrome::Ack { .. }) => Some(aeth.syndrome),
            _ => None,
        }
    });
    syndromes.next_back()
}

/// Checks that `wr` fails with a remote access error, that both ends enter ERR, and that the responder raises an event.
fn assert_access_denied(p: &mut NicPair, wr: SendWr) {
    p.post_recv(RecvWr::new(70, p.sge(1, 0, 8)));
    p.post_recv(RecvWr::new(71, p.sge(1, 0, 8)));
    assert_send_fails(p, wr, WcStatus::RemoteAccess);
    assert_eq!(last_nak(p), Some(Syndrome::Nak(NakCode::RemoteAccess)));
    assert_eq!(p.state(1), QpState::Err);
    let qp = p.nodes[1].qp;
    assert!(p.events(1).contains(&AsyncEvent::QpAccessError(qp)));
    assert_eq!(statuses(&p.recv_completions(1)), [(70, WcStatus::Flushed), (71, WcStatus::Flushed)]);
    assert_eq!(p.counter(1, "fatal_naks_sent"), 1);
}

fn fetch_add(p: &NicPair, wr_id: u64, remote: RemoteAddr) -> SendWr {
    SendWr::new(wr_id, SendOp::FetchAdd { remote, add: 1 }, Data::sge(p.sge(0, 0, 8)))
}

fn read(p: &NicPair, wr_id: u64, remote: RemoteAddr, len: u32) -> SendWr {
    SendWr::new(wr_id, SendOp::Read(remote), Data::sge(p.sge(0, 0, len)))
}

#[test]
fn wrong_rkey_is_remote_access_error() {
    let ops: [fn(&NicPair, RemoteAddr) -> SendWr; 4] = [
        |p, r| write(p, 1, r, 8),
        |p, r| write(p, 1, r, 5000),
        |p, r| read(p, 1, r, 3000),
        |p, r| fetch_add(p, 1, r),
    ];
    for op in ops {
        for flip in [1, 0x100, 0x8000_0000] {
            let mut p = pair();
            let remote = RemoteAddr { rkey: Key(p.nodes[1].mr.rkey.0 ^ flip), ..p.remote(0) };
            let wr = op(&p, remote);
            assert_access_denied(&mut p, wr);
        }
    }
}

#[test]
fn out_of_bounds_message_is_refused_at_first_packet() {
    for over in [1, 1024, 5000] {
        let mut p = pair();
        let remote = p.remote(SIZE as u64 - 5000 + over);
        let wr = write(&p, 1, remote, 5000);
        assert_access_denied(&mut p, wr);
        let mut p = pair();
        let wr = read(&p, 1, p.remote(SIZE as u64 - 5000 + over), 5000);
        assert_access_denied(&mut p, wr);
    }
    let mut p = pair();
    let below = RemoteAddr { addr: BASE - 1, ..p.remote(0) };
    let wr = write(&p, 1, below, 8);
    assert_access_denied(&mut p, wr);
    let mut p = pair();
    let wrapping = RemoteAddr { addr: u64::MAX - 3, ..p.remote(0) };
    let wr = write(&p, 1, wrapping, 8);
    assert_access_denied(&mut p, wr);
}

#[test]
fn missing_region_right_is_remote_access_error() {
    let cases: [(Access, MakeRequest); 3] = [
        (Access::REMOTE_WRITE, |p, r| write(p, 1, r, 8)),
        (Access::REMOTE_READ, |p, r| read(p, 1, r, 8)),
        (Access::REMOTE_ATOMIC, |p, r| fetch_add(p, 1, r)),
    ];
    for (right, op) in cases {
        let mut p = pair();
        let node = &mut p.nodes[1];
        node.memory.regions.push(vec![0; 64]);
        let mr = node.nic.reg_mr(p.now, node.pd, RegionId(1), BASE, 64, ALL_ACCESS - right).unwrap();
        let wr = op(&p, mr.remote(0));
        assert_access_denied(&mut p, wr);
        assert!(p.nodes[1].memory.regions[1].iter().all(|&b| b == 0));
    }
}

#[test]
fn rkey_of_other_pd_is_remote_access_error() {
    let mut p = pair();
    let node = &mut p.nodes[1];
    node.memory.regions.push(vec![0; 64]);
    let pd = node.nic.alloc_pd().unwrap();
    let mr = node.nic.reg_mr(p.now, pd, RegionId(1), BASE, 64, ALL_ACCESS).unwrap();
    let wr = write(&p, 1, mr.remote(0), 8);
    assert_access_denied(&mut p, wr);
}

#[test]
fn key_revoked_within_write_stops_placement() {
    let mut p = pair();
    p.bytes(0)[..5000].fill(0xee);
    let wr = write(&p, 1, p.remote(0), 5000);
    p.post(wr);
    p.transmit_all();
    for _ in 0..2 {
        p.step();
    }
    let node = &mut p.nodes[1];
    let placed = node.memory.regions[0].iter().filter(|&&b| b == 0xee).count();
    assert!(placed > 0 && placed < 5000, "{placed}");
    assert_eq!(node.nic.dereg_mr(p.now, node.mr.id), Ok(RegionId(0)));
    let accesses = node.memory.accesses;
    p.run();
    assert_eq!(p.nodes[1].memory.accesses, accesses, "memory was accessed after its revocation");
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
}

#[test]
fn key_revoked_before_read_response_is_remote_access_error() {
    let mut p = pair();
    let wr = read(&p, 1, p.remote(0), 5000);
    p.post(wr);
    p.transmit_all();
    // The responder has accepted the READ and not read the memory.
    let bytes = p.sent[0].bytes.clone();
    p.inject(1, &Packet::parse(&bytes).unwrap());
    let node = &mut p.nodes[1];
    node.nic.dereg_mr(p.now, node.mr.id).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
    assert_eq!(p.nodes[1].memory.accesses, 0);
}

#[test]
fn operation_without_qp_access_is_invalid_request() {
    let cases: [(Access, MakeRequest); 4] = [
        (Access::REMOTE_WRITE, |p, r| write(p, 1, r, 8)),
        (Access::REMOTE_WRITE, |p, r| write(p, 1, r, 0)),
        (Access::REMOTE_READ, |p, r| read(p, 1, r, 8)),
        (Access::REMOTE_ATOMIC, |p, r| fetch_add(p, 1, r)),
    ];
    for (right, op) in cases {
        let mut p = Setup { access: Access::REMOTE - right, ..Setup::default() }.pair();
        let wr = op(&p, p.remote(0));
        assert_send_fails(&mut p, wr, WcStatus::RemoteInvalidRequest);
        assert_eq!(last_nak(&p), Some(Syndrome::Nak(NakCode::InvalidRequest)));
        let qp = p.nodes[1].qp;
        assert_eq!(p.events(1), [AsyncEvent::QpRequestError(qp)]);
    }
}

#[test]
fn unaligned_atomic_is_invalid_request() {
    for offset in 1..8 {
        let mut p = pair();
        let wr = fetch_add(&p, 1, p.remote(offset));
        assert_send_fails(&mut p, wr, WcStatus::RemoteInvalidRequest);
    }
}

#[test]
fn unmapped_memory_is_remote_operational_error() {
    let ops: [fn(&NicPair) -> SendWr; 3] =
        [|p| write(p, 1, p.remote(0), 8), |p| read(p, 1, p.remote(0), 8), |p| fetch_add(p, 1, p.remote(0))];
    for op in ops {
        let mut p = pair();
        p.nodes[1].memory.unmapped.push(0);
        let wr = op(&p);
        assert_send_fails(&mut p, wr, WcStatus::RemoteOperation);
        assert_eq!(last_nak(&p), Some(Syndrome::Nak(NakCode::RemoteOperational)));
        let qp = p.nodes[1].qp;
        assert_eq!(p.events(1), [AsyncEvent::QpFatal(qp)]);
    }
}

#[test]
fn zero_length_request_needs_no_key() {
    let mut p = pair();
    let nowhere = RemoteAddr { addr: 0, rkey: Key(0) };
    let wrs = [write(&p, 1, nowhere, 0), read(&p, 2, nowhere, 0)];
    p.post_on(0, &wrs).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn send_longer_than_receive_fails_both_ends() {
    for (room, len) in [(8, 9), (1024, 1025), (2048, 5000), (0, 1)] {
        let mut p = pair();
        p.post_recv(RecvWr::new(70, p.sge(1, 0, room)));
        p.post_recv(RecvWr::new(71, p.sge(1, 0, room)));
        p.post(SendWr::new(1, SendOp::Send, Data::sge(p.sge(0, 0, len))));
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteInvalidRequest)]);
        assert_eq!(statuses(&p.recv_completions(1)), [(70, WcStatus::LocalLength), (71, WcStatus::Flushed)]);
        assert_eq!(last_nak(&p), Some(Syndrome::Nak(NakCode::InvalidRequest)));
        assert_eq!((p.state(0), p.state(1)), (QpState::Err, QpState::Err));
    }
}

#[test]
fn receive_with_wrong_lkey_fails_both_ends() {
    let mut p = pair();
    let sge = p.sge(1, 0, 8);
    p.post_recv(RecvWr::new(70, Sge { key: Key(sge.key.0 ^ 1), ..sge }));
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteOperation)]);
    assert_eq!(statuses(&p.recv_completions(1)), [(70, WcStatus::LocalProtection)]);
    assert_eq!(last_nak(&p), Some(Syndrome::Nak(NakCode::RemoteOperational)));
}

#[test]
fn wrong_local_key_fails_after_earlier_sends_complete() {
    let mut p = pair();
    let good = write(&p, 1, p.remote(0), 8);
    let sge = p.sge(0, SIZE as u64 - 4, 8);
    let bad = SendWr::new(2, SendOp::Write(p.remote(0)), Data::sge(sge));
    let behind = write(&p, 3, p.remote(0), 8);
    p.post_on(0, &[good, bad, behind]).unwrap();
    p.run();
    assert_eq!(
        statuses(&p.send_completions(0)),
        [(1, WcStatus::Success), (2, WcStatus::LocalProtection), (3, WcStatus::Flushed)]
    );
    // The local error sends no packet, so that the peer stays in RTS.
    assert_eq!(p.state(1), QpState::Rts);
    assert_eq!(p.sent_opcodes(0), ["RC_RDMA_WRITE_ONLY"]);
}

#[test]
fn wrong_local_key_does_not_block_earlier_retransmissions() {
    let mut p = pair();
    let mut n = 0;
    p.set_link(move |_, _| {
        n += 1;
        if n <= 2 { LinkAction::Drop } else { LinkAction::Pass }
    });
    let good = write(&p, 1, p.remote(0), 8);
    let bad = SendWr::new(2, SendOp::Send, Data::sge(Sge { key: Key(0), ..p.sge(0, 0, 8) }));
    p.post_on(0, &[good, bad]).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::LocalProtection)]);
}

#[test]
fn read_destination_needs_local_write() {
    let mut p = pair();
    let node = &mut p.nodes[0];
    node.memory.regions.push(vec![0; 64]);
    let mr = node.nic.reg_mr(p.now, node.pd, RegionId(1), BASE, 64, Access::empty()).unwrap();
    p.post(SendWr::new(1, SendOp::Read(p.remote(0)), Data::sge(mr.sge(0, 8))));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::LocalProtection)]);
    assert!(p.nodes[0].memory.regions[1].iter().all(|&b| b == 0));
}

#[test]
fn read_before_refused_request_completes() {
    let mut p = pair();
    let good = read(&p, 1, p.remote(0), 5000);
    let bad = write(&p, 2, RemoteAddr { rkey: Key(0), ..p.remote(0) }, 8);
    p.post_on(0, &[good, bad]).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::RemoteAccess)]);
    assert_eq!(p.counter(0, "timeouts"), 0);
}

/// Posts a READ and then an invalid request. Node 1 checks the invalid request before it has sent any READ response.
fn pair_with_invalid_request_behind_read() -> NicPair {
    let mut p = pair();
    let good = read(&p, 1, p.remote(0), 3000);
    let bad = write(&p, 2, RemoteAddr { rkey: Key(0), ..p.remote(0) }, 8);
    let more = write(&p, 3, p.remote(0), 8);
    p.post_on(0, &[good, bad, more]).unwrap();
    p.transmit_all();
    p.now += LATENCY;
    while p.deliver_due() {}
    assert_eq!((p.nodes[1].memory.accesses, p.sent_opcodes(1).len()), (0, 0));
    p
}

#[test]
fn nak_is_sent_after_earlier_responses() {
    let mut p = pair_with_invalid_request_behind_read();
    assert_eq!(p.state(1), QpState::Rts);
    p.run();
    // The READ completes, and the request after the refused request is not executed.
    let ended = [(1, WcStatus::Success), (2, WcStatus::RemoteAccess), (3, WcStatus::Flushed)];
    assert_eq!(statuses(&p.send_completions(0)), ended);
    let answers = [
        "RC_RDMA_READ_RESPONSE_FIRST",
        "RC_RDMA_READ_RESPONSE_MIDDLE",
        "RC_RDMA_READ_RESPONSE_LAST",
        "RC_ACKNOWLEDGE",
    ];
    assert_eq!((p.sent_opcodes(1), p.state(1)), (answers.to_vec(), QpState::Err));
    assert_eq!((p.nodes[1].memory.accesses, p.counter(0, "timeouts")), (3, 0));
}

#[test]
fn nak_is_sent_after_duplicate_responses() {
    let mut p = pair();
    let read = request(&p, 0, Message::ReadRequest(reth(&p, 8)), b"");
    let bad = request(&p, 1, Message::WriteOnly(Reth { rkey: 0, ..reth(&p, 8) }), b"12345678");
    p.inject(1, &read);
    p.transmit_all();
    p.inject(1, &read);
    p.inject(1, &bad);
    p.transmit_all();
    let answer = "RC_RDMA_READ_RESPONSE_ONLY";
    assert_eq!((p.sent_opcodes(1), p.state(1)), (vec![answer, answer, "RC_ACKNOWLEDGE"], QpState::Err));
}

#[test]
fn error_state_sends_nothing() {
    let mut p = pair_with_invalid_request_behind_read();
    p.modify(1, &QpAttr::to(QpState::Err));
    p.transmit_all();
    assert_eq!((p.nodes[1].memory.accesses, p.sent_opcodes(1).len()), (0, 0));
}

#[test]
fn send_waits_for_receive() {
    let mut p = pair(); // `min_rnr_timer` is code 4: 40 µs
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"waiting.")));
    let start = p.now;
    p.run_for(Duration::from_micros(200));
    assert!(p.send_completions(0).is_empty());
    let tries: Vec<Time> = p.sent.iter().filter(|s| s.from == 0).map(|s| s.at).collect();
    assert!(tries.len() > 3, "{tries:?}");
    assert_eq!(tries[1] - start, Duration::from_micros(40) + 2 * LATENCY);
    assert_eq!(last_nak(&p), Some(Syndrome::RnrNak { timer: 4 }));
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 8)));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!(statuses(&p.recv_completions(1)), [(9, WcStatus::Success)]);
    assert_eq!(&p.bytes(1)[..8], b"waiting.");
}

#[test]
fn write_with_immediate_waits_for_receive_at_last_packet() {
    let mut p = pair();
    let data = pattern(5000, 3);
    p.bytes(0)[..5000].copy_from_slice(&data);
    p.post(SendWr::new(1, SendOp::WriteWithImm(p.remote(0), 8), Data::sge(p.sge(0, 0, 5000))));
    p.run_for(Duration::from_micros(30));
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 0)));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!(p.recv_completions(1)[0].imm, Some(8));
    assert_eq!(p.bytes(1)[..5000], data);
    // Only the last packet is sent twice.
    assert_eq!(p.counter(0, "retransmitted_packets"), 1);
    assert_eq!(p.sent_opcodes(0).last(), Some(&"RC_RDMA_WRITE_LAST_WITH_IMMEDIATE"));
}

#[test]
fn rnr_retries_are_limited() {
    for rnr_retry in [0, 1, 6] {
        let mut p = Setup { rnr_retry, ..Setup::default() }.pair();
        p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")));
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RnrRetryExceeded)]);
        assert_eq!(p.sent_opcodes(0).len(), 1 + usize::from(rnr_retry));
        assert_eq!(p.state(1), QpState::Rts);
    }
}

#[test]
fn duplicated_packets_use_no_rnr_retry() {
    // Duplicate the request that gets the NAK, or the NAK.
    for doubled in 0..2 {
        let mut p = Setup { rnr_retry: 1, min_rnr_timer: 12, ..Setup::default() }.pair();
        let mut first = true;
        p.set_link(move |from, _| {
            let hit = from == doubled && first;
            first &= !hit;
            if hit { LinkAction::Duplicate } else { LinkAction::Pass }
        });
        p.post(SendWr::new(1, SendOp::Send, Data::inline(b"waiting.")));
        p.run_for(Duration::from_micros(100));
        assert_eq!(p.counter(0, "rnr_naks_received"), 2);
        p.post_recv(RecvWr::new(9, p.sge(1, 0, 8)));
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    }
}

#[test]
fn unlimited_rnr_retry_survives_lost_naks() {
    let mut p = Setup { rnr_retry: 7, retry_cnt: 3, min_rnr_timer: 1, timeout: 5, ..Setup::default() }.pair();
    let mut n = 0;
    p.set_link(move |from, _| {
        n += from;
        if from == 1 && n % 4 == 0 { LinkAction::Drop } else { LinkAction::Pass }
    });
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"waiting.")));
    p.run_for(Duration::from_millis(20));
    assert!(p.counter(0, "timeouts") > 3);
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 8)));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
}

#[test]
fn request_after_rnr_nak_is_not_executed_early() {
    let mut p = pair();
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"first...")));
    p.post(write(&p, 2, p.remote(64), 8));
    p.bytes(0)[..8].fill(7);
    p.run_for(Duration::from_micros(100));
    assert_eq!(p.bytes(1)[64], 0);
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 8)));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(p.bytes(1)[64], 7);
}

#[test]
fn rnr_nak_suppresses_sequence_naks() {
    let mut p = pair();
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"first...")));
    for i in 2..8 {
        p.post(write(&p, i, p.remote(64), 8));
    }
    p.run_for(Duration::from_micros(30));
    assert_eq!((p.counter(1, "rnr_naks_sent"), p.counter(1, "sequence_naks_sent")), (1, 0));
    assert_eq!(p.sent_opcodes(1).len(), 1);
}

#[test]
fn revoked_qp_access_takes_effect_at_once() {
    // The access right is removed within a WRITE, and between a READ and its response.
    let mut p = pair();
    p.bytes(0)[..5000].fill(0xee);
    p.post(write(&p, 1, p.remote(0), 5000));
    p.transmit_all();
    p.step();
    p.step();
    let accesses = p.nodes[1].memory.accesses;
    assert!(accesses > 0);
    let less = |access| QpAttr { access: Some(access), ..QpAttr::default() };
    p.modify(1, &less(Access::REMOTE_READ));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteInvalidRequest)]);
    assert_eq!(p.nodes[1].memory.accesses, accesses);

    let mut p = pair();
    p.post(read(&p, 1, p.remote(0), 5000));
    p.transmit_all();
    let bytes = p.sent[0].bytes.clone();
    p.inject(1, &Packet::parse(&bytes).unwrap());
    p.modify(1, &less(Access::REMOTE_WRITE));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
    assert_eq!(p.nodes[1].memory.accesses, 0);
}

/// Returns a request from node 0's queue pair to node 1's.
fn request(p: &NicPair, psn_ahead: u32, message: Message, payload: &'static [u8]) -> Packet<'static> {
    let psn = p.status(1).rq_psn.add(psn_ahead);
    Packet { ack_req: true, ..Packet::new(Transport::Rc, p.nodes[1].qp, psn, message, payload) }
}

const FULL: &[u8] = &[0x11; 1024];

fn reth(p: &NicPair, len: u32) -> Reth {
    let remote = p.remote(0);
    Reth { va: remote.addr, rkey: remote.rkey.0, len }
}

/// Sends packets of which the last must be refused with `code` and must access no memory.
fn assert_nak(packets: impl Fn(&NicPair) -> Vec<(Message, &'static [u8])>, code: NakCode) {
    let mut p = pair();
    for i in 0..4 {
        p.post_recv(RecvWr::new(i, p.sge(1, 0x8000, 4096)));
    }
    let all = packets(&p);
    let (last, before) = all.split_last().unwrap();
    for &(message, payload) in before {
        let packet = request(&p, 0, message, payload);
        p.inject(1, &packet);
        p.transmit_all();
        assert_eq!(last_nak(&p), None, "{packet:?}");
        assert_eq!(p.state(1), QpState::Rts);
    }
    let memory = p.bytes(1).to_vec();
    let packet = request(&p, 0, last.0, last.1);
    p.inject(1, &packet);
    p.transmit_all();
    assert_eq!(last_nak(&p), Some(Syndrome::Nak(code)), "{packet:?}");
    assert_eq!(p.state(1), QpState::Err);
    assert_eq!(p.status(1).rq_psn, packet.psn, "a refused packet is not executed");
    assert!(p.bytes(1) == memory);
}

#[test]
fn opcode_sequence_is_enforced() {
    use Message::*;
    let middle_without_first: [(Message, &[u8]); 8] = [
        (SendMiddle, FULL),
        (SendLast, FULL),
        (SendLastImm(1), FULL),
        (SendLastInv(1), FULL),
        (WriteMiddle, FULL),
        (WriteLast, FULL),
        (WriteLastImm(1), FULL),
        (SendMiddle, b""),
    ];
    for case in middle_without_first {
        assert_nak(|_| vec![case], NakCode::InvalidRequest);
        // After a finished message, a middle or last packet is invalid.
        assert_nak(|_| vec![(SendFirst, FULL), (SendLast, FULL), case], NakCode::InvalidRequest);
    }
    for within_send in [SendFirst, SendOnly, WriteMiddle, WriteLast, SendOnlyImm(3)] {
        assert_nak(|_| vec![(SendFirst, FULL), (within_send, FULL)], NakCode::InvalidRequest);
    }
    for within_write in [SendFirst, SendOnly, SendMiddle, SendLast, SendLastImm(3)] {
        assert_nak(
            |p| vec![(WriteFirst(reth(p, 4000)), FULL), (within_write, FULL)],
            NakCode::InvalidRequest,
        );
    }
    let within = |message: fn(&NicPair) -> Message| {
        let payload = |m: Message| if m.has_payload() { FULL } else { b"" };
        assert_nak(|p| vec![(SendFirst, FULL), (message(p), payload(message(p)))], NakCode::InvalidRequest);
        assert_nak(
            |p| vec![(WriteFirst(reth(p, 4000)), FULL), (message(p), payload(message(p)))],
            NakCode::InvalidRequest,
        );
    };
    within(|p| WriteFirst(reth(p, 4000)));
    within(|p| WriteOnly(reth(p, 1024)));
    within(|p| ReadRequest(reth(p, 8)));
    within(|p| FetchAdd(AtomicEth { va: reth(p, 8).va, rkey: reth(p, 8).rkey, swap_add: 1, compare: 0 }));
}

#[test]
fn packet_lengths_are_enforced() {
    use Message::*;
    const MORE: &[u8] = &[0x11; 1025];
    const LESS: &[u8] = &[0x11; 1023];
    for payload in [b"", LESS, MORE] {
        assert_nak(|_| vec![(SendFirst, payload)], NakCode::InvalidRequest);
        assert_nak(|_| vec![(SendFirst, FULL), (SendMiddle, payload)], NakCode::InvalidRequest);
        assert_nak(|p| vec![(WriteFirst(reth(p, 4000)), payload)], NakCode::InvalidRequest);
        assert_nak(
            |p| vec![(WriteFirst(reth(p, 4000)), FULL), (WriteMiddle, payload)],
            NakCode::InvalidRequest,
        );
    }
    for payload in [b"", MORE] {
        assert_nak(|_| vec![(SendFirst, FULL), (SendLast, payload)], NakCode::InvalidRequest);
    }
    assert_nak(|_| vec![(SendOnly, MORE)], NakCode::InvalidRequest);
    // The payload lengths must add up to the length in the RETH.
    assert_nak(|p| vec![(WriteOnly(reth(p, 1023)), FULL)], NakCode::InvalidRequest);
    assert_nak(|p| vec![(WriteOnly(reth(p, 1025)), FULL)], NakCode::InvalidRequest);
    assert_nak(|p| vec![(WriteOnly(reth(p, 0)), b"x")], NakCode::InvalidRequest);
    assert_nak(|p| vec![(WriteFirst(reth(p, 1024)), FULL)], NakCode::InvalidRequest);
    assert_nak(|p| vec![(WriteFirst(reth(p, 2048)), FULL), (WriteMiddle, FULL)], NakCode::InvalidRequest);
    assert_nak(|p| vec![(WriteFirst(reth(p, 2048)), FULL), (WriteLast, LESS)], NakCode::InvalidRequest);
    assert_nak(|p| vec![(WriteFirst(reth(p, 2000)), FULL), (WriteLast, FULL)], NakCode::InvalidRequest);
    assert_nak(|p| vec![(ReadRequest(reth(p, (1 << 31) + 1)), b"")], NakCode::InvalidRequest);
    assert_nak(|p| vec![(WriteFirst(reth(p, (1 << 31) + 1)), FULL)], NakCode::InvalidRequest);
}

#[test]
fn reads_beyond_max_dest_rd_atomic_are_invalid_requests() {
    let mut p = Setup { dest_rd_atomic: 2, ..Setup::default() }.pair();
    for _ in 0..3 {
        let packet = request(&p, 0, Message::ReadRequest(reth(&p, 8)), b"");
        p.inject(1, &packet);
    }
    p.transmit_all();
    // The responder first answers the READs that it has accepted.
    let answer = "RC_RDMA_READ_RESPONSE_ONLY";
    assert_eq!((p.sent_opcodes(1), p.state(1)), (vec![answer, answer, "RC_ACKNOWLEDGE"], QpState::Err));
    assert_eq!(last_nak(&p), Some(Syndrome::Nak(NakCode::InvalidRequest)));
}

#[test]
fn mismatched_response_fails_request() {
    let cases: [fn(&NicPair) -> Packet<'static>; 3] = [
        // A READ response to a WRITE, data of the wrong length, an atomic response to a READ.
        |p| response(p, 0, Message::ReadOnly(ack()), b"12345678"),
        |p| response(p, 1, Message::ReadOnly(ack()), b"1234567"),
        |p| response(p, 1, Message::AtomicAck(ack(), 5), b""),
    ];
    for (i, case) in cases.into_iter().enumerate() {
        let mut p = pair();
        p.set_link(|_, _| LinkAction::Drop);
        p.post(write(&p, 1, p.remote(0), 8));
        p.post(read(&p, 2, p.remote(0), 8));
        p.transmit_all();
        let packet = case(&p);
        p.inject(0, &packet);
        let expected = if i == 0 {
            vec![(1, WcStatus::BadResponse), (2, WcStatus::Flushed)]
        } else {
            vec![(1, WcStatus::Success), (2, WcStatus::BadResponse)]
        };
        assert_eq!(statuses(&p.send_completions(0)), expected);
        assert!(p.bytes(0).iter().all(|&b| b == 0));
    }
}

fn ack() -> Aeth {
    Aeth { syndrome: Syndrome::ACK, msn: 0 }
}

/// Returns a response from node 1's queue pair to node 0's. The first request has PSN 100.
fn response(p: &NicPair, psn: u32, message: Message, payload: &'static [u8]) -> Packet<'static> {
    Packet::new(Transport::Rc, p.nodes[0].qp, Psn::new(100 + psn), message, payload)
}

/// Runs the pair and returns the number of packets that node 1 has sent.
fn count_sent_by_responder(p: &mut NicPair) -> usize {
    let before = p.sent_opcodes(1).len();
    p.run();
    p.sent_opcodes(1).len() - before
}

#[test]
fn late_copy_of_answered_read_is_dropped_after_revocation() {
    let mut p = Setup { rd_atomic: 1, dest_rd_atomic: 1, ..Setup::default() }.pair();
    for i in 1..3 {
        p.post(read(&p, i, p.remote(0), 8));
    }
    p.run();
    let requests: Vec<_> = p.sent.iter().filter(|s| s.from == 0).map(|s| s.bytes.clone()).collect();
    let node = &mut p.nodes[1];
    node.nic.dereg_mr(p.now, node.mr.id).unwrap();
    // With `rd_atomic` of 1, the second READ shows that the requester has the response to the first READ.
    p.inject(1, &Packet::parse(&requests[0]).unwrap());
    assert_eq!(count_sent_by_responder(&mut p), 0);
    assert_eq!(p.counter(1, "drop_duplicate"), 1);
    // The responder cannot know whether the requester has the response to the second READ.
    p.inject(1, &Packet::parse(&requests[1]).unwrap());
    assert_eq!(count_sent_by_responder(&mut p), 1);
    assert_eq!(last_nak(&p), Some(Syndrome::Nak(NakCode::RemoteAccess)));
    assert_eq!(p.counter(0, "drop_stale_response"), 1);
    assert_eq!((p.state(0), p.state(1)), (QpState::Rts, QpState::Rts));
}

#[test]
fn accepted_duplicate_read_keeps_qp_usable_after_revocation() {
    let mut p = pair();
    p.post(read(&p, 1, p.remote(0), 8));
    p.run();
    let old = p.sent[0].bytes.clone();
    p.inject(1, &Packet::parse(&old).unwrap());
    let node = &mut p.nodes[1];
    node.nic.dereg_mr(p.now, node.mr.id).unwrap();
    p.run();
    assert_eq!(p.counter(0, "drop_stale_response"), 1);
    assert_eq!((p.state(0), p.state(1)), (QpState::Rts, QpState::Rts));
}

#[test]
fn retransmitted_read_is_denied_after_revocation() {
    // A later response or the timeout shows the loss.
    for (len, lost) in [(1 << 16, 2), (8, 1)] {
        let mut p = pair();
        let mut n = 0;
        p.set_link(move |from, _| {
            n += from;
            if from == 1 && n == lost { LinkAction::Drop } else { LinkAction::Pass }
        });
        p.post(read(&p, 1, p.remote(0), len));
        p.run_for(3 * LATENCY);
        let node = &mut p.nodes[1];
        node.nic.dereg_mr(p.now, node.mr.id).unwrap();
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
    }
}

#[test]
fn duplicate_read_longer_than_original_is_dropped() {
    let mut p = pair();
    p.post(read(&p, 1, p.remote(0), 2048));
    p.run();
    let sent = p.sent_opcodes(1).len();
    for (len, answers) in [(2048, 2), (2049, 0), (1 << 20, 0)] {
        let message = Message::ReadRequest(reth(&p, len));
        let packet = Packet::new(Transport::Rc, p.nodes[1].qp, Psn::new(100), message, b"");
        let before = p.sent_opcodes(1).len();
        p.inject(1, &packet);
        p.transmit_all();
        assert_eq!(p.sent_opcodes(1).len() - before, answers);
    }
    assert_eq!((sent, p.status(1).rq_psn), (2, Psn::new(102)));
}

#[test]
fn duplicate_read_replaces_due_response() {
    let mut p = pair();
    p.post(read(&p, 1, p.remote(0), 5000));
    p.transmit_all();
    let bytes = p.sent[0].bytes.clone();
    for _ in 0..3 {
        p.inject(1, &Packet::parse(&bytes).unwrap());
    }
    p.transmit_all();
    assert_eq!(p.sent_opcodes(1).len(), 5);
}

#[test]
fn read_with_lost_response_fails_before_refused_request() {
    // When the READ is retransmitted, the responder is in ERR and does not answer, so that the READ fails first.
    let mut p = Setup { retry_cnt: 1, ..Setup::default() }.pair();
    p.set_link(|dir, packet| {
        let lost = dir == 1 && matches!(packet.message, Message::ReadOnly(_));
        if lost { LinkAction::Drop } else { LinkAction::Pass }
    });
    let bad = write(&p, 2, RemoteAddr { rkey: Key(0), ..p.remote(0) }, 8);
    let wrs = [read(&p, 1, p.remote(0), 8), bad];
    p.post_on(0, &wrs).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)]);
}
