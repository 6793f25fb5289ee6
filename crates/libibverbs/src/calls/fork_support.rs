//! `ibv_fork_init` and its family. The NIC accesses memory from the program's own process and pins no pages, so copy-on-write
//! after a fork does no harm.

use std::ffi::c_int;

use crate::abi::*;

/// Succeeds without effect.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
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
