//! Shared receive queues.

use mitra_verbs::{AsyncEvent, Error, QpState, RecvWr, SendOp, SendWr, SrqId, WcStatus};

use super::queues::{assert_full, fill};
use crate::endpoint::{Endpoint, Link, Options, connect};
use crate::{CaseResult, Fabric};

fn shared() -> Options {
    Options { srq_depth: Some(8), ..Options::default() }
}

/// Returns two connected endpoints, of which b has a shared receive queue of eight entries.
fn pair(fabric: &dyn Fabric) -> CaseResult<([Endpoint<'_>; 2], SrqId)> {
    let [a, b] = fabric.nics();
    let ends = [Endpoint::new(fabric, a, Options::default())?, Endpoint::new(fabric, b, shared())?];
    connect(&ends, Link::default())?;
    let srq = ends[1].srq.expect("it was asked for");
    Ok((ends, srq))
}

/// Sends a message, which takes the receive with this number.
fn send([a, b]: &[Endpoint<'_>; 2], receive: u64) -> CaseResult {
    a.post(1, SendOp::Send, 0, 8)?;
    assert_eq!(b.wait_for(receive, WcStatus::Success).qpn, b.qp);
    a.wait_for(1, WcStatus::Success);
    Ok(())
}

pub(super) fn queue_pairs_share_receives_in_order(fabric: &dyn Fabric) -> CaseResult {
    let (ends, _) = pair(fabric)?;
    let [a, b] = &ends;
    let (near, far) = (a.another_qp(&Options::default())?, b.another_qp(&shared())?);
    let link = Link { mtu: a.max_mtu()?.min(b.max_mtu()?), ..Link::default() };
    a.connect_qp(near, b.gid()?, far, link)?;
    b.connect_qp(far, a.gid()?, near, link)?;
    for round in 0..4 {
        (0..8).try_for_each(|i| b.post_recv(i, i * 64, 64))?;
        for i in 0..8 {
            let (from, to) = if i % 3 == 0 { (near, far) } else { (a.qp, b.qp) };
            a.memory.store(0, round * 8 + i);
            a.nic.post_send(from, &[SendWr::new(i, SendOp::Send, a.data(0, 8))])?;
            assert_eq!(b.wait_for(i, WcStatus::Success).qpn, to);
            assert_eq!(b.memory.load(i as usize * 64), round * 8 + i);
            a.wait_for(i, WcStatus::Success);
        }
    }
    a.nic.destroy_qp(near)?;
    b.nic.destroy_qp(far)?;
    Ok(())
}

pub(super) fn send_waits_for_a_shared_receive(fabric: &dyn Fabric) -> CaseResult {
    let (ends, _) = pair(fabric)?;
    let [a, b] = &ends;
    a.post(1, SendOp::Send, 0, 8)?;
    a.pause();
    b.post_recv(9, 0, 8)?;
    b.wait_for(9, WcStatus::Success);
    a.wait_for(1, WcStatus::Success);
    Ok(())
}

pub(super) fn limit_event_is_raised_once(fabric: &dyn Fabric) -> CaseResult {
    let (ends, srq) = pair(fabric)?;
    let [_, b] = &ends;
    let is_raised = || {
        // The NIC may report other events.
        let events: Vec<_> = std::iter::from_fn(|| b.nic.poll_async_event()).collect();
        events.contains(&AsyncEvent::SrqLimitReached(srq))
    };
    (0..6).try_for_each(|i| b.post_recv(i, 0, 8))?;
    b.nic.arm_srq(srq, 3)?;
    (0..3).try_for_each(|i| send(&ends, i))?;
    b.pause();
    assert!(!is_raised(), "three receives are left");
    send(&ends, 3)?;
    b.wait_until("the limit event", is_raised);
    send(&ends, 4)?;
    b.pause();
    assert!(!is_raised(), "the queue is not armed");
    let refused = b.nic.arm_srq(srq, u32::MAX);
    assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");
    Ok(())
}

pub(super) fn full_shared_queue_refuses_by_index(fabric: &dyn Fabric) -> CaseResult {
    let [_, nic] = fabric.nics();
    let end = Endpoint::new(fabric, nic, shared())?;
    let other = end.nic.create_srq(end.pd, 8)?;
    let depth = fill(|i| end.nic.post_srq_recv(other, &[end.recv_wr(i, 0, 8)]));
    assert!(depth >= 8, "{depth}");
    let receives: Vec<RecvWr> = (0..depth as u64 + 3).map(|i| end.recv_wr(i, 0, 8)).collect();
    assert_full(end.nic.post_srq_recv(end.srq.expect("it was asked for"), &receives), depth);
    end.nic.destroy_srq(other)?;
    Ok(())
}

pub(super) fn queue_pair_with_shared_queue_refuses_receives(fabric: &dyn Fabric) -> CaseResult {
    let (ends, _) = pair(fabric)?;
    let [_, b] = &ends;
    let refused = b.nic.post_recv(b.qp, &[b.recv_wr(1, 0, 8)]);
    assert!(matches!(&refused, Err(refused) if refused.index == 0), "{refused:?}");
    Ok(())
}

pub(super) fn failed_queue_pair_raises_last_event(fabric: &dyn Fabric) -> CaseResult {
    let (ends, _) = pair(fabric)?;
    let [_, b] = &ends;
    b.post_recv(1, 0, 8)?;
    b.modify(QpState::Err)?;
    // The NIC may report events of earlier cases.
    b.wait_until("the last event of the queue pair", || {
        b.nic.poll_async_event() == Some(AsyncEvent::LastWqeReached(b.qp))
    });
    assert_eq!(b.nic.poll_cq(b.cq, 1, &mut Vec::new())?, 0, "the receive belongs to the shared queue");
    Ok(())
}

pub(super) fn resized_shared_queue_keeps_receives(fabric: &dyn Fabric) -> CaseResult {
    let (ends, srq) = pair(fabric)?;
    let [_, b] = &ends;
    (0..5).try_for_each(|i| b.post_recv(i, 0, 8))?;
    b.nic.resize_srq(srq, 64)?;
    (5..40).try_for_each(|i| b.post_recv(i, 0, 8))?;
    (0..40).try_for_each(|i| send(&ends, i))?;
    assert!(matches!(b.nic.resize_srq(srq, 0), Err(Error::Invalid(_))));
    Ok(())
}
