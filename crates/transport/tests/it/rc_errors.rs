//! The errors of a reliable connection: statuses, NAKs and events, and that no memory was accessed.

use crate::common::rc_requests::*;
use crate::common::*;
use mitra_verbs::*;
use mitra_wire::{NakCode, Packet, Syndrome};

type MakeRequest = fn(&NicPair, RemoteAddr) -> SendWr;

/// Posts `wr` and two more sends. Checks that `wr` fails with `status`, that the other sends are
/// flushed, and that the memory of node 1 is unchanged.
fn assert_send_fails(p: &mut NicPair, wr: SendWr, status: WcStatus) {
    p.bytes(0)[..0x4000].fill(0xee);
    let before = p.bytes(1).to_vec();
    let behind =
        [write_at(p, 2, p.remote(0), 8), write_at(p, 3, p.remote(0), 8).with_flags(SendFlags::empty())];
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

/// Checks that `wr` fails with a remote access error, that both ends enter ERR, and that the
/// responder raises an event.
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

#[test]
fn wrong_rkey_is_remote_access_error() {
    let ops: [fn(&NicPair, RemoteAddr) -> SendWr; 4] = [
        |p, r| write_at(p, 1, r, 8),
        |p, r| write_at(p, 1, r, 5000),
        |p, r| read_at(p, 1, r, 3000),
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
        let wr = write_at(&p, 1, remote, 5000);
        assert_access_denied(&mut p, wr);
        let mut p = pair();
        let wr = read_at(&p, 1, p.remote(SIZE as u64 - 5000 + over), 5000);
        assert_access_denied(&mut p, wr);
    }
    let mut p = pair();
    let below = RemoteAddr { addr: BASE - 1, ..p.remote(0) };
    let wr = write_at(&p, 1, below, 8);
    assert_access_denied(&mut p, wr);
    let mut p = pair();
    let wrapping = RemoteAddr { addr: u64::MAX - 3, ..p.remote(0) };
    let wr = write_at(&p, 1, wrapping, 8);
    assert_access_denied(&mut p, wr);
}

#[test]
fn missing_region_right_is_remote_access_error() {
    let cases: [(Access, MakeRequest); 3] = [
        (Access::REMOTE_WRITE, |p, r| write_at(p, 1, r, 8)),
        (Access::REMOTE_READ, |p, r| read_at(p, 1, r, 8)),
        (Access::REMOTE_ATOMIC, |p, r| fetch_add(p, 1, r)),
    ];
    for (right, op) in cases {
        let mut p = pair();
        let node = &mut p.nodes[1];
        node.memory.regions.0.push(vec![0; 64]);
        let mr = node.nic.reg_mr(p.now, node.pd, RegionId(1), BASE, 64, ALL_ACCESS - right).unwrap();
        let wr = op(&p, mr.remote(0));
        assert_access_denied(&mut p, wr);
        assert!(p.nodes[1].memory.regions.0[1].iter().all(|&b| b == 0));
    }
}

#[test]
fn rkey_of_other_pd_is_remote_access_error() {
    let mut p = pair();
    let node = &mut p.nodes[1];
    node.memory.regions.0.push(vec![0; 64]);
    let pd = node.nic.alloc_pd().unwrap();
    let mr = node.nic.reg_mr(p.now, pd, RegionId(1), BASE, 64, ALL_ACCESS).unwrap();
    let wr = write_at(&p, 1, mr.remote(0), 8);
    assert_access_denied(&mut p, wr);
}

#[test]
fn key_revoked_within_write_stops_placement() {
    let mut p = pair();
    p.bytes(0)[..5000].fill(0xee);
    let wr = write_at(&p, 1, p.remote(0), 5000);
    p.post(wr);
    p.transmit_all();
    for _ in 0..2 {
        p.step();
    }
    let node = &mut p.nodes[1];
    let placed = node.memory.regions.0[0].iter().filter(|&&b| b == 0xee).count();
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
    let wr = read_at(&p, 1, p.remote(0), 5000);
    p.post(wr);
    p.transmit_all();
    // The responder has accepted the READ and not read the memory.
    let bytes = p.sent[0].bytes.clone();
    p.inject(1, &Packet::parse(&bytes).unwrap());
    let node = &mut p.nodes[1];
    node.nic.dereg_mr(p.now, node.mr.id).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
    assert_eq!((p.nodes[1].memory.accesses, p.state(1)), (0, QpState::Err));
}

#[test]
fn operation_without_qp_access_is_invalid_request() {
    let cases: [(Access, MakeRequest); 4] = [
        (Access::REMOTE_WRITE, |p, r| write_at(p, 1, r, 8)),
        (Access::REMOTE_WRITE, |p, r| write_at(p, 1, r, 0)),
        (Access::REMOTE_READ, |p, r| read_at(p, 1, r, 8)),
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
    let ops: [fn(&NicPair) -> SendWr; 3] = [
        |p| write_at(p, 1, p.remote(0), 8),
        |p| read_at(p, 1, p.remote(0), 8),
        |p| fetch_add(p, 1, p.remote(0)),
    ];
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
    let wrs = [write_at(&p, 1, nowhere, 0), read_at(&p, 2, nowhere, 0)];
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
    let good = write_at(&p, 1, p.remote(0), 8);
    let sge = p.sge(0, SIZE as u64 - 4, 8);
    let bad = SendWr::new(2, SendOp::Write(p.remote(0)), Data::sge(sge));
    let behind = write_at(&p, 3, p.remote(0), 8);
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
    let good = write_at(&p, 1, p.remote(0), 8);
    let bad = SendWr::new(2, SendOp::Send, Data::sge(Sge { key: Key(0), ..p.sge(0, 0, 8) }));
    p.post_on(0, &[good, bad]).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::LocalProtection)]);
}

#[test]
fn read_destination_needs_local_write() {
    let mut p = pair();
    let node = &mut p.nodes[0];
    node.memory.regions.0.push(vec![0; 64]);
    let mr = node.nic.reg_mr(p.now, node.pd, RegionId(1), BASE, 64, Access::empty()).unwrap();
    p.post(SendWr::new(1, SendOp::Read(p.remote(0)), Data::sge(mr.sge(0, 8))));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::LocalProtection)]);
    assert!(p.nodes[0].memory.regions.0[1].iter().all(|&b| b == 0));
}

#[test]
fn read_before_refused_request_completes() {
    let mut p = pair();
    let good = read_at(&p, 1, p.remote(0), 5000);
    let bad = write_at(&p, 2, RemoteAddr { rkey: Key(0), ..p.remote(0) }, 8);
    p.post_on(0, &[good, bad]).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::RemoteAccess)]);
    assert_eq!(p.counter(0, "timeouts"), 0);
}

#[test]
fn revoked_qp_access_takes_effect_at_once() {
    // The access right is removed within a WRITE, and between a READ and its response.
    let mut p = pair();
    p.bytes(0)[..5000].fill(0xee);
    p.post(write_at(&p, 1, p.remote(0), 5000));
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
    p.post(read_at(&p, 1, p.remote(0), 5000));
    p.transmit_all();
    let bytes = p.sent[0].bytes.clone();
    p.inject(1, &Packet::parse(&bytes).unwrap());
    p.modify(1, &less(Access::REMOTE_WRITE));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
    assert_eq!(p.nodes[1].memory.accesses, 0);
}
