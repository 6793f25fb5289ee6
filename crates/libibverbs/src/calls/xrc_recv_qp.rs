//! XRC receive queue pairs, of which the program may have several `ibv_qp`s.

use std::ptr;
use std::sync::Arc;

use mitra_verbs::{CqId, Error, PdId, QpCap, QpInitAttr, QpType, Qpn, Result};

use super::abi_object::AbiObject;
use super::context::{Context, find_with_context};
use super::pd::PdMember;
use super::qp::Qp;
use super::xrcd::Xrcd;
use crate::common::errno::pointer;
use crate::rails::device::QueuePair;
use crate::rails::object_table::SharedQp;
use mitra_verbs_abi::*;

/// Creates a queue pair of the type `IBV_QPT_XRC_RECV`. It has no queues and no protection domain.
///
/// # Errors
/// `Invalid` if the domain is null, or the errors of
/// [`Device::create_qp`](crate::rails::device::Device::create_qp).
///
/// # Safety
/// The XRC domain is null or an object of the program.
pub(crate) unsafe fn create(init: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp_ex> {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let (domain, context) = unsafe { find_with_context::<Xrcd>(init.xrcd)? };
    let no_queues = QpCap { send_wrs: 0, recv_wrs: 0, send_sges: 0, recv_sges: 0, inline: 0 };
    // The device does not read the protection domain and the completion queues.
    let attr = QpInitAttr {
        qp_type: QpType::XrcRecv(domain.id),
        pd: PdId(0),
        send_cq: CqId(0),
        recv_cq: CqId(0),
        srq: None,
        cap: no_queues,
        sq_sig_all: false,
    };
    let object = context.rails.device.create_qp(attr, None)?;
    init.cap = ibv_qp_cap::zeroed();
    let ibv_qp_init_attr_ex { qp_context, pd, send_cq, recv_cq, srq, .. } = *init;
    let chosen = ibv_qp { qp_context, pd, send_cq, recv_cq, srq, state: IBV_QPS_RESET, ..ibv_qp::zeroed() };
    Ok(recv_handle(context, domain, object, chosen))
}

/// Creates one more `ibv_qp` of an existing XRC receive queue pair of the domain.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let opened = unsafe { Context::find_raw(context).and_then(|context| open_existing_qp(context, &*attr)) };
    pointer("ibv_open_qp", opened).cast()
}

/// # Safety
/// The XRC domain is null or an object of the program.
unsafe fn open_existing_qp(context: &Context, attr: &ibv_qp_open_attr) -> Result<*mut ibv_qp_ex> {
    let required = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    if attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED {
        return Err(Error::Unsupported("an unknown bit in comp_mask; leave it out"));
    }
    if attr.comp_mask & required != required || attr.qp_type != IBV_QPT_XRC_RECV {
        return Err(Error::Invalid(
            "only an XRC receive queue pair can be opened, by number, domain and type",
        ));
    }
    // SAFETY: `IBV_QP_OPEN_ATTR_XRCD` is set, and the caller upholds the requirement (`# Safety`
    // above).
    let (domain, _) = unsafe { find_with_context::<Xrcd>(attr.xrcd)? };
    let qpn = Qpn::new(attr.qp_num);
    {
        let mut objects = context.rails.objects();
        let queue_pair = objects.shared_qps.get_mut(&qpn).filter(|queue_pair| queue_pair.domain == domain.id);
        let queue_pair = queue_pair.ok_or(Error::Invalid(
            "the XRC domain has no receive queue pair with this number; pass its qp_num and its domain",
        ))?;
        // The count keeps the queue pair from being destroyed until its new handle is in the table.
        queue_pair.handles_in_creation += 1;
    }
    let qp_context =
        if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 { attr.qp_context } else { ptr::null_mut() };
    // The count above keeps the queue pair from being destroyed.
    let object = context.rails.device.xrc_recv_qp(qpn);
    // The program has not changed the state through this handle, and the library does not query it
    // (rdma-core: `ibv_cmd_open_qp`).
    let chosen = ibv_qp { qp_context, state: IBV_QPS_UNKNOWN, ..ibv_qp::zeroed() };
    let qp = object.map(|object| recv_handle(context, domain, object, chosen));
    if let Some(queue_pair) = context.rails.objects().shared_qps.get_mut(&qpn) {
        queue_pair.handles_in_creation -= 1;
    }
    qp.ok_or(Error::Invalid("the XRC receive queue pair is being destroyed; open it before"))
}

/// `chosen` has the fields that the program has chosen, and the state.
fn recv_handle(context: &Context, domain: &Xrcd, qp: Arc<dyn QueuePair>, chosen: ibv_qp) -> *mut ibv_qp_ex {
    let (qp_type, qpn) = (QpType::XrcRecv(domain.id), qp.qpn());
    let member = PdMember::clone(&domain.member);
    let chosen = ibv_qp { qp_type: IBV_QPT_XRC_RECV, ..chosen };
    let qp = Qp::new(context, chosen, qp, qp_type, member).into_raw();
    let entry = context.object_entry(qp as usize);
    let mut objects = context.rails.objects();
    let queue_pair = objects.shared_qps.entry(qpn).or_insert_with(|| SharedQp::new(domain.id));
    queue_pair.handles.push(entry);
    qp
}
