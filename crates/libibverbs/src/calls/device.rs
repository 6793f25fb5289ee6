//! The device before it is opened. Every process has exactly one device, `mitra0`, for any number
//! of rails.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{fs, ptr};

use super::abi_object::AbiHeader;
use crate::common::cancellation;
use crate::common::errno::minus_one;
use crate::rails::open;
use mitra_verbs_abi::*;

pub(crate) const DEVICE_NAME: &str = "mitra0";
/// The name that the kernel's character device for this device would have.
pub(crate) const CHAR_DEVICE_NAME: &str = "uverbs0";

/// Providers of rdma-core keep private data after `ibv_device`. A program that casts the pointer to
/// a provider's type reads zeros here.
#[repr(C)]
struct Device {
    header: AbiHeader<ibv_device>,
    provider_data: [u64; 64],
}

/// The device, which is never freed. No thread waits for another thread that creates the device,
/// because that thread would not exist in the child of a fork.
static DEVICE: AtomicPtr<Device> = AtomicPtr::new(ptr::null_mut());

/// All calls in a process return the same address.
pub(crate) fn device() -> *mut ibv_device {
    let known = DEVICE.load(Ordering::Acquire);
    if !known.is_null() {
        return known.cast();
    }
    let mut device = ibv_device::zeroed();
    device.node_type = IBV_NODE_CA;
    device.transport_type = IBV_TRANSPORT_IB;
    copy_c_string(&mut device.name, DEVICE_NAME);
    copy_c_string(&mut device.dev_name, CHAR_DEVICE_NAME);
    copy_c_string(&mut device.dev_path, "/sys/class/infiniband_verbs/uverbs0");
    copy_c_string(&mut device.ibdev_path, "/sys/class/infiniband/mitra0");
    let new = Box::into_raw(Box::new(Device { header: AbiHeader::new(device), provider_data: [0; 64] }));
    match DEVICE.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new.cast(),
        Err(first) => {
            // SAFETY: `new` came from `Box::into_raw` above, and no other thread knows it.
            drop(unsafe { Box::from_raw(new) });
            first.cast()
        }
    }
}

/// Copies a text, truncated if necessary, and terminates it with a zero byte.
pub(crate) fn copy_c_string(to: &mut [c_char], text: &str) {
    let bytes = text.bytes().take(to.len() - 1).chain([0]);
    to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_char);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    if !num_devices.is_null() {
        // SAFETY: rule *structures* (module `calls`): the pointer is valid.
        unsafe { *num_devices = 1 };
    }
    // The list is allocated with `calloc`, because the `ibv_free_device_list` of another library
    // may free it with `free`.
    // SAFETY: `calloc` returns null or zeroed memory for two pointers.
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
    // SAFETY: rule *objects* (module `calls`): the device is never freed, and only an address is
    // computed.
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

/// Reads a file of the device, such as `node_guid` of `ibdev_path`, without its last line feed.
/// Returns the length of the text, or −1 with `errno`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    to: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: rule *structures* (module `calls`): both are C strings.
    let [dir, file] = [dir, file].map(|name| OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()));
    match cancellation::held_off(|| fs::read(Path::new(dir).join(file))) {
        Ok(content) => {
            let text = content.strip_suffix(b"\n").unwrap_or(&content);
            let len = text.len().min(size);
            // SAFETY: rule *structures* (module `calls`): `to` is valid for writing `size` bytes.
            unsafe {
                ptr::copy_nonoverlapping(text.as_ptr().cast(), to, len);
                if len < size {
                    to.add(len).write(0);
                }
            }
            len as c_int
        }
        Err(error) => minus_one(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}
