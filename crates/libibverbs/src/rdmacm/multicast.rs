//! Multicast groups that datagram identifiers are in.
//!
//! Joining asks nobody: RoCE has no subnet administrator, and the NIC joins the IP group when the first queue pair is attached.
//! As with librdmacm, an identifier's own is attached when the program reads the event.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;

use libc::sockaddr;
use nix::errno::Errno;

use super::event::complete;
use super::manager::{Manager, manager};
use super::socket::Space;
use super::state::{Handle, Identifier, Report, Theirs};
use super::{address, answer, checked};
use crate::abi::*;
use crate::calls::mcast::{ibv_attach_mcast, ibv_detach_mcast};

/// The destination of multicast packets (IBTA volume 1, 10.5).
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// A group that an identifier joined.
#[derive(Clone, Copy)]
pub struct Membership {
    /// Its own, by which a report refers to it.
    number: u64,
    address: SocketAddr,
    /// The program's own word for it.
    pub context: Theirs<c_void>,
    /// Whether no queue pair is to be attached.
    is_send_only: bool,
}

impl Membership {
    /// The group's GID: that of its address (RoCEv2; the kernel's `cma_iboe_set_mgid`).
    pub fn gid(&self) -> ibv_gid {
        ibv_gid { raw: address::gid_of(self.address.ip()) }
    }
}

/// `rdma_join_multicast`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program's identifier and address.
    answer(unsafe { join(id, addr, context, RDMA_MC_JOIN_FLAG_FULLMEMBER) })
}

/// `rdma_join_multicast_ex`: perhaps only to send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program's identifier and attributes.
    answer(unsafe {
        let needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        let attr = &*mc_join_attr;
        if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            Err(Errno::ENOTSUP)
        } else if attr.comp_mask & needed != needed || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
            Err(Errno::EINVAL)
        } else {
            join(id, attr.addr, context, attr.join_flags)
        }
    })
}

/// # Safety
/// `addr` is null or points to an address as long as its family says.
unsafe fn join(
    id: *mut rdma_cm_id,
    addr: *const sockaddr,
    context: *mut c_void,
    flags: rdma_cm_mc_join_flags,
) -> Result<(), Errno> {
    let manager = manager()?;
    // SAFETY: by the contract.
    let address = unsafe { address::read(addr)? }.ok_or(Errno::EINVAL)?;
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    // SAFETY: `find` knew it.
    let is_bound = unsafe { !(*id).verbs.is_null() };
    if !is_bound || identifier.space != Space::Udp || !address.ip().is_multicast() {
        return Err(Errno::EINVAL);
    }
    identifier.joins += 1;
    let number = identifier.joins;
    let is_send_only = flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
    identifier.groups.push(Membership { number, address, context: Theirs(context), is_send_only });
    state.report(handle, Report::Joined(number));
    drop(state);
    // SAFETY: as above.
    unsafe { complete(manager, id) }
}

/// The program reads that a group was joined: the identifier's queue pair is attached, if there is one, and what came of that is
/// the second answer. There is none if the group was left meanwhile.
///
/// # Safety
/// `id` is the identifier's memory.
pub unsafe fn enter(
    manager: &Manager,
    handle: Handle,
    id: *mut rdma_cm_id,
    number: u64,
) -> Result<(Membership, Result<(), Errno>), Errno> {
    let mut state = manager.lock();
    let group =
        *state.get(handle)?.groups.iter().find(|group| group.number == number).ok_or(Errno::EINVAL)?;
    drop(state);
    // SAFETY: by the contract.
    let attached = unsafe {
        if (*id).qp.is_null() || group.is_send_only {
            Ok(())
        } else {
            checked(ibv_attach_mcast((*id).qp, &group.gid(), 0))
        }
    };
    Ok((group, attached))
}

/// `rdma_leave_multicast`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the program's identifier and address.
    answer(unsafe { leave(id, addr) })
}

/// # Safety
/// As for [`join`].
unsafe fn leave(id: *mut rdma_cm_id, addr: *const sockaddr) -> Result<(), Errno> {
    let manager = manager()?;
    // SAFETY: by the contract.
    let address = unsafe { address::read(addr)? }.ok_or(Errno::EINVAL)?;
    let group = manager.lock().find(id)?.1.forget(address).ok_or(Errno::EADDRNOTAVAIL)?;
    // SAFETY: `find` knew it.
    unsafe {
        if !(*id).qp.is_null() && !group.is_send_only {
            // If it was attached: the program may not have read the event.
            let _ = ibv_detach_mcast((*id).qp, &group.gid(), 0);
        }
    }
    Ok(())
}

impl Identifier {
    fn forget(&mut self, address: SocketAddr) -> Option<Membership> {
        let at = self.groups.iter().position(|group| group.address == address)?;
        Some(self.groups.remove(at))
    }
}
