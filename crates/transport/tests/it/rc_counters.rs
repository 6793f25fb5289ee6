//! What the counters of a reliable connection count, and the bits and limits of its packets.

use crate::common::rc_requests::*;
use crate::common::*;
use mitra_verbs::*;
use mitra_wire::{Aeth, Message, NakCode, Packet, Reth, Syndrome, Transport};

/// Returns a response from node 1's queue pair to node 0's oldest request.
fn response(p: &NicPair, message: Message) -> Packet<'static> {
    Packet::new(Transport::Rc, p.nodes[0].qp, Psn::new(100), message, b"")
}

#[test]
fn each_executed_message_is_counted() {
    let mut p = pair();
    for wr in
        [write_at(&p, 1, p.remote(0), 5000), read_at(&p, 2, p.remote(0), 5000), fetch_add(&p, 3, p.remote(0))]
    {
        p.post(wr);
    }
    p.run();
    assert_eq!(p.counter(1, "messages_executed"), 3);
}

#[test]
fn each_request_behind_a_gap_is_counted() {
    let mut p = pair();
    let late = request(&p, 1, Message::WriteOnly(reth(&p, 8)), b"12345678");
    p.inject(1, &late);
    p.inject(1, &late);
    assert_eq!(p.counter(1, "drop_out_of_sequence"), 2);
}

/// The NAK of the refused request already tells the requester that no later request is executed.
#[test]
fn request_behind_a_refused_one_is_counted_and_not_answered() {
    let mut p = pair();
    let read = request(&p, 0, Message::ReadRequest(reth(&p, 8)), b"");
    let bad = request(&p, 1, Message::WriteOnly(Reth { rkey: 0, ..reth(&p, 8) }), b"12345678");
    let behind = request(&p, 2, Message::WriteOnly(reth(&p, 8)), b"12345678");
    for packet in [&read, &bad, &behind] {
        p.inject(1, packet);
    }
    assert_eq!(p.counter(1, "drop_qp_state"), 1);
}

#[test]
fn write_at_the_psn_of_an_executed_read_is_no_copy() {
    let mut p = pair();
    let read = request(&p, 0, Message::ReadRequest(reth(&p, 8)), b"");
    let write = request(&p, 0, Message::WriteOnly(reth(&p, 8)), b"12345678");
    p.inject(1, &read);
    p.transmit_all();
    p.inject(1, &write);
    p.run();
    assert_eq!((p.counter(1, "drop_duplicate"), p.counter(1, "duplicate_requests")), (1, 1));
    assert_eq!(p.sent_opcodes(1), ["RC_RDMA_READ_RESPONSE_ONLY"]);
    assert_eq!(p.word(1, 0), 0);
}

/// At most `dest_rd_atomic` responses are due.
#[test]
fn copy_of_a_read_without_room_for_its_response_is_counted() {
    let mut p = Setup { dest_rd_atomic: 1, ..Setup::default() }.pair();
    let reads = [0, 1].map(|psn| request(&p, psn, Message::ReadRequest(reth(&p, 8)), b""));
    p.inject(1, &reads[0]);
    p.transmit_all();
    p.inject(1, &reads[1]);
    p.inject(1, &reads[0]);
    assert_eq!(p.counter(1, "drop_duplicate"), 1);
}

#[test]
fn response_with_a_syndrome_that_rc_does_not_have_is_counted_and_ignored() {
    let nak = |code| Aeth { syndrome: Syndrome::Nak(code), msn: 0 };
    let cases = [
        Message::Ack(nak(NakCode::InvalidRdRequest)),
        Message::ReadOnly(nak(NakCode::RemoteAccess)),
        Message::AtomicAck(nak(NakCode::RemoteAccess), 5),
    ];
    for message in cases {
        let mut p = pair();
        p.set_link(|_, _| LinkAction::Drop);
        p.post(read_at(&p, 1, p.remote(0), 8));
        p.transmit_all();
        let packet = response(&p, message);
        p.inject(0, &packet);
        assert_eq!(p.counter(0, "drop_stale_response"), 1);
        assert_eq!((p.send_completions(0).len(), p.state(0)), (0, QpState::Rts));
    }
}

#[test]
fn nak_that_ends_a_queue_pair_is_counted_at_both_ends() {
    let mut p = pair();
    p.post(write_at(&p, 1, RemoteAddr { rkey: Key(0), ..p.remote(0) }, 8));
    let sq_psn = p.status(0).sq_psn;
    p.run();
    assert_eq!((p.counter(0, "fatal_naks_received"), p.counter(1, "fatal_naks_sent")), (1, 1));
    // The state of the failed queue pair can still be queried.
    assert_eq!((p.state(0), p.status(0).sq_psn), (QpState::Err, sq_psn.next()));
}

/// A queue pair without an alternate path is always in the state Migrated (IBTA volume 1, 17.2.8).
#[test]
fn every_packet_has_the_migration_bit() {
    let mut p = pair();
    for wr in [write_at(&p, 1, p.remote(0), 8), read_at(&p, 2, p.remote(0), 8), fetch_add(&p, 3, p.remote(0))]
    {
        p.post(wr);
        p.run();
    }
    p.post(write_at(&p, 4, RemoteAddr { rkey: Key(0), ..p.remote(0) }, 8));
    p.run();
    assert!(p.sent.len() >= 8);
    for sent in &p.sent {
        assert!(Packet::parse(&sent.bytes).unwrap().mig_req, "{}", sent.opcode);
    }
}

/// The bit asks for an event when the message is complete. A READ or an atomic completes no
/// receive.
#[test]
fn solicited_bit_is_in_the_last_packet_of_a_message_with_data_only() {
    let mut p = pair();
    for wr in [write_at(&p, 1, p.remote(0), 3000), read_at(&p, 2, p.remote(0), 3000)] {
        p.post(wr.with_flags(SendFlags::SIGNALED | SendFlags::SOLICITED));
        p.run();
    }
    let requests = p.sent.iter().filter(|s| s.from == 0);
    let solicited: Vec<bool> = requests.map(|s| Packet::parse(&s.bytes).unwrap().solicited).collect();
    assert_eq!(solicited, [false, false, true, false]);
}

/// The largest message has 2³¹ bytes. The region is smaller.
#[test]
fn read_of_the_largest_length_is_refused_for_its_bounds_only() {
    for (len, code) in [(1 << 31, NakCode::RemoteAccess), ((1 << 31) + 1, NakCode::InvalidRequest)] {
        let mut p = pair();
        let read = request(&p, 0, Message::ReadRequest(reth(&p, len)), b"");
        p.inject(1, &read);
        p.transmit_all();
        assert_eq!(last_nak(&p), Some(Syndrome::Nak(code)));
    }
}

/// RC has no other flow control for responses.
#[test]
fn responder_sends_a_window_of_read_data_at_a_time() {
    let mut p = Setup { send_window: 4096, ..Setup::default() }.pair();
    let read = request(&p, 0, Message::ReadRequest(reth(&p, 10 * 1024)), b"");
    p.inject(1, &read);
    p.transmit_all();
    assert_eq!(p.sent_opcodes(1).len(), 4);
    p.run();
    assert_eq!(p.sent_opcodes(1).len(), 10);
}
