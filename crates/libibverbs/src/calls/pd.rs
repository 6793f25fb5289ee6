//! Protection domains.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use mitra_verbs::{Error, PdId, Provider, Result};

use super::abi_object::{AbiHeader, AbiObject};
use super::context::Context;
use crate::abi::*;
use crate::common::errno::{pointer, set_errno, status};

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    header: AbiHeader<ibv_pd>,
    pub(crate) id: PdId,
    /// What belongs to it has one of these each. Where all domains of the program are one, no NIC counts them.
    pub(crate) member: Member,
}

/// Keeps a domain as long as an object belongs to it.
pub(crate) type Member = Arc<()>;

// SAFETY: `repr(C)`, header first.
unsafe impl AbiObject for Pd {
    type C = ibv_pd;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: an open device.
    pointer("ibv_alloc_pd", alloc(unsafe { Context::of(context) }))
}

fn alloc(context: &Context) -> Result<*mut ibv_pd> {
    let id = match &context.rails.multi_rail {
        None => context.nic().alloc_pd()?,
        Some(multi_rail) => multi_rail.domain().pd(),
    };
    let header = ibv_pd { context: context.address(), handle: id.0 };
    Ok(Pd { header: AbiHeader::new(header), id, member: Member::default() }.give())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a protection domain and its device.
    let (found, context) = unsafe { (Pd::of(pd), Context::of((*pd).context)) };
    let freed = match &context.rails.multi_rail {
        None => context.nic().dealloc_pd(found.id),
        Some(_) if Arc::strong_count(&found.member) > 1 => {
            Err(Error::Busy { kind: "protection domain", id: found.id.0, user: "something in it" })
        }
        Some(_) => Ok(()),
    };
    match freed {
        // What a dead NIC had is gone with it.
        Ok(()) | Err(Error::DeviceFatal) => {
            // SAFETY: the program gives it back.
            drop(unsafe { Pd::take(pd) });
            0
        }
        Err(error) => status("ibv_dealloc_pd", Err(error)),
    }
}

/// A domain, region or device of another process cannot be had: there is no descriptor that stands for one.
fn not_shared<T>() -> *mut T {
    set_errno(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    not_shared()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    not_shared()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut c_void {
    not_shared()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}
