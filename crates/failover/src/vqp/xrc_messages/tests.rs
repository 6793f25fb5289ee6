use mitra_verbs::{Key, RemoteAddr, WcStatus};

use super::*;
use crate::close_reason::CloseReason;
use crate::completion::Resolution;

const QUEUE: Srqn = Srqn::new(0xAB_CDEF);

fn receive(opcode: WcOpcode, imm: Option<u32>, byte_len: u32) -> Completion {
    Completion {
        wr_id: 7,
        seq: 0,
        opcode,
        outcome: Outcome::Success,
        resolution: Resolution::Direct,
        byte_len,
        imm,
        invalidated: None,
        solicited: false,
        srq: None,
    }
}

/// The receiver's completion for the message `wr`, and the payload of the message.
fn arrive(wr: &SendWr) -> (Completion, Vec<u8>) {
    let payload = match &wr.data {
        Data::Inline(bytes) => bytes.to_vec(),
        Data::Sges(_) => Vec::new(),
    };
    let len = payload.len() as u32;
    let completion = match wr.op {
        SendOp::Send => receive(WcOpcode::Recv, None, len),
        SendOp::SendWithImm(imm) => receive(WcOpcode::Recv, Some(imm), len),
        SendOp::SendWithInvalidate(key) => {
            Completion { invalidated: Some(key), ..receive(WcOpcode::Recv, None, len) }
        }
        SendOp::WriteWithImm(_, imm) => receive(WcOpcode::RecvWithImm, Some(imm), len),
        ref op => panic!("{op:?} takes no receive"),
    };
    (completion, payload)
}

fn word(payload: &[u8]) -> [u8; 4] {
    payload.try_into().expect("a header's payload has 4 bytes")
}

/// One receiver gets all messages, so no header changes a later message.
#[test]
fn requests_arrive_as_they_were_posted() {
    let at = RemoteAddr { addr: 64, rkey: Key(5) };
    let mut received = ReceivedHeader::default();
    for imm in [0, 1, u32::MAX, tag(Kind::Message, QUEUE), tag(Kind::Header, QUEUE)] {
        for (op, header_bytes) in [
            (SendOp::Send, None),
            (SendOp::SendWithImm(imm), Some(4)),
            (SendOp::SendWithInvalidate(Key(imm)), Some(0)),
            (SendOp::WriteWithImm(at, imm), Some(0)),
            (SendOp::Send, None),
        ] {
            for queue in [QUEUE, Srqn::new(1)] {
                let posted = SendWr::new(3, op, Data::inline(b"data")).to_srq(queue);
                let (header, message) = messages(posted.clone()).expect("the message names a queue");
                assert_eq!(header.as_ref().map(|header| header.data.len()), header_bytes);
                if let Some(header) = header {
                    assert_eq!((header.flags, header.remote_srq), (SendFlags::empty(), Srqn::default()));
                    let (mut completion, payload) = arrive(&header);
                    let arrival = received.on_message(&mut completion, || word(&payload));
                    assert_eq!(arrival, Arrival::Header);
                }
                assert_eq!((message.remote_srq, message.flags), (Srqn::default(), posted.flags));
                let (mut completion, _) = arrive(&message);
                let arrival = received.on_message(&mut completion, || unreachable!("not a header"));
                assert_eq!(arrival, Arrival::Message(queue));
                assert_eq!(completion, arrive(&posted).0);
            }
        }
    }
}

#[test]
fn requests_that_take_no_receive_are_unchanged() {
    let at = RemoteAddr { addr: 64, rkey: Key(5) };
    for op in [SendOp::Write(at), SendOp::Read(at), SendOp::FetchAdd { remote: at, add: 1 }] {
        let posted = SendWr::new(3, op, Data::empty());
        assert_eq!(messages(posted.clone()), Ok((None, posted.clone())));
        assert_eq!(messages(posted.clone().to_srq(QUEUE)), Ok((None, posted)));
    }
    let unnamed = [SendOp::Send, SendOp::SendWithImm(1), SendOp::WriteWithImm(at, 1)];
    for op in unnamed {
        assert!(messages(SendWr::new(3, op, Data::empty())).is_err());
    }
}

/// An error of the sender may leave a header without its message.
#[test]
fn header_without_its_message_changes_no_later_message() {
    let stale = [
        (tag(Kind::Header, QUEUE), 0), // of a SEND with invalidate or a WRITE with immediate
        (tag(Kind::HeaderWithImm, QUEUE), 4),
    ];
    for (imm, len) in stale {
        let other = Srqn::new(9);
        for op in [SendOp::Send, SendOp::SendWithImm(77), SendOp::SendWithInvalidate(Key(1))] {
            let mut received = ReceivedHeader::default();
            let mut header = receive(WcOpcode::Recv, Some(imm), len);
            assert_eq!(received.on_message(&mut header, || [1; 4]), Arrival::Header);
            let posted = SendWr::new(3, op, Data::inline(b"data")).to_srq(other);
            let (header, message) = messages(posted.clone()).expect("the message names a queue");
            for wr in header.into_iter().chain([message]) {
                let (mut completion, payload) = arrive(&wr);
                match received.on_message(&mut completion, || word(&payload)) {
                    Arrival::Header => {}
                    arrival => {
                        assert_eq!(arrival, Arrival::Message(other));
                        assert_eq!(completion, arrive(&posted).0);
                    }
                }
            }
        }
    }
}

#[test]
fn messages_of_no_xrc_connection_are_invalid() {
    let invalid = |header: Option<(u32, u32)>, mut completion: Completion| {
        let mut received = ReceivedHeader::default();
        if let Some((imm, len)) = header {
            let arrival = received.on_message(&mut receive(WcOpcode::Recv, Some(imm), len), || [0; 4]);
            assert_eq!(arrival, Arrival::Header);
        }
        let arrival = received.on_message(&mut completion, || unreachable!("not a header"));
        assert_eq!(arrival, Arrival::Invalid, "{header:?} {completion:?}");
    };
    let plain = receive(WcOpcode::Recv, None, 4);
    let write = receive(WcOpcode::RecvWithImm, Some(3), 4);
    let invalidate = Completion { invalidated: Some(Key(1)), ..plain };
    for completion in [plain, write, invalidate] {
        invalid(None, completion);
    }
    invalid(Some((tag(Kind::Header, QUEUE), 0)), plain);
    for completion in [write, invalidate] {
        invalid(Some((tag(Kind::HeaderWithImm, QUEUE), 4)), completion);
    }
    for (imm, len) in [
        (3 << NUMBER_BITS, 0),
        (u32::MAX, 4),
        (tag(Kind::Header, QUEUE), 1),
        (tag(Kind::HeaderWithImm, QUEUE), 0),
        (tag(Kind::HeaderWithImm, QUEUE), 5),
    ] {
        invalid(None, receive(WcOpcode::Recv, Some(imm), len));
    }
}

/// A header counts for one message, even if that message never arrives.
#[test]
fn header_is_used_once() {
    let header = |received: &mut ReceivedHeader| {
        let mut header = receive(WcOpcode::Recv, Some(tag(Kind::HeaderWithImm, QUEUE)), 4);
        assert_eq!(received.on_message(&mut header, || [1; 4]), Arrival::Header);
    };
    let plain = || receive(WcOpcode::Recv, None, 4);
    for first in [plain(), receive(WcOpcode::Recv, Some(tag(Kind::Message, QUEUE)), 4)] {
        let mut received = ReceivedHeader::default();
        header(&mut received);
        assert_eq!(received.on_message(&mut first.clone(), || unreachable!()), Arrival::Message(QUEUE));
        assert_eq!(received.on_message(&mut plain(), || unreachable!()), Arrival::Invalid);
    }
}

fn send(seq: u64, outcome: Outcome) -> Completion {
    Completion { seq, outcome, ..receive(WcOpcode::Send, None, 0) }
}

/// The application sees one completion per request, and the first completion shows the cause.
#[test]
fn failed_header_fails_its_message() {
    let flushed = Outcome::Failed(WcStatus::Flushed);
    let undecided = Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::NoRail));
    for cause in [Outcome::Failed(WcStatus::RnrRetryExceeded), undecided] {
        for split in [false, true] {
            let mut headers = SentHeaders::default();
            for message in [1, 4, 6] {
                headers.push(message, 0);
            }
            assert_eq!([0, 1, 4].map(|seq| headers.count_from(seq)), [3, 2, 1]);
            let kept = send(9, Outcome::Success); // of an earlier poll
            let mut out = vec![kept, send(1, Outcome::Success), send(2, Outcome::Success)];
            headers.remove_from(&mut out, 1);
            assert_eq!(out.len(), 3);
            let mut out = vec![send(3, cause), send(4, flushed), send(5, flushed), send(6, flushed)];
            let rest = if split { out.split_off(1) } else { Vec::new() };
            headers.remove_from(&mut out, 0);
            let from = out.len();
            out.extend(rest);
            headers.remove_from(&mut out, from);
            assert_eq!(out, [send(4, cause), send(6, flushed)]);
        }
    }
    // A header that was executed says nothing about its message, which was not executed.
    let mut headers = SentHeaders::default();
    headers.push(1, 0);
    let mut out = vec![send(0, Outcome::Unresolved(UnresolvedError::ExecutedBehindError)), send(1, flushed)];
    headers.remove_from(&mut out, 0);
    assert_eq!(out, [send(1, flushed)]);
    // The message's own outcome is kept.
    let mut headers = SentHeaders::default();
    headers.push(1, 0);
    let mut out = vec![send(0, undecided), send(1, Outcome::Success)];
    headers.remove_from(&mut out, 0);
    assert_eq!(out, [send(1, Outcome::Success)]);
}

#[test]
fn headers_that_were_not_posted_are_forgotten() {
    let mut headers = SentHeaders::default();
    for message in [1, 3, 5] {
        headers.push(message, 0);
    }
    headers.truncate(2);
    assert_eq!(headers.count_from(0), 1);
    headers.push(5, 2);
    assert_eq!((headers.count_from(0), headers.count_from(5)), (1, 0));
}
