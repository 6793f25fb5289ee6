//! Identifiers without a channel: each call waits for what it began.

use std::ptr;
use std::thread;

use mitra_libibverbs::abi::*;

use crate::ends::*;

/// Knows the way to a port.
fn routed(port: u16) -> Id {
    let id = Id::new(None, RDMA_PS_TCP);
    let mut to = local(port);
    // SAFETY: the identifier was made.
    unsafe {
        let resolved = rdma_resolve_addr(id.0, ptr::null_mut(), (&raw mut to).cast(), 1000);
        assert_eq!(error_of(resolved), None);
        assert_eq!((*(*id.0).event).event, RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(error_of(rdma_resolve_route(id.0, 1000)), None);
    }
    id
}

/// The next request, with its event.
fn request(listener: Id) -> Id {
    let mut id = ptr::null_mut();
    // SAFETY: a place for the answer, and the identifier that is found there.
    unsafe {
        assert_eq!(error_of(rdma_get_request(listener.0, &raw mut id)), None);
        assert_eq!((*(*id).event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_ne!((*id).channel, (*listener.0).channel);
    }
    Id(id)
}

#[test]
fn a_connection_is_made_and_ended_call_by_call() {
    let (listener, port) = Id::listening(None, RDMA_PS_TCP, 1);
    let server = thread::spawn(move || {
        let listener = listener;
        let passive = request(listener);
        passive.create_qp(IBV_QPT_RC);
        assert_eq!(passive.accept(0, b""), None);
        assert_eq!(passive.disconnect(), None);
        // SAFETY: the identifier was made.
        unsafe { rdma_destroy_qp(passive.0) };
        assert_eq!(passive.destroy(), None);
        assert_eq!(listener.destroy(), None);
    });
    let active = routed(port);
    active.create_qp(IBV_QPT_RC);
    assert_eq!(active.connect(0, b""), None);
    // SAFETY: the QP was made.
    unsafe { assert_eq!((*(*active.0).qp).state, IBV_QPS_RTS) };
    assert_eq!(active.disconnect(), None);
    // A second time nothing is waited for.
    assert_eq!(active.disconnect(), None);
    // SAFETY: the identifier was made.
    unsafe { rdma_destroy_qp(active.0) };
    assert_eq!(active.destroy(), None);
    server.join().expect("the server saw what it expected");
}

#[test]
fn a_rejection_is_a_refused_connection() {
    let (listener, port) = Id::listening(None, RDMA_PS_TCP, 1);
    let server = thread::spawn(move || {
        let listener = listener;
        let passive = request(listener);
        assert_eq!(passive.reject(b""), None);
        assert_eq!(passive.destroy(), None);
        listener.destroy()
    });
    let active = routed(port);
    assert_eq!(active.connect(1, b""), Some(libc::ECONNREFUSED));
    assert_eq!(active.destroy(), None);
    assert_eq!(server.join().expect("the server saw what it expected"), None);
}
