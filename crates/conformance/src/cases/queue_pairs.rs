//! States, attributes and numbers of queue pairs.

use std::collections::BTreeSet;

use mitra_verbs::{AsyncEvent, Error, Mtu, Psn, QpAttr, QpState, QpType, SendOp, SqDrain, WcStatus};

use crate::endpoint::{Endpoint, Link, Options, connect, rc_pair, rc_pair_with};
use crate::{CaseResult, Fabric, Stop};

pub(super) fn states_and_attributes_are_reported(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = fabric.nics();
    let ends = [Endpoint::new(fabric, a, Options::default())?, Endpoint::new(fabric, b, Options::default())?];
    let [a, b] = &ends;
    assert_eq!(a.state()?, QpState::Reset);
    let init = a.nic.query_qp(a.qp)?.init;
    assert_eq!((init.qp_type, init.pd, init.send_cq, init.recv_cq), (QpType::Rc, a.pd, a.cq, a.cq));
    assert!(init.cap.send_wrs >= 256 && init.cap.recv_wrs >= 256, "{:?}", init.cap);
    connect(&ends, Link { mtu: Mtu::M256, timeout: 15, ..Link::default() })?;
    let status = a.nic.query_qp(a.qp)?;
    assert_eq!((status.state, status.sq_drain), (QpState::Rts, SqDrain::NotInSqd));
    let attr = status.attr;
    assert_eq!((attr.dest_qpn, attr.dest_gid, attr.path_mtu), (Some(b.qp), Some(b.gid()?), Some(Mtu::M256)));
    assert_eq!((attr.timeout, attr.rnr_retry), (Some(15), Some(7)));
    a.modify(QpState::Err)?;
    assert_eq!(a.state()?, QpState::Err);
    a.modify(QpState::Reset)?;
    assert_eq!(a.state()?, QpState::Reset);
    // Every state but RTS is left by RESET; the other end is not affected.
    assert_eq!(b.state()?, QpState::Rts);
    Ok(())
}

pub(super) fn forbidden_changes_are_refused(fabric: &dyn Fabric) -> CaseResult {
    let [nic, _] = fabric.nics();
    let end = Endpoint::new(fabric, nic, Options::default())?;
    let change = |attr: &QpAttr| end.nic.modify_qp(end.qp, attr);
    assert!(matches!(change(&QpAttr::to(QpState::Rts)), Err(Error::Modify(_))), "RESET to RTS");
    assert!(matches!(change(&QpAttr::to(QpState::Init)), Err(Error::Modify(_))), "attributes are missing");
    let init = QpAttr {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Default::default()),
        ..QpAttr::to(QpState::Init)
    };
    let other_port = QpAttr { port: Some(2), ..init };
    assert!(matches!(change(&other_port), Err(Error::Modify(_))), "the NIC has one port");
    assert_eq!(end.state()?, QpState::Reset);
    change(&init)?;
    assert!(matches!(change(&QpAttr::to(QpState::Rtr)), Err(Error::Modify(_))), "attributes are missing");
    assert_eq!(end.state()?, QpState::Init);
    Ok(())
}

const FIRST_PSN: u32 = 0xff_fff0;

/// Executes a READ, an atomic, a SEND and WRITEs of several packets, and returns the number of
/// packets.
fn execute_packets([a, b]: &[Endpoint<'_>; 2], packet: u32) -> CaseResult<u32> {
    let mut packets = 0;
    for (op, len) in [
        (SendOp::Write(b.mr.remote(0)), 3),
        (SendOp::Read(b.mr.remote(0)), 3),
        (SendOp::Write(b.mr.remote(0)), 5),
        (SendOp::Send, 1),
        (SendOp::Write(b.mr.remote(0)), 7),
    ] {
        b.post_recv(9, 0, packet)?;
        a.post(1, op, 0, packet * len)?;
        a.wait_for(1, WcStatus::Success);
        packets += len;
    }
    Ok(packets)
}

fn psn_pair(fabric: &dyn Fabric) -> CaseResult<[Endpoint<'_>; 2]> {
    let link = Link { mtu: Mtu::M256, first_psn: FIRST_PSN, ..Link::default() };
    let ends = rc_pair_with(fabric, Options::default, link)?;
    match ends.iter().all(|end| end.nic.attr().capabilities.psn_query) {
        true => Ok(ends),
        false => Err(Stop::refused("the PSN that a responder expects")),
    }
}

fn expected_psn(packets: u32) -> Psn {
    Psn::new((FIRST_PSN + packets) & 0xff_ffff)
}

/// Waits for the PSN: a responder may count a packet after the requester has its answer.
fn wait_psn(end: &Endpoint<'_>, expected: Psn) {
    let psn = || end.nic.query_qp(end.qp).expect("the queue pair exists").rq_psn;
    end.wait_until(&format!("the PSN {expected:?}, not {:?}", psn()), || psn() == expected);
}

pub(super) fn psn_counts_packets(fabric: &dyn Fabric) -> CaseResult {
    let ends = psn_pair(fabric)?;
    assert_eq!(ends[1].nic.query_qp(ends[1].qp)?.rq_psn, Psn::new(FIRST_PSN));
    let packets = execute_packets(&ends, 256)?;
    wait_psn(&ends[1], expected_psn(packets));
    assert_eq!(ends[0].nic.query_qp(ends[0].qp)?.sq_psn, expected_psn(packets));
    assert_eq!(ends[0].nic.query_qp(ends[0].qp)?.rq_psn, Psn::new(FIRST_PSN), "b has sent nothing");
    ends[0].needs_atomics()?;
    ends[0].post(1, SendOp::FetchAdd { remote: ends[1].mr.remote(0), add: 1 }, 0, 8)?;
    ends[0].wait_for(1, WcStatus::Success);
    wait_psn(&ends[1], expected_psn(packets + 1));
    Ok(())
}

pub(super) fn psn_stays_in_error_state(fabric: &dyn Fabric) -> CaseResult {
    let ends = psn_pair(fabric)?;
    let packets = execute_packets(&ends, 256)?;
    let [_, b] = &ends;
    // The receives of the other requests, of which only the SEND has taken one.
    b.wait_success();
    b.modify(QpState::Err)?;
    for _ in 0..4 {
        b.wait_for(9, WcStatus::Flushed);
    }
    wait_psn(b, expected_psn(packets));
    b.pause();
    assert_eq!(b.nic.query_qp(b.qp)?.rq_psn, expected_psn(packets));
    Ok(())
}

pub(super) fn saved_results_are_those_of_the_last_atomics(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    a.needs_atomics()?;
    if !b.nic.attr().capabilities.saved_results {
        let refused = b.nic.saved_results(b.qp);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    }
    let remote = b.mr.remote(0);
    b.memory.store(0, 41);
    a.post(1, SendOp::FetchAdd { remote, add: 2 }, 0, 8)?;
    a.post(2, SendOp::CompareSwap { remote, compare: 43, swap: 7 }, 0, 8)?;
    a.wait_for(1, WcStatus::Success);
    a.wait_for(2, WcStatus::Success);
    let values =
        || -> CaseResult<Vec<u64>> { Ok(b.nic.saved_results(b.qp)?.iter().map(|r| r.value).collect()) };
    assert_eq!(values()?, [41, 43]);
    b.modify(QpState::Err)?;
    assert_eq!(values()?, [41, 43]);
    Ok(())
}

pub(super) fn drained_send_queue_holds_new_requests(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8)?;
    a.wait_for(1, WcStatus::Success);
    a.modify(QpState::Sqd)?;
    a.wait_until("the drained queue", || {
        a.nic.query_qp(a.qp).expect("the queue pair exists").sq_drain == SqDrain::Drained
    });
    a.memory.store(0, 5);
    a.post(2, SendOp::Write(b.mr.remote(0)), 0, 8)?;
    // Receives still arrive.
    a.post_recv(7, 64, 8)?;
    b.post(3, SendOp::Send, 64, 8)?;
    a.wait_for(7, WcStatus::Success);
    assert_eq!((a.state()?, b.memory.load(0)), (QpState::Sqd, 0));
    a.modify(QpState::Rts)?;
    a.wait_for(2, WcStatus::Success);
    b.wait_word(0, 5);
    Ok(())
}

pub(super) fn drained_send_queue_raises_event(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8)?;
    a.modify(QpState::Sqd)?;
    // The NIC may report events of earlier cases.
    a.wait_until("the event of a drained queue", || {
        a.nic.poll_async_event() == Some(AsyncEvent::SqDrained(a.qp))
    });
    Ok(())
}

/// A late packet to an earlier queue pair must not reach another one.
pub(super) fn numbers_are_not_reused_at_once(fabric: &dyn Fabric) -> CaseResult {
    let [nic, _] = fabric.nics();
    let end = Endpoint::new(fabric, nic, Options::default())?;
    let mut numbers = BTreeSet::from([end.qp]);
    for i in 1..=32 {
        let qp = end.another_qp(&Options::default())?;
        numbers.insert(qp);
        assert_eq!(numbers.len(), i + 1, "{qp} exists or was just destroyed");
        end.nic.destroy_qp(qp)?;
    }
    Ok(())
}
