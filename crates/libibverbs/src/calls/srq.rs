//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mitra_verbs::{AsyncEvent, Error, Result, SrqId, Srqn};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{Context, destroy_with_context, find_with_context};
use super::cq::Cq;
use super::pd::{Pd, PdMember};
use super::xrcd::Xrcd;
use crate::abi::*;
use crate::common::errno::{pointer, status, unless_dead};
use crate::common::limit::check_limit;
use crate::common::unacknowledged_events::UnacknowledgedEvents;
use crate::rails::object_table::SrqEntry;
use crate::rails::virtual_srq::VirtualSrq;
use crate::rails::virtual_xrc_domain::VirtualXrcDomain;

#[repr(C)]
pub(crate) struct Srq {
    header: AbiHeader<ibv_srq>,
    pub(crate) id: SrqId,
    pub(crate) events: UnacknowledgedEvents,
    depth: AtomicU32,
    /// The maximum number of scatter entries in a receive.
    pub(crate) sges: u32,
    /// The armed limit, or 0.
    limit: Arc<AtomicU32>,
    /// The queue from which virtual queue pairs take receives. Present on a device with several
    /// rails.
    pub(crate) virtual_srq: Option<Arc<VirtualSrq>>,
    _pd: PdMember,
    /// Present if the queue is in an XRC domain.
    xrc: Option<XrcMember>,
}

struct XrcMember {
    number: Srqn,
    /// The domain over all rails. Present on a device with several rails.
    over_rails: Option<Arc<VirtualXrcDomain>>,
    _xrcd: PdMember,
}

impl Srq {
    pub(crate) fn is_xrc(&self) -> bool {
        self.xrc.is_some()
    }
}

abi_object!(Srq: ibv_srq, "shared receive queue", handle, context);

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    unsafe { pointer("ibv_create_srq", create(pd, &mut (*init).attr, (*init).srq_context, None)) }
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: rule *structures* (module `calls`): the pointer is valid.
    let init = unsafe { &mut *init };
    let has = |bits: u32| init.comp_mask & bits == bits;
    let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
    let xrc = match srq_type {
        IBV_SRQT_BASIC => Ok(None),
        IBV_SRQT_XRC if has(IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ) => {
            // SAFETY: the bits of the domain and the completion queue are set, so by rule *objects*
            // (module `calls`) they are objects.
            unsafe { Xrcd::find(init.xrcd).and_then(|domain| Ok(Some((domain, Cq::find(init.cq)?)))) }
        }
        IBV_SRQT_XRC => Err(Error::Invalid(
            "an XRC shared receive queue needs an XRC domain and a completion queue; set both, and their bits in comp_mask",
        )),
        _ => Err(Error::Unsupported("shared receive queues for tag matching; create a basic one")),
    };
    let made = xrc.and_then(|xrc| {
        if !has(IBV_SRQ_INIT_ATTR_PD) {
            return Err(Error::Invalid(
                "a shared receive queue needs a protection domain; set pd, and its bit in comp_mask",
            ));
        }
        // SAFETY: `IBV_SRQ_INIT_ATTR_PD` is set, so by rule *objects* (module `calls`) `init.pd` is
        // a protection domain.
        unsafe { create(init.pd, &mut init.attr, init.srq_context, xrc) }
    });
    pointer("ibv_create_srq_ex", made)
}

/// Creates a shared receive queue, for XRC if `xrc` has an XRC domain and a completion queue, and
/// writes the granted capacities back to `attr`. The NIC of rail 0 assigns its number, if that NIC
/// is alive.
///
/// # Errors
/// `Limit` if a capacity exceeds the device's, the error of the NIC, or the error of
/// [`VirtualXrcDomain::add_srq`].
///
/// # Safety
/// `pd` is a protection domain.
unsafe fn create(
    pd: *mut ibv_pd,
    attr: &mut ibv_srq_attr,
    srq_context: *mut std::ffi::c_void,
    xrc: Option<(&Xrcd, &Cq)>,
) -> Result<*mut ibv_srq> {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let (object, context) = unsafe { find_with_context::<Pd>(pd)? };
    let limits = context.rails.limits();
    let sges = attr.max_sge.max(1);
    check_limit("scatter/gather entries of a receive", sges, limits.sges)?;
    check_limit("shared receive queue entries", attr.max_wr, limits.wrs)?;
    let on_rail_0 = match xrc {
        None => context.nic().create_srq(object.id, attr.max_wr),
        Some((domain, cq)) => context.nic().create_xrc_srq(object.id, domain.id, cq.id, attr.max_wr),
    };
    let existing = context.rails.objects().srqs.len();
    let id = SrqId(context.rails.number_of(on_rail_0.map(|id| id.0), existing, limits.srqs)?);
    let header = ibv_srq { context: context.address(), srq_context, pd, handle: id.0, ..ibv_srq::zeroed() };
    let virtual_srq = object.multi_rail.as_ref().map(|pd| {
        let deliver = context.event_sink();
        VirtualSrq::new(pd, attr.max_wr, move || deliver(AsyncEvent::SrqLimitReached(id)))
    });
    let member = match xrc {
        None => None,
        Some((domain, cq)) => {
            let on_rail_0 = context.nic().srq_number(id).map(|number| number.value());
            let number = context.rails.number_of(on_rail_0, existing, limits.srqs);
            let joined = number.map(Srqn::new).and_then(|number| {
                if let (Some(xrc), Some(pd), Some(srq), Some(cq)) =
                    (&domain.over_rails, &object.multi_rail, &virtual_srq, &cq.virtual_cq)
                {
                    xrc.add_srq(number, pd, srq, cq)?;
                }
                Ok(number)
            });
            let number = joined.inspect_err(|_| {
                let _ = context.nic().destroy_srq(id); // best effort: the caller gets the first error
            })?;
            let (over_rails, _xrcd) = (domain.over_rails.clone(), PdMember::clone(&domain.member));
            Some(XrcMember { number, over_rails, _xrcd })
        }
    };
    let srq = Srq {
        header: AbiHeader::new(header),
        id,
        events: UnacknowledgedEvents::default(),
        depth: AtomicU32::new(attr.max_wr),
        sges,
        limit: Arc::default(),
        virtual_srq,
        _pd: PdMember::clone(&object.member),
        xrc: member,
    }
    .into_raw();
    attr.max_sge = sges;
    // SAFETY: the program does not know the queue yet, so that it lives.
    let limit = unsafe { Arc::clone(&Srq::find(srq)?.limit) };
    let entry = SrqEntry { object: context.object_entry(srq as usize), limit };
    context.rails.objects().srqs.insert(id, entry);
    Ok(srq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let (found, attr) = unsafe { (find_with_context::<Srq>(srq), &*attr) };
    status("ibv_modify_srq", found.and_then(|(object, context)| modify(object, context, attr, mask as u32)))
}

/// Changes the size, then the limit. As on soft-RoCE (`rxe_srq_chk_attr` in the kernel's
/// `drivers/infiniband/sw/rxe/rxe_srq.c`), the size must be at least the limit that is armed. The
/// new limit must be at most the earlier size and the new size.
///
/// # Errors
/// `Unsupported` for an unknown attribute, `Limit` or `Invalid` for a value that breaks these
/// rules, or the error of the NIC. If both attributes are set and only the limit is refused,
/// nothing is changed.
fn modify(object: &Srq, context: &Context, attr: &ibv_srq_attr, mask: u32) -> Result<()> {
    let has = |attribute: u32| mask & attribute != 0;
    if has(!(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) {
        return Err(Error::Unsupported("an unknown attribute of a shared receive queue; leave its bit out"));
    }
    if has(IBV_SRQ_LIMIT) {
        let earlier = object.depth.load(Ordering::Relaxed);
        let depth = if has(IBV_SRQ_MAX_WR) { earlier.min(attr.max_wr) } else { earlier };
        check_limit("limit of a shared receive queue", attr.srq_limit, depth)?;
    }
    if has(IBV_SRQ_MAX_WR) {
        check_limit("shared receive queue entries", attr.max_wr, context.rails.limits().wrs)?;
        match &object.virtual_srq {
            None => context.nic().resize_srq(object.id, attr.max_wr)?,
            Some(virtual_srq) => virtual_srq.queue().resize(attr.max_wr)?,
        }
        object.depth.store(attr.max_wr, Ordering::Relaxed);
    }
    if has(IBV_SRQ_LIMIT) {
        // The event, which resets the limit, can come at once.
        let earlier = object.limit.swap(attr.srq_limit, Ordering::Relaxed);
        match &object.virtual_srq {
            None => context.nic().arm_srq(object.id, attr.srq_limit),
            Some(virtual_srq) => virtual_srq.queue().arm(attr.srq_limit),
        }
        .inspect_err(|_| object.limit.store(earlier, Ordering::Relaxed))?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let queried = unsafe { Srq::find(srq) }.map(|object| unsafe {
        attr.write(ibv_srq_attr {
            max_wr: object.depth.load(Ordering::Relaxed),
            max_sge: object.sges,
            srq_limit: object.limit.load(Ordering::Relaxed),
        });
    });
    status("ibv_query_srq", queried)
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let read = unsafe { find_with_context::<Srq>(srq) }
        .and_then(|(object, context)| match &object.xrc {
            Some(xrc) => Ok(xrc.number),
            None => context.nic().srq_number(object.id),
        })
        .map(|srqn| unsafe { number.write(srqn.value()) });
    status("ibv_get_srq_num", read)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `srq` now.
    unsafe {
        destroy_with_context::<Srq>("ibv_destroy_srq", srq, |object, context| {
            end(object, context, srq as usize)
        })
    }
}

/// Ends the use of a queue. Afterwards no other thread finds its address.
fn end(object: &Srq, context: &Context, address: usize) -> Result<()> {
    // XRC queue pairs belong to the XRC domain, and keep no single queue in use.
    let virtual_srq = object.virtual_srq.as_ref().filter(|_| !object.is_xrc());
    if virtual_srq.is_some_and(|virtual_srq| !virtual_srq.is_unused()) {
        return Err(Error::Busy { kind: "shared receive queue", id: object.id.0, user: "a queue pair" });
    }
    unless_dead(context.nic().destroy_srq(object.id))?;
    if let Some(XrcMember { number, over_rails: Some(domain), .. }) = &object.xrc {
        domain.remove_srq(*number);
    }
    context.remove_object(address, |objects| objects.srqs.remove(&object.id));
    object.events.wait_for_all();
    Ok(())
}
