//! Completions.

use std::ffi::c_int;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use mitra_verbs::{Key, Qpn, Result, Wc, WcOpcode, WcStatus};
use mitra_verbs_abi::*;
use nix::errno::Errno;

use crate::hard_nic::QpTable;
use crate::objects::Cq;
use crate::qp::Qp;
use crate::work_ids::{QueueKind, WorkId};

/// The number of completions that are taken from the device in one call.
const BATCH: usize = 16;

/// The bit with which soft-RoCE marks the receive of a SEND with invalidate: the kernel's number of
/// the flag (`IB_WC_WITH_INVALIDATE`), which is another flag in user space (`IBV_WC_IP_CSUM_OK`).
const RXE_WITH_INV: u32 = 1 << 2;

/// Appends up to `max` completions to `out`, and returns their number.
pub(crate) fn poll(qps: &QpTable, cq: &Cq, is_rxe: bool, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
    let mut count = 0;
    if cq.has_kept.load(Ordering::Acquire) {
        let mut kept = cq.kept.lock().unwrap_or_else(PoisonError::into_inner);
        count = max.min(kept.len());
        out.extend(kept.drain(..count));
        cq.has_kept.store(!kept.is_empty(), Ordering::Release);
    }
    Ok(count + take(qps, cq, is_rxe, max - count, out)?)
}

/// Takes the completions that a device has written, because it discards those of a queue pair that
/// is destroyed. At most as many are kept as the queue has entries. The caller has locked `qps` for
/// writing, so that no thread polls.
pub(crate) fn keep(qps: &QpTable, cq: &Cq, is_rxe: bool) {
    let mut kept = cq.kept.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the queue exists.
    let entries = usize::try_from(unsafe { (*cq.raw).cqe }).unwrap_or_default();
    // If the device fails, it has no more completions.
    let _ = take(qps, cq, is_rxe, entries.saturating_sub(kept.len()), &mut kept);
    cq.has_kept.store(!kept.is_empty(), Ordering::Release);
}

/// Like [`poll`], of what the device has.
fn take(qps: &QpTable, cq: &Cq, is_rxe: bool, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
    let before = out.len();
    // SAFETY: the queue exists, and its context is open.
    let Some(poll_cq) = (unsafe { (*(*cq.raw).context).ops.poll_cq }) else {
        return Err(cq.context.error("polling a completion queue", Errno::EOPNOTSUPP));
    };
    while out.len() - before < max {
        let wanted = BATCH.min(max - (out.len() - before));
        // Zeroed, because drivers leave fields of failed requests unwritten.
        let mut wcs = [ibv_wc::zeroed(); BATCH];
        // SAFETY: the queue exists, and `wcs` has room for `wanted` completions.
        let count = unsafe { poll_cq(cq.raw, wanted as c_int, wcs.as_mut_ptr()) };
        if count == 0 {
            break;
        }
        let Ok(count) = usize::try_from(count) else {
            return Err(cq.context.error("polling a completion queue", Errno::EIO));
        };
        for wc in &wcs[..count] {
            out.extend(qps.get(&wc.qp_num).and_then(|qp| completion(qp, wc, is_rxe)));
        }
        if count < wanted {
            break;
        }
    }
    Ok(out.len() - before)
}

/// Translates a completion. Returns `None` for that of a request before the last RESET.
fn completion(qp: &Qp, wc: &ibv_wc, is_rxe: bool) -> Option<Wc> {
    let id = WorkId::decode(wc.wr_id)?;
    let is_send = id.kind == QueueKind::Send;
    let wr_id = match id.kind {
        QueueKind::Send => qp.sends.complete(id)?,
        QueueKind::Recv => qp.recvs.complete(id)?,
        QueueKind::Shared => {
            let posted = &qp.srq.as_ref()?.posted;
            posted.lock().unwrap_or_else(PoisonError::into_inner).remove(id)?
        }
    };
    let status = status_from(wc.status);
    if status != WcStatus::Success {
        let status = if is_send { qp.failed_send(status) } else { status };
        qp.follow_failure();
        let opcode = if is_send { WcOpcode::Send } else { WcOpcode::Recv };
        return Some(Wc { vendor_err: wc.vendor_err, ..Wc::new(wr_id, status, opcode, qp.qpn) });
    }
    let opcode = match wc.opcode {
        IBV_WC_RDMA_WRITE => WcOpcode::Write,
        IBV_WC_RDMA_READ => WcOpcode::Read,
        IBV_WC_COMP_SWAP => WcOpcode::CompareSwap,
        IBV_WC_FETCH_ADD => WcOpcode::FetchAdd,
        IBV_WC_BIND_MW => WcOpcode::BindWindow,
        IBV_WC_LOCAL_INV => WcOpcode::LocalInvalidate,
        IBV_WC_RECV_RDMA_WITH_IMM => WcOpcode::RecvWithImm,
        _ if is_send => WcOpcode::Send,
        _ => WcOpcode::Recv,
    };
    let has_length = !matches!(
        opcode,
        WcOpcode::Send | WcOpcode::Write | WcOpcode::BindWindow | WcOpcode::LocalInvalidate
    );
    let inv_flag = if is_rxe { RXE_WITH_INV | IBV_WC_WITH_INV } else { IBV_WC_WITH_INV };
    let has_imm = !is_send && wc.wc_flags & IBV_WC_WITH_IMM != 0;
    let has_key = !is_send && !has_imm && wc.wc_flags & inv_flag != 0;
    Some(Wc {
        byte_len: if has_length { wc.byte_len } else { 0 },
        imm: has_imm.then(|| u32::from_be(wc.imm_data)),
        invalidated: has_key.then_some(Key(wc.imm_data)),
        src_qp: Qpn::new(if is_send { 0 } else { wc.src_qp }),
        ..Wc::new(wr_id, status, opcode, qp.qpn)
    })
}

fn status_from(status: ibv_wc_status) -> WcStatus {
    match status {
        IBV_WC_SUCCESS => WcStatus::Success,
        IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        IBV_WC_LOC_PROT_ERR => WcStatus::LocalProtection,
        IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
        IBV_WC_MW_BIND_ERR => WcStatus::WindowBind,
        IBV_WC_BAD_RESP_ERR => WcStatus::BadResponse,
        IBV_WC_LOC_ACCESS_ERR => WcStatus::LocalAccess,
        IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequest,
        IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        IBV_WC_REM_OP_ERR => WcStatus::RemoteOperation,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => WcStatus::RetryExceeded,
        IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        // IBV_WC_LOC_QP_OP_ERR, and what no driver of RoCE reports.
        _ => WcStatus::LocalQpOperation,
    }
}
