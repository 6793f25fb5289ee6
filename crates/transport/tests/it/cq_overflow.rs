//! Completion queues that overflow, and the size of completion queues.

use crate::common::*;
use mitra_verbs::*;

#[test]
fn cq_overflow_fails_its_queue_pairs() {
    let mut p = Setup { cq_depth: 2, ..Setup::default() }.pair();
    let cq = p.nodes[0].send_cq;
    let init = p.status(0).init;
    let unused = p.nodes[0].nic.create_qp(p.now, &init).unwrap();
    for i in 0..4 {
        p.post(write(&p, i, 0, 8));
    }
    p.run();
    assert_eq!(p.nodes[0].nic.query_qp(unused).unwrap().state, QpState::Reset);
    assert_eq!(p.events(0), [AsyncEvent::CqError(cq)]);
    assert_eq!(p.state(0), QpState::Err);
    assert_eq!(statuses(&p.send_completions(0)), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    assert_eq!(p.state(1), QpState::Rts);
    assert!(p.counter(0, "cq_overruns") > 0);
}

/// The queue pair fails at its first completion, which would be lost, and does not acknowledge the
/// message.
#[test]
fn overflowed_cq_fails_queue_pairs_that_use_it_later() {
    let setup = Setup { cq_depth: 2, retry_cnt: 1, ..Setup::default() };
    let mut p = setup.pair();
    let cq = p.nodes[1].recv_cq;
    for wr_id in 0..3 {
        p.post_recv(RecvWr::new(wr_id, p.sge(1, 4096, 64)));
        p.post(SendWr::new(wr_id, SendOp::Send, Data::inline(b"first")));
        p.run();
        p.send_completions(0);
    }
    assert_eq!((p.events(1), p.recv_completions(1).len()), (vec![AsyncEvent::CqError(cq)], 2));
    for i in 0..2 {
        let rtr = setup.to_rtr(&p.nodes[1 - i], setup.psn[1 - i]);
        for attr in [QpAttr::to(QpState::Reset), setup.to_init(), rtr, setup.to_rts(setup.psn[i])] {
            p.modify(i, &attr);
        }
    }
    p.post(write(&p, 8, 0, 64));
    p.run();
    assert_eq!((p.state(1), p.events(1)), (QpState::Rts, vec![]), "a WRITE needs no completion");
    p.post_recv(RecvWr::new(9, p.sge(1, 4096, 64)));
    p.post(SendWr::new(9, SendOp::Send, Data::inline(b"second")));
    p.run();
    assert_eq!((p.state(1), p.events(1)), (QpState::Err, vec![AsyncEvent::CqError(cq)]));
    assert_eq!(statuses(&p.send_completions(0)), [(8, WcStatus::Success), (9, WcStatus::RetryExceeded)]);
    p.post_recv(RecvWr::new(10, p.sge(1, 4096, 64)));
    assert_eq!(p.events(1), [], "a flushed receive tells nothing new");
}

#[test]
fn completion_queue_is_resized_with_its_completions() {
    let mut p = Setup { cq_depth: 4, ..Setup::default() }.pair();
    let cq = p.nodes[0].send_cq;
    for i in 0..3 {
        p.post(write(&p, i, 0, 8));
    }
    p.run();
    let limit = p.nodes[0].nic.attr().limits.cqe;
    let mut resize = |depth, waiting| p.nodes[0].nic.resize_cq(cq, depth, waiting).is_ok();
    assert!(!resize(0, 0) && !resize(2, 0) && !resize(limit + 1, 0), "no entries, too few, too many");
    assert!(!resize(4, 2), "the driver has two more");
    assert!(resize(limit, 0) && resize(5, 2) && resize(3, 0));
    p.post(write(&p, 3, 0, 8));
    p.run();
    assert_eq!(p.events(0), [AsyncEvent::CqError(cq)], "the new size is in force");
    let success = |wr_id| (wr_id, WcStatus::Success);
    assert_eq!(statuses(&p.send_completions(0)), [0, 1, 2].map(success));
}
