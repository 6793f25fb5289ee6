//! Requests that fail, wait or are flushed.

use std::collections::BTreeMap;
use std::sync::Arc;

use mitra_verbs::{Access, Data, Key, QpState, RecvWr, RemoteAddr, SendOp, SendWr, Sge, Wc, WcStatus};

use crate::endpoint::{Endpoint, Link, MEMORY_SIZE, connect, pattern, rc_pair, rc_pair_with};
use crate::{CaseResult, Fabric};

/// Posts a SEND or WRITE from a range that the NIC must refuse, between two good requests.
fn assert_local_error([a, b]: &[Endpoint<'_>; 2], wrong: Sge) -> CaseResult {
    for op in [SendOp::Send, SendOp::Write(b.mr.remote(0))] {
        b.post_recv(7, 0, 64)?;
        a.post(1, SendOp::Write(b.mr.remote(4096)), 0, 8)?;
        a.post_wr(SendWr::new(2, op, Data::sge(wrong)))?;
        a.post(3, SendOp::Write(b.mr.remote(0)), 0, 8)?;
        a.wait_for(1, WcStatus::Success);
        a.wait_for(2, WcStatus::LocalProtection);
        a.wait_for(3, WcStatus::Flushed);
        assert_eq!((a.state()?, b.bytes(0, 64)), (QpState::Err, vec![0; 64]));
        reconnect(a, b)?;
    }
    Ok(())
}

/// Connects both queue pairs again, with PSNs that no packet in flight has.
fn reconnect(a: &Endpoint<'_>, b: &Endpoint<'_>) -> CaseResult {
    for end in [a, b] {
        end.modify(QpState::Reset)?;
    }
    let link = Link { mtu: a.max_mtu()?.min(b.max_mtu()?), first_psn: 0x12_3456, ..Link::default() };
    a.connect_qp(a.qp, b.gid()?, b.qp, link)?;
    b.connect_qp(b.qp, a.gid()?, a.qp, link)
}

pub(super) fn wrong_local_key_fails_the_send(fabric: &dyn Fabric) -> CaseResult {
    let ends = rc_pair(fabric)?;
    let sge = ends[0].mr.sge(0, 8);
    assert_local_error(&ends, Sge { key: Key(!sge.key.0), ..sge })
}

pub(super) fn local_range_outside_the_region_fails_the_send(fabric: &dyn Fabric) -> CaseResult {
    let ends = rc_pair(fabric)?;
    assert_local_error(&ends, ends[0].mr.sge(MEMORY_SIZE as u64 - 7, 8))
}

pub(super) fn read_into_region_without_local_write_fails(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    let mr = a.nic.reg_mr(a.pd, Arc::clone(&a.memory), Access::empty())?;
    b.fill(0, 8, 1);
    a.post_wr(SendWr::new(1, SendOp::Read(b.mr.remote(0)), Data::sge(mr.sge(64, 8))))?;
    a.wait_for(1, WcStatus::LocalProtection);
    assert_eq!((a.state()?, a.bytes(64, 8)), (QpState::Err, vec![0; 8]));
    a.nic.destroy_qp(a.qp)?;
    a.nic.dereg_mr(mr.id)?;
    Ok(())
}

pub(super) fn receive_with_wrong_key_fails_both_ends(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    let sge = b.mr.sge(0, 64);
    b.nic.post_recv(b.qp, &[RecvWr::new(7, Sge { key: Key(!sge.key.0), ..sge })])?;
    a.post(1, SendOp::Send, 0, 8)?;
    b.wait_for(7, WcStatus::LocalProtection);
    a.wait_for(1, WcStatus::RemoteOperation);
    assert_eq!((a.state()?, b.state()?), (QpState::Err, QpState::Err));
    Ok(())
}

pub(super) fn send_longer_than_receive_fails_both_ends(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    b.post_recv(7, 0, 64)?;
    b.post_recv(8, 128, 64)?;
    a.fill(0, 65, 1);
    a.post(1, SendOp::Send, 0, 65)?;
    b.wait_for(7, WcStatus::LocalLength);
    b.wait_for(8, WcStatus::Flushed);
    a.wait_for(1, WcStatus::RemoteInvalidRequest);
    assert_eq!((a.state()?, b.state()?), (QpState::Err, QpState::Err));
    assert_eq!(b.bytes(64, 128), [0; 128], "nothing is written behind the receive");
    Ok(())
}

pub(super) fn send_waits_for_a_receive(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    for i in 0..5 {
        a.fill(0, 3000, i);
        a.post(1, SendOp::Send, 0, 3000)?;
        a.post(2, SendOp::Write(b.mr.remote(8192)), 0, 8)?;
        if i > 0 {
            a.pause();
        }
        b.post_recv(7, 0, 4096)?;
        b.wait_for(7, WcStatus::Success);
        assert_eq!(b.bytes(0, 3000), pattern(3000, i));
        a.wait_for(1, WcStatus::Success);
        a.wait_for(2, WcStatus::Success);
    }
    Ok(())
}

pub(super) fn write_with_immediate_waits_for_a_receive(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    a.fill(0, 3000, 1);
    a.post(1, SendOp::WriteWithImm(b.mr.remote(0), 5), 0, 3000)?;
    a.pause();
    b.post_recv(7, 0, 0)?;
    assert_eq!(b.wait_for(7, WcStatus::Success).imm, Some(5));
    assert_eq!(b.bytes(0, 3000), pattern(3000, 1));
    a.wait_for(1, WcStatus::Success);
    Ok(())
}

pub(super) fn rnr_retries_are_limited(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair_with(fabric, Default::default, Link { rnr_retry: 1, ..Link::default() })?;
    a.post(1, SendOp::Send, 0, 8)?;
    a.post(2, SendOp::Write(b.mr.remote(0)), 0, 8)?;
    a.wait_for(1, WcStatus::RnrRetryExceeded);
    a.wait_for(2, WcStatus::Flushed);
    assert_eq!((a.state()?, b.state()?), (QpState::Err, QpState::Rts));
    Ok(())
}

pub(super) fn peer_in_error_state_does_not_execute(fabric: &dyn Fabric) -> CaseResult {
    let link = Link { timeout: 14, retry_cnt: 2, ..Link::default() };
    let [a, b] = rc_pair_with(fabric, Default::default, link)?;
    b.modify(QpState::Err)?;
    a.fill(0, 8, 1);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8)?;
    a.post(2, SendOp::Read(b.mr.remote(0)), 64, 8)?;
    a.wait_for(1, WcStatus::RetryExceeded);
    a.wait_for(2, WcStatus::Flushed);
    a.pause();
    assert_eq!((a.state()?, b.bytes(0, 8)), (QpState::Err, vec![0; 8]));
    Ok(())
}

pub(super) fn requests_after_a_failed_one_are_flushed(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    a.post_recv(10, 0, 64)?;
    a.post_recv(11, 0, 64)?;
    b.post_recv(20, 0, 64)?;
    let wrong = RemoteAddr { rkey: Key(!b.mr.rkey.0), ..b.mr.remote(0) };
    a.post(1, SendOp::Write(b.mr.remote(64)), 0, 8)?;
    a.post(2, SendOp::Write(wrong), 0, 8)?;
    a.post(3, SendOp::Send, 0, 8)?;
    a.post(4, SendOp::Read(b.mr.remote(0)), 0, 8)?;
    let (sends, receives) = completions(&a, 6, 10);
    let flushed = WcStatus::Flushed;
    assert_eq!(sends, [(1, WcStatus::Success), (2, WcStatus::RemoteAccess), (3, flushed), (4, flushed)]);
    assert_eq!(receives, [(10, flushed), (11, flushed)]);
    b.wait_for(20, WcStatus::Flushed);
    Ok(())
}

type Statuses = Vec<(u64, WcStatus)>;

/// Waits for `count` completions, and returns those of sends and those of receives, whose numbers
/// begin with `first_receive`.
fn completions(end: &Endpoint<'_>, count: usize, first_receive: u64) -> (Statuses, Statuses) {
    let all: Vec<Wc> = (0..count).map(|_| end.wait_completion()).collect();
    all.iter().map(|wc| (wc.wr_id, wc.status)).partition(|(wr_id, _)| *wr_id < first_receive)
}

fn flushed(numbers: std::ops::Range<u64>) -> Statuses {
    numbers.map(|number| (number, WcStatus::Flushed)).collect()
}

pub(super) fn error_state_flushes_posted_requests(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = rc_pair(fabric)?;
    // Without a receive of b, no send completes.
    (0..5).try_for_each(|i| a.post(i, SendOp::Send, 0, 8))?;
    (10..20).try_for_each(|i| a.post_recv(i, 0, 8))?;
    a.modify(QpState::Err)?;
    assert_eq!(completions(&a, 15, 10), (flushed(0..5), flushed(10..20)));
    a.pause();
    assert_eq!(a.nic.poll_cq(a.cq, 1, &mut Vec::new())?, 0);
    assert_eq!((a.state()?, b.state()?), (QpState::Err, QpState::Rts));
    Ok(())
}

pub(super) fn requests_posted_in_error_state_are_flushed(fabric: &dyn Fabric) -> CaseResult {
    let [a, _b] = rc_pair(fabric)?;
    a.modify(QpState::Err)?;
    for i in 0..3 {
        a.post(i, SendOp::Send, 0, 8)?;
        a.post_recv(10 + i, 0, 8)?;
        assert_eq!(completions(&a, 2, 10), (flushed(i..i + 1), flushed(10 + i..11 + i)));
    }
    Ok(())
}

/// The state changes while requests are executed: a prefix of them succeeded, and the others
/// complete with errors. Flushed markers at both ends are a fence: nothing changes memory after
/// them.
pub(super) fn flush_completes_every_request_once(fabric: &dyn Fabric) -> CaseResult {
    for round in 0..10 {
        let [a, b] = rc_pair(fabric)?;
        a.needs_atomics()?;
        b.post_recv(99, 0, 8)?;
        for i in 0..20 {
            a.fill(65_536, 65_536, i as u8 + 1);
            a.post(2 * i, SendOp::Write(b.mr.remote(65_536)), 65_536, 65_536)?;
            a.post(2 * i + 1, SendOp::FetchAdd { remote: b.mr.remote(0), add: 1 }, 0, 8)?;
        }
        (0..round).try_for_each(|_| a.nic.query_qp(a.qp).map(drop))?;
        b.modify(QpState::Err)?;
        a.modify(QpState::Err)?;
        b.wait_for(99, WcStatus::Flushed);
        let (all, _) = completions(&a, 40, 100);
        let numbers: Vec<u64> = all.iter().map(|(wr_id, _)| *wr_id).collect();
        assert_eq!(numbers, (0..40).collect::<Vec<_>>(), "in order, each once");
        let successes = all.iter().take_while(|(_, status)| *status == WcStatus::Success).count();
        let rest: BTreeMap<_, _> = all[successes..].iter().map(|(wr_id, status)| (wr_id, status)).collect();
        assert!(rest.values().all(|status| **status != WcStatus::Success), "{all:?}");
        let memory = b.bytes(0, 131_072);
        let added = b.memory.load(0);
        assert!((successes as u64 / 2..=20).contains(&added), "{added} after {successes} successes");
        b.pause();
        assert!(b.bytes(0, 131_072) == memory, "memory changed after the markers");
    }
    Ok(())
}

pub(super) fn reset_discards_requests_and_the_queue_pair_connects_again(fabric: &dyn Fabric) -> CaseResult {
    let ends = rc_pair(fabric)?;
    let [a, b] = &ends;
    (0..5).try_for_each(|i| a.post(i, SendOp::Send, 0, 8))?;
    (10..15).try_for_each(|i| a.post_recv(i, 0, 8))?;
    for end in &ends {
        end.modify(QpState::Reset)?;
        assert_eq!(end.state()?, QpState::Reset);
    }
    connect(&ends, Link { first_psn: 0x12_3456, ..Link::default() })?;
    for i in 100..110 {
        b.post_recv(i, 0, 8)?;
        a.post(i, SendOp::Send, 0, 8)?;
        b.wait_for(i, WcStatus::Success);
        a.wait_for(i, WcStatus::Success);
    }
    Ok(())
}
