//! `ibv_bind_mw`, which binds windows of type 1. Windows of type 2 are bound with `IBV_WR_BIND_MW`
//! requests.

use std::ffi::c_int;

use mitra_verbs::{Data, Key, Result, SendWr};

use super::post;
use super::qp::Qp;
use crate::common::errno::status;
use mitra_verbs_abi::*;

/// Binds a window with the next key, and writes the key to the window's structure if the request is
/// posted (`ibv_bind_mw(3)`). The inline function of the C header has checked that the window has
/// type 1.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    mw_bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: rules *objects*, *structures* and *exclusivity* (module `calls`): `qp`, `mw` and the
    // region of the bind are not destroyed during the call, `mw_bind` is valid, and no other thread
    // accesses the window's structure.
    status("ibv_bind_mw", unsafe { bind(qp, mw, &*mw_bind) })
}

/// # Safety
/// The rules of [`super`] for `ibv_bind_mw`.
unsafe fn bind(qp: *mut ibv_qp, mw: *mut ibv_mw, request: &ibv_mw_bind) -> Result<()> {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let (qp, mw) = unsafe { (Qp::find_ibv_qp(qp)?, &mut *mw) };
    let key = Key(mw.rkey);
    let rkey = key.with_consumer_bits((key.0 as u8).wrapping_add(1)).0;
    // SAFETY: the window and the region are objects of the program, or the region is null.
    let op = unsafe { post::bind_operation(mw, rkey, &request.bind_info, qp.qp_type)? };
    let flags = post::send_flags(request.send_flags)?;
    let wr = SendWr::new(request.wr_id, op, Data::empty()).with_flags(flags);
    qp.object.post_send(&[wr]).map_err(|refused| refused.error)?;
    mw.rkey = rkey;
    Ok(())
}
