//! When the responder of a reliable connection acknowledges: idle polls, the timer, held
//! acknowledgements.

use crate::common::*;
use core::time::Duration;
use mitra_transport::TxBatch;
use mitra_verbs::*;
use mitra_wire::{Message, Packet};

#[test]
fn ack_waits_for_idle_poll() {
    let mut p = pair();
    p.post(write(&p, 1, 0, 8));
    deliver(&mut p, 1);
    assert_eq!(deliver(&mut p, 0), 0);
    p.nodes[1].nic.handle_idle(p.now);
    assert_eq!(deliver(&mut p, 0), 1);
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
}

#[test]
fn ack_is_sent_when_timer_expires() {
    let mut p = pair();
    p.post(write(&p, 1, 0, 8));
    deliver(&mut p, 1);
    let due = p.nodes[1].nic.poll_timeout().unwrap();
    assert_eq!(due - p.now, Duration::from_micros(50));
    p.nodes[1].nic.handle_timeout(due);
    assert_eq!(deliver(&mut p, 0), 1);
}

#[test]
fn one_ack_covers_sixteen_requests() {
    let mut p = pair();
    for i in 0..40 {
        p.post(write(&p, i, 8 * i, 8));
    }
    deliver(&mut p, 1);
    assert_eq!(deliver(&mut p, 0), 1, "one acknowledgement covers all 40 requests");
    for i in 0..15 {
        p.post(write(&p, i, 8 * i, 8));
    }
    p.send_completions(0);
    deliver(&mut p, 1);
    assert_eq!(deliver(&mut p, 0), 0);
    p.post(write(&p, 15, 0, 8));
    deliver(&mut p, 1);
    assert_eq!(deliver(&mut p, 0), 1);
    assert_eq!(p.send_completions(0).len(), 16);
}

#[test]
fn read_response_replaces_pending_ack() {
    let mut p = pair();
    p.post(write(&p, 1, 0, 8));
    p.post(read(&p, 2, 0, 8));
    deliver(&mut p, 1);
    assert_eq!(deliver(&mut p, 0), 1);
    assert_eq!(p.send_completions(0).len(), 2);
    p.nodes[1].nic.handle_idle(p.now);
    assert_eq!(deliver(&mut p, 0), 0, "no acknowledgement is pending");
}

#[test]
fn ack_does_not_overtake_earlier_read_response() {
    let mut p = pair();
    p.post(read(&p, 1, 0, 5000));
    p.post(write(&p, 2, 0x8000, 8));
    p.run();
    assert_eq!(p.sent_opcodes(1).last(), Some(&"RC_ACKNOWLEDGE"));
    assert_eq!(p.counter(0, "implied_naks"), 0);
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn ack_waits_for_read_response_that_does_not_fit_batch() {
    let mut p = Setup { mtu: Mtu::M4096, ..Setup::default() }.pair();
    p.post(read(&p, 1, 0, 200_000));
    p.post(write(&p, 2, 0x80000, 8));
    deliver(&mut p, 1);
    p.nodes[1].nic.handle_idle(p.now);
    p.run();
    assert_eq!(p.sent_opcodes(1).last(), Some(&"RC_ACKNOWLEDGE"));
    assert_eq!(p.counter(1, "acks_sent"), 1);
    assert_eq!(p.send_completions(0).len(), 2);
}

#[test]
fn requester_with_full_window_is_acknowledged_at_once() {
    // The first case is one long message, the second many messages of half the window each. One
    // acknowledgement per sixteen requests would be too few in both cases.
    for (count, len) in [(1, 0x80000), (40, 0x4000)] {
        let mut p = Setup { send_window: 0x8000, ..Setup::default() }.pair();
        for i in 0..count {
            p.post(write(&p, i, 0, len));
        }
        // No idle poll occurs and no timer expires.
        while deliver(&mut p, 1) + deliver(&mut p, 0) > 0 {}
        assert_eq!(p.status(1).rq_psn, Psn::new(100 + (count as u32 * len).div_ceil(1024)));
    }
}

#[test]
fn retransmitted_window_asks_for_ack_again() {
    let mut p = Setup { send_window: 16384, ..Setup::default() }.pair();
    let mut n = 0;
    p.set_link(move |dir, _| {
        n += u32::from(dir == 0);
        if dir == 0 && n <= 12 { LinkAction::Drop } else { LinkAction::Pass }
    });
    p.post(write(&p, 1, 0, 100_000));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!(p.counter(0, "timeouts"), 1);
}

/// Creates a pair with one WRITE whose acknowledgement is held back at an idle poll. The preceding
/// WRITEs have shown that the requester continues without acknowledgements.
fn pair_with_held_ack() -> NicPair {
    let mut p = pair();
    for i in 0..1000 {
        p.post(write(&p, i, 0, 8));
        deliver(&mut p, 1);
        p.nodes[1].nic.handle_idle(p.now);
        if deliver(&mut p, 0) == 0 {
            p.send_completions(0);
            return p;
        }
    }
    panic!("the responder never holds back an acknowledgement");
}

#[test]
fn held_ack_is_sent_when_driver_flushes() {
    let mut p = pair_with_held_ack();
    p.nodes[1].nic.handle_idle(p.now);
    assert_eq!(deliver(&mut p, 0), 0);
    p.nodes[1].nic.flush_acks();
    assert_eq!(deliver(&mut p, 0), 1);
    assert_eq!(p.send_completions(0).len(), 1);
    assert_eq!(p.nodes[1].nic.poll_timeout().filter(|&t| t <= p.now), None);
}

#[test]
fn packets_without_ack_request_do_not_delay_held_ack() {
    let mut p = pair_with_held_ack();
    let held_at = p.now;
    p.post(write(&p, 1, 4096, 60 * 1024));
    let mut batch = TxBatch::new();
    let mut packets = Vec::new();
    while p.nodes[0].nic.poll_transmit(p.now, &mut p.nodes[0].memory, &mut batch) {
        packets.extend(batch.datagrams().map(|d| d[..d.len() - 4].to_vec()));
    }
    for bytes in packets {
        let packet = Packet::parse(&bytes).unwrap();
        assert!(!packet.ack_req, "the acknowledgement must be sent before the message ends");
        p.now += Duration::from_micros(40);
        p.inject(1, &packet);
        let now = p.now;
        p.nodes[1].nic.handle_timeout(now);
        p.nodes[1].nic.handle_idle(now);
        if deliver(&mut p, 0) > 0 {
            assert!(p.now - held_at <= Duration::from_micros(100), "{:?}", p.now - held_at);
            return;
        }
    }
    panic!("the acknowledgement was not sent");
}

/// Takes the next batch of node 1. Returns for each datagram of the batch whether the datagram is
/// an acknowledgement.
fn batch_of_responder(p: &mut NicPair) -> Vec<bool> {
    let mut batch = TxBatch::new();
    let node = &mut p.nodes[1];
    node.nic.poll_transmit(p.now, &mut node.memory, &mut batch);
    let packets = batch.datagrams().map(|d| Packet::parse(&d[..d.len() - 4]).unwrap());
    packets.map(|packet| matches!(packet.message, Message::Ack(_))).collect()
}

#[test]
fn pending_ack_is_sent_after_next_request() {
    let mut p = pair();
    p.post(write(&p, 1, 0, 8));
    deliver(&mut p, 1);
    let answer = SendWr::new(2, SendOp::Write(p.nodes[0].mr.remote(0)), Data::sge(p.sge(1, 0, 8)));
    p.post_on(1, &[answer]).unwrap();
    assert_eq!(batch_of_responder(&mut p), [false, true]);
    p.nodes[1].nic.handle_idle(p.now);
    assert_eq!(batch_of_responder(&mut p), [], "the acknowledgement is sent once");
}

#[test]
fn held_ack_is_not_sent_after_next_request() {
    let mut p = pair();
    let mut together = 0;
    for i in 0..1000 {
        p.post(write(&p, i, 0, 8));
        deliver(&mut p, 1);
        let answer = SendWr::new(i, SendOp::Write(p.nodes[0].mr.remote(0)), Data::sge(p.sge(1, 0, 8)));
        p.post_on(1, &[answer]).unwrap();
        together += deliver(&mut p, 0) - 1;
        deliver(&mut p, 1);
        p.send_completions(0);
        p.send_completions(1);
    }
    // After 64 acknowledgements without a hold, the responder holds acknowledgements back and sends
    // one per sixteen requests.
    assert!((64..64 + 1000 / 16 + 2).contains(&together), "{together}");
    p.nodes[1].nic.flush_acks();
    assert_eq!(
        batch_of_responder(&mut p),
        [true],
        "no acknowledgement stays pending while the driver sleeps"
    );
}

fn send_message(p: &mut NicPair, wr_id: u64) {
    p.post_recv(RecvWr::new(wr_id, p.sge(1, 4096, 8)));
    p.post(SendWr::new(wr_id, SendOp::Send, Data::sge(p.sge(0, 0, 8))));
    deliver(p, 1);
}

fn answer(p: &mut NicPair, wr_id: u64) {
    let answer = SendWr::new(wr_id, SendOp::Write(p.nodes[0].mr.remote(0)), Data::sge(p.sge(1, 0, 8)));
    p.post_on(1, &[answer]).unwrap();
}

#[test]
fn ack_of_message_is_sent_before_program_gets_it() {
    let mut p = pair();
    for i in 0..100 {
        send_message(&mut p, i);
        p.nodes[1].nic.handle_delivery();
        assert_eq!(deliver(&mut p, 0), 1);
        assert_eq!(p.send_completions(0).len(), 1);
    }
    // No receive completes.
    p.post(write(&p, 100, 0, 8));
    deliver(&mut p, 1);
    p.nodes[1].nic.handle_delivery();
    assert_eq!(deliver(&mut p, 0), 0);
}

#[test]
fn ack_of_message_waits_for_answer_of_program_that_answers() {
    let mut p = pair();
    for i in 0..64 {
        send_message(&mut p, i);
        p.nodes[1].nic.handle_delivery();
        assert_eq!(deliver(&mut p, 0), 1);
        answer(&mut p, i);
        p.run();
    }
    send_message(&mut p, 64);
    p.nodes[1].nic.handle_delivery();
    assert_eq!(deliver(&mut p, 0), 0);
    // The program does not answer.
    p.run();
    send_message(&mut p, 65);
    p.nodes[1].nic.handle_delivery();
    assert_eq!(deliver(&mut p, 0), 1);
}
