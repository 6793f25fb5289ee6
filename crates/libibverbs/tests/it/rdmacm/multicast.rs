//! Tests of `rdma_join_multicast` and `rdma_leave_multicast`.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6};
use mitra_verbs_abi::*;

use crate::cm_wrapper::*;

unsafe extern "C" {
    fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int;
    fn rdma_join_multicast_ex(
        id: *mut rdma_cm_id,
        mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
        context: *mut c_void,
    ) -> c_int;
    fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
}

/// Returns a group address with this last byte that no other test process uses.
fn group(last: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(239, high, low, last)
}

fn socket_address(ip: Ipv4Addr) -> sockaddr_in {
    address(SocketAddrV4::new(ip, 0))
}

fn gid(ip: Ipv4Addr) -> ibv_gid {
    ibv_gid { raw: ip.to_ipv6_mapped().octets() }
}

fn join(id: Id, ip: Ipv4Addr, context: usize) -> Option<i32> {
    let mut to = socket_address(ip);
    // SAFETY: the identifier is live. librdmacm returns the context without following it.
    error_of(unsafe { rdma_join_multicast(id.0, (&raw mut to).cast(), ptr::without_provenance_mut(context)) })
}

fn join_to_send(id: Id, ip: Ipv4Addr) -> Option<i32> {
    let mut to = socket_address(ip);
    let mut attr = rdma_cm_join_mc_attr_ex {
        comp_mask: RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
        join_flags: RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
        addr: (&raw mut to).cast(),
    };
    // SAFETY: the identifier is live.
    error_of(unsafe { rdma_join_multicast_ex(id.0, &raw mut attr, ptr::null_mut()) })
}

fn leave(id: Id, ip: Ipv4Addr) -> Option<i32> {
    let mut to = socket_address(ip);
    // SAFETY: the identifier is live.
    error_of(unsafe { rdma_leave_multicast(id.0, (&raw mut to).cast()) })
}

/// Detaches the identifier's queue pair from the group and returns whether it was attached.
fn detach(id: Id, ip: Ipv4Addr) -> bool {
    // SAFETY: the identifier has a live queue pair.
    match unsafe { ibv_detach_mcast((*id.0).qp, &gid(ip), 0) } {
        0 => true,
        libc::EINVAL => false,
        other => panic!("errno {other}"),
    }
}

/// Creates a datagram identifier with a queue pair and the resolved address of a group.
fn member(channel: &Channel, ip: Ipv4Addr) -> Id {
    let id = Id::new(Some(channel), RDMA_PS_UDP);
    let mut to = socket_address(ip);
    // SAFETY: the identifier is live.
    let resolved = unsafe { rdma_resolve_addr(id.0, ptr::null_mut(), (&raw mut to).cast(), 1000) };
    assert_eq!(error_of(resolved), None);
    channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    id.create_qp(IBV_QPT_UD);
    id
}

fn destroy(id: Id) {
    // SAFETY: the identifier has a live queue pair.
    unsafe { rdma_destroy_qp(id.0) };
    assert_eq!(id.destroy(), None);
}

#[test]
fn queue_pair_is_attached_when_the_join_event_is_read() {
    let channel = Channel::new();
    let id = member(&channel, group(1));
    assert_eq!(join(id, group(1), 0x77), None);
    assert!(!detach(id, group(1)), "the queue pair is attached only when the event is read");
    let event = channel.read();
    assert_eq!((event.kind, event.status, event.id), (RDMA_CM_EVENT_MULTICAST_JOIN, 0, id));
    // SAFETY: the event is not acknowledged, so it is live.
    let ud = unsafe { (*event.raw).param.ud };
    assert_eq!((ud.qp_num, ud.qkey), (0xff_ffff, RDMA_UDP_QKEY));
    assert_eq!((ud.private_data.addr(), ud.private_data_len), (0x77, 0));
    assert_eq!((ud.ah_attr.is_global, ud.ah_attr.port_num), (1, 1));
    // SAFETY: every field of the union has sixteen bytes, for which all values are valid.
    unsafe { assert_eq!(ud.ah_attr.grh.dgid.raw, gid(group(1)).raw) };
    event.acknowledge();
    assert!(detach(id, group(1)));
    // SAFETY: the identifier has a live queue pair.
    unsafe { assert_eq!(ibv_attach_mcast((*id.0).qp, &gid(group(1)), 0), 0) };
    assert_eq!(leave(id, group(1)), None);
    assert!(!detach(id, group(1)));
    assert_eq!(leave(id, group(1)), Some(libc::EADDRNOTAVAIL));
    destroy(id);
}

#[test]
fn send_only_member_is_not_attached() {
    let channel = Channel::new();
    let id = member(&channel, group(2));
    assert_eq!(join_to_send(id, group(2)), None);
    channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN);
    assert!(!detach(id, group(2)));
    assert_eq!(leave(id, group(2)), None);
    destroy(id);
}

#[test]
fn join_event_of_a_group_that_was_left_is_dropped() {
    let channel = Channel::new();
    let id = member(&channel, group(3));
    assert_eq!(join(id, group(3), 1), None);
    assert_eq!(join(id, group(4), 2), None);
    assert_eq!(leave(id, group(3)), None);
    let event = channel.read();
    // SAFETY: the event is not acknowledged, so it is live.
    assert_eq!(unsafe { (*event.raw).param.ud.private_data.addr() }, 2);
    event.acknowledge();
    assert!(!detach(id, group(3)) && detach(id, group(4)));
    assert!(!channel.is_readable(0));
    destroy(id);
}

#[test]
fn invalid_joins_are_refused_or_reported() {
    let channel = Channel::new();
    let unbound = Id::new(Some(&channel), RDMA_PS_UDP);
    assert_eq!(join(unbound, group(5), 0), Some(libc::EINVAL), "the identifier is not bound to a device");
    let connection = Id::new(Some(&channel), RDMA_PS_TCP);
    assert_eq!(connection.bind(0), None);
    assert_eq!(join(connection, group(5), 0), Some(libc::EINVAL));
    let id = member(&channel, group(5));
    assert_eq!(join(id, Ipv4Addr::LOCALHOST, 0), Some(libc::EINVAL));
    // SAFETY: the identifier is live, and the address may be null.
    unsafe {
        assert_eq!(error_of(rdma_join_multicast(id.0, ptr::null_mut(), ptr::null_mut())), Some(libc::EINVAL));
        assert_eq!(error_of(rdma_leave_multicast(id.0, ptr::null_mut())), Some(libc::EINVAL));
    }
    // The NIC has an IPv4 address, so its queue pairs cannot be attached to an IPv6 group.
    // SAFETY: `sockaddr_in6` consists of integers, for which zeros are valid.
    let mut ipv6: sockaddr_in6 = unsafe { std::mem::zeroed() };
    ipv6.sin6_family = libc::AF_INET6 as u16;
    (ipv6.sin6_addr.s6_addr[0], ipv6.sin6_addr.s6_addr[1], ipv6.sin6_addr.s6_addr[15]) = (0xff, 0x0e, 1);
    // SAFETY: the identifier is live.
    let joined = unsafe { rdma_join_multicast(id.0, (&raw mut ipv6).cast(), ptr::null_mut()) };
    assert_eq!(error_of(joined), None);
    let event = channel.expect(RDMA_CM_EVENT_MULTICAST_ERROR);
    assert_eq!((event.id, event.status), (id, -libc::EINVAL));
    destroy(id);
    assert_eq!([unbound.destroy(), connection.destroy()], [None, None]);
}

#[test]
fn synchronous_join_returns_when_the_queue_pair_is_attached() {
    let id = Id::new(None, RDMA_PS_UDP);
    assert_eq!(id.bind(0), None);
    id.create_qp(IBV_QPT_UD);
    assert_eq!(join(id, group(6), 0), None);
    // SAFETY: the identifier is live.
    unsafe { assert_eq!((*(*id.0).event).event, RDMA_CM_EVENT_MULTICAST_JOIN) };
    assert!(detach(id, group(6)));
    destroy(id);
}
