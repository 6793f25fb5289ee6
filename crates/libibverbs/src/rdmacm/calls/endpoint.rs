//! Calls that provide address, route and queue pair at once, for synchronous programs.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use nix::errno::Errno;

use super::event::next_event;
use super::identifier::{create, destroy};
use super::queue_pair::{rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq};
use super::{resolve, with_manager};
use crate::rdmacm::acknowledgement::acknowledge_held_event;
use crate::rdmacm::caller_ptr::CallerPtr;
use crate::rdmacm::identifier::QpInitAttr;
use crate::rdmacm::manager::{Manager, manager};
use mitra_verbs_abi::*;

/// The time for a resolution in `rdma_create_ep` (librdmacm, `rdma_create_ep`).
const RESOLUTION_TIMEOUT: Duration = Duration::from_secs(2);

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `rdma_create_ep` requires a valid pointer for the identifier, a list from
    // `rdma_getaddrinfo`, and a protection domain and attributes that are null or valid.
    with_manager("rdma_create_ep", |manager| unsafe {
        let (ps, qp_type) = ((*res).ai_port_space as rdma_port_space, (*res).ai_qp_type as ibv_qp_type);
        let created = create(manager, ptr::null_mut(), ptr::null_mut(), ps, qp_type)?;
        let prepared = if (*res).ai_flags & RAI_PASSIVE != 0 {
            prepare_passive(manager, created, &*res, pd, qp_init_attr)
        } else {
            prepare_active(manager, created, &*res, pd, qp_init_attr)
        };
        prepared.inspect_err(|_| rdma_destroy_ep(created))?;
        *id = created;
        Ok(())
    })
}

/// Binds the identifier and stores the attributes of the queue pairs for its requests.
///
/// # Safety
/// As `rdma_create_ep` requires; `id` is the memory of a live identifier.
unsafe fn prepare_passive(
    manager: &Manager,
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: by the contract.
    unsafe {
        resolve::bind(manager, id, res.ai_src_addr)?;
        if !pd.is_null() {
            (*id).pd = pd;
        }
        if let Some(attr) = attr.as_ref() {
            let attr = QpInitAttr(ibv_qp_init_attr { qp_type: res.ai_qp_type as ibv_qp_type, ..*attr });
            manager.lock().find(id)?.1.qp_for_requests = Some((CallerPtr(pd), attr));
        }
    }
    Ok(())
}

/// Resolves address and route, and creates the queue pair.
///
/// # Safety
/// As for [`prepare_passive`].
unsafe fn prepare_active(
    manager: &'static Manager,
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: by the contract. An `ai_connect` that is not null points to `ai_connect_len` bytes.
    unsafe {
        resolve::resolve_addr(manager, id, res.ai_src_addr, res.ai_dst_addr, RESOLUTION_TIMEOUT)?;
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

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: both calls do nothing for an unknown identifier.
    unsafe {
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
    }
    // The function cannot report a failure.
    let _ = manager().and_then(|manager| destroy(manager, id));
}

/// Waits for the next request to a synchronous identifier. The field `event` of the request's
/// identifier holds the event.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: `rdma_get_request` requires a valid pointer for the new identifier, and that no other
    // thread uses `listen`.
    with_manager("rdma_get_request", |manager| unsafe {
        *id = get_request(manager, listen)?;
        Ok(())
    })
}

unsafe fn get_request(manager: &Manager, listen: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    let (channel, qp) = {
        let mut state = manager.lock();
        let (_, identifier) = state.find(listen)?;
        if !identifier.is_synchronous {
            return Err(Errno::EINVAL);
        }
        (identifier.channel, identifier.qp_for_requests)
    };
    // SAFETY: `find` found the memory of `listen`. The event and the request's identifier live
    // until the event is acknowledged, and only this function and the program know them.
    unsafe {
        acknowledge_held_event(manager, listen);
        let event = next_event(manager, channel)?;
        let request = (*event).id;
        let result = (|| {
            if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST {
                return Err(Errno::EINVAL);
            }
            if let Some((pd, QpInitAttr(mut attr))) = qp
                && rdma_create_qp(request, pd.0, &raw mut attr) != 0
            {
                return Err(Errno::last());
            }
            Ok(request)
        })();
        match result {
            Ok(request) => (*request).event = event,
            Err(_) => (*listen).event = event,
        }
        result
    }
}
