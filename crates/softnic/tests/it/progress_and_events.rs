//! Progress by pollers and by the progress thread, the change between them, and completion events.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::common::{Endpoint, LinkAttr, connect, connected_pair, loopback, open};
use mitra_verbs::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

fn is_readable(fd: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

/// Returns two connected endpoints, and the channel of the second endpoint's completion queue.
fn pair_with_channel() -> (Endpoint, Endpoint, Arc<dyn CompletionChannel>) {
    let nic = open(loopback());
    let channel = nic.create_completion_channel().unwrap();
    let cq = nic.create_cq(64, Some(&channel)).unwrap();
    let b = Endpoint::with(nic, Arc::new(Buffer::new(crate::common::MEMORY_SIZE)), cq);
    let a = Endpoint::new(open(loopback()));
    connect(&a, &b, LinkAttr::default());
    (a, b, channel)
}

/// A UD send completes when it is sent, because it is never acknowledged.
#[test]
fn ud_send_raises_event_within_post() {
    let (a, b, channel) = pair_with_channel();
    let cap = QpCap { send_wrs: 8, recv_wrs: 8, ..QpCap::default() };
    let init = QpInitAttr {
        qp_type: QpType::Ud,
        pd: b.pd,
        send_cq: b.cq,
        recv_cq: b.cq,
        srq: None,
        cap,
        sq_sig_all: true,
    };
    let qp = b.nic.create_qp(&init).unwrap();
    let (pkey_index, port, qkey) = (Some(0), Some(1), Some(1));
    b.nic.modify_qp(qp, &QpAttr { pkey_index, port, qkey, ..QpAttr::to(QpState::Init) }).unwrap();
    b.nic.modify_qp(qp, &QpAttr::to(QpState::Rtr)).unwrap();
    b.nic.modify_qp(qp, &QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) }).unwrap();
    let ah = b.nic.create_ah(b.pd, a.gid()).unwrap();
    b.nic.req_notify_cq(b.cq, false).unwrap();
    let to = UdDestination { ah, qpn: a.qp, qkey: 1 };
    b.nic.post_send(qp, &[SendWr::new(7, SendOp::Send, Data::empty()).to(to)]).unwrap();
    assert!(is_readable(&channel), "post_send sends the datagram and raises the event");
    assert_eq!(b.wait_success().wr_id, 7);
}

#[test]
fn nics_open_and_close_with_work_in_flight() {
    for _ in 0..50 {
        let (a, b) = connected_pair();
        a.post(1, SendOp::Write(b.mr.remote(0)), 0, 1 << 16);
        drop(b);
        drop(a);
    }
}

#[test]
fn closing_nic_acknowledges_last_received_send() {
    for _ in 0..20 {
        let (a, b) = connected_pair();
        b.post_recv(1, 0, 8);
        a.post(1, SendOp::Send, 0, 8);
        b.wait_success();
        drop(b);
        a.wait_success();
    }
}

#[test]
fn received_message_is_acknowledged_when_sender_enters_error_state() {
    for _ in 0..50 {
        let (a, b) = connected_pair();
        b.post_recv(2, 0, 64);
        a.post(1, SendOp::Send, 0, 64);
        b.wait_success();
        // No thread has polled a, whose progress thread may not have seen the acknowledgement.
        a.nic.modify_qp(a.qp, &QpAttr::to(QpState::Err)).unwrap();
        assert_eq!(a.wait_completion().status, WcStatus::Success);
    }
}

#[test]
fn request_completes_before_the_receive_of_its_answer() {
    const MESSAGES: u64 = 3000;
    let (a, b) = connected_pair();
    let answerer = std::thread::spawn(move || {
        (0..16).for_each(|i| b.post_recv(i, 0, 8));
        let mut received = 0;
        while received < MESSAGES {
            let wc = b.wait_success();
            if wc.opcode == WcOpcode::Recv {
                received += 1;
                b.post_recv(wc.wr_id, 0, 8);
                b.post(100, SendOp::Send, 8, 8);
            }
        }
        b // stays open until the last answer has arrived
    });
    (0..16).for_each(|i| a.post_recv(i, 0, 8));
    for message in 0..MESSAGES {
        a.post(100, SendOp::Send, 8, 8);
        assert_eq!(a.wait_success().opcode, WcOpcode::Send, "of message {message}");
        let wc = a.wait_success();
        assert_eq!(wc.opcode, WcOpcode::Recv, "of message {message}");
        a.post_recv(wc.wr_id, 0, 8);
    }
    answerer.join().unwrap();
}

/// A SEND of four bytes is as long as an acknowledgement.
#[test]
fn short_messages_in_both_directions_stay_in_order() {
    const ROUNDS: u32 = 1000;
    let (a, b) = connected_pair();
    let exchange = |end: Endpoint| {
        let (mut received, mut sent) = (0, 0);
        (0..16).for_each(|i| end.post_recv(i, 0, 4));
        end.post(100, SendOp::Send, 8, 4);
        end.post(100, SendOp::Send, 8, 4);
        while received < 2 * ROUNDS || sent < 2 * ROUNDS {
            let wc = end.wait_success();
            if wc.opcode == WcOpcode::Send {
                sent += 1;
                continue;
            }
            received += 1;
            end.post_recv(wc.wr_id, 0, 4);
            if received % 2 == 0 && received < 2 * ROUNDS {
                end.post(100, SendOp::Send, 8, 4);
                end.post(100, SendOp::Send, 8, 4);
            }
        }
        end
    };
    let other = std::thread::spawn(move || exchange(b));
    let a = exchange(a);
    let b = other.join().unwrap();
    assert_eq!([&a, &b].map(|end| end.counter("sequence_naks_sent")), [0, 0]);
}
