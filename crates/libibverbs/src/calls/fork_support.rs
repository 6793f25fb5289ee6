//! `ibv_fork_init` and related verbs. They have no effect on a software NIC, which accesses memory
//! from within the program's process and pins no pages. Copy-on-write after a fork is therefore
//! harmless. A NIC of the kernel is opened later, by a library that is then asked for the same.

use std::ffi::c_int;

use mitra_verbs_abi::*;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    mitra_nics::support_fork()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dontfork_range(_base: *mut libc::c_void, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dofork_range(_base: *mut libc::c_void, _size: usize) -> c_int {
    0
}
