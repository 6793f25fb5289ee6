//! Memory windows on a reliable connection: bind, access, invalidation from both ends.

use crate::common::*;
use mitra_verbs::*;

/// Binds a window of node 1 to the 64 bytes at offset 128, for access by node 0.
fn bind_window(p: &mut NicPair, access: Access) -> RemoteAddr {
    let node = &mut p.nodes[1];
    let mw = node.nic.alloc_mw(p.now, node.pd, WindowType::Type2).unwrap();
    let rkey = mw.rkey.with_consumer_bits(5);
    let bind =
        WindowBind { mw: mw.id, rkey, mr: node.mr.id, addr: BASE + 128, len: 64, access, zero_based: false };
    p.post_on(1, &[SendWr::new(50, SendOp::BindWindow(bind), Data::empty())]).unwrap();
    p.run();
    let completed = p.send_completions(1);
    assert_eq!(statuses(&completed), [(50, WcStatus::Success)]);
    assert_eq!(completed[0].opcode, WcOpcode::BindWindow);
    RemoteAddr { addr: BASE + 128, rkey }
}

fn write(wr_id: u64, remote: RemoteAddr) -> SendWr {
    SendWr::new(wr_id, SendOp::Write(remote), Data::inline(b"windowed"))
}

#[test]
fn window_grants_only_its_bytes_and_rights() {
    for (offset, succeeds) in [(0, true), (56, true), (57, false), (u64::MAX, false)] {
        let mut p = pair();
        let window = bind_window(&mut p, Access::REMOTE_WRITE);
        let remote = RemoteAddr { addr: window.addr.wrapping_add(offset), ..window };
        p.post(write(1, remote));
        p.run();
        let status = if succeeds { WcStatus::Success } else { WcStatus::RemoteAccess };
        assert_eq!(statuses(&p.send_completions(0)), [(1, status)], "{offset}");
    }
    let mut p = pair();
    let window = bind_window(&mut p, Access::REMOTE_WRITE);
    p.post(SendWr::new(1, SendOp::Read(window), Data::sge(p.sge(0, 0, 8))));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
}

#[test]
fn send_with_invalidate_unbinds_window() {
    for len in [8, 3000] {
        let mut p = pair();
        let window = bind_window(&mut p, Access::REMOTE_WRITE);
        p.post_recv(RecvWr::new(9, p.sge(1, 0, 4096)));
        p.post(write(1, window));
        p.post(SendWr::new(2, SendOp::SendWithInvalidate(window.rkey), Data::sge(p.sge(0, 0, len))));
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::Success)]);
        let received = p.recv_completions(1);
        assert_eq!((received[0].invalidated, received[0].byte_len), (Some(window.rkey), len));
        p.post(write(3, window));
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(3, WcStatus::RemoteAccess)]);
    }
}

#[test]
fn invalidating_memory_region_key_is_denied() {
    let mut p = pair();
    p.post_recv(RecvWr::new(9, p.sge(1, 0, 8)));
    p.post(SendWr::new(1, SendOp::SendWithInvalidate(p.nodes[1].mr.rkey), Data::inline(b"no")));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RemoteAccess)]);
    assert_eq!(statuses(&p.recv_completions(1)), [(9, WcStatus::Flushed)]);
    assert_eq!(p.bytes(1)[..2], [0, 0]);
}

#[test]
fn local_invalidation_executes_in_posting_order() {
    let mut p = pair();
    let window = bind_window(&mut p, Access::REMOTE_WRITE);
    let send = SendWr::new(1, SendOp::Write(p.nodes[0].mr.remote(0)), Data::inline(b"before"));
    let invalidate = SendWr::new(2, SendOp::LocalInvalidate(window.rkey), Data::empty());
    let behind = SendWr::new(3, SendOp::Write(p.nodes[0].mr.remote(0)), Data::inline(b"after"));
    p.post_on(1, &[send, invalidate, behind]).unwrap();
    p.transmit_all();
    p.post(write(1, window));
    p.run();
    let completed: Vec<_> = (1..4).map(|i| (i, WcStatus::Success)).collect();
    assert_eq!(statuses(&p.send_completions(1)), completed);
    assert_eq!(
        statuses(&p.send_completions(0)),
        [(1, WcStatus::Success)],
        "the WRITE arrived before the invalidation was executed"
    );
    p.post(write(2, window));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(2, WcStatus::RemoteAccess)]);
}

#[test]
fn failed_bind_completes_with_error() {
    let mut p = pair();
    let node = &mut p.nodes[1];
    let mw = node.nic.alloc_mw(p.now, node.pd, WindowType::Type2).unwrap();
    let bind = WindowBind {
        mw: mw.id,
        rkey: mw.rkey,
        mr: node.mr.id,
        addr: BASE + SIZE as u64 - 8,
        len: 9,
        access: Access::REMOTE_WRITE,
        zero_based: false,
    };
    let wrs = [
        SendWr::new(1, SendOp::BindWindow(bind), Data::empty()).with_flags(SendFlags::empty()),
        SendWr::new(2, SendOp::Send, Data::empty()),
    ];
    p.post_on(1, &wrs).unwrap();
    p.run();
    assert_eq!(statuses(&p.send_completions(1)), [(1, WcStatus::WindowBind), (2, WcStatus::Flushed)]);
}

#[test]
fn destroying_qp_unbinds_window() {
    let mut p = pair();
    bind_window(&mut p, Access::REMOTE_WRITE);
    let node = &mut p.nodes[1];
    assert!(
        node.nic.dereg_mr(p.now, node.mr.id).is_err(),
        "a region with a bound window cannot be deregistered"
    );
    node.nic.destroy_qp(p.now, node.qp).unwrap();
    assert_eq!(node.nic.dereg_mr(p.now, node.mr.id), Ok(RegionId(0)));
}

#[test]
fn resetting_qp_unbinds_window() {
    let mut p = pair();
    bind_window(&mut p, Access::REMOTE_WRITE);
    p.modify(1, &QpAttr::to(QpState::Err));
    let node = &mut p.nodes[1];
    assert!(node.nic.dereg_mr(p.now, node.mr.id).is_err(), "ERR keeps windows bound");
    p.modify(1, &QpAttr::to(QpState::Reset));
    let node = &mut p.nodes[1];
    assert_eq!(node.nic.dereg_mr(p.now, node.mr.id), Ok(RegionId(0)));
}

#[test]
fn deregistered_key_is_denied_at_once() {
    let mut p = pair();
    let remote = p.remote(0);
    p.post(SendWr::new(1, SendOp::Write(remote), Data::inline(b"valid")));
    p.run();
    let node = &mut p.nodes[1];
    node.nic.dereg_mr(p.now, node.mr.id).unwrap();
    p.post(SendWr::new(2, SendOp::Write(remote), Data::inline(b"stale")));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success), (2, WcStatus::RemoteAccess)]);
    assert_eq!(&p.bytes(1)[..5], b"valid");
}
