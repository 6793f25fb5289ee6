//! Queue pairs: making, changing, asking and destroying them.

use std::ffi::c_int;
use std::sync::Arc;

use mitra_softnic::SoftNic;
use mitra_verbs::{
    Error, Gid, PostError, Provider, QpAttr, QpCap, QpInitAttr, QpStatus, QpType, Qpn, RecvWr, Result, SendWr,
};

use super::abi_object::{AbiHeader, AbiObject};
use super::context::Context;
use super::cq::Cq;
use super::pd::{Member, Pd};
use super::qp_attr;
use super::srq::Srq;
use super::wr_builder::WrBuilder;
use crate::abi::*;
use crate::common::errno::{log_failure, pointer, status};
use crate::common::unacknowledged::UnacknowledgedEvents;
use crate::rails::multi_rail::MultiRail;
use crate::rails::multi_rail_qp::{CreateParams, MultiRailQp};
use crate::rails::virtual_cq::VirtualCq;

/// A queue pair. `ibv_qp_to_qp_ex` casts, so every one has the extended header.
#[repr(C)]
pub(crate) struct Qp {
    header: AbiHeader<ibv_qp_ex>,
    path: Path,
    pub(crate) qp_type: QpType,
    pub(crate) events: UnacknowledgedEvents,
    pub(crate) wr_builder: WrBuilder,
    cap: ibv_qp_cap,
    sq_sig_all: bool,
    /// Whether it gets what it sends itself to a multicast group.
    own_mcast: bool,
    _pd: Member,
}

// SAFETY: `repr(C)`, header first; `ibv_qp` is its prefix.
unsafe impl AbiObject for Qp {
    type C = ibv_qp_ex;
}

/// Bytes of inline data that every queue pair takes.
const INLINE: u32 = 64;

/// What carries it.
enum Path {
    /// A NIC's queue pair.
    Nic(Arc<SoftNic>, Qpn),
    /// A virtual one, over several rails.
    MultiRail(Arc<MultiRail>, Arc<MultiRailQp>),
}

const CONNECTED: Error = Error::Invalid("only UD queue pairs can be attached to a multicast group");

impl Qp {
    pub(crate) fn post_send(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        match &self.path {
            Path::Nic(nic, qpn) => nic.post_send(*qpn, wrs),
            Path::MultiRail(_, qp) => qp.post_send(wrs),
        }
    }

    pub(crate) fn post_send_all(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        match &self.path {
            Path::Nic(nic, qpn) => nic.post_send_all(*qpn, wrs),
            Path::MultiRail(_, qp) => qp.post_send_all(wrs),
        }
    }

    pub(crate) fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        match &self.path {
            Path::Nic(nic, qpn) => nic.post_recv(*qpn, wrs),
            Path::MultiRail(_, qp) => qp.post_recv(wrs),
        }
    }

    fn modify(&self, attr: &QpAttr) -> Result<()> {
        match &self.path {
            Path::Nic(nic, qpn) => nic.modify_qp(*qpn, attr),
            Path::MultiRail(_, qp) => qp.modify(attr),
        }
    }

    fn query(&self) -> Result<QpStatus> {
        match &self.path {
            Path::Nic(nic, qpn) => nic.query_qp(*qpn),
            Path::MultiRail(_, qp) => Ok(qp.query()),
        }
    }

    fn destroy(&self) -> Result<()> {
        match &self.path {
            Path::Nic(nic, qpn) => nic.destroy_qp(*qpn),
            Path::MultiRail(multi_rail, qp) => {
                multi_rail.destroy_qp(Arc::clone(qp));
                Ok(())
            }
        }
    }

    pub(crate) fn attach_mcast(&self, group: Gid) -> Result<()> {
        match &self.path {
            Path::Nic(nic, qpn) => nic.attach_mcast(*qpn, group, self.own_mcast),
            Path::MultiRail(..) => Err(CONNECTED),
        }
    }

    pub(crate) fn detach_mcast(&self, group: Gid) -> Result<()> {
        match &self.path {
            Path::Nic(nic, qpn) => nic.detach_mcast(*qpn, group),
            Path::MultiRail(..) => Err(CONNECTED),
        }
    }

    /// The queue pair that the program means.
    ///
    /// # Safety
    /// As for [`AbiObject::of`].
    pub(crate) unsafe fn plain<'a>(qp: *mut ibv_qp) -> &'a Qp {
        // SAFETY: every `ibv_qp` that programs know is the prefix of such a header.
        unsafe { Qp::of(qp.cast()) }
    }
}

/// The transport service that a program asks for.
fn service(qp_type: ibv_qp_type) -> Result<QpType> {
    match qp_type {
        IBV_QPT_RC => Ok(QpType::Rc),
        IBV_QPT_UC => Ok(QpType::Uc),
        IBV_QPT_UD => Ok(QpType::Ud),
        _ => Err(Error::Unsupported("XRC, raw packet or driver queue pairs")),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: a protection domain and the caller's structure.
    pointer("ibv_create_qp", unsafe { create(pd, &mut *init, true) }).cast()
}

/// # Safety
/// As for `ibv_create_qp`.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    own_mcast: bool,
) -> Result<*mut ibv_qp_ex> {
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(Error::Invalid("a queue pair needs a completion queue for sends and one for receives"));
    }
    // SAFETY: the caller's promise.
    let (domain, context, send_cq, recv_cq, srq) = unsafe {
        (
            Pd::of(pd),
            Context::of((*pd).context),
            Cq::of(init.send_cq),
            Cq::of(init.recv_cq),
            (!init.srq.is_null()).then(|| Srq::of(init.srq)),
        )
    };
    let qp_type = service(init.qp_type)?;
    let cap = &mut init.cap;
    // As real providers do: what fits anyway is granted, and programs rely on a little (rdma_xclient).
    cap.max_inline_data = cap.max_inline_data.max(INLINE);
    if srq.is_some() {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let attr = QpInitAttr {
        qp_type,
        pd: domain.id,
        send_cq: send_cq.id,
        recv_cq: recv_cq.id,
        srq: srq.map(|srq| srq.id),
        cap: QpCap {
            send_wrs: cap.max_send_wr,
            recv_wrs: cap.max_recv_wr,
            send_sges: cap.max_send_sge,
            recv_sges: cap.max_recv_sge,
            inline: cap.max_inline_data,
        },
        sq_sig_all: init.sq_sig_all != 0,
    };
    let (path, qpn) = match &context.rails.multi_rail {
        Some(multi_rail) if qp_type == QpType::Rc => {
            let rails = Arc::downgrade(&context.rails);
            let on_event = Box::new(move |event| {
                if let Some(rails) = rails.upgrade() {
                    rails.deliver(event);
                }
            });
            let qp = multi_rail.create_qp(CreateParams {
                on_event,
                init: attr,
                send_cq: virtual_cq(send_cq)?,
                recv_cq: virtual_cq(recv_cq)?,
                srq: srq.and_then(|srq| srq.virtual_srq.clone()),
            })?;
            let qpn = qp.qpn();
            (Path::MultiRail(Arc::clone(multi_rail), qp), qpn)
        }
        Some(_) if srq.is_some() => {
            return Err(Error::Unsupported(
                "shared receive queues of datagrams where connections span rails",
            ));
        }
        _ => {
            let nic = context.rails.nic();
            let qpn = nic.create_qp(&attr)?;
            (Path::Nic(Arc::clone(nic), qpn), qpn)
        }
    };
    // SAFETY: integers, pointers and optional functions.
    let header: AbiHeader<ibv_qp_ex> = unsafe { AbiHeader::zeroed() };
    // SAFETY: nobody else has its address yet.
    let fields = unsafe { &mut (*header.get()).qp_base };
    fields.context = context.address();
    fields.qp_context = init.qp_context;
    fields.pd = pd;
    (fields.send_cq, fields.recv_cq, fields.srq) = (init.send_cq, init.recv_cq, init.srq);
    (fields.handle, fields.qp_num) = (qpn.value(), qpn.value());
    fields.state = IBV_QPS_RESET;
    fields.qp_type = init.qp_type;
    let qp = Qp {
        header,
        path,
        qp_type,
        events: UnacknowledgedEvents::default(),
        wr_builder: WrBuilder::default(),
        cap: *cap,
        sq_sig_all: attr.sq_sig_all,
        own_mcast,
        _pd: Member::clone(&domain.member),
    }
    .give();
    context.rails.objects().qps.insert(qpn, context.object_entry(qp as usize));
    Ok(qp)
}

fn virtual_cq(cq: &Cq) -> Result<Arc<VirtualCq>> {
    cq.virtual_cq.clone().ok_or(Error::Invalid("the completion queue is of another device"))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: a queue pair and the caller's structure.
    let (found, attr) = unsafe { (Qp::plain(qp), &*attr) };
    let changed = qp_attr::asked(attr, mask as u32).and_then(|asked| found.modify(&asked));
    if changed.is_ok() && mask as u32 & IBV_QP_STATE != 0 {
        // SAFETY: the queue pair's own field.
        unsafe { (*qp).state = attr.qp_state };
    }
    status("ibv_modify_qp", changed)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a queue pair.
    let found = unsafe { Qp::plain(qp) };
    match found.query() {
        Ok(state) => {
            let mut answer = qp_attr::answer(&state);
            answer.cap = found.cap;
            // SAFETY: the caller's structures, and the queue pair's own fields.
            unsafe {
                (*qp).state = answer.qp_state;
                attr.write(answer);
                init.write(ibv_qp_init_attr {
                    qp_context: (*qp).qp_context,
                    send_cq: (*qp).send_cq,
                    recv_cq: (*qp).recv_cq,
                    srq: (*qp).srq,
                    cap: found.cap,
                    qp_type: (*qp).qp_type,
                    sq_sig_all: found.sq_sig_all.into(),
                });
            }
            0
        }
        Err(error) => status("ibv_query_qp", Err(error)),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a queue pair and its device.
    let (found, context) = unsafe { (Qp::plain(qp), Context::of((*qp).context)) };
    if let Err(error) = found.destroy()
        // What a dead NIC had is gone with it.
        && error != Error::DeviceFatal
    {
        return status("ibv_destroy_qp", Err(error));
    }
    // SAFETY: its own field.
    let qpn = Qpn::new(unsafe { (*qp).qp_num });
    context.remove_object(qp as usize, |objects| objects.qps.remove(&qpn));
    found.events.wait_for_all();
    // SAFETY: the program gives it back, and no event points to it.
    drop(unsafe { Qp::take(qp.cast()) });
    0
}

/// No vendor's way of setting up connections.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's structure.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's structure.
    let ece = unsafe { &*ece };
    if ece.comp_mask != 0 || ece.vendor_id != 0 {
        log_failure("ibv_set_ece", &"the device has no enhanced connection establishment");
        return libc::EOPNOTSUPP;
    }
    0
}

/// Whether the last byte of a message is the last to be written: no; it is the last *word* that is, and only of WRITEs.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: ibv_wr_opcode, _flags: u32) -> c_int {
    0
}
