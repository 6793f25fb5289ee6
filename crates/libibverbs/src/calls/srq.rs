//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mitra_verbs::{Error, Result};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{Context, destroy_with_context, find_with_context};
use super::cq::Cq;
use super::pd::{Pd, PdMember};
use super::xrcd::Xrcd;
use crate::common::errno::{pointer, status};
use crate::common::limit::check_limit;
use crate::common::unacknowledged_events::UnacknowledgedEvents;
use crate::rails::device::SharedReceives;
use crate::rails::object_table::SrqEntry;
use mitra_verbs_abi::*;

#[repr(C)]
pub(crate) struct Srq {
    header: AbiHeader<ibv_srq>,
    pub(crate) queue: Arc<dyn SharedReceives>,
    pub(crate) events: UnacknowledgedEvents,
    depth: AtomicU32,
    /// The maximum number of scatter entries in a receive.
    pub(crate) sges: u32,
    /// The armed limit, or 0.
    limit: Arc<AtomicU32>,
    _pd: PdMember,
    /// Present if the queue is in an XRC domain.
    pub(crate) xrcd: Option<PdMember>,
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
/// writes the granted capacities back to `attr`.
///
/// # Errors
/// `Limit` if a capacity exceeds the device's, or the errors of
/// [`Device::create_srq`](crate::rails::device::Device::create_srq).
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
    let limits = context.rails.device.limits();
    let sges = attr.max_sge.max(1);
    check_limit("scatter/gather entries of a receive", sges, limits.sges)?;
    check_limit("shared receive queue entries", attr.max_wr, limits.wrs)?;
    let parts = xrc.map(|(domain, cq)| (domain.id, &cq.queue));
    let queue = context.rails.device.create_srq(object.id, attr.max_wr, parts)?;
    let (id, limit) = (queue.id(), Arc::default());
    let header = ibv_srq { context: context.address(), srq_context, pd, handle: id.0, ..ibv_srq::zeroed() };
    let srq = Srq {
        header: AbiHeader::new(header),
        queue,
        events: UnacknowledgedEvents::default(),
        depth: AtomicU32::new(attr.max_wr),
        sges,
        limit: Arc::clone(&limit),
        _pd: PdMember::clone(&object.member),
        xrcd: xrc.map(|(domain, _)| PdMember::clone(&domain.member)),
    }
    .into_raw();
    attr.max_sge = sges;
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
        check_limit("shared receive queue entries", attr.max_wr, context.rails.device.limits().wrs)?;
        object.queue.resize(attr.max_wr)?;
        object.depth.store(attr.max_wr, Ordering::Relaxed);
    }
    if has(IBV_SRQ_LIMIT) {
        // The event, which resets the limit, can come at once.
        let earlier = object.limit.swap(attr.srq_limit, Ordering::Relaxed);
        object.queue.arm(attr.srq_limit).inspect_err(|_| object.limit.store(earlier, Ordering::Relaxed))?;
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
    let read = unsafe { Srq::find(srq) }
        .and_then(|object| object.queue.number())
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
    context.rails.device.destroy_srq(&object.queue)?;
    context.remove_object(address, |objects| objects.srqs.remove(&object.queue.id()));
    object.events.wait_for_all();
    Ok(())
}
