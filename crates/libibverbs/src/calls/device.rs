//! Devices before they are opened. There is one, `mitra0`, in each process: rails are what it stands on, not devices.

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use super::abi_object::{AbiHeader, AbiObject};
use crate::abi::*;
use crate::common::errno::set_errno;
use crate::rails::open;

/// Its name, which programs are given on their command lines.
pub(crate) const DEVICE_NAME: &str = "mitra0";
/// The name of its file.
pub(crate) const CHAR_DEVICE_NAME: &str = "uverbs0";

/// The device. Providers of rdma-core keep their own data behind `ibv_device`, and programs that know one cast to it:
/// zeros lie there.
#[repr(C)]
struct Device {
    header: AbiHeader<ibv_device>,
    behind: [u64; 64],
}

// SAFETY: `repr(C)`, header first.
unsafe impl AbiObject for Device {
    type C = ibv_device;
}

/// Its address, as an integer: it lives as long as the process.
static DEVICE: OnceLock<usize> = OnceLock::new();

/// The device, the same for the life of the process.
pub(crate) fn device() -> *mut ibv_device {
    *DEVICE.get_or_init(|| {
        // SAFETY: integers, arrays of characters and empty slots.
        let header: AbiHeader<ibv_device> = unsafe { AbiHeader::zeroed() };
        // SAFETY: nobody else has its address yet.
        let device = unsafe { &mut *header.get() };
        device.node_type = IBV_NODE_CA;
        device.transport_type = IBV_TRANSPORT_IB;
        copy_text(&mut device.name, DEVICE_NAME);
        copy_text(&mut device.dev_name, CHAR_DEVICE_NAME);
        copy_text(&mut device.dev_path, "/sys/class/infiniband_verbs/uverbs0");
        copy_text(&mut device.ibdev_path, "/sys/class/infiniband/mitra0");
        Device { header, behind: [0; 64] }.give() as usize
    }) as *mut ibv_device
}

/// Copies a short text and ends it with a zero.
pub(crate) fn copy_text(to: &mut [c_char], text: &str) {
    let bytes = text.bytes().take(to.len() - 1).chain([0]);
    to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_char);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    if !num_devices.is_null() {
        // SAFETY: the caller's variable.
        unsafe { *num_devices = 1 };
    }
    // The list belongs to C, which may free it by `ibv_free_device_list` of this or of another library.
    // SAFETY: two pointers, written before anybody reads them.
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
    // SAFETY: from `ibv_get_device_list`, which got it from `calloc`.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device; its name never changes.
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

/// There is no `sysfs` of the device; a program that looks there must do without.
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
