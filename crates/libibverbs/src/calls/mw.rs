//! Memory windows of types 1 and 2B.

use std::ffi::c_int;
use std::sync::Arc;

use mitra_verbs::{Error, Result, WindowType};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::find_with_context;
use super::pd::{Pd, PdMember};
use crate::common::errno::{pointer, status};
use crate::rails::rail_set::RailSet;
use mitra_verbs_abi::*;

#[repr(C)]
pub(crate) struct Mw {
    header: AbiHeader<ibv_mw>,
    pub(crate) window: mitra_verbs::Mw,
    pub(crate) rails: Arc<RailSet>,
    _pd: PdMember,
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
    let (domain, context) = unsafe { find_with_context::<Pd>(pd)? };
    let window = context.rails.device.alloc_mw(domain.id, window_type)?;
    let header =
        ibv_mw { context: context.address(), pd, rkey: window.rkey.0, handle: window.id.0, r#type: mw_type };
    let (rails, member) = (Arc::clone(&context.rails), PdMember::clone(&domain.member));
    Ok(Mw { header: AbiHeader::new(header), window, rails, _pd: member }.into_raw())
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `mw` now. The window does not
    // need its context, which the program may have closed.
    status("ibv_dealloc_mw", unsafe { Mw::destroy(mw, |mw| mw.rails.device.dealloc_mw(&mw.window)) })
}
