//! Memory windows of types 1 and 2B.

use std::ffi::c_int;
use std::sync::Arc;

use mitra_failover::VirtualMw;
use mitra_verbs::{Error, MwId, Result, WindowType};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{Context, find_with_context};
use super::pd::{Pd, PdMember};
use crate::abi::*;
use crate::common::errno::{pointer, status, unless_dead};
use crate::rails::protection_domain::MultiRailPd;

#[repr(C)]
pub(crate) struct Mw {
    header: AbiHeader<ibv_mw>,
    pub(crate) id: MwId,
    /// The window on all NICs of a device with several rails. Its handle on rail 0 is `id`.
    multi_rail: Option<(Arc<MultiRailPd>, VirtualMw)>,
    _pd: PdMember,
}

impl Mw {
    pub(crate) fn is_multi_rail(&self) -> bool {
        self.multi_rail.is_some()
    }
}

abi_object!(Mw: ibv_mw, "memory window", handle, context);

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: rule *objects* (module `calls`): `pd` and its context exist during the call.
    pointer("ibv_alloc_mw", unsafe { alloc(pd, mw_type) })
}

/// # Safety
/// The rules of [`super`] for `ibv_alloc_mw`.
unsafe fn alloc(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> Result<*mut ibv_mw> {
    let window_type = match mw_type {
        IBV_MW_TYPE_1 => WindowType::Type1,
        IBV_MW_TYPE_2 => WindowType::Type2,
        _ => {
            return Err(Error::Invalid("no memory window has this type; use IBV_MW_TYPE_1 or IBV_MW_TYPE_2"));
        }
    };
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let (object, context) = unsafe { find_with_context::<Pd>(pd)? };
    let (mw, multi_rail) = match &object.multi_rail {
        None => (context.nic().alloc_mw(object.id, window_type)?, None),
        Some(domain) => {
            let mw = domain.alloc_mw(window_type)?;
            (mw.primary(), Some((Arc::clone(domain), mw)))
        }
    };
    let header = ibv_mw { context: context.address(), pd, rkey: mw.rkey.0, handle: mw.id.0, r#type: mw_type };
    let member = PdMember::clone(&object.member);
    Ok(Mw { header: AbiHeader::new(header), id: mw.id, multi_rail, _pd: member }.into_raw())
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `mw` now. A window over several
    // rails does not need its context, which the program may have closed.
    status("ibv_dealloc_mw", unsafe {
        Mw::destroy(mw, |object| match &object.multi_rail {
            Some((domain, mw)) => domain.dealloc_mw(mw),
            None => unless_dead(Context::find_raw((*mw).context)?.nic().dealloc_mw(object.id)),
        })
    })
}
