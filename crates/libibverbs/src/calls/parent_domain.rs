//! Thread domains and parent domains.
//!
//! A thread domain promises that one thread of the program at a time uses its objects, so that a
//! device need not lock them. This device locks the objects nevertheless, because the threads of
//! its NICs use them. A parent domain stands for its protection domain.

use std::ffi::c_int;
use std::sync::Arc;

use mitra_verbs::{Error, Result};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{Context, find_with_context};
use super::pd::{ParentOf, Pd, PdMember};
use crate::common::errno::{pointer, status};
use mitra_verbs_abi::*;

#[repr(C)]
struct Td {
    header: AbiHeader<ibv_td>,
    /// Cloned by each parent domain of the thread domain.
    member: Arc<()>,
}

abi_object!(Td: ibv_td, "thread domain");

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let (context, init) = unsafe { (Context::find_raw(context), &*init) };
    let made = context.and_then(|context| match init.comp_mask {
        0 => {
            let header = AbiHeader::new(ibv_td { context: context.address() });
            Ok(Td { header, member: Arc::default() }.into_raw())
        }
        _ => Err(Error::Unsupported("optional attributes of a thread domain, as none are defined")),
    });
    pointer("ibv_alloc_td", made)
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `td` now.
    let freed = unsafe {
        Td::destroy(td, |object| match Arc::strong_count(&object.member) {
            1 => Ok(()),
            _ => Err(Error::Busy { kind: "thread domain", id: 0, user: "a parent domain" }),
        })
    };
    status("ibv_dealloc_td", freed)
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let made = unsafe { Context::find_raw(context).and_then(|context| alloc(context, &*attr)) };
    pointer("ibv_alloc_parent_domain", made)
}

/// Allocates a parent domain. The allocators in `attr` are accepted and never called, because the
/// device allocates nothing in memory of the program.
///
/// # Errors
/// `Invalid` if there is no protection domain, a domain belongs to another context, or only one of
/// the allocators is given. `Unsupported` for an unknown attribute. Otherwise the errors of
/// [`AbiObject::find`].
///
/// # Safety
/// The domains in `attr` are objects of the program or null.
unsafe fn alloc(context: &Context, attr: &ibv_parent_domain_init_attr) -> Result<*mut ibv_pd> {
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    if attr.comp_mask & !known != 0 {
        return Err(Error::Unsupported("this attribute of a parent domain; leave its bit out of comp_mask"));
    }
    if attr.pd.is_null() {
        return Err(Error::Invalid("a parent domain stands for a protection domain; pass one in `pd`"));
    }
    if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0
        && (attr.alloc.is_none() || attr.free.is_none())
    {
        return Err(Error::Invalid("a parent domain needs both allocators, or none"));
    }
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let ((pd, pd_context), td) = unsafe {
        let td = if attr.td.is_null() { None } else { Some(find_with_context::<Td>(attr.td)?) };
        (find_with_context::<Pd>(attr.pd)?, td)
    };
    let contexts = [Some(pd_context), td.map(|(_, context)| context)];
    if contexts.into_iter().flatten().any(|of| of.address() != context.address()) {
        return Err(Error::Invalid(
            "a domain belongs to another context; pass domains of the context of the parent domain",
        ));
    }
    let parent_of =
        ParentOf { _pd: PdMember::clone(&pd.member), _td: td.map(|(td, _)| Arc::clone(&td.member)) };
    let header = AbiHeader::new(ibv_pd { context: context.address(), handle: pd.id.0 });
    Ok(Pd { header, id: pd.id, member: PdMember::default(), parent_of: Some(parent_of) }.into_raw())
}
