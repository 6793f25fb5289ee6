//! Multicast groups of datagram identifiers.
//!
//! RoCE has no subnet administrator that a join could inform. The NIC joins the IP group when the
//! first queue pair is attached. As with librdmacm, the queue pair is attached when the program
//! reads the event of the join.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use nix::errno::Errno;

use super::event::wait_if_synchronous;
use super::with_manager;
use crate::rdmacm::caller_ptr::CallerPtr;
use crate::rdmacm::cm_event::CmEvent;
use crate::rdmacm::manager::Manager;
use crate::rdmacm::membership::Membership;
use crate::rdmacm::rdma_port::PortSpace;
use crate::rdmacm::sockaddr::read_sockaddr;
use mitra_verbs_abi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: `rdma_join_multicast` requires a valid address.
    with_manager("rdma_join_multicast", |manager| unsafe {
        join(manager, id, addr, context, RDMA_MC_JOIN_FLAG_FULLMEMBER)
    })
}

/// In contrast to `rdma_join_multicast`, also offers a send-only membership.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: `rdma_join_multicast_ex` requires valid attributes with a valid address.
    with_manager("rdma_join_multicast_ex", |manager| unsafe {
        let required = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        let attr = &*mc_join_attr;
        if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
            Err(Errno::ENOTSUP)
        } else if attr.comp_mask & required != required || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
            Err(Errno::EINVAL)
        } else {
            join(manager, id, attr.addr, context, attr.join_flags)
        }
    })
}

/// # Safety
/// `addr` is null or points to an address of the length that its family requires.
unsafe fn join(
    manager: &Manager,
    id: *mut rdma_cm_id,
    addr: *const sockaddr,
    context: *mut c_void,
    flags: rdma_cm_mc_join_flags,
) -> Result<(), Errno> {
    // SAFETY: by the contract.
    let address = unsafe { read_sockaddr(addr)? }.ok_or(Errno::EINVAL)?;
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    // SAFETY: `find` found the memory under the lock that is still held.
    let is_bound = unsafe { !(*id).verbs.is_null() };
    if !is_bound || identifier.space != PortSpace::Udp || !address.ip().is_multicast() {
        return Err(Errno::EINVAL);
    }
    identifier.joins += 1;
    let number = identifier.joins;
    let is_send_only = flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
    identifier.memberships.push(Membership { number, address, context: CallerPtr(context), is_send_only });
    state.push_event(handle, CmEvent::Joined(number));
    drop(state);
    // SAFETY: `find` found the memory. The call requires that no other thread uses the identifier.
    unsafe { wait_if_synchronous(manager, id) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: `rdma_leave_multicast` requires a valid address.
    with_manager("rdma_leave_multicast", |manager| unsafe {
        let address = read_sockaddr(addr)?.ok_or(Errno::EINVAL)?;
        let membership = manager.lock().find(id)?.1.remove_membership(address).ok_or(Errno::EADDRNOTAVAIL)?;
        // SAFETY: `find` found the memory, so the identifier is live, and its queue pair is null or
        // live.
        membership.detach(id);
        Ok(())
    })
}
