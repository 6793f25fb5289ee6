//! Calls that bind and resolve addresses and routes.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use libc::sockaddr;
use mitra_verbs::Gid;
use nix::errno::Errno;

use super::event::wait_if_synchronous;
use super::with_manager;
use crate::rdmacm::cm_event::CmEvent;
use crate::rdmacm::id_memory::{set_addresses, set_path};
use crate::rdmacm::identifier::{NetworkState, Resolution};
use crate::rdmacm::manager::Manager;
use crate::rdmacm::message_handling::RESOLUTION_INTERVAL;
use crate::rdmacm::neighbour;
use crate::rdmacm::qp_attributes::path_record;
use crate::rdmacm::rdma_port::source_towards;
use crate::rdmacm::sockaddr::read_sockaddr;
use mitra_verbs_abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED, rdma_cm_id,
};

/// For port 0 the kernel chooses the port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: `rdma_bind_addr` requires a valid address, and that no other thread uses the
    // identifier.
    with_manager("rdma_bind_addr", |manager| unsafe { bind(manager, id, addr) })
}

/// Binds an identifier to an address. A specified address also binds the identifier to the device.
///
/// # Errors
/// `EINVAL` for an unknown or bound identifier and for a null address, `EAFNOSUPPORT` for an
/// address family other than IPv4 and IPv6, or the error of binding or of opening the device.
///
/// # Safety
/// `addr` is null or points to an address of the length that its family requires. No other thread
/// uses the identifier.
pub unsafe fn bind(manager: &Manager, id: *mut rdma_cm_id, addr: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: by the contract.
    let address = unsafe { read_sockaddr(addr)? }.ok_or(Errno::EINVAL)?;
    let mut state = manager.lock();
    let handle = state.handle(id)?;
    let bound = state.bind(handle, address)?;
    drop(state);
    // SAFETY: `find` found the memory, so the identifier is live, and by the contract no other
    // thread destroys it.
    unsafe {
        set_addresses(id, (Some(bound), None));
        if !bound.ip().is_unspecified() {
            manager.device()?.bind(id);
        }
    }
    Ok(())
}

/// A destination on another machine must answer within `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    let timeout = Duration::from_millis(timeout_ms.max(0) as u64);
    // SAFETY: `rdma_resolve_addr` requires a valid destination and a source that is null or valid,
    // and that no other thread uses the identifier.
    with_manager("rdma_resolve_addr", |manager| unsafe {
        resolve_addr(manager, id, src_addr, dst_addr, timeout)
    })
}

/// Binds the identifier to the source address of the route to `dst_addr`, and to the device.
///
/// # Errors
/// `EINVAL` for an unknown identifier, for one that listens, is in use or has a destination, and
/// for a null destination; `EAFNOSUPPORT` for an address family other than IPv4 and IPv6; the error
/// of opening the device; `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES` and `EMFILE` of the bind. Other
/// errors are reported by an event. If the identifier is synchronous, the errors of
/// [`wait_if_synchronous`].
///
/// # Safety
/// Each address is null or points to an address of the length that its family requires. No other
/// thread uses the identifier.
pub unsafe fn resolve_addr(
    manager: &'static Manager,
    id: *mut rdma_cm_id,
    src_addr: *const sockaddr,
    dst_addr: *const sockaddr,
    timeout: Duration,
) -> Result<(), Errno> {
    // SAFETY: by the contract.
    let (source, destination) =
        unsafe { (read_sockaddr(src_addr)?, read_sockaddr(dst_addr)?.ok_or(Errno::EINVAL)?) };
    let device = manager.device()?;
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    if !matches!(identifier.network, NetworkState::Idle) || identifier.addresses.1.is_some() {
        return Err(Errno::EINVAL);
    }
    let destination = unspecified_to_loopback(destination);
    // The NIC sends to a multicast group through the NIC's interface, and ignores the routing
    // table.
    let route_source = match destination.ip().is_multicast() {
        true => Ok(Ipv6Addr::from(device.gid).to_canonical()),
        false => source_towards(destination),
    };
    match route_source.and_then(|route_source| state.set_route(handle, source, destination, route_source)) {
        Ok(source) => {
            // SAFETY: `find` found the memory under the lock that is still held.
            unsafe {
                set_addresses(id, (Some(source), Some(destination)));
                device.bind(id);
                // A guess, until a message of the peer brings the GID of the peer's NIC.
                (*id).route.addr.addr.ibaddr.dgid.raw = Gid::from(destination.ip()).0;
            }
            if destination.ip().is_multicast() || neighbour::is_resolved(destination.ip()) {
                state.push_event(handle, CmEvent::Plain(RDMA_CM_EVENT_ADDR_RESOLVED));
            } else {
                neighbour::ask_for(destination.ip());
                let now = Instant::now();
                let (due, deadline) = (now + RESOLUTION_INTERVAL, now + timeout);
                state.get(handle)?.network = NetworkState::Resolving(Resolution { due, deadline });
            }
        }
        // The program causes these errors, by its source address and its descriptors. All other
        // errors come from the network and are reported by an event.
        Err(errno @ (Errno::EADDRINUSE | Errno::EADDRNOTAVAIL | Errno::EACCES | Errno::EMFILE)) => {
            return Err(errno);
        }
        Err(errno) => state.push_event(handle, CmEvent::Failed(RDMA_CM_EVENT_ADDR_ERROR, errno)),
    }
    drop(state);
    manager.wake_thread()?;
    // SAFETY: `find` found the memory, and by the contract no other thread uses the identifier.
    unsafe { wait_if_synchronous(manager, id) }
}

/// Replaces an unspecified destination address by the loopback address, as connect(2) does.
fn unspecified_to_loopback(destination: SocketAddr) -> SocketAddr {
    let ip = match destination.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => return destination,
    };
    SocketAddr::new(ip, destination.port())
}

/// The routing table provides the route, so `timeout_ms` has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: `rdma_resolve_route` requires that no other thread uses the identifier.
    with_manager("rdma_resolve_route", |manager| unsafe { resolve_route(manager, id) })
}

/// Stores the path to the destination in the identifier's memory.
///
/// # Errors
/// `EINVAL` for an unknown identifier, before the address is resolved and after the route is, or
/// the error of opening the device. If the identifier is synchronous, the errors of
/// [`wait_if_synchronous`].
///
/// # Safety
/// No other thread uses the identifier during the call.
pub unsafe fn resolve_route(manager: &Manager, id: *mut rdma_cm_id) -> Result<(), Errno> {
    let device = manager.device()?;
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    let (Some(destination), NetworkState::Idle, false) =
        (identifier.addresses.1, &identifier.network, identifier.is_route_resolved)
    else {
        return Err(Errno::EINVAL);
    };
    identifier.is_route_resolved = true;
    let path = path_record(&device, Gid::from(destination.ip()).0, identifier.options.traffic_class);
    // SAFETY: `find` found the memory under the lock that is still held.
    unsafe { set_path(id, path) };
    state.push_event(handle, CmEvent::Plain(RDMA_CM_EVENT_ROUTE_RESOLVED));
    drop(state);
    // SAFETY: `find` found the memory, and by the contract no other thread uses the identifier.
    unsafe { wait_if_synchronous(manager, id) }
}
