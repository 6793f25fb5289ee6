//! Memory windows.

use std::sync::Arc;

use mitra_verbs::{
    Access, Data, Error, Key, Mw, MwId, Provider, QpState, RemoteAddr, SendOp, SendWr, WcOpcode, WcStatus,
    WindowBind, WindowType,
};

use crate::endpoint::{Endpoint, Link, Options, rc_pair_with};
use crate::{CaseResult, Fabric};

/// The range of each window.
const OFFSET: u64 = 128;
const LEN: u64 = 64;

fn pair(fabric: &dyn Fabric) -> CaseResult<[Endpoint<'_>; 2]> {
    let access = Access::LOCAL_WRITE | Access::REMOTE | Access::WINDOW_BIND;
    let options = || Options { region_access: access, qp_access: access, ..Options::default() };
    rc_pair_with(fabric, options, Link::default())
}

/// A window of b. Dropping it deallocates it, before the endpoint deregisters its region.
struct Window {
    nic: Arc<dyn Provider>,
    id: MwId,
    /// The key of the last bind.
    rkey: Key,
}

impl Window {
    fn new(b: &Endpoint<'_>, window_type: WindowType) -> CaseResult<Window> {
        let Mw { id, rkey, .. } = b.nic.alloc_mw(b.pd, window_type)?;
        Ok(Window { nic: Arc::clone(&b.nic), id, rkey })
    }

    fn bound(b: &Endpoint<'_>, access: Access) -> CaseResult<Window> {
        let mut window = Window::new(b, WindowType::Type2)?;
        window.bind(b, OFFSET, access)?;
        Ok(window)
    }

    /// Returns the request of a bind with other low bits of the key than the last one.
    fn request(&mut self, b: &Endpoint<'_>, offset: u64, access: Access) -> SendOp {
        self.rkey = self.rkey.with_consumer_bits((self.rkey.0 as u8).wrapping_add(1));
        let (addr, mr) = (b.mr.addr + offset, b.mr.id);
        SendOp::BindWindow(WindowBind {
            mw: self.id,
            rkey: self.rkey,
            mr,
            addr,
            len: LEN,
            access,
            zero_based: false,
        })
    }

    fn bind(&mut self, b: &Endpoint<'_>, offset: u64, access: Access) -> CaseResult {
        let request = self.request(b, offset, access);
        b.post_wr(SendWr::new(50, request, Data::empty()))?;
        assert_eq!(b.wait_for(50, WcStatus::Success).opcode, WcOpcode::BindWindow);
        Ok(())
    }

    /// Returns the address of a byte in the region, with the key of the window.
    fn remote(&self, b: &Endpoint<'_>, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: b.mr.addr + offset, rkey: self.rkey }
    }

    fn invalidate(&self, b: &Endpoint<'_>) -> CaseResult {
        b.post_wr(SendWr::new(51, SendOp::LocalInvalidate(self.rkey), Data::empty()))?;
        assert_eq!(b.wait_for(51, WcStatus::Success).opcode, WcOpcode::LocalInvalidate);
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = self.nic.dealloc_mw(self.id);
    }
}

fn assert_granted(a: &Endpoint<'_>, op: SendOp) -> CaseResult {
    a.post(1, op, 0, 8)?;
    a.wait_for(1, WcStatus::Success);
    Ok(())
}

/// Asserts that the access is refused. The connection has then failed.
fn assert_refused([a, b]: &[Endpoint<'_>; 2], op: SendOp) -> CaseResult {
    a.memory.store(0, 0x6666);
    let before = b.bytes(0, 512);
    a.post(2, op, 0, 8)?;
    a.wait_for(2, WcStatus::RemoteAccess);
    assert_eq!(b.bytes(0, 512), before);
    Ok(())
}

pub(super) fn window_grants_access_until_it_is_invalidated(fabric: &dyn Fabric) -> CaseResult {
    let ends = pair(fabric)?;
    let [a, b] = &ends;
    let window = Window::bound(b, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    a.memory.store(0, 7);
    assert_granted(a, SendOp::Write(window.remote(b, OFFSET)))?;
    assert_granted(a, SendOp::Write(window.remote(b, OFFSET + LEN - 8)))?;
    b.wait_word(OFFSET as usize + LEN as usize - 8, 7);
    b.memory.store(OFFSET as usize, 9);
    assert_granted(a, SendOp::Read(window.remote(b, OFFSET)))?;
    assert_eq!(a.memory.load(0), 9);
    window.invalidate(b)?;
    assert_refused(&ends, SendOp::Write(window.remote(b, OFFSET)))
}

pub(super) fn invalidated_window_is_bound_again(fabric: &dyn Fabric) -> CaseResult {
    let ends = pair(fabric)?;
    let [a, b] = &ends;
    let mut window = Window::bound(b, Access::REMOTE_WRITE)?;
    let old = window.remote(b, OFFSET);
    for round in 0..10 {
        assert_granted(a, SendOp::Write(window.remote(b, OFFSET + 8 * round)))?;
        window.invalidate(b)?;
        window.bind(b, OFFSET + 8 * (round + 1), Access::REMOTE_WRITE)?;
    }
    assert_granted(a, SendOp::Write(window.remote(b, OFFSET + 80)))?;
    assert_refused(&ends, SendOp::Write(old))
}

pub(super) fn window_grants_only_its_rights(fabric: &dyn Fabric) -> CaseResult {
    let remote = |window: &Window, b: &Endpoint<'_>| window.remote(b, OFFSET);
    for (access, granted) in [(Access::REMOTE_WRITE, 0), (Access::REMOTE_READ, 1), (Access::REMOTE_ATOMIC, 2)]
    {
        for tried in 0..3 {
            let ends = pair(fabric)?;
            let [a, b] = &ends;
            if access == Access::REMOTE_ATOMIC || tried == 2 {
                a.needs_atomics()?;
            }
            let window = Window::bound(b, access)?;
            let remote = remote(&window, b);
            let op =
                [SendOp::Write(remote), SendOp::Read(remote), SendOp::FetchAdd { remote, add: 1 }][tried];
            if tried == granted { assert_granted(a, op)? } else { assert_refused(&ends, op)? }
        }
    }
    Ok(())
}

pub(super) fn window_grants_only_its_bytes(fabric: &dyn Fabric) -> CaseResult {
    for offset in [OFFSET - 8, OFFSET + LEN, OFFSET + LEN - 7, 0] {
        let ends = pair(fabric)?;
        let window = Window::bound(&ends[1], Access::REMOTE_WRITE)?;
        assert_refused(&ends, SendOp::Write(window.remote(&ends[1], offset)))?;
    }
    Ok(())
}

/// A window of type 2B is bound to one queue pair.
pub(super) fn window_is_for_its_queue_pair_only(fabric: &dyn Fabric) -> CaseResult {
    let ends = pair(fabric)?;
    let [a, b] = &ends;
    let (near, far) = (a.another_qp(&Options::default())?, b.another_qp(&Options::default())?);
    let link = Link { mtu: a.max_mtu()?.min(b.max_mtu()?), ..Link::default() };
    a.connect_qp(near, b.gid()?, far, link)?;
    b.connect_qp(far, a.gid()?, near, link)?;
    let window = Window::bound(b, Access::REMOTE_WRITE)?;
    assert_granted(a, SendOp::Write(window.remote(b, OFFSET)))?;
    a.memory.store(0, 5);
    a.nic.post_send(near, &[SendWr::new(3, SendOp::Write(window.remote(b, OFFSET + 8)), a.data(0, 8))])?;
    a.wait_for(3, WcStatus::RemoteAccess);
    assert_eq!(b.memory.load(OFFSET as usize + 8), 0);
    assert_granted(a, SendOp::Write(window.remote(b, OFFSET)))?;
    a.nic.destroy_qp(near)?;
    b.nic.destroy_qp(far)?;
    Ok(())
}

pub(super) fn send_with_invalidate_ends_the_binding(fabric: &dyn Fabric) -> CaseResult {
    for len in [8, 10_000] {
        let ends = pair(fabric)?;
        let [a, b] = &ends;
        let mut window = Window::bound(b, Access::REMOTE_WRITE)?;
        let old = window.remote(b, OFFSET);
        b.post_recv(7, 1024, 10_000)?;
        a.post(1, SendOp::SendWithInvalidate(window.rkey), 1024, len)?;
        let wc = b.wait_for(7, WcStatus::Success);
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Recv, len));
        assert_eq!((wc.invalidated, wc.imm), (Some(window.rkey), None));
        a.wait_for(1, WcStatus::Success);
        window.bind(b, OFFSET, Access::REMOTE_WRITE)?;
        assert_granted(a, SendOp::Write(window.remote(b, OFFSET)))?;
        assert_refused(&ends, SendOp::Write(old))?;
    }
    Ok(())
}

pub(super) fn send_with_invalidate_of_a_region_is_refused(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = pair(fabric)?;
    b.post_recv(7, 0, 64)?;
    a.post(1, SendOp::SendWithInvalidate(b.mr.rkey), 0, 8)?;
    a.wait_for(1, WcStatus::RemoteAccess);
    b.wait_for(7, WcStatus::Flushed);
    Ok(())
}

pub(super) fn region_without_bind_right_has_no_windows(fabric: &dyn Fabric) -> CaseResult {
    let [_a, b] = rc_pair_with(fabric, Options::default, Link::default())?;
    let mut window = Window::new(&b, WindowType::Type2)?;
    let request = window.request(&b, OFFSET, Access::REMOTE_WRITE);
    match b.nic.post_send(b.qp, &[SendWr::new(50, request, Data::empty())]) {
        // A NIC may refuse the request when it is posted.
        Err(refused) => assert_eq!(refused.index, 0),
        Ok(()) => {
            b.wait_for(50, WcStatus::WindowBind);
            assert_eq!(b.state()?, QpState::Err);
        }
    }
    Ok(())
}

pub(super) fn region_with_bound_window_is_busy(fabric: &dyn Fabric) -> CaseResult {
    let [a, b] = pair(fabric)?;
    let window = Window::bound(&b, Access::REMOTE_WRITE)?;
    assert!(matches!(b.nic.dereg_mr(b.mr.id), Err(Error::Busy { .. })));
    assert_granted(&a, SendOp::Write(window.remote(&b, OFFSET)))?;
    window.invalidate(&b)?;
    b.nic.dereg_mr(b.mr.id)?;
    Ok(())
}

pub(super) fn deallocated_window_grants_nothing(fabric: &dyn Fabric) -> CaseResult {
    let ends = pair(fabric)?;
    let window = Window::bound(&ends[1], Access::REMOTE_WRITE)?;
    let remote = window.remote(&ends[1], OFFSET);
    assert_granted(&ends[0], SendOp::Write(remote))?;
    ends[1].nic.dealloc_mw(window.id)?;
    assert!(matches!(ends[1].nic.dealloc_mw(window.id), Err(Error::NoSuchObject { .. })));
    assert_refused(&ends, SendOp::Write(remote))
}

pub(super) fn type_1_window_is_replaced_by_the_next_bind(fabric: &dyn Fabric) -> CaseResult {
    let ends = pair(fabric)?;
    let [a, b] = &ends;
    let mut window = Window::new(b, WindowType::Type1)?;
    window.bind(b, OFFSET, Access::REMOTE_WRITE)?;
    let old = window.remote(b, OFFSET);
    assert_granted(a, SendOp::Write(old))?;
    window.bind(b, OFFSET + 8, Access::REMOTE_WRITE)?;
    assert_granted(a, SendOp::Write(window.remote(b, OFFSET + 8)))?;
    assert_refused(&ends, SendOp::Write(old))
}
