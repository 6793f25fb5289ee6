//! A message that finds no receive: RNR NAKs, and the retries after them.

use crate::common::rc_requests::*;
use crate::common::*;
use core::time::Duration;
use mitra_verbs::*;
use mitra_wire::{Aeth, Message, Packet, Syndrome, Transport};

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
    p.post(write_at(&p, 2, p.remote(64), 8));
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
        p.post(write_at(&p, i, p.remote(64), 8));
    }
    p.run_for(Duration::from_micros(30));
    assert_eq!((p.counter(1, "rnr_naks_sent"), p.counter(1, "sequence_naks_sent")), (1, 0));
    assert_eq!(p.sent_opcodes(1).len(), 1);
}

/// Found by seed 55 of the workload `rc`.
#[test]
fn rnr_nak_of_next_packet_begins_another_wait() {
    let mut p = pair();
    p.set_link(|_, _| LinkAction::Drop);
    for i in 0..2 {
        p.post(SendWr::new(i, SendOp::Send, Data::inline(b"x")));
    }
    p.transmit_all();
    for (psn, timer) in [(100, 4), (101, 12), (101, 1)] {
        let message = Message::Ack(Aeth { syndrome: Syndrome::RnrNak { timer }, msn: 0 });
        p.inject(0, &Packet::new(Transport::Rc, p.nodes[0].qp, Psn::new(psn), message, b""));
    }
    assert_eq!(statuses(&p.send_completions(0)), [(0, WcStatus::Success)]);
    p.run_for(Duration::from_micros(500)); // code 12 is 640 µs
    assert_eq!(p.sent_opcodes(0).len(), 2);
    p.run_for(Duration::from_micros(300));
    assert_eq!(p.sent_opcodes(0).len(), 3);
}
