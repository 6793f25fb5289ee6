//! Limits of queues, and the order in which objects are destroyed.

use std::sync::Arc;

use mitra_verbs::{
    Access, Buffer, Error, PostError, QpAttr, QpBuilder, QpCap, QpState, RecvWr, SendOp, SendWr, WcStatus,
};

use crate::endpoint::{Endpoint, Link, Options, rc_pair, rc_pair_with};
use crate::{CaseResult, Fabric};

/// The most entries that a NIC may give to a queue of [`DEPTH`].
const MAX_DEPTH: usize = 1 << 16;
const DEPTH: u32 = 8;

fn shallow() -> Options {
    Options { cap: QpCap { send_wrs: DEPTH, recv_wrs: DEPTH, ..QpCap::default() }, ..Options::default() }
}

fn shallow_pair(fabric: &dyn Fabric) -> CaseResult<[Endpoint<'_>; 2]> {
    rc_pair_with(fabric, shallow, Link::default())
}

/// Posts until the queue is full, and returns the number of requests. A NIC may give a queue more
/// entries than asked for.
pub(super) fn fill(mut post: impl FnMut(u64) -> Result<(), PostError>) -> usize {
    for i in 0..MAX_DEPTH {
        match post(i as u64) {
            Ok(()) => {}
            Err(PostError { index: 0, error: Error::QueueFull { .. } | Error::SrqFull { .. } }) => return i,
            Err(error) => panic!("after {i} requests: {error}"),
        }
    }
    panic!("the queue has {MAX_DEPTH} entries");
}

/// Asserts that the post was refused at this index because the queue is full.
pub(super) fn assert_full(posted: Result<(), PostError>, index: usize) {
    match posted {
        Err(PostError { index: at, error: Error::QueueFull { .. } | Error::SrqFull { .. } }) => {
            assert_eq!(at, index);
        }
        other => panic!("{other:?}"),
    }
}

/// Returns SENDs, which wait for receives of the peer.
fn sends(end: &Endpoint<'_>, count: usize) -> Vec<SendWr> {
    (0..count as u64).map(|i| SendWr::new(i, SendOp::Send, end.data(0, 8))).collect()
}

/// Receives `count` messages at b, and awaits both completions of each.
fn receive_all([a, b]: &[Endpoint<'_>; 2], count: usize) -> CaseResult {
    for i in 0..count as u64 {
        b.post_recv(i, 0, 8)?;
        b.wait_for(i, WcStatus::Success);
        a.wait_for(i, WcStatus::Success);
    }
    a.pause();
    assert_eq!(a.nic.poll_cq(a.cq, 1, &mut Vec::new())?, 0, "no other request was posted");
    Ok(())
}

fn send_depth(fabric: &dyn Fabric) -> CaseResult<usize> {
    let [a, _b] = shallow_pair(fabric)?;
    let depth = fill(|_| a.nic.post_send(a.qp, &sends(&a, 1)));
    assert!(depth >= DEPTH as usize, "{depth}");
    Ok(depth)
}

pub(super) fn full_send_queue_refuses_by_index(fabric: &dyn Fabric) -> CaseResult {
    let depth = send_depth(fabric)?;
    let ends = shallow_pair(fabric)?;
    let [a, _] = &ends;
    assert_full(a.nic.post_send(a.qp, &sends(a, depth + 3)), depth);
    assert_full(a.nic.post_send(a.qp, &sends(a, 1)), 0);
    receive_all(&ends, depth)?;
    // Completions free the entries.
    a.nic.post_send(a.qp, &sends(a, depth))?;
    receive_all(&ends, depth)
}

pub(super) fn full_receive_queue_refuses_by_index(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = shallow_pair(fabric)?;
    let depth = fill(|i| a.nic.post_recv(a.qp, &[a.recv_wr(i, 0, 8)]));
    let receives: Vec<RecvWr> = (0..depth as u64 + 3).map(|i| b.recv_wr(i, 0, 8)).collect();
    assert!(depth >= DEPTH as usize, "{depth}");
    assert_full(b.nic.post_recv(b.qp, &receives), depth);
    a.post(1, SendOp::Send, 0, 8)?;
    b.wait_for(0, WcStatus::Success);
    a.wait_for(1, WcStatus::Success);
    assert_full(b.nic.post_recv(b.qp, &receives), 1);
    Ok(())
}

pub(super) fn posting_all_posts_none_if_one_is_refused(fabric: &dyn Fabric) -> CaseResult {
    let depth = send_depth(fabric)?;
    let ends = shallow_pair(fabric)?;
    let [a, _] = &ends;
    let refused = a.nic.post_send_all(a.qp, &sends(a, depth + 1));
    assert!(matches!(refused, Err(PostError { error: Error::QueueFull { .. }, .. })), "{refused:?}");
    a.nic.post_send_all(a.qp, &sends(a, depth))?;
    receive_all(&ends, depth)
}

pub(super) fn state_forbids_posting(fabric: &dyn Fabric) -> CaseResult {
    let [nic, _] = fabric.nics();
    let end = Endpoint::new(fabric, nic, Options::default())?;
    let is_refused = |posted: Result<(), PostError>| {
        matches!(posted, Err(PostError { index: 0, error: Error::WrongState { .. } }))
    };
    let receive = [end.recv_wr(1, 0, 8)];
    assert!(is_refused(end.nic.post_send(end.qp, &sends(&end, 1))), "a send in RESET");
    assert!(is_refused(end.nic.post_recv(end.qp, &receive)), "a receive in RESET");
    let link = mitra_verbs::RcConnection::to(end.gid()?, end.qp);
    end.nic.modify_qp(end.qp, &link.init())?;
    assert!(is_refused(end.nic.post_send(end.qp, &sends(&end, 1))), "a send in INIT");
    end.nic.post_recv(end.qp, &receive)?;
    end.nic.modify_qp(end.qp, &link.rtr())?;
    assert!(is_refused(end.nic.post_send(end.qp, &sends(&end, 1))), "a send in RTR");
    end.nic.post_recv(end.qp, &receive)?;
    Ok(())
}

pub(super) fn used_objects_are_busy(fabric: &dyn Fabric) -> CaseResult {
    let [nic, _] = fabric.nics();
    let end = Endpoint::new(fabric, nic, Options { srq_depth: Some(8), ..Options::default() })?;
    let is_busy = |result: mitra_verbs::Result<()>| matches!(result, Err(Error::Busy { .. }));
    assert!(is_busy(end.nic.destroy_cq(end.cq)), "a queue pair uses the completion queue");
    assert!(is_busy(end.nic.dealloc_pd(end.pd)), "objects are in the protection domain");
    let srq = end.srq.expect("it was asked for");
    assert!(is_busy(end.nic.destroy_srq(srq)), "a queue pair uses the shared receive queue");
    end.nic.destroy_qp(end.qp)?;
    end.nic.destroy_srq(srq)?;
    end.nic.destroy_cq(end.cq)?;
    assert!(is_busy(end.nic.dealloc_pd(end.pd)), "a region is in the protection domain");
    end.nic.dereg_mr(end.mr.id)?;
    end.nic.dealloc_pd(end.pd)?;
    Ok(())
}

pub(super) fn destroyed_objects_do_not_exist(fabric: &dyn Fabric) -> CaseResult {
    let [nic, _] = fabric.nics();
    let end = Endpoint::new(fabric, nic, Options::default())?;
    let is_gone = |result: mitra_verbs::Result<()>| matches!(result, Err(Error::NoSuchObject { .. }));
    end.nic.destroy_qp(end.qp)?;
    assert!(is_gone(end.nic.destroy_qp(end.qp)), "queue pair");
    assert!(is_gone(end.nic.modify_qp(end.qp, &QpAttr::to(QpState::Err))), "queue pair");
    assert!(is_gone(end.nic.query_qp(end.qp).map(drop)), "queue pair");
    let posted = end.nic.post_send(end.qp, &sends(&end, 1));
    assert!(matches!(posted, Err(PostError { index: 0, error: Error::NoSuchObject { .. } })), "queue pair");
    end.nic.destroy_cq(end.cq)?;
    assert!(is_gone(end.nic.destroy_cq(end.cq)), "completion queue");
    assert!(is_gone(end.nic.poll_cq(end.cq, 1, &mut Vec::new()).map(drop)), "completion queue");
    end.nic.dereg_mr(end.mr.id)?;
    assert!(is_gone(end.nic.dereg_mr(end.mr.id)), "region");
    let ah = end.nic.create_ah(end.pd, end.gid()?)?;
    end.nic.destroy_ah(ah)?;
    assert!(is_gone(end.nic.destroy_ah(ah)), "address handle");
    end.nic.dealloc_pd(end.pd)?;
    assert!(is_gone(end.nic.dealloc_pd(end.pd)), "protection domain");
    let region = end.nic.reg_mr(end.pd, Arc::new(Buffer::new(64)), Access::empty());
    assert!(is_gone(region.map(drop)), "protection domain");
    Ok(())
}

pub(super) fn polls_return_at_most_the_maximum(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    for i in 0..20 {
        a.post(i, SendOp::Write(b.mr.remote(0)), 0, 8)?;
    }
    let mut wcs = Vec::new();
    assert_eq!(a.nic.poll_cq(a.cq, 0, &mut wcs)?, 0);
    a.wait_until("twenty completions", || {
        let before = wcs.len();
        let count = a.nic.poll_cq(a.cq, 3, &mut wcs).expect("the queue exists");
        assert!(count <= 3 && wcs.len() == before + count, "{count}");
        wcs.len() == 20
    });
    assert!(wcs.iter().map(|wc| wc.wr_id).eq(0..20));
    Ok(())
}

pub(super) fn resized_completion_queue_keeps_completions(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    for i in 0..20 {
        a.post(i, SendOp::Write(b.mr.remote(0)), 0, 8)?;
        if i == 10 {
            a.pause();
        }
    }
    a.nic.resize_cq(a.cq, 64)?;
    for i in 0..20 {
        a.wait_for(i, WcStatus::Success);
    }
    assert!(matches!(a.nic.resize_cq(a.cq, 0), Err(Error::Invalid(_))));
    Ok(())
}

pub(super) fn limits_of_queue_pairs_are_checked(fabric: &dyn Fabric) -> CaseResult {
    let [nic, _] = fabric.nics();
    let limits = nic.attr().limits;
    let end = Endpoint::new(fabric, nic, Options::default())?;
    let init = end.nic.query_qp(end.qp)?.init;
    for (name, cap) in [
        ("send_wrs", QpCap { send_wrs: limits.wrs.saturating_add(1), ..init.cap }),
        ("recv_wrs", QpCap { recv_wrs: limits.wrs.saturating_add(1), ..init.cap }),
        ("send_sges", QpCap { send_sges: limits.sges.saturating_add(1), ..init.cap }),
        ("recv_sges", QpCap { recv_sges: limits.sges.saturating_add(1), ..init.cap }),
        ("inline", QpCap { inline: limits.inline.saturating_add(1), ..init.cap }),
    ] {
        let refused = end.nic.create_qp(&mitra_verbs::QpInitAttr { cap, ..init });
        assert!(matches!(refused, Err(Error::Limit { .. })), "{name}: {refused:?}");
    }
    let refused = end.nic.create_cq(limits.cqe.saturating_add(1), None);
    assert!(matches!(refused, Err(Error::Limit { .. })), "cqe: {refused:?}");
    // The limits themselves are possible, one at a time.
    for cap in [
        QpCap { send_wrs: limits.wrs, ..QpCap::default() },
        QpCap { inline: limits.inline, ..QpCap::default() },
        QpCap { send_sges: limits.sges, recv_sges: limits.sges, ..QpCap::default() },
    ] {
        let cap = QpCap { inline: cap.inline.min(limits.inline), ..cap };
        let qp = QpBuilder::rc(end.pd, end.cq).cap(cap).build(&*end.nic)?;
        end.nic.destroy_qp(qp)?;
    }
    Ok(())
}
