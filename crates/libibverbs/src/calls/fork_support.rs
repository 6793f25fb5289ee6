//! `ibv_fork_init` and its family.

use std::ffi::c_int;

use crate::abi::*;

/// Memory is the program's own, read and written by its own process: nothing is pinned, so a fork takes nothing away.
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
