//! Multicast groups of UD queue pairs.

use std::ffi::c_int;

use mitra_verbs::{Error, Gid, Result};

use super::qp::Qp;
use crate::common::errno::status;
use mitra_verbs_abi::*;

/// Attaches or detaches a queue pair for the verb `call`. The group's LID is ignored, because RoCE
/// has no LIDs.
///
/// # Safety
/// The rules of [`super`] for `call`.
unsafe fn change(
    call: &str,
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    change: fn(&Qp, Gid) -> Result<()>,
) -> c_int {
    // SAFETY: the caller upholds the rules. Each member of the union covers all 16 bytes, so these
    // are initialized.
    let (qp, gid) = unsafe { (Qp::find_ibv_qp(qp), gid.as_ref().map(|gid| Gid(gid.raw))) };
    let group = gid.ok_or(Error::Invalid("the GID is null; pass that of a multicast group"));
    status(call, qp.and_then(|qp| change(qp, group?)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    unsafe {
        change("ibv_attach_mcast", qp, gid, |qp, group| qp.object.attach_mcast(group, qp.mcast_loopback))
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    unsafe { change("ibv_detach_mcast", qp, gid, |qp, group| qp.object.detach_mcast(group)) }
}
