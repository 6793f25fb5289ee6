//! Addresses: binding to one's own, finding the way to another's.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::sockaddr;
use nix::errno::Errno;

use super::attributes::path_record;
use super::event::complete;
use super::identifier::{set_addresses, set_path};
use super::manager::{Manager, manager};
use super::socket::{Port, source_towards};
use super::state::{Endpoint, Identifier, Report};
use super::{address, answer};
use crate::abi::rdma_cm_id;

/// `rdma_bind_addr`: to a port of its own; port 0 becomes a free one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the program's identifier and address.
    answer(unsafe { bind(id, addr) })
}

/// Binds an identifier.
///
/// # Safety
/// `addr` is null or points to an address as long as its family says.
pub unsafe fn bind(id: *mut rdma_cm_id, addr: *const sockaddr) -> Result<(), Errno> {
    let manager = manager()?;
    // SAFETY: by the contract.
    let wanted = unsafe { address::read(addr)? }.ok_or(Errno::EINVAL)?;
    let bound = manager.lock().find(id)?.1.bind(wanted)?;
    // SAFETY: `find` knew it.
    unsafe {
        set_addresses(id, (Some(bound), None));
        if !bound.ip().is_unspecified() {
            manager.device()?.bind(id);
        }
    }
    Ok(())
}

impl Identifier {
    /// Takes a port.
    pub fn bind(&mut self, wanted: SocketAddr) -> Result<SocketAddr, Errno> {
        let Endpoint::Unbound = self.endpoint else { return Err(Errno::EINVAL) };
        let port = Port::bind(self.space, wanted, self.options.reuse_address, self.options.v6_only)?;
        let bound = port.address()?;
        self.endpoint = Endpoint::Bound(port);
        self.addresses.0 = Some(bound);
        Ok(bound)
    }
}

/// `rdma_resolve_addr`. No packet is sent, so `timeout_ms` has nothing to limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: the program's identifier and addresses.
    answer(unsafe { resolve(id, src_addr, dst_addr) })
}

/// Finds the way to an address and the own address on it.
///
/// # Safety
/// The addresses are null or point to one as long as its family says.
pub unsafe fn resolve(
    id: *mut rdma_cm_id,
    src_addr: *const sockaddr,
    dst_addr: *const sockaddr,
) -> Result<(), Errno> {
    let manager = manager()?;
    // SAFETY: by the contract.
    let (source, destination) =
        unsafe { (address::read(src_addr)?, address::read(dst_addr)?.ok_or(Errno::EINVAL)?) };
    let device = manager.device()?;
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    if !matches!(identifier.endpoint, Endpoint::Unbound | Endpoint::Bound(_)) {
        return Err(Errno::EINVAL);
    }
    let destination = reachable(destination);
    // The NIC reaches a group over the interface that it is on, whatever the routing table says.
    let on_the_way = match destination.ip().is_multicast() {
        true => Ok(Ipv6Addr::from(device.gid).to_canonical()),
        false => source_towards(destination),
    };
    match on_the_way.and_then(|on_the_way| identifier.resolve(source, destination, on_the_way)) {
        Ok(source) => {
            // SAFETY: `find` knew it.
            unsafe {
                set_addresses(id, (Some(source), Some(destination)));
                device.bind(id);
                // Until the peer says what its NIC's is: the one that belongs to its address.
                (*id).route.addr.addr.ibaddr.dgid.raw = address::gid_of(destination.ip());
            }
            state.report(handle, Report::AddressResolved);
        }
        // That is the program's mistake, the others are the network's.
        Err(errno @ (Errno::EADDRINUSE | Errno::EADDRNOTAVAIL | Errno::EACCES | Errno::EMFILE)) => {
            return Err(errno);
        }
        Err(errno) => state.report(handle, Report::AddressError(errno)),
    }
    drop(state);
    // SAFETY: as above.
    unsafe { complete(manager, id) }
}

impl Identifier {
    fn resolve(
        &mut self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        on_the_way: IpAddr,
    ) -> Result<SocketAddr, Errno> {
        let source = match (self.addresses.0, source) {
            (Some(bound), _) => bound,
            (None, Some(source)) => self.bind(source)?,
            (None, None) => self.bind(SocketAddr::new(on_the_way, 0))?,
        };
        let ip = if source.ip().is_unspecified() { on_the_way } else { source.ip() };
        let source = SocketAddr::new(ip, source.port());
        self.addresses = (Some(source), Some(destination));
        Ok(source)
    }
}

/// "Any address" as a destination means this machine.
fn reachable(destination: SocketAddr) -> SocketAddr {
    let ip = match destination.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => return destination,
    };
    SocketAddr::new(ip, destination.port())
}

/// `rdma_resolve_route`. The routing tables know the way already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: the program's identifier.
    answer(manager().and_then(|manager| unsafe { resolve_route(manager, id) }))
}

/// Shows the program its path.
///
/// # Safety
/// `id` is an identifier's memory, or was.
pub unsafe fn resolve_route(manager: &Manager, id: *mut rdma_cm_id) -> Result<(), Errno> {
    let device = manager.device()?;
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    let (Some(destination), Endpoint::Bound(_)) = (identifier.addresses.1, &identifier.endpoint) else {
        return Err(Errno::EINVAL);
    };
    identifier.is_routed = true;
    let path = path_record(&device, address::gid_of(destination.ip()), identifier.options.traffic_class);
    // SAFETY: `find` knew it.
    unsafe { set_path(id, path) };
    state.report(handle, Report::RouteResolved);
    drop(state);
    // SAFETY: as above.
    unsafe { complete(manager, id) }
}
