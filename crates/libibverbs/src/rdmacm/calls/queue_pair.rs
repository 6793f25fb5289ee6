//! Calls for the queue pair of an identifier, its completion queues and its shared receive queue.

use std::ffi::c_int;
use std::ptr;

use nix::errno::Errno;

use super::with_manager;
use crate::calls::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::calls::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::calls::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use crate::calls::srq::{create_srq_ex, ibv_destroy_srq};
use crate::calls::wr_calls::create_qp_ex;
use crate::rdmacm::cm_event::IdHandle;
use crate::rdmacm::manager::{Manager, manager};
use crate::rdmacm::qp_attributes::qp_attributes;
use crate::rdmacm::rdma_port::PortSpace;
use crate::rdmacm::return_code::{check_errno, check_pointer};
use mitra_verbs_abi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `rdma_create_qp` requires a protection domain that is null or live, and valid
    // attributes.
    with_manager("rdma_create_qp", |manager| unsafe {
        create(manager, id, pd, qp_init_attr, |pd, attr| {
            if (*attr).qp_type != IBV_QPT_XRC_RECV {
                return check_pointer(ibv_create_qp(pd, attr));
            }
            // SAFETY: the attributes consist of integers and pointers, for which zeros are valid.
            let mut extended: ibv_qp_init_attr_ex = std::mem::zeroed();
            (&raw mut extended).cast::<ibv_qp_init_attr>().write(*attr);
            // `comp_mask` overlaps the padding of the shorter structure, whose bytes are arbitrary.
            extended.comp_mask = 0;
            create_extended(manager, pd, &raw mut extended)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: `rdma_create_qp_ex` requires valid attributes, and `ibv_qp_init_attr` is a prefix of
    // `ibv_qp_init_attr_ex`.
    with_manager("rdma_create_qp_ex", |manager| unsafe {
        let has_pd = (*qp_init_attr).comp_mask & IBV_QP_INIT_ATTR_PD != 0;
        let pd = if has_pd { (*qp_init_attr).pd } else { ptr::null_mut() };
        create(manager, id, pd, qp_init_attr.cast(), |pd, _| create_extended(manager, pd, qp_init_attr))
    })
}

/// Creates a queue pair. If the program gives an XRC receive queue pair no XRC domain, the queue
/// pair gets the device's domain, as with librdmacm.
///
/// # Safety
/// `pd` is live, and `attr` is valid.
unsafe fn create_extended(
    manager: &Manager,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: by the contract.
    unsafe {
        let has_xrcd = (*attr).comp_mask & IBV_QP_INIT_ATTR_XRCD != 0 && !(*attr).xrcd.is_null();
        if (*attr).qp_type == IBV_QPT_XRC_RECV && !has_xrcd {
            (*attr).xrcd = manager.xrc_domain()?;
            (*attr).comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        }
        (*attr).pd = pd;
        (*attr).comp_mask |= IBV_QP_INIT_ATTR_PD;
        check_pointer(create_qp_ex((*pd).context, attr))
    }
}

/// Creates an identifier's queue pair, and the completion queues that the program does not provide.
/// Brings a connected queue pair to INIT, where the program can post receives, and a datagram queue
/// pair to RTS.
///
/// # Safety
/// `pd` is null or live, `attr` is valid, and no other thread uses the identifier.
unsafe fn create(
    manager: &Manager,
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
    make: impl FnOnce(*mut ibv_pd, *mut ibv_qp_init_attr) -> Result<*mut ibv_qp, Errno>,
) -> Result<(), Errno> {
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    let states = match identifier.space {
        PortSpace::Tcp => &TO_RTS[..1],
        PortSpace::Udp => &TO_RTS[..],
    };
    drop(state);
    // SAFETY: `find` found the memory, so the identifier is live. Its objects are null or live,
    // because the calls that destroy them set the fields to null. The rest is by the contract.
    unsafe {
        let pd = if pd.is_null() { (*id).pd } else { pd };
        // Refused: no device is bound, a queue pair exists, or the protection domain belongs to
        // another context.
        if (*id).verbs.is_null() || !(*id).qp.is_null() || pd.is_null() || (*pd).context != (*id).verbs {
            return Err(Errno::EINVAL);
        }
        let differs =
            |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
        if differs((*id).send_cq, (*attr).send_cq) || differs((*id).recv_cq, (*attr).recv_cq) {
            return Err(Errno::EINVAL);
        }
        let created = (|| {
            if (*attr).recv_cq.is_null() {
                let depth = (*attr).cap.max_recv_wr;
                (*attr).recv_cq = own_cq(id, depth, &raw mut (*id).recv_cq_channel, &raw mut (*id).recv_cq)?;
            }
            if (*attr).send_cq.is_null() {
                let depth = (*attr).cap.max_send_wr;
                (*attr).send_cq = own_cq(id, depth, &raw mut (*id).send_cq_channel, &raw mut (*id).send_cq)?;
            }
            if (*attr).srq.is_null() {
                (*attr).srq = (*id).srq;
            }
            let qp = make(pd, attr)?;
            modify(manager, handle, qp, states).map(|()| qp).inspect_err(|_| {
                ibv_destroy_qp(qp);
            })
        })();
        (*id).qp = created.inspect_err(|_| destroy_cqs(id))?;
        (*id).pd = pd;
        Ok(())
    }
}

/// Returns the completion queue in the field `cq`. If the field is null, creates the completion
/// queue and its channel. Like librdmacm, creates nothing for `depth` 0.
///
/// # Safety
/// `id` is the memory of a live identifier that is bound to the device; `channel` and `cq` are
/// fields of `id`.
unsafe fn own_cq(
    id: *mut rdma_cm_id,
    depth: u32,
    channel: *mut *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
) -> Result<*mut ibv_cq, Errno> {
    // SAFETY: by the contract the context in `verbs` is open and the fields are writable.
    unsafe {
        if (*cq).is_null() && depth > 0 {
            let depth = c_int::try_from(depth).map_err(|_| Errno::EINVAL)?;
            *channel = check_pointer(ibv_create_comp_channel((*id).verbs))?;
            let created = check_pointer(ibv_create_cq((*id).verbs, depth, id.cast(), *channel, 0));
            if created.is_err() && ibv_destroy_comp_channel(*channel) == 0 {
                *channel = ptr::null_mut();
            }
            *cq = created?;
        }
        Ok(*cq)
    }
}

/// Destroys the completion queues of [`own_cq`], except a completion queue that a shared receive
/// queue uses.
///
/// # Safety
/// `id` is the memory of a live identifier.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: by the contract the fields are writable. Each object that is not null is a live
    // object of `own_cq`.
    unsafe {
        for cq in [&raw mut (*id).recv_cq, &raw mut (*id).send_cq] {
            if !(*cq).is_null() && ibv_destroy_cq(*cq) == 0 {
                *cq = ptr::null_mut();
            }
        }
        for channel in [&raw mut (*id).recv_cq_channel, &raw mut (*id).send_cq_channel] {
            if !(*channel).is_null() && ibv_destroy_comp_channel(*channel) == 0 {
                *channel = ptr::null_mut();
            }
        }
    }
}

/// The states on the way to RTS. A connected queue pair needs the peer's parameters for RTR and
/// RTS.
const TO_RTS: [ibv_qp_state; 3] = [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS];

/// Brings an identifier's queue pair to RTS with the negotiated parameters.
///
/// # Errors
/// `EINVAL` before the peer's parameters are known, or the error of `ibv_modify_qp`.
///
/// # Safety
/// `id` is the memory of the live identifier with this handle and has a live queue pair.
pub unsafe fn connect(manager: &Manager, handle: IdHandle, id: *mut rdma_cm_id) -> Result<(), Errno> {
    // INIT is repeated, because the access flags depend on the negotiated parameters.
    // SAFETY: by the contract.
    unsafe { modify(manager, handle, (*id).qp, &TO_RTS) }
}

/// Modifies the queue pair to each of `states` with the identifier's attributes.
///
/// # Safety
/// `qp` is a live queue pair.
unsafe fn modify(
    manager: &Manager,
    handle: IdHandle,
    qp: *mut ibv_qp,
    states: &[ibv_qp_state],
) -> Result<(), Errno> {
    let device = manager.device()?;
    states.iter().try_for_each(|to| {
        let (mut attr, mask) = qp_attributes(*to, manager.lock().get(handle)?, &device)?;
        // SAFETY: by the contract `qp` is live, and `attr` is a local variable.
        check_errno(unsafe { ibv_modify_qp(qp, &raw mut attr, mask as c_int) })
    })
}

/// Brings an identifier's queue pair, if there is one, to ERR, which flushes the work requests. A
/// failure is ignored: a queue pair that cannot enter ERR has nothing to flush.
///
/// # Safety
/// `id` is the memory of a live identifier, and its `qp` is null or live.
pub unsafe fn flush(id: *mut rdma_cm_id) {
    // SAFETY: by the contract. `ibv_qp_attr` consists of integers, for which zeros are valid.
    unsafe {
        if !(*id).qp.is_null() {
            let mut attr: ibv_qp_attr = std::mem::zeroed();
            attr.qp_state = IBV_QPS_ERR;
            ibv_modify_qp((*id).qp, &raw mut attr, IBV_QP_STATE as c_int);
        }
    }
}

fn is_known(id: *mut rdma_cm_id) -> bool {
    manager().is_ok_and(|manager| manager.lock().handle(id).is_ok())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    if !is_known(id) {
        return;
    }
    // SAFETY: `is_known` found the memory, and a queue pair that is not null is live.
    unsafe {
        if !(*id).qp.is_null() {
            ibv_destroy_qp((*id).qp);
            (*id).qp = ptr::null_mut();
        }
        destroy_cqs(id);
    }
}

/// For programs that modify their queue pair themselves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    with_manager("rdma_init_qp_attr", |manager| {
        let device = manager.device()?;
        let mut state = manager.lock();
        let (_, identifier) = state.find(id)?;
        // `qp_state` holds the state that the program asks for.
        // SAFETY: `rdma_init_qp_attr` requires valid pointers.
        unsafe {
            let (attr, mask) = qp_attributes((*qp_attr).qp_state, identifier, &device)?;
            *qp_attr = attr;
            *qp_attr_mask = mask as c_int;
        }
        Ok(())
    })
}

/// As with librdmacm, an identifier for XRC gets a shared receive queue for XRC.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: `rdma_create_srq` requires a protection domain that is null or live, and valid
    // attributes. Extended attributes consist of integers and pointers, for which zeros are valid.
    with_manager("rdma_create_srq", |manager| unsafe {
        manager.lock().handle(id)?;
        let is_xrc = matches!((*id).qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV);
        let mut extended: ibv_srq_init_attr_ex = std::mem::zeroed();
        (extended.srq_context, extended.attr, extended.pd) = ((*attr).srq_context, (*attr).attr, pd);
        extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        extended.srq_type = if is_xrc { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
        create_srq(manager, id, &mut extended)?;
        (*attr).attr = extended.attr;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    // SAFETY: `rdma_create_srq_ex` requires valid attributes.
    with_manager("rdma_create_srq_ex", |manager| unsafe { create_srq(manager, id, &mut *attr) })
}

/// Creates an identifier's shared receive queue. For XRC, the queue needs an XRC domain and a
/// completion queue. If the program does not provide them, the queue gets the device's XRC domain
/// and a completion queue of the identifier.
///
/// # Safety
/// `attr` is valid, its protection domain is null or live, and no other thread uses the identifier.
unsafe fn create_srq(
    manager: &Manager,
    id: *mut rdma_cm_id,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<(), Errno> {
    manager.lock().handle(id)?;
    let has = |mask, bit| mask & bit != 0;
    // SAFETY: `handle` found the memory, so the identifier is live. Its objects are null or live.
    // The rest is by the contract.
    unsafe {
        if !has(attr.comp_mask, IBV_SRQ_INIT_ATTR_PD) || attr.pd.is_null() {
            attr.pd = (*id).pd;
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        }
        if !has(attr.comp_mask, IBV_SRQ_INIT_ATTR_TYPE) || attr.pd.is_null() || !(*id).srq.is_null() {
            return Err(Errno::EINVAL);
        }
        if attr.srq_type == IBV_SRQT_XRC {
            if !has(attr.comp_mask, IBV_SRQ_INIT_ATTR_XRCD) || attr.xrcd.is_null() {
                attr.xrcd = manager.xrc_domain()?;
            }
            if !has(attr.comp_mask, IBV_SRQ_INIT_ATTR_CQ) || attr.cq.is_null() {
                let depth = attr.attr.max_wr;
                attr.cq = own_cq(id, depth, &raw mut (*id).recv_cq_channel, &raw mut (*id).recv_cq)?;
            }
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        }
        let pd = attr.pd;
        let created = check_pointer(create_srq_ex((*pd).context, attr));
        if created.is_err() && (*id).qp.is_null() {
            if attr.cq == (*id).recv_cq {
                // The program may call again with these attributes, which must not name a destroyed
                // queue.
                attr.cq = ptr::null_mut();
            }
            destroy_cqs(id);
        }
        (*id).srq = created?;
        (*id).pd = pd;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    if !is_known(id) {
        return;
    }
    // SAFETY: `is_known` found the memory, and a shared receive queue that is not null is live.
    unsafe {
        if !(*id).srq.is_null() {
            ibv_destroy_srq((*id).srq);
            (*id).srq = ptr::null_mut();
        }
        // If the queue pair was destroyed first, `rdma_destroy_qp` kept the completion queue that
        // the shared receive queue used.
        if (*id).qp.is_null() {
            destroy_cqs(id);
        }
    }
}
