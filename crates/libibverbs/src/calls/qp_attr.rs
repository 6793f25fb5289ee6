//! The conversion of queue pair attributes from and to `ibv_qp_attr`.

use std::mem::MaybeUninit;

use mitra_verbs::{Access, Error, Gid, Psn, QpAttr, QpState, QpStatus, QpType, Qpn, Result, SqDrain};

use super::mtu::{mtu_code, mtu_from_code};
use super::{ah, mr};
use mitra_verbs_abi::*;

/// The attributes that have no effect: `IBV_QP_CUR_STATE`, because every transition checks the
/// current state, and the attributes of path migration and SQD events, which the device does not
/// have.
const NO_EFFECT: u32 = IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_PATH_MIG_STATE;

/// Removes the attributes of the other end of an XRC connection from a mask, as the kernel's uverbs
/// do (`modify_qp_mask`). perftest sets the attributes of both roles at both ends.
pub(crate) fn without_other_role(qp_type: QpType, mask: u32) -> u32 {
    match qp_type {
        QpType::XrcSend => mask & !(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
        QpType::XrcRecv(_) => mask & !(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY),
        _ => mask,
    }
}

/// # Errors
/// `Unsupported` for an attribute or an access flag that the device does not have, or `Invalid` for
/// a state, a path MTU or an address that is not valid.
pub(crate) fn from_c(attr: &ibv_qp_attr, mask: u32) -> Result<QpAttr> {
    let known = NO_EFFECT
        | IBV_QP_STATE
        | IBV_QP_ACCESS_FLAGS
        | IBV_QP_PKEY_INDEX
        | IBV_QP_PORT
        | IBV_QP_QKEY
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER
        | IBV_QP_SQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_DEST_QPN;
    if mask & !known != 0 {
        return Err(Error::Unsupported(
            "alternate paths, resizing a queue pair or limiting its rate; leave their bits out of the mask",
        ));
    }
    let selected = |bit: u32| mask & bit != 0;
    Ok(QpAttr {
        state: selected(IBV_QP_STATE).then(|| state(attr.qp_state)).transpose()?,
        pkey_index: selected(IBV_QP_PKEY_INDEX).then_some(attr.pkey_index),
        port: selected(IBV_QP_PORT).then_some(attr.port_num),
        access: selected(IBV_QP_ACCESS_FLAGS).then(|| remote(attr.qp_access_flags)).transpose()?,
        qkey: selected(IBV_QP_QKEY).then_some(attr.qkey),
        dest_gid: selected(IBV_QP_AV).then(|| ah::destination(&attr.ah_attr)).transpose()?,
        dest_qpn: selected(IBV_QP_DEST_QPN).then(|| Qpn::new(attr.dest_qp_num)),
        path_mtu: selected(IBV_QP_PATH_MTU).then(|| mtu_from_code(attr.path_mtu)).transpose()?,
        rq_psn: selected(IBV_QP_RQ_PSN).then(|| Psn::new(attr.rq_psn)),
        sq_psn: selected(IBV_QP_SQ_PSN).then(|| Psn::new(attr.sq_psn)),
        max_rd_atomic: selected(IBV_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        max_dest_rd_atomic: selected(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        min_rnr_timer: selected(IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        timeout: selected(IBV_QP_TIMEOUT).then_some(attr.timeout),
        retry_cnt: selected(IBV_QP_RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: selected(IBV_QP_RNR_RETRY).then_some(attr.rnr_retry),
    })
}

/// Ignores flags of local access, because a queue pair checks only remote access.
fn remote(flags: u32) -> Result<Access> {
    Ok(mr::access(flags)? & Access::REMOTE)
}

fn state(code: ibv_qp_state) -> Result<QpState> {
    const STATES: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];
    STATES.into_iter().find(|state| state_code(*state) == code).ok_or(Error::Invalid(
        "qp_state is no state of a queue pair; use one of IBV_QPS_RESET to IBV_QPS_ERR",
    ))
}

fn state_code(state: QpState) -> ibv_qp_state {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::Rtr => IBV_QPS_RTR,
        QpState::Rts => IBV_QPS_RTS,
        QpState::Sqd => IBV_QPS_SQD,
        QpState::Sqe => IBV_QPS_SQE,
        QpState::Err => IBV_QPS_ERR,
    }
}

/// Writes the answer of `ibv_query_qp`. Leaves alone the two fields that rdma-core's library does
/// not write.
///
/// # Safety
/// `to` is valid for reading and writing, and need not be initialized.
pub(crate) unsafe fn write_answer(to: *mut ibv_qp_attr, answer: &ibv_qp_attr) {
    // SAFETY: the caller upholds the same requirement (`# Safety` above). `MaybeUninit` may hold
    // bytes that the program has not initialized.
    unsafe {
        let notify: *mut MaybeUninit<u8> = (&raw mut (*to).en_sqd_async_notify).cast();
        let rate_limit: *mut MaybeUninit<u32> = (&raw mut (*to).rate_limit).cast();
        let kept = (notify.read(), rate_limit.read());
        to.write(*answer);
        notify.write(kept.0);
        rate_limit.write(kept.1);
    }
}

/// Leaves out the capacities, which the NIC does not report.
pub(crate) fn to_c(status: &QpStatus) -> ibv_qp_attr {
    let attr = &status.attr;
    let mut out = ibv_qp_attr::zeroed();
    out.qp_state = state_code(status.state);
    out.cur_qp_state = out.qp_state;
    out.path_mtu = attr.path_mtu.map_or(0, mtu_code);
    out.path_mig_state = IBV_MIG_MIGRATED;
    out.qkey = attr.qkey.unwrap_or(0);
    out.rq_psn = status.rq_psn.value();
    out.sq_psn = status.sq_psn.value();
    out.dest_qp_num = attr.dest_qpn.map_or(0, |qpn| qpn.value());
    out.qp_access_flags = attr.access.map_or(0, |access| u32::from(access.bits()));
    out.ah_attr.is_global = attr.dest_gid.is_some().into();
    out.ah_attr.port_num = 1;
    out.ah_attr.grh.dgid = ibv_gid { raw: attr.dest_gid.unwrap_or(Gid([0; 16])).0 };
    out.pkey_index = attr.pkey_index.unwrap_or(0);
    out.sq_draining = (status.sq_drain == SqDrain::Draining).into();
    out.max_rd_atomic = attr.max_rd_atomic.unwrap_or(0);
    out.max_dest_rd_atomic = attr.max_dest_rd_atomic.unwrap_or(0);
    out.min_rnr_timer = attr.min_rnr_timer.unwrap_or(0);
    out.port_num = attr.port.unwrap_or(1);
    out.timeout = attr.timeout.unwrap_or(0);
    out.retry_cnt = attr.retry_cnt.unwrap_or(0);
    out.rnr_retry = attr.rnr_retry.unwrap_or(0);
    out
}
