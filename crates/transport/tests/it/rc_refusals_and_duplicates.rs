//! A refused request among READs: the order of the answers, and copies of READs whose right was
//! revoked.

use crate::common::rc_requests::*;
use crate::common::*;
use mitra_verbs::*;
use mitra_wire::{Message, NakCode, Packet, Reth, Syndrome, Transport};

/// Posts a READ and then an invalid request. Node 1 checks the invalid request before it has sent
/// any READ response.
fn pair_with_invalid_request_behind_read() -> NicPair {
    let mut p = pair();
    let good = read_at(&p, 1, p.remote(0), 3000);
    let bad = write_at(&p, 2, RemoteAddr { rkey: Key(0), ..p.remote(0) }, 8);
    let more = write_at(&p, 3, p.remote(0), 8);
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
        p.post(read_at(&p, i, p.remote(0), 8));
    }
    p.run();
    let requests: Vec<_> = p.sent.iter().filter(|s| s.from == 0).map(|s| s.bytes.clone()).collect();
    let node = &mut p.nodes[1];
    node.nic.dereg_mr(p.now, node.mr.id).unwrap();
    // With `rd_atomic` of 1, the second READ shows that the requester has the response to the first
    // READ.
    p.inject(1, &Packet::parse(&requests[0]).unwrap());
    assert_eq!(count_sent_by_responder(&mut p), 0);
    assert_eq!(p.counter(1, "drop_duplicate"), 1);
    // The responder cannot know whether the requester has the response to the second READ.
    p.inject(1, &Packet::parse(&requests[1]).unwrap());
    assert_eq!(count_sent_by_responder(&mut p), 1);
    assert_eq!(last_nak(&p), Some(Syndrome::Nak(NakCode::RemoteAccess)));
    assert_eq!((p.counter(1, "fatal_naks_sent"), p.counter(0, "drop_stale_response")), (1, 1));
    assert_eq!((p.state(0), p.state(1)), (QpState::Rts, QpState::Rts));
}

#[test]
fn accepted_duplicate_read_keeps_qp_usable_after_revocation() {
    let mut p = pair();
    p.post(read_at(&p, 1, p.remote(0), 8));
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
        p.post(read_at(&p, 1, p.remote(0), len));
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
    p.post(read_at(&p, 1, p.remote(0), 2048));
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
    p.post(read_at(&p, 1, p.remote(0), 5000));
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
    // When the READ is retransmitted, the responder is in ERR and does not answer, so that the READ
    // fails first.
    let mut p = Setup { retry_cnt: 1, ..Setup::default() }.pair();
    p.set_link(|dir, packet| {
        let lost = dir == 1 && matches!(packet.message, Message::ReadOnly(_));
        if lost { LinkAction::Drop } else { LinkAction::Pass }
    });
    let bad = write_at(&p, 2, RemoteAddr { rkey: Key(0), ..p.remote(0) }, 8);
    let wrs = [read_at(&p, 1, p.remote(0), 8), bad];
    p.post_on(0, &wrs).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)]);
}
