//! Exported functions that always fail, because Mitra does not support what they do.

use std::ffi::c_int;

use nix::errno::Errno;

use crate::abi::*;
use crate::rdmacm::return_code::return_code;

/// The functions of this file.
pub const REFUSED_FUNCTIONS: &[&str] = &["rdma_set_local_ece", "rdma_get_remote_ece", "rsocket"];

/// `rdma_set_local_ece`. Mitra supports no vendor's enhanced connection establishment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    return_code("rdma_set_local_ece", || Err(Errno::EOPNOTSUPP))
}

/// `rdma_get_remote_ece`. A peer cannot have offered enhancements, because no message carries them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    return_code("rdma_get_remote_ece", || Err(Errno::EOPNOTSUPP))
}

/// `rsocket`. The other calls of `rsocket.h` need a socket from this one. librdmacm's own `rsocket`
/// cannot use Mitra's identifiers, because it reads fields that rdma-core keeps behind
/// `struct rdma_cm_id` in memory (`ucma_complete`, `ucma_max_qpsize` and `ucma_shutdown` of
/// rdma-core 44).
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(_domain: c_int, _type: c_int, _protocol: c_int) -> c_int {
    return_code("rsocket", || Err(Errno::EOPNOTSUPP))
}
