//! Address handles.

use std::ffi::c_int;

use mitra_verbs::{AhId, Error, Gid, Provider, Result};

use super::abi_object::{AbiHeader, AbiObject};
use super::context::Context;
use super::pd::{Member, Pd};
use crate::abi::*;
use crate::common::errno::{pointer, status};
use crate::common::grh::{GRH_LEN, source_gid};

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    header: AbiHeader<ibv_ah>,
    pub(crate) id: AhId,
    _pd: Member,
}

// SAFETY: `repr(C)`, header first.
unsafe impl AbiObject for Ah {
    type C = ibv_ah;
}

/// The GID that an address vector leads to.
///
/// # Errors
/// RoCE knows no LIDs: there must be a global route.
pub(crate) fn destination(attr: &ibv_ah_attr) -> Result<Gid> {
    if attr.is_global == 0 {
        return Err(Error::Invalid(
            "on RoCE an address needs a GID: set is_global and grh.dgid (perftest: -x 0)",
        ));
    }
    if attr.grh.sgid_index != 0 {
        return Err(Error::Invalid("the device has one GID, at index 0"));
    }
    // SAFETY: sixteen bytes, whichever member was written.
    Ok(Gid(unsafe { attr.grh.dgid.raw }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: a protection domain and the caller's structure.
    pointer("ibv_create_ah", unsafe { create(pd, &*attr) })
}

/// # Safety
/// `pd` is a protection domain.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    // SAFETY: the caller's promise.
    let (found, context) = unsafe { (Pd::of(pd), Context::of((*pd).context)) };
    let id = context.nic().create_ah(found.id, destination(attr)?)?;
    let header = ibv_ah { context: context.address(), pd, handle: id.0 };
    Ok(Ah { header: AbiHeader::new(header), id, _pd: Member::clone(&found.member) }.give())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: an address handle and its device.
    let (found, context) = unsafe { (Ah::of(ah), Context::of((*ah).context)) };
    match context.nic().destroy_ah(found.id) {
        // What a dead NIC had is gone with it.
        Ok(()) | Err(Error::DeviceFatal) => {
            // SAFETY: the program gives it back.
            drop(unsafe { Ah::take(ah) });
            0
        }
        Err(error) => status("ibv_destroy_ah", Err(error)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's structures.
    unsafe {
        if (*wc).wc_flags & IBV_WC_GRH == 0 {
            return crate::common::errno::minus_one(libc::EINVAL);
        }
        // SAFETY: integers.
        let mut out: ibv_ah_attr = std::mem::zeroed();
        out.grh.dgid = ibv_gid { raw: source_gid(&*grh.cast::<[u8; GRH_LEN]>()) };
        out.grh.hop_limit = u8::MAX;
        out.is_global = 1;
        out.port_num = port_num;
        attr.write(out);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    // SAFETY: what the manual page asks for.
    unsafe {
        let mut attr: ibv_ah_attr = std::mem::zeroed();
        if ibv_init_ah_from_wc((*pd).context, port_num, wc, grh, &raw mut attr) != 0 {
            return std::ptr::null_mut();
        }
        ibv_create_ah(pd, &raw mut attr)
    }
}
