//! Multicast groups of datagram queue pairs.

use std::ffi::c_int;

use mitra_verbs::{Error, Gid, Result};

use super::qp::Qp;
use crate::abi::*;
use crate::common::errno::status;

/// The group that the program means. RoCE knows no LIDs.
///
/// # Safety
/// `gid` is null or the program's.
unsafe fn group(gid: *const ibv_gid) -> Result<Gid> {
    // SAFETY: the caller's promise; sixteen bytes, whichever member was written.
    unsafe { gid.as_ref().map(|gid| Gid(gid.raw)).ok_or(Error::Invalid("there is no GID")) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: a queue pair and the caller's GID.
    let (qp, group) = unsafe { (Qp::plain(qp), group(gid)) };
    status("ibv_attach_mcast", group.and_then(|group| qp.attach_mcast(group)))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: as above.
    let (qp, group) = unsafe { (Qp::plain(qp), group(gid)) };
    status("ibv_detach_mcast", group.and_then(|group| qp.detach_mcast(group)))
}
