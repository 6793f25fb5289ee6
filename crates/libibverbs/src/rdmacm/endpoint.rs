//! Identifiers for synchronous programs: address, path and QP in one call, requests one by one.

use std::ffi::c_int;
use std::ptr;

use nix::errno::Errno;

use super::event::{give_back, next};
use super::identifier::{create, destroy};
use super::manager::manager;
use super::queue_pair::{rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq};
use super::state::{QpAttributes, Theirs};
use super::{answer, resolve};
use crate::abi::*;

/// `rdma_create_ep`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program's place, and what it got from `rdma_getaddrinfo`.
    answer(unsafe {
        let (ps, qp_type) = ((*res).ai_port_space as rdma_port_space, (*res).ai_qp_type as ibv_qp_type);
        create(ptr::null_mut(), ptr::null_mut(), ps, qp_type).and_then(|created| {
            let filled = if (*res).ai_flags & RAI_PASSIVE != 0 {
                fill_passive(created, &*res, pd, qp_init_attr)
            } else {
                fill_active(created, &*res, pd, qp_init_attr)
            };
            filled.inspect_err(|_| rdma_destroy_ep(created))?;
            *id = created;
            Ok(())
        })
    })
}

unsafe fn fill_passive(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's, as of `rdma_create_ep`.
    unsafe {
        resolve::bind(id, res.ai_src_addr)?;
        if !pd.is_null() {
            (*id).pd = pd;
        }
        if let Some(attr) = attr.as_ref() {
            let attr = QpAttributes(ibv_qp_init_attr { qp_type: res.ai_qp_type as ibv_qp_type, ..*attr });
            manager()?.lock().find(id)?.1.qp_for_requests = Some((Theirs(pd), attr));
        }
    }
    Ok(())
}

unsafe fn fill_active(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let manager = manager()?;
    // SAFETY: the caller's, as of `rdma_create_ep`.
    unsafe {
        resolve::resolve(id, res.ai_src_addr, res.ai_dst_addr)?;
        resolve::resolve_route(manager, id)?;
        if let Some(attr) = attr.as_mut() {
            attr.qp_type = res.ai_qp_type as ibv_qp_type;
            if rdma_create_qp(id, pd, attr) != 0 {
                return Err(Errno::last());
            }
        }
        if !res.ai_connect.is_null() {
            let data = std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len);
            manager.lock().find(id)?.1.connect_data = data.to_vec();
        }
    }
    Ok(())
}

/// `rdma_destroy_ep`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the program's identifier.
    unsafe {
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
    }
    // There is no way to report a failure.
    let _ = manager().and_then(|manager| destroy(manager, id));
}

/// `rdma_get_request`: waits for the next request to a synchronous identifier, which keeps its event in `event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: the program's identifier and place.
    answer(unsafe { get_request(listen) }.map(|request| unsafe { *id = request }))
}

unsafe fn get_request(listen: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    let manager = manager()?;
    let (channel, qp) = {
        let mut state = manager.lock();
        let (_, identifier) = state.find(listen)?;
        if !identifier.is_synchronous {
            return Err(Errno::EINVAL);
        }
        (identifier.channel, identifier.qp_for_requests)
    };
    // SAFETY: `find` knew it; the event is ours until it is acknowledged.
    unsafe {
        give_back(manager, listen);
        let event = next(manager, channel)?;
        let request = (*event).id;
        let taken = (|| {
            if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST {
                return Err(Errno::EINVAL);
            }
            if let Some((pd, QpAttributes(mut attr))) = qp
                && rdma_create_qp(request, pd.0, &raw mut attr) != 0
            {
                return Err(Errno::last());
            }
            Ok(request)
        })();
        match taken {
            Ok(request) => (*request).event = event,
            Err(_) => (*listen).event = event,
        }
        taken
    }
}
