//! Tests of synchronous identifiers: each call waits for the event that ends its operation.

use std::ptr;
use std::thread;

use mitra_verbs_abi::*;

use crate::cm_wrapper::*;

/// Creates a synchronous identifier with a resolved route to a loopback port.
fn routed(port: u16) -> Id {
    let id = Id::new(None, RDMA_PS_TCP);
    let mut to = local(port);
    // SAFETY: the identifier is live.
    unsafe {
        let resolved = rdma_resolve_addr(id.0, ptr::null_mut(), (&raw mut to).cast(), 1000);
        assert_eq!(error_of(resolved), None);
        assert_eq!((*(*id.0).event).event, RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(error_of(rdma_resolve_route(id.0, 1000)), None);
    }
    id
}

fn request(listener: Id) -> Id {
    let mut id = ptr::null_mut();
    // SAFETY: the pointer for the result is valid, and the identifier of the request is live.
    unsafe {
        assert_eq!(error_of(rdma_get_request(listener.0, &raw mut id)), None);
        assert_eq!((*(*id).event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_ne!((*id).channel, (*listener.0).channel);
    }
    Id(id)
}

#[test]
fn each_call_waits_for_its_event() {
    let (listener, port) = Id::listening(None, RDMA_PS_TCP, 1);
    let server = thread::spawn(move || {
        let listener = listener;
        let passive = request(listener);
        passive.create_qp(IBV_QPT_RC);
        assert_eq!(passive.accept(0, b""), None);
        assert_eq!(passive.disconnect(), None);
        // SAFETY: the identifier is live.
        unsafe { rdma_destroy_qp(passive.0) };
        assert_eq!(passive.destroy(), None);
        assert_eq!(listener.destroy(), None);
    });
    let active = routed(port);
    active.create_qp(IBV_QPT_RC);
    assert_eq!(active.connect(0, b""), None);
    // SAFETY: the queue pair is live.
    unsafe { assert_eq!((*(*active.0).qp).state, IBV_QPS_RTS) };
    assert_eq!(active.disconnect(), None);
    // A second disconnect has no event to wait for.
    assert_eq!(active.disconnect(), None);
    // SAFETY: the identifier is live.
    unsafe { rdma_destroy_qp(active.0) };
    assert_eq!(active.destroy(), None);
    server.join().expect("the server thread passed its checks");
}

#[test]
fn connect_returns_econnrefused_on_rejection() {
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
    assert_eq!(server.join().expect("the server thread passed its checks"), None);
}
