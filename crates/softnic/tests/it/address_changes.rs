//! A NIC whose address changes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use mitra_softnic::{Config, SoftNic};
use mitra_verbs::*;

use crate::common::{Endpoint, LinkAttr, connect, connected_pair, loopback, open, poll_until};

/// Returns a loopback address that no NIC has: the NIC that had it is closed.
fn free_address() -> IpAddr {
    open(loopback()).address()
}

#[test]
fn new_address_is_reported_and_used() {
    let peer = Endpoint::new(open(loopback()));
    let nic = open(loopback());
    let (old, new) = (nic.address(), free_address());
    nic.change_address(new).unwrap();
    assert_eq!((nic.address(), nic.query_port().unwrap().gid), (new, new.into()));
    assert_eq!(nic.poll_async_event(), Some(AsyncEvent::GidChange));
    assert_eq!(nic.poll_async_event(), None);
    poll_until("the release of the old address", || {
        SoftNic::open(Config { address: Some(old), ..loopback() }).is_ok()
    });
    let end = Endpoint::new(nic);
    connect(&end, &peer, LinkAttr::default());
    peer.post_recv(1, 0, 8);
    end.post(2, SendOp::Send, 0, 8);
    end.wait_success();
    peer.wait_success();
}

#[test]
fn free_loopback_address_is_found() {
    let nic = open(loopback());
    let old = nic.address();
    nic.change_address(None).unwrap();
    assert!(nic.address().is_loopback() && nic.address() != old, "{}", nic.address());
    assert_eq!(nic.poll_async_event(), Some(AsyncEvent::GidChange));
}

/// As on hardware: the peer of a connected queue pair accepts packets from the old address only.
#[test]
fn connected_queue_pair_is_of_no_use_afterwards() {
    let (a, b) = connected_pair();
    a.nic.change_address(free_address()).unwrap();
    b.post_recv(1, 0, 8);
    a.post(2, SendOp::Send, 0, 8);
    assert_eq!(a.wait_completion().status, WcStatus::RetryExceeded);
    let mut wcs = Vec::new();
    assert_eq!(b.nic.poll_cq(b.cq, 1, &mut wcs).unwrap(), 0, "{wcs:?}");
}

#[test]
fn unusable_address_is_refused_and_the_old_one_stays() {
    let (a, b) = connected_pair();
    let before = a.nic.address();
    for address in [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), Ipv6Addr::LOCALHOST.into(), b.nic.address()] {
        let error = a.nic.change_address(address).unwrap_err().to_string();
        assert!(error.contains("use"), "{error}");
    }
    assert_eq!((a.nic.address(), a.nic.poll_async_event()), (before, None));
    a.nic.change_address(before).unwrap();
    b.post_recv(1, 0, 8);
    a.post(2, SendOp::Send, 0, 8);
    a.wait_success();
    a.nic.reset().unwrap();
    assert!(a.nic.change_address(free_address()).is_err(), "the NIC is dead");
}

/// Nobody polls: the progress thread listens on the new socket.
#[test]
fn progress_thread_follows() {
    let (a, b) = (Endpoint::new(open(loopback())), Endpoint::new(open(loopback())));
    b.nic.change_address(free_address()).unwrap();
    connect(&a, &b, LinkAttr::default());
    a.fill(0, 8, 3);
    a.post(1, SendOp::Write(RemoteAddr { addr: b.mr.addr, rkey: b.mr.rkey }), 0, 8);
    let mut wcs = Vec::new();
    poll_until("the WRITE", || a.nic.poll_cq(a.cq, 1, &mut wcs).unwrap() == 1);
    assert_eq!((wcs[0].status, b.bytes(0, 8)), (WcStatus::Success, a.bytes(0, 8)));
}
