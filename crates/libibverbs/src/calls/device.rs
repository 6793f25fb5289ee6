//! The device before it is opened. Every process has one device, `mitra0`, whatever its number of rails.

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use super::abi_object::{AbiHeader, AbiObject};
use crate::abi::*;
use crate::common::errno::set_errno;
use crate::rails::open;

/// The name of the device, which programs take on their command lines.
pub(crate) const DEVICE_NAME: &str = "mitra0";
/// The name of the device's character device.
pub(crate) const CHAR_DEVICE_NAME: &str = "uverbs0";

/// The device behind its C structure. Providers of rdma-core keep private data behind `ibv_device`, and some programs cast to
/// it. They find zeros here.
#[repr(C)]
struct Device {
    header: AbiHeader<ibv_device>,
    provider_data: [u64; 64],
}

// SAFETY: the structure is `repr(C)`, and its first field is the `AbiHeader` of `Self::C`.
unsafe impl AbiObject for Device {
    type C = ibv_device;
}

/// The device's address, as an integer so that the cell is `Sync`. The device is never freed.
static DEVICE: OnceLock<usize> = OnceLock::new();

/// Returns the device, which is the same for the life of the process.
pub(crate) fn device() -> *mut ibv_device {
    *DEVICE.get_or_init(|| {
        // SAFETY: the structure consists of integers, arrays of integers and `Option`s of function pointers, for which all
        // zeros is a valid value.
        let header: AbiHeader<ibv_device> = unsafe { AbiHeader::zeroed() };
        // SAFETY: the structure was created in this function, and nothing else has its address yet, so the reference is
        // exclusive.
        let device = unsafe { &mut *header.get() };
        device.node_type = IBV_NODE_CA;
        device.transport_type = IBV_TRANSPORT_IB;
        copy_c_string(&mut device.name, DEVICE_NAME);
        copy_c_string(&mut device.dev_name, CHAR_DEVICE_NAME);
        copy_c_string(&mut device.dev_path, "/sys/class/infiniband_verbs/uverbs0");
        copy_c_string(&mut device.ibdev_path, "/sys/class/infiniband/mitra0");
        Device { header, provider_data: [0; 64] }.into_raw() as usize
    }) as *mut ibv_device
}

/// Copies a text, truncated if necessary, and terminates it with a zero byte.
pub(crate) fn copy_c_string(to: &mut [c_char], text: &str) {
    let bytes = text.bytes().take(to.len() - 1).chain([0]);
    to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_char);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    if !num_devices.is_null() {
        // SAFETY: rule *structures* (module `calls`): the pointer is valid for writing.
        unsafe { *num_devices = 1 };
    }
    // The list belongs to C, which may free it by `ibv_free_device_list` of this or of another library.
    // SAFETY: `calloc` returns null or zeroed memory for two pointers; the first is written only if it is not null.
    unsafe {
        let list: *mut *mut ibv_device = libc::calloc(2, size_of::<*mut ibv_device>()).cast();
        if !list.is_null() {
            list.write(device());
        }
        list
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the list came from `ibv_get_device_list`, which allocates with `calloc`.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the only device is a static of this library, so the pointer is valid; only an address is computed.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    open::guid()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Fails with `ENOENT`: the device has no directory in `sysfs`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    _dir: *const c_char,
    _file: *const c_char,
    _buf: *mut c_char,
    _size: usize,
) -> c_int {
    set_errno(libc::ENOENT);
    -1
}
