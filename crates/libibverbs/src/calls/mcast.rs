//! Multicast groups of UD queue pairs.

use std::ffi::c_int;

use mitra_verbs::{Error, Gid, Result};

use super::qp::Qp;
use crate::abi::*;
use crate::common::errno::status;

/// Returns the GID of a multicast group. The callers ignore the group's LID, because RoCE has no
/// LIDs.
///
/// # Errors
/// `Invalid` if `gid` is null.
///
/// # Safety
/// `gid` is valid for reading, or null.
unsafe fn group(gid: *const ibv_gid) -> Result<Gid> {
    // SAFETY: the caller passes null or a valid GID. Each member of the union covers all 16 bytes,
    // so these are initialized.
    unsafe {
        gid.as_ref()
            .map(|gid| Gid(gid.raw))
            .ok_or(Error::Invalid("the GID is null; pass that of a multicast group"))
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let (qp, group) = unsafe { (Qp::find_ibv_qp(qp), group(gid)) };
    status("ibv_attach_mcast", qp.and_then(|qp| qp.attach_mcast(group?)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    let (qp, group) = unsafe { (Qp::find_ibv_qp(qp), group(gid)) };
    status("ibv_detach_mcast", qp.and_then(|qp| qp.detach_mcast(group?)))
}
