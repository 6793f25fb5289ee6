//! Packets that no valid peer sends: they are refused before they access memory.

use crate::common::rc_requests::*;
use crate::common::*;
use mitra_verbs::*;
use mitra_wire::{Aeth, AtomicEth, Message, NakCode, Packet, Syndrome, Transport};

const FULL: &[u8] = &[0x11; 1024];

/// Sends packets. Checks that node 1 refuses the last packet with `code` and accesses no memory.
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
        p.post(write_at(&p, 1, p.remote(0), 8));
        p.post(read_at(&p, 2, p.remote(0), 8));
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
