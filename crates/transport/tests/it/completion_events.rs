//! Completion events: armed queues, solicited completions and errors.

use crate::common::*;
use mitra_verbs::*;

#[test]
fn solicited_send_raises_event_on_queue_armed_for_solicited() {
    let mut p = pair();
    let cq = p.nodes[1].recv_cq;
    for i in 0..4 {
        p.post_recv(RecvWr::new(i, p.sge(1, 0, 8)));
    }
    p.nodes[1].nic.req_notify_cq(cq, true).unwrap();
    let mut send = |flags| {
        p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")).with_flags(flags));
        p.run();
        std::iter::from_fn(|| p.nodes[1].nic.poll_cq_event()).collect::<Vec<_>>()
    };
    assert_eq!(send(SendFlags::SIGNALED), []);
    assert_eq!(send(SendFlags::SOLICITED), [cq]);
    assert_eq!(send(SendFlags::SOLICITED), [], "the queue is armed for one event");
    p.nodes[1].nic.poll_cq(cq, 8, &mut Vec::new()).unwrap();
    p.nodes[1].nic.req_notify_cq(cq, false).unwrap();
    p.nodes[1].nic.req_notify_cq(cq, true).unwrap();
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")));
    p.run();
    assert_eq!(
        p.nodes[1].nic.poll_cq_event(),
        Some(cq),
        "arming for solicited events does not replace arming for all"
    );
}

#[test]
fn arming_with_unreported_completions_raises_one_event() {
    let mut p = pair();
    let cq = p.nodes[1].recv_cq;
    p.post_recv(RecvWr::new(0, p.sge(1, 0, 8)));
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")));
    p.run();
    p.nodes[1].nic.req_notify_cq(cq, true).unwrap();
    assert_eq!(
        p.nodes[1].nic.poll_cq_event(),
        None,
        "arming for solicited events ignores earlier completions"
    );
    p.nodes[1].nic.req_notify_cq(cq, false).unwrap();
    assert_eq!(p.nodes[1].nic.poll_cq_event(), Some(cq));
    p.nodes[1].nic.req_notify_cq(cq, false).unwrap();
    assert_eq!(p.nodes[1].nic.poll_cq_event(), None, "the completion was reported already");
    p.nodes[1].nic.poll_cq(cq, 8, &mut Vec::new()).unwrap();
    p.nodes[1].nic.req_notify_cq(cq, false).unwrap();
    assert_eq!(p.nodes[1].nic.poll_cq_event(), None, "the queue is empty");
}

#[test]
fn error_completion_counts_as_solicited() {
    let mut p = pair();
    let cq = p.nodes[0].send_cq;
    p.nodes[0].nic.req_notify_cq(cq, true).unwrap();
    p.post(SendWr::new(1, SendOp::Send, Data::sge(Sge { key: Key(0), ..p.sge(0, 0, 8) })));
    p.run();
    assert_eq!(p.nodes[0].nic.poll_cq_event(), Some(cq));
}

/// The completions of another queue pair stay in both queues, and raise an event as before.
#[test]
fn reset_removes_completions_of_its_queue_pair_only() {
    let mut p = pair();
    let [send_cq, recv_cq] = [p.nodes[1].send_cq, p.nodes[1].recv_cq];
    let init = QpInitAttr { send_cq: recv_cq, ..p.status(1).init };
    let now = p.now;
    let nic = &mut p.nodes[1].nic;
    let other = nic.create_qp(now, &init).unwrap();
    nic.modify_qp(now, other, &Setup::default().to_init()).unwrap();
    nic.post_recv(other, &[RecvWr::new(7, p.nodes[1].mr.sge(0, 8))]).unwrap();
    p.nodes[1].nic.modify_qp(now, other, &QpAttr::to(QpState::Err)).unwrap();
    p.post_recv(RecvWr::new(1, p.sge(1, 0, 8)));
    p.post(SendWr::new(1, SendOp::Send, Data::inline(b"x")));
    p.post_on(1, &[SendWr::new(2, SendOp::Write(p.nodes[0].mr.remote(0)), Data::inline(b"x"))]).unwrap();
    p.run();
    let len = |p: &NicPair, cq| p.nodes[1].nic.cq_len(cq).unwrap();
    assert_eq!((len(&p, send_cq), len(&p, recv_cq)), (1, 2));
    p.modify(1, &QpAttr::to(QpState::Reset));
    assert_eq!(len(&p, send_cq), 0);
    p.nodes[1].nic.req_notify_cq(recv_cq, false).unwrap();
    p.nodes[1].nic.req_notify_cq(send_cq, false).unwrap();
    assert_eq!(p.nodes[1].nic.poll_cq_event(), Some(recv_cq), "the other completion was not reported");
    assert_eq!(p.nodes[1].nic.poll_cq_event(), None);
    assert_eq!(statuses(&p.recv_completions(1)), [(7, WcStatus::Flushed)]);
}
