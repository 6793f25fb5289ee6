//! The list of devices.

use std::ffi::c_int;
use std::ptr;

use crate::rdmacm::manager::manager;
use crate::rdmacm::return_code::check_pointer;
use mitra_verbs_abi::ibv_context;

/// Returns a null-terminated list of the one device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let list = manager().and_then(|manager| manager.device()).and_then(|device| {
        // SAFETY: the list has two pointers. The second stays null.
        unsafe {
            let list: *mut *mut ibv_context =
                check_pointer(libc::calloc(2, size_of_val(&device.context)).cast())?;
            *list = device.context;
            Ok(list)
        }
    });
    if !num_devices.is_null() {
        // SAFETY: `rdma_get_devices` requires null or a valid pointer.
        unsafe { *num_devices = c_int::from(list.is_ok()) };
    }
    list.unwrap_or_else(|errno| {
        errno.set();
        ptr::null_mut()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: `rdma_free_devices` requires a list of `rdma_get_devices`, which is memory of
    // `calloc`.
    unsafe { libc::free(list.cast()) };
}
