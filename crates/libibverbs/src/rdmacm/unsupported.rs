//! What Mitra does not offer, and how programs are told.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use nix::errno::Errno;

use super::event::complete;
use super::manager::manager;
use super::state::{Report, Theirs};
use super::{address, answer};
use crate::abi::*;

/// `rdma_join_multicast`: the NIC has no multicast, and the program hears so in an event, as of a switch that has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program's identifier and address.
    answer(unsafe { join(id, addr, context) })
}

/// `rdma_join_multicast_ex`: as [`rdma_join_multicast`].
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
            join(id, attr.addr, context)
        }
    })
}

unsafe fn join(id: *mut rdma_cm_id, addr: *const sockaddr, context: *mut c_void) -> Result<(), Errno> {
    let manager = manager()?;
    let mut state = manager.lock();
    let handle = state.handle(id)?;
    // SAFETY: the caller's address, and `handle` knew the identifier.
    unsafe {
        address::read(addr)?.ok_or(Errno::EINVAL)?;
        state.report(handle, Report::NoMulticast(Theirs(context)));
        drop(state);
        complete(manager, id)
    }
}

/// `rdma_leave_multicast`: there is no group that the program joined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(_id: *mut rdma_cm_id, _addr: *mut sockaddr) -> c_int {
    answer(Err(Errno::EADDRNOTAVAIL))
}

/// `rdma_set_local_ece`: no vendor's enhancements are known here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    answer(Err(Errno::EOPNOTSUPP))
}

/// `rdma_get_remote_ece`: nor can a peer have offered any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    answer(Err(Errno::EOPNOTSUPP))
}

/// `rsocket`: the other calls of `rsocket.h` need one first. librdmacm's own cannot work on our identifiers: it reads what
/// lies behind `struct rdma_cm_id` in its memory (`ucma_complete`, `ucma_max_qpsize`, `ucma_shutdown` of rdma-core 44).
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(_domain: c_int, _type: c_int, _protocol: c_int) -> c_int {
    answer(Err(Errno::EOPNOTSUPP))
}
