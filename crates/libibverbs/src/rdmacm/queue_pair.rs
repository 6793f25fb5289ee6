//! Queue pairs, their completion queues and shared receive queues on identifiers.

use std::ffi::c_int;
use std::ptr;

use nix::errno::Errno;

use super::attributes::attributes;
use super::manager::{Manager, manager};
use super::socket::Space;
use super::state::Handle;
use super::{answer, checked, made};
use crate::abi::*;
use crate::calls::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::calls::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::calls::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use crate::calls::qp_ex::create_qp_ex;
use crate::calls::srq::{ibv_create_srq, ibv_destroy_srq};

/// `rdma_create_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program's identifier, protection domain and attributes.
    answer(unsafe { create(id, pd, qp_init_attr, |pd, attr| made(ibv_create_qp(pd, attr))) })
}

/// `rdma_create_qp_ex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the program's attributes, of which `ibv_qp_init_attr` is the prefix.
    answer(unsafe {
        let has_pd = (*qp_init_attr).comp_mask & IBV_QP_INIT_ATTR_PD != 0;
        let pd = if has_pd { (*qp_init_attr).pd } else { ptr::null_mut() };
        create(id, pd, qp_init_attr.cast(), |pd, _| {
            (*qp_init_attr).comp_mask |= IBV_QP_INIT_ATTR_PD;
            (*qp_init_attr).pd = pd;
            made(create_qp_ex((*pd).context, qp_init_attr))
        })
    })
}

/// Makes an identifier's QP, with completion queues where the program brings none, and readies it for receives; one for
/// datagrams, for all.
unsafe fn create(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
    make: impl FnOnce(*mut ibv_pd, *mut ibv_qp_init_attr) -> Result<*mut ibv_qp, Errno>,
) -> Result<(), Errno> {
    let manager = manager()?;
    let handle = manager.lock().handle(id)?;
    // SAFETY: `handle` knew the identifier; the attributes are the program's.
    unsafe {
        let pd = if pd.is_null() { (*id).pd } else { pd };
        // Not bound to a device, a QP already, or another device's protection domain.
        if (*id).verbs.is_null() || !(*id).qp.is_null() || pd.is_null() || (*pd).context != (*id).verbs {
            return Err(Errno::EINVAL);
        }
        let differs =
            |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
        if differs((*id).send_cq, (*attr).send_cq) || differs((*id).recv_cq, (*attr).recv_cq) {
            return Err(Errno::EINVAL);
        }
        let made_qp = (|| {
            if (*attr).recv_cq.is_null() {
                if (*id).recv_cq.is_null() {
                    let depth = (*attr).cap.max_recv_wr;
                    create_cq(id, depth, &raw mut (*id).recv_cq_channel, &raw mut (*id).recv_cq)?;
                }
                (*attr).recv_cq = (*id).recv_cq;
            }
            if (*attr).send_cq.is_null() {
                if (*id).send_cq.is_null() {
                    let depth = (*attr).cap.max_send_wr;
                    create_cq(id, depth, &raw mut (*id).send_cq_channel, &raw mut (*id).send_cq)?;
                }
                (*attr).send_cq = (*id).send_cq;
            }
            if (*attr).srq.is_null() {
                (*attr).srq = (*id).srq;
            }
            let qp = make(pd, attr)?;
            match ready(manager, handle, qp) {
                Ok(()) => Ok(qp),
                Err(errno) => {
                    ibv_destroy_qp(qp);
                    Err(errno)
                }
            }
        })();
        match made_qp {
            Ok(qp) => {
                (*id).pd = pd;
                (*id).qp = qp;
                Ok(())
            }
            Err(errno) => {
                destroy_cqs(id);
                Err(errno)
            }
        }
    }
}

/// A completion queue with its channel, for `depth` completions; none for none, as librdmacm has it.
unsafe fn create_cq(
    id: *mut rdma_cm_id,
    depth: u32,
    channel: *mut *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
) -> Result<(), Errno> {
    if depth == 0 {
        return Ok(());
    }
    let depth = c_int::try_from(depth).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the caller's identifier is bound to a device, and the places are in it.
    unsafe {
        *channel = made(ibv_create_comp_channel((*id).verbs))?;
        *cq = made(ibv_create_cq((*id).verbs, depth, id.cast(), *channel, 0))?;
    }
    Ok(())
}

/// Destroys the completion queues that came with the identifier's QP.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: the caller's identifier; what is there was made by `create_cq`.
    unsafe {
        for cq in [&raw mut (*id).recv_cq, &raw mut (*id).send_cq] {
            if !(*cq).is_null() {
                ibv_destroy_cq(*cq);
                *cq = ptr::null_mut();
            }
        }
        for channel in [&raw mut (*id).recv_cq_channel, &raw mut (*id).send_cq_channel] {
            if !(*channel).is_null() {
                ibv_destroy_comp_channel(*channel);
                *channel = ptr::null_mut();
            }
        }
    }
}

/// Brings a new QP as far as it can go without a peer.
unsafe fn ready(manager: &Manager, handle: Handle, qp: *mut ibv_qp) -> Result<(), Errno> {
    let is_datagram = manager.lock().get(handle)?.space == Space::Udp;
    // SAFETY: the caller's QP.
    unsafe {
        step(manager, handle, qp, IBV_QPS_INIT)?;
        if is_datagram {
            step(manager, handle, qp, IBV_QPS_RTR)?;
            step(manager, handle, qp, IBV_QPS_RTS)?;
        }
    }
    Ok(())
}

/// Connects an identifier's QP as agreed.
///
/// # Safety
/// `id` is the identifier's memory and has a QP.
pub unsafe fn connect(manager: &Manager, handle: Handle, id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: by the contract.
    unsafe {
        // Again, since what the peer may do is known only now.
        step(manager, handle, (*id).qp, IBV_QPS_INIT)?;
        step(manager, handle, (*id).qp, IBV_QPS_RTR)?;
        step(manager, handle, (*id).qp, IBV_QPS_RTS)
    }
}

unsafe fn step(manager: &Manager, handle: Handle, qp: *mut ibv_qp, to: ibv_qp_state) -> Result<(), Errno> {
    let device = manager.device()?;
    let (mut attr, mask) = attributes(to, manager.lock().get(handle)?, &device)?;
    // SAFETY: the caller's QP.
    checked(unsafe { ibv_modify_qp(qp, &raw mut attr, mask as c_int) })
}

/// Flushes what was posted on an identifier's QP, if it has one.
///
/// # Safety
/// `id` is an identifier's memory.
pub unsafe fn to_error(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: by the contract; zeros are valid for integers.
    unsafe {
        if (*id).qp.is_null() {
            return Ok(());
        }
        let mut attr: ibv_qp_attr = std::mem::zeroed();
        attr.qp_state = IBV_QPS_ERR;
        checked(ibv_modify_qp((*id).qp, &raw mut attr, IBV_QP_STATE as c_int))
    }
}

/// Whether an identifier is this process', and was not destroyed.
fn is_known(id: *mut rdma_cm_id) -> bool {
    manager().is_ok_and(|manager| manager.lock().handle(id).is_ok())
}

/// `rdma_destroy_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    if !is_known(id) {
        return;
    }
    // SAFETY: it is known.
    unsafe {
        if !(*id).qp.is_null() {
            ibv_destroy_qp((*id).qp);
            (*id).qp = ptr::null_mut();
        }
        destroy_cqs(id);
    }
}

/// `rdma_init_qp_attr`: for programs that move their QP themselves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    let init = || {
        let manager = manager()?;
        let device = manager.device()?;
        let mut state = manager.lock();
        let (_, identifier) = state.find(id)?;
        // SAFETY: the program's places, the first with the state that it wants.
        unsafe {
            let (attr, mask) = attributes((*qp_attr).qp_state, identifier, &device)?;
            *qp_attr = attr;
            *qp_attr_mask = mask as c_int;
        }
        Ok(())
    };
    answer(init())
}

/// `rdma_create_srq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the program's identifier, protection domain and attributes.
    answer(unsafe { create_srq(id, pd, attr) })
}

/// `rdma_create_srq_ex`: of the basic kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    // SAFETY: the program's attributes, of which `ibv_srq_init_attr` is the prefix.
    answer(unsafe {
        if (*attr).comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
            Err(Errno::EINVAL)
        } else if (*attr).srq_type != IBV_SRQT_BASIC {
            Err(Errno::EOPNOTSUPP)
        } else {
            let has_pd = (*attr).comp_mask & IBV_SRQ_INIT_ATTR_PD != 0;
            create_srq(id, if has_pd { (*attr).pd } else { ptr::null_mut() }, attr.cast())
        }
    })
}

unsafe fn create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> Result<(), Errno> {
    manager()?.lock().handle(id)?;
    // SAFETY: `handle` knew the identifier; the rest is the program's.
    unsafe {
        let pd = if pd.is_null() { (*id).pd } else { pd };
        if pd.is_null() || !(*id).srq.is_null() {
            return Err(Errno::EINVAL);
        }
        (*id).srq = made(ibv_create_srq(pd, attr))?;
        (*id).pd = pd;
    }
    Ok(())
}

/// `rdma_destroy_srq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    if !is_known(id) {
        return;
    }
    // SAFETY: it is known.
    unsafe {
        if !(*id).srq.is_null() {
            ibv_destroy_srq((*id).srq);
            (*id).srq = ptr::null_mut();
        }
    }
}
