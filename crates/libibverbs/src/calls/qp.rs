//! Queue pairs: `ibv_create_qp`, `ibv_modify_qp`, `ibv_query_qp` and `ibv_destroy_qp`.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Mutex};

use mitra_verbs::{Error, Limits, QpCap, QpInitAttr, QpType, Result};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{Context, destroy_with_context, find_with_context};
use super::cq::Cq;
use super::pd::{Pd, PdMember};
use super::qp_attr;
use super::srq::Srq;
use super::wr_builder::WrBuilder;
use crate::common::errno::{pointer, refuse, status};
use crate::common::limit::check_limit;
use crate::common::lock::lock;
use crate::common::refusal::note_granted_inline;
use crate::common::unacknowledged_events::UnacknowledgedEvents;
use crate::rails::device::{QpParts, QueuePair};
use mitra_verbs_abi::*;

/// A queue pair. `ibv_qp_to_qp_ex` casts from `ibv_qp` to `ibv_qp_ex`, so every queue pair begins
/// with the larger structure.
#[repr(C)]
pub(crate) struct Qp {
    header: AbiHeader<ibv_qp_ex>,
    pub(crate) object: Arc<dyn QueuePair>,
    pub(crate) qp_type: QpType,
    pub(crate) events: UnacknowledgedEvents,
    pub(crate) wr_builder: WrBuilder,
    cap: ibv_qp_cap,
    sq_sig_all: bool,
    /// Whether the queue pair receives its own datagrams to its multicast groups.
    pub(crate) mcast_loopback: bool,
    /// The address vector that the program has set last, for `ibv_query_qp`.
    address_vector: Mutex<Option<ibv_ah_attr>>,
    /// In the protection domain, or in the XRC domain of an XRC receive queue pair.
    _pd: PdMember,
}

abi_object!(Qp: ibv_qp_ex, "queue pair", qp_base.handle, qp_base.context);

/// The inline capacity in bytes that every queue pair has at least. Some programs, such as
/// rdma_xclient, send a few bytes of inline data without having requested the capacity.
const MIN_INLINE_BYTES: u32 = 64;

impl Qp {
    /// Returns a queue pair without queues. `chosen` has the fields that the program has chosen.
    pub(crate) fn new(
        context: &Context,
        chosen: ibv_qp,
        object: Arc<dyn QueuePair>,
        qp_type: QpType,
        member: PdMember,
    ) -> Qp {
        let number = object.qpn().value();
        let qp_base = ibv_qp { context: context.address(), handle: number, qp_num: number, ..chosen };
        Qp {
            header: AbiHeader::new(ibv_qp_ex { qp_base, ..ibv_qp_ex::zeroed() }),
            object,
            qp_type,
            events: UnacknowledgedEvents::default(),
            wr_builder: WrBuilder::default(),
            cap: ibv_qp_cap::zeroed(),
            sq_sig_all: false,
            mcast_loopback: false,
            address_vector: Mutex::default(),
            _pd: member,
        }
    }

    /// # Errors
    /// The errors of [`AbiObject::find`].
    ///
    /// # Safety
    /// The requirements of [`AbiObject::find`], for the `ibv_qp_ex` at the same address.
    pub(crate) unsafe fn find_ibv_qp<'a>(qp: *mut ibv_qp) -> Result<&'a Qp> {
        // SAFETY: every `ibv_qp` that a program knows is the first field of an `ibv_qp_ex`, which
        // is the C structure of a `Qp`. The caller upholds the requirements of `find`.
        unsafe { Qp::find(qp.cast()) }
    }
}

/// # Errors
/// `Unsupported` for any type other than RC, UC, UD and XRC, and `Invalid` for an XRC receive queue
/// pair, which `ibv_create_qp_ex` creates.
fn transport_type(qp_type: ibv_qp_type) -> Result<QpType> {
    match qp_type {
        IBV_QPT_RC => Ok(QpType::Rc),
        IBV_QPT_UC => Ok(QpType::Uc),
        IBV_QPT_UD => Ok(QpType::Ud),
        IBV_QPT_XRC_SEND => Ok(QpType::XrcSend),
        IBV_QPT_XRC_RECV => Err(Error::Invalid(
            "an XRC receive queue pair needs an XRC domain; create it with ibv_create_qp_ex",
        )),
        _ => {
            Err(Error::Unsupported("raw packet or driver queue pairs; create one of type RC, UC, UD or XRC"))
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    pointer("ibv_create_qp", unsafe { create(pd, &mut *init, true) }).cast()
}

/// Creates a queue pair, and writes the granted capacities back to `init`.
///
/// # Errors
/// `Invalid` if a completion queue is null (an XRC send queue pair needs none for receives) or the
/// shared receive queue is for XRC, `Unsupported` for a type that the device does not have.
/// Otherwise the errors of [`Device::create_qp`](crate::rails::device::Device::create_qp).
///
/// # Safety
/// `pd`, the completion queues and the shared receive queue are objects of the program. The queues
/// may be null.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    mcast_loopback: bool,
) -> Result<*mut ibv_qp_ex> {
    let qp_type = transport_type(init.qp_type)?;
    // An XRC send queue pair ignores the queues for receives, as in the kernel.
    let sends_only = qp_type == QpType::XrcSend;
    if init.send_cq.is_null() || (init.recv_cq.is_null() && !sends_only) {
        return Err(Error::Invalid(
            "a queue pair needs a completion queue for sends and one for receives; set send_cq and recv_cq",
        ));
    }
    let recv_cq = if sends_only { init.send_cq } else { init.recv_cq };
    let srq = if sends_only { ptr::null_mut() } else { init.srq };
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let ((domain, context), send_cq, recv_cq, srq) = unsafe {
        let srq = if srq.is_null() { None } else { Some(Srq::find(srq)?) };
        (find_with_context::<Pd>(pd)?, Cq::find(init.send_cq)?, Cq::find(recv_cq)?, srq)
    };
    if srq.is_some_and(|srq| srq.xrcd.is_some()) {
        return Err(Error::Invalid(
            "only XRC messages reach an XRC shared receive queue; create one without an XRC domain",
        ));
    }
    let mut cap = init.cap;
    // A provider may grant more than the program requests (`ibv_create_qp(3)`).
    let limits = context.rails.device.limits();
    cap.max_inline_data = cap.max_inline_data.max(MIN_INLINE_BYTES.min(limits.inline));
    if srq.is_some() || sends_only {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let attr = QpInitAttr {
        qp_type,
        pd: domain.id,
        send_cq: send_cq.queue.id(),
        recv_cq: recv_cq.queue.id(),
        srq: srq.map(|srq| srq.queue.id()),
        cap: QpCap {
            send_wrs: cap.max_send_wr,
            recv_wrs: cap.max_recv_wr,
            send_sges: cap.max_send_sge,
            recv_sges: cap.max_recv_sge,
            inline: cap.max_inline_data,
        },
        sq_sig_all: init.sq_sig_all != 0,
    };
    check_capacities(&attr.cap, &limits)?;
    let (send_cq, recv_cq, srq) = (&send_cq.queue, &recv_cq.queue, srq.map(|srq| &srq.queue));
    let parts = QpParts { send_cq, recv_cq, srq };
    let object = context.rails.device.create_qp(attr, Some(parts))?;
    let qpn = object.qpn();
    let chosen = ibv_qp {
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        qp_type: init.qp_type,
        ..ibv_qp::zeroed()
    };
    let qp = Qp {
        cap,
        sq_sig_all: attr.sq_sig_all,
        mcast_loopback,
        ..Qp::new(context, chosen, object, qp_type, PdMember::clone(&domain.member))
    }
    .into_raw();
    init.cap = cap;
    note_granted_inline(cap.max_inline_data);
    context.rails.objects().qps.insert(qpn, context.object_entry(qp as usize));
    Ok(qp)
}

/// # Errors
/// `Limit` if a capacity exceeds the limit that `ibv_query_device` reports. A NIC's own limits may
/// be higher than those of a device with several rails.
fn check_capacities(cap: &QpCap, limits: &Limits) -> Result<()> {
    check_limit("send queue entries", cap.send_wrs, limits.wrs)?;
    check_limit("receive queue entries", cap.recv_wrs, limits.wrs)?;
    check_limit("gather entries of a send", cap.send_sges, limits.sges)?;
    check_limit("scatter entries of a receive", cap.recv_sges, limits.sges)?;
    check_limit("bytes of inline data", cap.inline, limits.inline)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let (object, attr) = unsafe { (Qp::find_ibv_qp(qp), &*attr) };
    let changed = object.and_then(|qp| {
        qp.object.modify(&qp_attr::from_c(attr, qp_attr::without_other_role(qp.qp_type, mask as u32))?)?;
        if mask as u32 & IBV_QP_AV != 0 {
            *lock(&qp.address_vector) = Some(attr.ah_attr);
        }
        Ok(())
    });
    if changed.is_ok() && mask as u32 & IBV_QP_STATE != 0 {
        // SAFETY: rule *exclusivity* (module `calls`): no other thread writes the field of this
        // queue pair now.
        unsafe { (*qp).state = attr.qp_state };
    }
    status("ibv_modify_qp", changed)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `qp` is not destroyed during the call.
    match unsafe { Qp::find_ibv_qp(qp) }.and_then(|qp| Ok((qp, qp.object.query()?))) {
        Ok((object, state)) => {
            let mut answer = qp_attr::to_c(&state);
            answer.cap = object.cap;
            answer.ah_attr = lock(&object.address_vector).unwrap_or(answer.ah_attr);
            // SAFETY: rules *structures* and *exclusivity* (module `calls`): `attr` and `init` are
            // valid for writing, and no other thread writes the queue pair's fields now.
            unsafe {
                // UCX keeps the state of its last change in the field, and asks for other
                // attributes after an error.
                if mask as u32 & IBV_QP_STATE != 0 {
                    (*qp).state = answer.qp_state;
                }
                qp_attr::write_answer(attr, &answer);
                init.write(ibv_qp_init_attr {
                    qp_context: (*qp).qp_context,
                    send_cq: (*qp).send_cq,
                    recv_cq: (*qp).recv_cq,
                    srq: (*qp).srq,
                    cap: object.cap,
                    qp_type: (*qp).qp_type,
                    sq_sig_all: object.sq_sig_all.into(),
                });
            }
            0
        }
        Err(error) => status("ibv_query_qp", Err(error)),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `qp` now.
    unsafe {
        destroy_with_context::<Qp>("ibv_destroy_qp", qp.cast(), |object, context| {
            end(object, context, qp as usize)
        })
    }
}

/// Ends the use of a queue pair. Afterwards no other thread finds its address.
fn end(qp: &Qp, context: &Context, address: usize) -> Result<()> {
    // The program may have overwritten the number in the C structure.
    let qpn = qp.object.qpn();
    if matches!(qp.qp_type, QpType::XrcRecv(_)) {
        // The queue pair itself is destroyed with the last of its `ibv_qp`s (`ibv_open_qp`).
        let mut is_last = false;
        context.remove_object(address, |objects| is_last = objects.remove_shared_qp(qpn, address));
        if is_last {
            context.rails.device.destroy_qp(&qp.object)?;
        }
    } else {
        context.rails.device.destroy_qp(&qp.object)?;
        context.remove_object(address, |objects| objects.qps.remove(&qpn));
    }
    qp.events.wait_for_all();
    Ok(())
}

/// Writes zeros, because the device has no enhanced connection establishment.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: rule *structures* (module `calls`): the pointer is valid.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: rule *structures* (module `calls`): the pointer is valid.
    let ece = unsafe { &*ece };
    if ece.comp_mask != 0 || ece.vendor_id != 0 {
        let reason = "the device has no enhanced connection establishment; offer the options that ibv_query_ece returns";
        return refuse("ibv_set_ece", libc::EOPNOTSUPP, reason);
    }
    0
}

/// Returns 0, which means that data may be written in any order. Mitra's NICs guarantee only that
/// the last *word* of a WRITE is written last.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: ibv_wr_opcode, _flags: u32) -> c_int {
    0
}
