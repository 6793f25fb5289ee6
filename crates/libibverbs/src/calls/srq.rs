//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mitra_verbs::{AsyncEvent, Error, Provider, Result, SrqId};

use super::abi_object::{AbiHeader, AbiObject};
use super::context::Context;
use super::pd::{Member, Pd};
use crate::abi::*;
use crate::common::errno::{pointer, status};
use crate::common::unacknowledged::UnacknowledgedEvents;
use crate::rails::virtual_srq::VirtualSrq;

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    header: AbiHeader<ibv_srq>,
    pub(crate) id: SrqId,
    pub(crate) events: UnacknowledgedEvents,
    depth: u32,
    sges: u32,
    /// The limit as armed; it is spent when its event is given, which nobody notes here.
    limit: AtomicU32,
    /// Of a device with several rails: what virtual queue pairs are lent.
    pub(crate) virtual_srq: Option<Arc<VirtualSrq>>,
    _pd: Member,
}

// SAFETY: `repr(C)`, header first.
unsafe impl AbiObject for Srq {
    type C = ibv_srq;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: a protection domain and the caller's structure.
    unsafe { pointer("ibv_create_srq", create(pd, &mut (*init).attr, (*init).srq_context)) }
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the caller's structure.
    let init = unsafe { &mut *init };
    let basic = init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || init.srq_type == IBV_SRQT_BASIC;
    let made = if !basic {
        Err(Error::Unsupported("shared receive queues for XRC or tag matching"))
    } else if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
        Err(Error::Invalid("a shared receive queue needs a protection domain"))
    } else {
        // SAFETY: the mask says that the domain is there.
        unsafe { create(init.pd, &mut init.attr, init.srq_context) }
    };
    pointer("ibv_create_srq_ex", made)
}

/// # Safety
/// `pd` is a protection domain.
unsafe fn create(
    pd: *mut ibv_pd,
    attr: &mut ibv_srq_attr,
    srq_context: *mut std::ffi::c_void,
) -> Result<*mut ibv_srq> {
    // SAFETY: the caller's promise.
    let (found, context) = unsafe { (Pd::of(pd), Context::of((*pd).context)) };
    let limits = &context.nic().attr().limits;
    if attr.max_sge > limits.sges {
        return Err(Error::Limit {
            attribute: "scatter/gather entries of a receive",
            requested: attr.max_sge.into(),
            limit: limits.sges.into(),
        });
    }
    let id = context.nic().create_srq(found.id, attr.max_wr)?;
    // SAFETY: integers and pointers.
    let header: AbiHeader<ibv_srq> = unsafe { AbiHeader::zeroed() };
    // SAFETY: nobody else has its address yet.
    let fields = unsafe { &mut *header.get() };
    fields.context = context.address();
    fields.srq_context = srq_context;
    fields.pd = pd;
    fields.handle = id.0;
    let virtual_srq = context.rails.multi_rail.as_ref().map(|_| {
        let rails = Arc::downgrade(&context.rails);
        VirtualSrq::new(attr.max_wr, move || {
            if let Some(rails) = rails.upgrade() {
                rails.deliver(AsyncEvent::SrqLimitReached(id));
            }
        })
    });
    let srq = Srq {
        header,
        id,
        events: UnacknowledgedEvents::default(),
        depth: attr.max_wr,
        sges: attr.max_sge.max(1),
        limit: AtomicU32::new(0),
        virtual_srq,
        _pd: Member::clone(&found.member),
    }
    .give();
    context.rails.objects().srqs.insert(id, context.object_entry(srq as usize));
    Ok(srq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    let mask = mask as u32;
    // SAFETY: a shared receive queue, its device and the caller's structure.
    let (found, context, attr) = unsafe { (Srq::of(srq), Context::of((*srq).context), &*attr) };
    let changed = if mask & !IBV_SRQ_LIMIT != 0 {
        Err(Error::Unsupported("resizing a shared receive queue"))
    } else if mask & IBV_SRQ_LIMIT != 0 {
        match &found.virtual_srq {
            None => context.nic().arm_srq(found.id, attr.srq_limit),
            Some(virtual_srq) => virtual_srq.arm(attr.srq_limit),
        }
    } else {
        Ok(())
    };
    if changed.is_ok() && mask & IBV_SRQ_LIMIT != 0 {
        found.limit.store(attr.srq_limit, Ordering::Relaxed);
    }
    status("ibv_modify_srq", changed)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: a shared receive queue and the caller's structure.
    unsafe {
        let found = Srq::of(srq);
        attr.write(ibv_srq_attr {
            max_wr: found.depth,
            max_sge: found.sges,
            srq_limit: found.limit.load(Ordering::Relaxed),
        });
    }
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: a shared receive queue and its device.
    let (found, context) = unsafe { (Srq::of(srq), Context::of((*srq).context)) };
    if found.virtual_srq.as_ref().is_some_and(|virtual_srq| !virtual_srq.is_unused()) {
        let used = Error::Busy { kind: "shared receive queue", id: found.id.0, user: "a queue pair" };
        return status("ibv_destroy_srq", Err(used));
    }
    if let Err(error) = context.nic().destroy_srq(found.id)
        // What a dead NIC had is gone with it.
        && error != Error::DeviceFatal
    {
        return status("ibv_destroy_srq", Err(error));
    }
    context.remove_object(srq as usize, |objects| objects.srqs.remove(&found.id));
    found.events.wait_for_all();
    // SAFETY: the program gives it back, and no event points to it.
    drop(unsafe { Srq::take(srq) });
    0
}
