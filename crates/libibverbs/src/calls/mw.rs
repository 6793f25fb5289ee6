//! Memory windows, of type 2B.

use std::ffi::c_int;

use mitra_verbs::{Error, MwId, Provider, Result};

use super::abi_object::{AbiHeader, AbiObject};
use super::context::Context;
use super::pd::Pd;
use crate::abi::*;
use crate::common::errno::{log_failure, pointer, status};

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    header: AbiHeader<ibv_mw>,
    pub(crate) id: MwId,
}

// SAFETY: `repr(C)`, header first.
unsafe impl AbiObject for Mw {
    type C = ibv_mw;
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: a protection domain and its device.
    pointer("ibv_alloc_mw", unsafe { alloc(pd, mw_type) })
}

/// # Safety
/// As for `ibv_alloc_mw`.
unsafe fn alloc(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> Result<*mut ibv_mw> {
    if mw_type != IBV_MW_TYPE_2 {
        return Err(Error::Unsupported("memory windows of type 1; type 2 it has"));
    }
    // SAFETY: the caller's promise.
    let (found, context) = unsafe { (Pd::of(pd), Context::of((*pd).context)) };
    if context.rails.multi_rail.is_some() {
        return Err(Error::Unsupported("memory windows where connections span rails"));
    }
    let mw = context.nic().alloc_mw(found.id)?;
    let header = ibv_mw { context: context.address(), pd, rkey: mw.rkey.0, handle: mw.id.0, r#type: mw_type };
    Ok(Mw { header: AbiHeader::new(header), id: mw.id }.give())
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: a window and its device.
    let (found, context) = unsafe { (Mw::of(mw), Context::of((*mw).context)) };
    match context.nic().dealloc_mw(found.id) {
        // What a dead NIC had is gone with it.
        Ok(()) | Err(Error::DeviceFatal) => {
            // SAFETY: the program gives it back.
            drop(unsafe { Mw::take(mw) });
            0
        }
        Err(error) => status("ibv_dealloc_mw", Err(error)),
    }
}

/// Windows of type 2 are bound by work requests.
pub(crate) unsafe extern "C" fn bind_mw(
    _qp: *mut ibv_qp,
    _mw: *mut ibv_mw,
    _mw_bind: *mut ibv_mw_bind,
) -> c_int {
    log_failure("ibv_bind_mw", &"windows of type 2 are bound by IBV_WR_BIND_MW");
    libc::EOPNOTSUPP
}
