//! XRC domains.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use mitra_verbs::{Error, Result, XrcdId};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{Context, destroy_with_context};
use super::pd::PdMember;
use crate::common::errno::{pointer, refuse_object};
use crate::common::lock::lock;
use crate::rails::xrc_domains::{OpenFlags, OpenXrcdError};
use mitra_verbs_abi::*;

#[repr(C)]
pub(crate) struct Xrcd {
    header: AbiHeader<ibv_xrcd>,
    pub(crate) id: XrcdId,
    /// Cloned by each queue pair and shared receive queue that was created through this object.
    pub(crate) member: PdMember,
}

abi_object!(Xrcd: ibv_xrcd, "XRC domain");

/// Has the errors of the kernel's `ib_uverbs_open_xrcd`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let (context, init) = unsafe { (Context::find_raw(context), &*init) };
    let (errno, why) = match context.map_err(OpenXrcdError::Nic).and_then(|context| open(context, init)) {
        Ok(xrcd) => return xrcd,
        Err(OpenXrcdError::Nic(error)) => return pointer("ibv_open_xrcd", Err(error)),
        Err(OpenXrcdError::BadDescriptor) => (
            libc::EBADF,
            "the descriptor is not that of an open file; pass one, or -1 for a domain without a file",
        ),
        Err(OpenXrcdError::NoDomain) => (
            libc::EAGAIN,
            "no XRC domain of this process is associated with the file, and processes do not share domains; set O_CREAT",
        ),
        Err(OpenXrcdError::Exists) => {
            (libc::EINVAL, "an XRC domain is associated with the file already; leave out O_EXCL")
        }
    };
    refuse_object("ibv_open_xrcd", errno, why)
}

fn open(context: &Context, init: &ibv_xrcd_init_attr) -> Result<*mut ibv_xrcd, OpenXrcdError> {
    if init.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
        return Err(OpenXrcdError::Nic(Error::Unsupported("an unknown bit in comp_mask; leave it out")));
    }
    if init.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
        return Err(OpenXrcdError::Nic(Error::Invalid(
            "an XRC domain needs a file and flags; set fd and oflags, and both bits in comp_mask",
        )));
    }
    let file = match init.fd {
        -1 => None,
        // SAFETY: -1 is excluded, and the borrow does not outlive this function. The first system
        // call refuses a number that is no open descriptor.
        fd if fd >= 0 => Some(unsafe { BorrowedFd::borrow_raw(fd) }),
        _ => return Err(OpenXrcdError::BadDescriptor),
    };
    let flags =
        OpenFlags { create: init.oflags & libc::O_CREAT != 0, exclusive: init.oflags & libc::O_EXCL != 0 };
    let rails = &context.rails;
    let id = lock(&rails.xrc_domains).open(&*rails.device, file, flags)?;
    let header = AbiHeader::new(ibv_xrcd { context: context.address() });
    Ok(Xrcd { header, id, member: PdMember::default() }.into_raw())
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `xrcd` now.
    unsafe {
        destroy_with_context::<Xrcd>("ibv_close_xrcd", xrcd, |object, context| {
            if PdMember::strong_count(&object.member) > 1 {
                return Err(Error::Busy { kind: "XRC domain", id: object.id.0, user: "an object in it" });
            }
            lock(&context.rails.xrc_domains).close(&*context.rails.device, object.id)
        })
    }
}
