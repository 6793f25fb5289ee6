//! Protection domains.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use mitra_verbs::{Error, PdId, Result};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{Context, destroy_with_context};
use crate::common::errno::pointer;
use mitra_verbs_abi::*;

#[repr(C)]
pub(crate) struct Pd {
    pub(super) header: AbiHeader<ibv_pd>,
    pub(crate) id: PdId,
    /// The value that each object of the domain clones, so that the reference count is the number
    /// of objects plus one. The count of a NIC does not suffice: a virtual queue pair exists on the
    /// NICs for some time after the program has destroyed it.
    pub(crate) member: PdMember,
    /// `None` if the domain is no parent domain.
    pub(crate) parent_of: Option<ParentOf>,
}

/// References to the domains of which a parent domain consists. They count as uses of these
/// domains.
pub(crate) struct ParentOf {
    pub(crate) _pd: PdMember,
    pub(crate) _td: Option<Arc<()>>,
}

/// A reference by which an object is counted as a member of its protection domain.
pub(crate) type PdMember = Arc<()>;

abi_object!(Pd: ibv_pd, "protection domain", handle, context);

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: rule *objects* (module `calls`): `context` is not closed during the call.
    pointer("ibv_alloc_pd", unsafe { Context::find_raw(context) }.and_then(alloc))
}

fn alloc(context: &Context) -> Result<*mut ibv_pd> {
    let id = context.rails.device.alloc_pd()?;
    let header = AbiHeader::new(ibv_pd { context: context.address(), handle: id.0 });
    Ok(Pd { header, id, member: PdMember::default(), parent_of: None }.into_raw())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `pd` now.
    unsafe { destroy_with_context("ibv_dealloc_pd", pd, free) }
}

fn free(object: &Pd, context: &Context) -> Result<()> {
    if Arc::strong_count(&object.member) > 1 {
        return Err(Error::Busy { kind: "protection domain", id: object.id.0, user: "an object in it" });
    }
    if object.parent_of.is_none() { context.rails.device.dealloc_pd(object.id) } else { Ok(()) }
}

// The device imports no objects (`refused`), so there is none to unimport.

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}
