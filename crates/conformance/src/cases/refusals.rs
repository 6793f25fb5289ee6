//! Accesses that the responder refuses.

use std::sync::Arc;

use mitra_verbs::{
    Access, AsyncEvent, Buffer, Error, Key, QpState, RemoteAddr, SendOp, SendWr, WcOpcode, WcStatus,
};

use crate::endpoint::{Endpoint, Link, MEMORY_SIZE, Options, rc_pair, rc_pair_with};
use crate::{CaseResult, Fabric};

/// The accesses to a remote range of eight bytes.
fn accesses(remote: RemoteAddr) -> [SendOp; 4] {
    [
        SendOp::Write(remote),
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
    ]
}

/// Posts a request that b must refuse. The request fails, the next one is flushed, and both queue
/// pairs' memory stays as it is.
fn assert_refused([a, b]: &[Endpoint<'_>; 2], op: SendOp, allowed: &[WcStatus]) -> CaseResult {
    a.fill(0, 64, 0x55);
    let before = (a.bytes(0, 64), b.bytes(0, 64));
    a.post(1, op, 0, 8)?;
    a.post(2, SendOp::Write(b.mr.remote(0)), 0, 8)?;
    let wc = a.wait_completion();
    assert!(wc.wr_id == 1 && allowed.contains(&wc.status), "{op:?}: {wc:?}");
    a.wait_for(2, WcStatus::Flushed);
    assert_eq!(a.state()?, QpState::Err);
    assert_eq!((a.bytes(0, 64), b.bytes(0, 64)), before, "{op:?}");
    Ok(())
}

fn assert_each_refused<'f>(
    fabric: &'f dyn Fabric,
    remote: impl Fn(&Endpoint<'f>) -> CaseResult<RemoteAddr>,
) -> CaseResult {
    for access in 0..4 {
        let ends = rc_pair(fabric)?;
        if access > 1 {
            ends[0].needs_atomics()?;
        }
        let op = accesses(remote(&ends[1])?)[access];
        assert_refused(&ends, op, &[WcStatus::RemoteAccess])?;
    }
    Ok(())
}

/// The right that each of [`accesses`] needs.
const RIGHTS: [Access; 4] =
    [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::REMOTE_ATOMIC];

pub(super) fn wrong_remote_key_is_refused(fabric: &dyn Fabric) -> CaseResult {
    // No key of so few objects has this index.
    assert_each_refused(fabric, |b| Ok(RemoteAddr { rkey: Key(!b.mr.rkey.0), ..b.mr.remote(0) }))
}

pub(super) fn access_outside_the_region_is_refused(fabric: &dyn Fabric) -> CaseResult {
    let end = MEMORY_SIZE as u64;
    for offset in [end, end + 4096, 0_u64.wrapping_sub(8)] {
        assert_each_refused(fabric, |b| Ok(b.mr.remote(offset)))?;
    }
    // The last byte of the access is behind the region.
    let ends = rc_pair(fabric)?;
    assert_refused(&ends, SendOp::Write(ends[1].mr.remote(end - 7)), &[WcStatus::RemoteAccess])?;
    let ends = rc_pair(fabric)?;
    assert_refused(&ends, SendOp::Read(ends[1].mr.remote(end - 7)), &[WcStatus::RemoteAccess])
}

pub(super) fn missing_region_right_is_refused(fabric: &dyn Fabric) -> CaseResult {
    let all = Access::LOCAL_WRITE | Access::REMOTE;
    for (access, missing) in RIGHTS.into_iter().enumerate() {
        let options = || Options { region_access: all - missing, ..Options::default() };
        let ends = rc_pair_with(fabric, options, Link::default())?;
        if access > 1 {
            ends[0].needs_atomics()?;
        }
        let op = accesses(ends[1].mr.remote(0))[access];
        // The same region grants what it has the right for.
        let other = accesses(ends[1].mr.remote(0))[usize::from(access == 0)];
        ends[0].post(9, other, 64, 8)?;
        ends[0].wait_for(9, WcStatus::Success);
        assert_refused(&ends, op, &[WcStatus::RemoteAccess])?;
    }
    Ok(())
}

/// IBTA volume 1, 9.7.4.1.2: the responder answers "invalid request". Some NICs answer as for a
/// region without the right.
pub(super) fn missing_queue_pair_right_is_refused(fabric: &dyn Fabric) -> CaseResult {
    let all = Access::LOCAL_WRITE | Access::REMOTE;
    for (access, missing) in RIGHTS.into_iter().enumerate() {
        let options = || Options { qp_access: all - missing, ..Options::default() };
        let ends = rc_pair_with(fabric, options, Link::default())?;
        if access > 1 {
            ends[0].needs_atomics()?;
        }
        let op = accesses(ends[1].mr.remote(0))[access];
        assert_refused(&ends, op, &[WcStatus::RemoteInvalidRequest, WcStatus::RemoteAccess])?;
    }
    Ok(())
}

pub(super) fn key_of_another_protection_domain_is_refused(fabric: &dyn Fabric) -> CaseResult {
    let ends = rc_pair(fabric)?;
    let [_, b] = &ends;
    let pd = b.nic.alloc_pd()?;
    let other = b.nic.reg_mr(pd, Arc::clone(&b.memory), Access::LOCAL_WRITE | Access::REMOTE)?;
    assert_refused(&ends, SendOp::Write(other.remote(0)), &[WcStatus::RemoteAccess])?;
    b.nic.dereg_mr(other.id)?;
    b.nic.dealloc_pd(pd)?;
    Ok(())
}

pub(super) fn deregistered_region_is_not_accessed(fabric: &dyn Fabric) -> CaseResult {
    for access in 0..3 {
        let ends = rc_pair(fabric)?;
        let [a, b] = &ends;
        if access > 1 {
            a.needs_atomics()?;
        }
        let mr = b.nic.reg_mr(b.pd, Arc::clone(&b.memory), Access::LOCAL_WRITE | Access::REMOTE)?;
        let op = accesses(mr.remote(0))[access];
        a.post(9, op, 0, 8)?;
        a.wait_for(9, WcStatus::Success);
        b.nic.dereg_mr(mr.id)?;
        assert_refused(&ends, op, &[WcStatus::RemoteAccess])?;
    }
    Ok(())
}

/// A NIC may refuse the request when it is posted.
pub(super) fn misaligned_atomic_is_refused(fabric: &dyn Fabric) -> CaseResult {
    let ends = rc_pair(fabric)?;
    let [a, b] = &ends;
    a.needs_atomics()?;
    let op = SendOp::FetchAdd { remote: b.mr.remote(4), add: 1 };
    match a.nic.post_send(a.qp, &[SendWr::new(1, op, a.data(0, 8))]) {
        Err(refused) => assert_eq!(refused.index, 0),
        Ok(()) => {
            let wc = a.wait_completion();
            let is_refused = matches!(wc.status, WcStatus::RemoteInvalidRequest | WcStatus::RemoteAccess);
            assert!(is_refused, "{wc:?}");
        }
    }
    assert_eq!(b.bytes(0, 16), [0; 16]);
    Ok(())
}

pub(super) fn access_error_raises_event_at_responder(fabric: &dyn Fabric) -> CaseResult {
    let ends = rc_pair(fabric)?;
    let [_, b] = &ends;
    let remote = RemoteAddr { rkey: Key(!b.mr.rkey.0), ..b.mr.remote(0) };
    assert_refused(&ends, SendOp::Write(remote), &[WcStatus::RemoteAccess])?;
    // The NIC may report events of earlier cases.
    b.wait_until("the event of an access error", || {
        b.nic.poll_async_event() == Some(AsyncEvent::QpAccessError(b.qp))
    });
    Ok(())
}

pub(super) fn remote_write_without_local_write_is_not_registered(fabric: &dyn Fabric) -> CaseResult {
    let [nic, _] = fabric.nics();
    let pd = nic.alloc_pd()?;
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let refused = nic.reg_mr(pd, Arc::new(Buffer::new(4096)), access);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{access:?}: {refused:?}");
    }
    nic.dealloc_pd(pd)?;
    Ok(())
}

pub(super) fn reregistered_region_keeps_its_keys(fabric: &dyn Fabric) -> CaseResult {
    let ends = rc_pair(fabric)?;
    let [a, b] = &ends;
    let mr = b.nic.reg_mr(b.pd, Arc::clone(&b.memory), Access::LOCAL_WRITE | Access::REMOTE)?;
    let other = Arc::new(Buffer::new(4096));
    let again = b.nic.rereg_mr(mr.id, b.pd, Arc::clone(&other), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let again = match again {
        Ok(again) => again,
        Err(error) => {
            b.nic.dereg_mr(mr.id)?;
            return Err(error.into());
        }
    };
    assert_eq!((again.id, again.lkey, again.rkey), (mr.id, mr.lkey, mr.rkey));
    a.memory.store(0, 5);
    a.post(1, SendOp::Write(again.remote(8)), 0, 8)?;
    assert_eq!(a.wait_success().opcode, WcOpcode::Write);
    b.wait_until("the word in the new memory", || other.load(8) == 5);
    assert_eq!(b.bytes(0, 64), [0; 64], "the earlier memory");
    assert_refused(&ends, SendOp::Read(again.remote(8)), &[WcStatus::RemoteAccess])?;
    b.nic.dereg_mr(mr.id)?;
    Ok(())
}
