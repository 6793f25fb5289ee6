//! Exported functions that always fail.

use std::ffi::c_int;

use nix::errno::Errno;

use crate::rdmacm::return_code::return_code;
use mitra_verbs_abi::*;

/// The functions of this file.
pub const REFUSED_FUNCTIONS: &[&str] = &["rdma_set_local_ece", "rdma_get_remote_ece", "rsocket"];

/// Mitra supports no vendor's enhanced connection establishment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    return_code("rdma_set_local_ece", || Err(Errno::EOPNOTSUPP))
}

/// No message carries a peer's enhancements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    return_code("rdma_get_remote_ece", || Err(Errno::EOPNOTSUPP))
}

/// Mitra defines no other call of `rsocket.h`, because each needs a socket of `rsocket`.
/// librdmacm's own `rsocket` cannot use Mitra's identifiers, because librdmacm reads fields that
/// rdma-core keeps behind `struct rdma_cm_id` in memory (`ucma_complete`, `ucma_max_qpsize` and
/// `ucma_shutdown` of rdma-core 44).
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(_domain: c_int, _type: c_int, _protocol: c_int) -> c_int {
    return_code("rsocket", || Err(Errno::EOPNOTSUPP))
}
