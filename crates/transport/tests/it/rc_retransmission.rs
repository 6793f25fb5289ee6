//! How a reliable connection recovers from a lost packet: time-outs, NAKs, retries, and what it
//! sends again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::*;
use core::time::Duration;
use mitra_verbs::*;
use mitra_wire::{Aeth, Message, NakCode, Packet, Reth, Syndrome, Transport};

const MTU: usize = 1024;
const LEN: usize = 5 * MTU + 3;

/// Creates a pair whose link drops the first packet with this opcode from node `from`.
fn pair_losing_first(from: usize, name: &'static str) -> NicPair {
    let mut p = pair();
    let mut lost = false;
    p.set_link(move |dir, packet| {
        let this = mitra_wire::opcode::name(packet.opcode()) == Some(name);
        if dir == from && this && !lost {
            lost = true;
            return LinkAction::Drop;
        }
        LinkAction::Pass
    });
    p
}

fn run_read(p: &mut NicPair) {
    let b = pattern(LEN, 9);
    p.bytes(1)[..LEN].copy_from_slice(&b);
    p.post(SendWr::new(1, SendOp::Read(p.remote(0)), Data::sge(p.sge(0, 0, LEN as u32))));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!(p.bytes(0)[..LEN], b);
}

#[test]
fn lost_request_is_retransmitted_after_timeout() {
    let mut p = pair_losing_first(0, "RC_RDMA_WRITE_ONLY");
    let start = p.now;
    p.post(SendWr::new(1, SendOp::Write(p.remote(0)), Data::sge(p.sge(0, 0, 8))));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!((p.counter(0, "timeouts"), p.counter(0, "retransmitted_packets")), (1, 1));
    assert_eq!(p.sent[1].at - start, Duration::from_nanos(4096 << 8));
}

#[test]
fn duplicate_send_is_not_executed_again() {
    let mut p = pair_losing_first(1, "RC_ACKNOWLEDGE");
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 8)));
    p.post_recv(RecvWr::new(10, p.sge(1, 8, 8)));
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"once....")));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!(statuses(&p.recv_completions(1)), [(9, WcStatus::Success)]);
    assert_eq!(p.counter(1, "duplicate_requests"), 1);
}

/// The acknowledgement of a message and the answer to the message are lost together. A program may
/// expect that its message completes before the answer arrives (`ib_send_lat -e`).
#[test]
fn acknowledgement_of_message_precedes_retransmitted_answer() {
    let mut p = pair();
    // The message is sent again in vain, and the link comes up before the answer is sent again.
    let (mut messages, mut is_up) = (0, false);
    p.set_link(move |from, _| {
        let passes = is_up || (from == 0 && messages == 0);
        messages += u32::from(from == 0);
        is_up |= messages == 2;
        if passes { LinkAction::Pass } else { LinkAction::Drop }
    });
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 8)));
    let answer = RecvWr::new(10, p.sge(0, 0, 8));
    let qp = p.nodes[0].qp;
    p.nodes[0].nic.post_recv(qp, &[answer]).unwrap();
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"question")));
    while p.recv_completions(1).is_empty() {
        assert!(p.step());
    }
    p.post_on(1, &[SendWr::new(2, SendOp::Send, Data::inline(b"answered"))]).unwrap();
    let mut completions = 0;
    while p.recv_completions(0).is_empty() {
        completions += p.send_completions(0).len();
        assert!(p.step());
    }
    assert_eq!((completions, p.counter(0, "retransmitted_packets")), (1, 1));
}

#[test]
fn gap_gets_one_nak_and_immediate_retransmission() {
    let mut p = pair_losing_first(0, "RC_RDMA_WRITE_FIRST");
    let start = p.now;
    p.post(SendWr::new(1, SendOp::Write(p.remote(0)), Data::sge(p.sge(0, 0, LEN as u32))));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!((p.counter(1, "sequence_naks_sent"), p.counter(0, "timeouts")), (1, 0));
    assert_eq!(p.sent.last().unwrap().at - start, 3 * LATENCY);
}

#[test]
fn lost_first_read_response_is_requested_again() {
    let mut p = pair_losing_first(1, "RC_RDMA_READ_RESPONSE_FIRST");
    run_read(&mut p);
    // The second response implies the loss, so that no timer expires. The requester requests the
    // whole READ again.
    assert_eq!((p.counter(0, "implied_naks"), p.counter(0, "timeouts")), (1, 0));
    assert_eq!(p.sent_opcodes(0), ["RC_RDMA_READ_REQUEST"; 2]);
}

#[test]
fn lost_middle_read_response_is_requested_from_its_psn() {
    let mut p = pair_losing_first(1, "RC_RDMA_READ_RESPONSE_MIDDLE");
    run_read(&mut p);
    assert_eq!((p.counter(0, "implied_naks"), p.counter(0, "timeouts")), (1, 0));
    let again = Packet::parse(&p.sent.iter().filter(|s| s.from == 0).nth(1).unwrap().bytes).unwrap().message;
    let Message::ReadRequest(reth) = again else { panic!("{again:?}") };
    assert_eq!((reth.va, reth.len as usize), (BASE + MTU as u64, LEN - MTU));
}

#[test]
fn lost_last_read_response_is_requested_after_timeout() {
    let mut p = pair_losing_first(1, "RC_RDMA_READ_RESPONSE_LAST");
    run_read(&mut p);
    assert_eq!(p.counter(0, "timeouts"), 1);
    assert_eq!(p.sent_opcodes(1).last(), Some(&"RC_RDMA_READ_RESPONSE_ONLY"));
}

#[test]
fn atomic_with_lost_response_gets_saved_result() {
    let mut p = pair_losing_first(1, "RC_ATOMIC_ACKNOWLEDGE");
    p.set_word(1, 0, 41);
    let remote = p.remote(0);
    p.post(SendWr::new(1, SendOp::FetchAdd { remote, add: 1 }, Data::sge(p.sge(0, 0, 8))));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!((p.word(0, 0), p.word(1, 0)), (41, 42));
}

#[test]
fn duplicate_atomic_without_saved_result_is_dropped() {
    let mut p = Setup { dest_rd_atomic: 2, rd_atomic: 2, ..Setup::default() }.pair();
    let kept: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let keep = kept.clone();
    p.set_link(move |dir, packet| {
        if dir == 0 {
            let mut bytes = Vec::new();
            packet.emit_to(&mut bytes);
            keep.borrow_mut().push(bytes);
        }
        LinkAction::Pass
    });
    for i in 0..3 {
        let remote = p.remote(0);
        p.post(SendWr::new(i, SendOp::FetchAdd { remote, add: 1 }, Data::sge(p.sge(0, 0, 8))));
    }
    p.run();
    assert_eq!(p.word(1, 0), 3);
    let before = p.sent_opcodes(1).len();
    for bytes in kept.borrow().iter() {
        p.inject(1, &Packet::parse(bytes).unwrap());
        p.transmit_all();
    }
    assert_eq!(p.sent_opcodes(1).len() - before, 2);
    assert_eq!(p.counter(1, "drop_duplicate"), 1);
    assert_eq!(p.word(1, 0), 3);
    p.run();
    let node = &p.nodes[1];
    let saved: Vec<u64> = node.nic.saved_results(node.qp).unwrap().iter().map(|s| s.value).collect();
    assert_eq!(saved, [1, 2]);
}

#[test]
fn retry_count_bounds_retransmissions() {
    let mut p = Setup { retry_cnt: 3, ..Setup::default() }.pair();
    p.set_link(|_, _| LinkAction::Drop);
    let start = p.now;
    for i in 1..=3 {
        let flags = if i == 2 { SendFlags::empty() } else { SendFlags::SIGNALED };
        let wr = SendWr::new(i, SendOp::Write(p.remote(0)), Data::sge(p.sge(0, 0, 8)));
        p.post(wr.with_flags(flags));
    }
    p.run();
    assert_eq!(
        statuses(&p.send_completions(0)),
        [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed), (3, WcStatus::Flushed)]
    );
    assert_eq!(p.state(0), QpState::Err);
    assert_eq!(p.counter(0, "timeouts"), 4);
    assert_eq!(p.now - start, Duration::from_nanos(4 * (4096 << 8)));
}

#[test]
fn progress_resets_retry_count() {
    // The link drops each packet twice. The two retries suffice because each success resets the
    // count.
    let mut p = Setup { retry_cnt: 2, ..Setup::default() }.pair();
    let mut n = 0;
    p.set_link(move |dir, _| {
        if dir == 1 {
            return LinkAction::Pass;
        }
        n += 1;
        if n % 3 == 0 { LinkAction::Pass } else { LinkAction::Drop }
    });
    for i in 0..20 {
        p.post(SendWr::new(i, SendOp::Write(p.remote(0)), Data::sge(p.sge(0, 0, 8))));
        p.run();
    }
    assert!(p.send_completions(0).iter().all(|wc| wc.status == WcStatus::Success));
}

#[test]
fn timeout_of_zero_disables_retransmission() {
    let mut p = Setup { timeout: 0, ..Setup::default() }.pair();
    p.set_link(|_, _| LinkAction::Drop);
    p.post(SendWr::new(1, SendOp::Write(p.remote(0)), Data::sge(p.sge(0, 0, 8))));
    p.run();
    assert!(p.send_completions(0).is_empty());
    assert_eq!(p.sent_opcodes(0).len(), 1);
}

fn write8(p: &NicPair, wr_id: u64) -> SendWr {
    SendWr::new(wr_id, SendOp::Write(p.remote(0)), Data::sge(p.sge(0, 0, 8)))
}

fn acknowledge(p: &mut NicPair, psn: u32, syndrome: Syndrome) {
    let message = Message::Ack(Aeth { syndrome, msn: 0 });
    p.inject(0, &Packet::new(Transport::Rc, p.nodes[0].qp, Psn::new(psn), message, b""));
}

#[test]
fn ack_between_timeout_and_retransmission_counts() {
    let mut p = pair();
    p.set_link(|_, _| LinkAction::Drop);
    for i in 1..4 {
        p.post(write8(&p, i));
    }
    p.transmit_all();
    let due = p.nodes[0].nic.poll_timeout().unwrap();
    p.nodes[0].nic.handle_timeout(due);
    acknowledge(&mut p, 101, Syndrome::ACK);
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    p.transmit_all();
    let psns: Vec<u32> = p.sent.iter().map(|s| s.psn.value()).collect();
    assert_eq!(psns, [100, 101, 102, 102], "only unacknowledged packets are retransmitted");
}

#[test]
fn old_sequence_nak_uses_no_retry() {
    let mut p = Setup { retry_cnt: 1, ..Setup::default() }.pair();
    p.set_link(|_, _| LinkAction::Drop);
    p.post(write8(&p, 1));
    p.transmit_all();
    for _ in 0..3 {
        acknowledge(&mut p, 100, Syndrome::Nak(NakCode::PsnSequence));
    }
    assert_eq!(p.state(0), QpState::Rts);
    p.transmit_all();
    acknowledge(&mut p, 100, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(p.state(0), QpState::Rts, "a second NAK of the same PSN is a copy");
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RetryExceeded)]);
    assert_eq!(p.sent_opcodes(0).len(), 2);
}

/// The response to a later READ shows that an earlier response is lost, while the requester already
/// retransmits. Found by seed 15756 of the workload `rc`.
#[test]
fn implied_nak_before_retransmission_uses_no_retry() {
    let mut p = Setup { retry_cnt: 1, ..Setup::default() }.pair();
    p.set_link(|_, _| LinkAction::Drop);
    for i in 0..2 {
        let wr = read(&p, i, 0, 8);
        p.post(wr);
    }
    p.transmit_all();
    acknowledge(&mut p, 100, Syndrome::Nak(NakCode::PsnSequence));
    acknowledge(&mut p, 101, Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(p.state(0), QpState::Rts, "the second NAK answers the same packets as the first");
    p.run();
    assert_eq!(p.send_completions(0)[0].status, WcStatus::RetryExceeded);
    assert_eq!(p.sent_opcodes(0).len(), 4);
}

#[test]
fn duplicated_sequence_nak_uses_no_retry() {
    let mut p = Setup { retry_cnt: 1, ..Setup::default() }.pair();
    let mut first = [true; 2];
    p.set_link(move |from, _| match core::mem::take(&mut first[from]) {
        true if from == 0 => LinkAction::Drop,
        true => LinkAction::Duplicate,
        false => LinkAction::Pass,
    });
    for i in 1..4 {
        p.post(write8(&p, i));
    }
    p.run();
    assert_eq!(p.counter(0, "sequence_naks_received"), 2);
    assert_eq!(statuses(&p.send_completions(0)), [1, 2, 3].map(|i| (i, WcStatus::Success)));
    assert_eq!(p.counter(0, "timeouts"), 0);
}

#[test]
fn ack_of_original_clears_local_retransmission_error() {
    let mut p = pair();
    p.set_link(|dir, _| if dir == 1 { LinkAction::Drop } else { LinkAction::Pass });
    let node = &mut p.nodes[0];
    node.memory.regions.0.push(vec![0; 64]);
    let mr = node.nic.reg_mr(p.now, node.pd, RegionId(1), BASE, 64, ALL_ACCESS).unwrap();
    p.post(write8(&p, 1));
    p.post(SendWr::new(2, SendOp::Write(p.remote(0)), Data::sge(mr.sge(0, 8))));
    p.post(write8(&p, 3));
    p.transmit_all();
    p.nodes[0].nic.dereg_mr(p.now, mr.id).unwrap();
    let due = p.nodes[0].nic.poll_timeout().unwrap();
    p.nodes[0].nic.handle_timeout(due);
    p.transmit_all();
    assert_eq!(p.sent.len(), 4, "the first request is retransmitted, the second cannot be");
    acknowledge(&mut p, 101, Syndrome::ACK);
    p.post(write8(&p, 4));
    p.set_link(|_, _| LinkAction::Pass);
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), (1..5).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
}

#[test]
fn pending_sequence_nak_is_updated_to_next_missing_psn() {
    let mut p = pair();
    let packet = |p: &NicPair, psn: u32| {
        let reth = Reth { va: BASE, rkey: p.nodes[1].mr.rkey.0, len: 0 };
        let message = Message::WriteOnly(reth);
        let psn = Psn::new(100 + psn);
        Packet { ack_req: true, ..Packet::new(Transport::Rc, p.nodes[1].qp, psn, message, b"") }
    };
    // Packet 1 overtakes packet 0 before any response is sent. The responder drops packet 1,
    // executes packet 0 and asks for packet 1.
    for psn in [1, 0] {
        let packet = packet(&p, psn);
        p.inject(1, &packet);
    }
    p.transmit_all();
    let naks = |p: &NicPair| -> Vec<(u32, Syndrome)> {
        let seen = p.sent.iter().filter(|s| s.from == 1);
        seen.map(|s| match Packet::parse(&s.bytes).unwrap().message {
            Message::Ack(aeth) => (s.psn.value(), aeth.syndrome),
            other => panic!("{other:?}"),
        })
        .collect()
    };
    assert_eq!(naks(&p), [(101, Syndrome::Nak(NakCode::PsnSequence))]);
    let late = packet(&p, 2);
    p.inject(1, &late);
    p.transmit_all();
    assert_eq!(naks(&p).len(), 1, "each gap is NAKed once");
    // Packet 3 overtakes packet 2, so a NAK for packet 2 is pending. Both packets arrive before the
    // NAK is sent, so the responder sends an acknowledgement instead.
    for psn in [1, 3, 2, 3] {
        let packet = packet(&p, psn);
        p.inject(1, &packet);
    }
    p.transmit_all();
    assert_eq!(naks(&p)[1..], [(103, Syndrome::ACK)]);
}

#[test]
fn max_rd_atomic_change_keeps_chunks_of_started_read() {
    let mut p = Setup { send_window: 8192, rd_atomic: 4, ..Setup::default() }.pair();
    // Each request packet asks for two response packets. The first four requests have the PSNs 100,
    // 102, 104 and 106. Until `broken` is false, the link drops the fourth and all later requests,
    // and all responses from PSN 103 on.
    let broken = Rc::new(Cell::new(true));
    let (lossy, mut requests) = (broken.clone(), 0);
    p.set_link(move |from, packet| {
        requests += usize::from(from == 0);
        let hit = if from == 0 { requests >= 4 } else { packet.psn.value() >= 103 };
        if hit && lossy.get() { LinkAction::Drop } else { LinkAction::Pass }
    });
    p.post(SendWr::new(1, SendOp::Read(p.remote(0)), Data::sge(p.sge(0, 0, 40 << 10))));
    p.run_for(Duration::from_micros(20));
    broken.set(false);
    p.modify(0, &QpAttr::to(QpState::Sqd));
    p.modify(0, &QpAttr { max_rd_atomic: Some(1), ..QpAttr::to(QpState::Sqd) });
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
}
