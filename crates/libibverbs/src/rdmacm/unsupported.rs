//! What Mitra does not offer, and how programs are told.

use std::ffi::c_int;

use nix::errno::Errno;

use super::answer;
use crate::abi::*;

/// `rdma_set_local_ece`: no vendor's enhancements are known here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    answer(Err(Errno::EOPNOTSUPP))
}

/// `rdma_get_remote_ece`: nor can a peer have offered any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    answer(Err(Errno::EOPNOTSUPP))
}

/// `rsocket`: the other calls of `rsocket.h` need one first. librdmacm's own cannot work on our identifiers: it reads what
/// lies behind `struct rdma_cm_id` in its memory (`ucma_complete`, `ucma_max_qpsize`, `ucma_shutdown` of rdma-core 44).
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(_domain: c_int, _type: c_int, _protocol: c_int) -> c_int {
    answer(Err(Errno::EOPNOTSUPP))
}
