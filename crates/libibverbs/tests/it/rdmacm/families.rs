//! Listeners of both address families at one port.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ptr;

use mitra_verbs_abi::*;
use socket2::SockAddr;

use crate::cm_wrapper::*;

fn listen(channel: &Channel, address: SocketAddr, v6_only: bool) -> (Id, u16) {
    let id = Id::new(Some(channel), RDMA_PS_TCP);
    let mut only: i32 = v6_only.into();
    let address = SockAddr::from(address);
    // SAFETY: the identifier is live, and the option and the address are valid.
    unsafe {
        assert_eq!(
            error_of(rdma_set_option(id.0, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, (&raw mut only).cast(), 4)),
            None
        );
        assert_eq!(error_of(rdma_bind_addr(id.0, address.as_ptr().cast_mut().cast())), None);
        assert_eq!(error_of(rdma_listen(id.0, 8)), None);
        (id, u16::from_be(rdma_get_src_port(id.0)))
    }
}

/// Connects to an address. Returns the listener that got the request, or the status of the
/// rejection.
fn listener_at(channel: &Channel, address: SocketAddr) -> Result<*mut rdma_cm_id, i32> {
    let id = Id::new(Some(channel), RDMA_PS_TCP);
    let address = SockAddr::from(address);
    // SAFETY: the identifier is live, and the address is valid.
    unsafe {
        let to = address.as_ptr().cast_mut().cast();
        assert_eq!(error_of(rdma_resolve_addr(id.0, ptr::null_mut(), to, 1000)), None);
        channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(error_of(rdma_resolve_route(id.0, 1000)), None);
        channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    }
    assert_eq!(id.connect(1, b""), None);
    let event = channel.read();
    // SAFETY: the event is live until it is acknowledged.
    let listener = unsafe { (*event.raw).listen_id };
    event.acknowledge();
    let found = match event.kind {
        RDMA_CM_EVENT_CONNECT_REQUEST => {
            assert_eq!(event.id.destroy(), None);
            channel.expect(RDMA_CM_EVENT_REJECTED);
            Ok(listener)
        }
        RDMA_CM_EVENT_REJECTED => Err(event.status),
        other => panic!("event {other}"),
    };
    assert_eq!(id.destroy(), None);
    found
}

/// A request goes to the listener of the family of its destination, where an IPv4 address in the
/// form of an IPv6 address is one of IPv4.
#[test]
fn each_family_reaches_its_listener() {
    let channel = Channel::new();
    let v4 = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let v6 = |ip: Ipv6Addr, port| SocketAddr::from((IpAddr::from(ip), port));
    let mapped = Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 0x7f00, 1]);

    let (all, port) = listen(&channel, v6(Ipv6Addr::UNSPECIFIED, 0), false);
    for to in [v4(port), v6(Ipv6Addr::LOCALHOST, port), v6(mapped, port)] {
        assert_eq!(listener_at(&channel, to), Ok(all.0), "{to}");
    }
    assert_eq!(all.destroy(), None);

    let (only_v6, port) = listen(&channel, v6(Ipv6Addr::UNSPECIFIED, 0), true);
    assert_eq!(listener_at(&channel, v6(Ipv6Addr::LOCALHOST, port)), Ok(only_v6.0));
    for to in [v4(port), v6(mapped, port)] {
        assert_eq!(listener_at(&channel, to), Err(8), "{to}: nobody listens");
    }
    let (only_v4, _) = listen(&channel, SocketAddr::from(([0, 0, 0, 0], port)), false);
    assert_eq!(listener_at(&channel, v6(Ipv6Addr::LOCALHOST, port)), Ok(only_v6.0));
    for to in [v4(port), v6(mapped, port)] {
        assert_eq!(listener_at(&channel, to), Ok(only_v4.0), "{to}");
    }
    assert_eq!((only_v4.destroy(), only_v6.destroy()), (None, None));
}
