//! The devices of this machine.

use std::ffi::{CStr, c_int};
use std::net::IpAddr;

use mitra_verbs_abi::*;

use crate::context::Context;
use crate::gid_table::GidTable;
use crate::library::{Library, LibraryError};
use crate::port;

/// A verbs device of the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// The name, such as `mlx5_0`.
    pub name: String,
    /// The address that a NIC on the device has by default. `None` if its interface has none.
    pub address: Option<IpAddr>,
    /// Why Mitra does not use the device, or `None` if it does.
    pub refusal: Option<Refusal>,
}

/// Why Mitra does not use a device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The device speaks iWARP.
    #[error("it speaks iWARP, which has no packet numbers, no atomics and no datagrams; use a RoCE device")]
    Iwarp,
    /// The device is an InfiniBand adapter, or its port is in InfiniBand mode.
    #[error("its port is InfiniBand, whose addresses Mitra does not have; set the port to Ethernet")]
    InfiniBand,
    /// The device has no reliable connections (EFA, usNIC).
    #[error(
        "it has no reliable connections of RDMA (EFA and usNIC have other transports); use a RoCE device"
    )]
    OtherTransport,
    /// The device cannot be opened.
    #[error("it cannot be opened: {0}; give this user access to /dev/infiniband")]
    Inaccessible(String),
}

/// Returns the devices of this machine in the order of the library.
///
/// # Errors
/// [`LibraryError`] if the system's libibverbs cannot be used. A machine with the library and
/// without devices has an empty list.
pub fn devices() -> Result<Vec<Device>, LibraryError> {
    let list = DeviceList::read(Library::load()?);
    Ok(list.iter().map(|raw| list.describe(raw)).collect())
}

/// The list of the library.
pub(crate) struct DeviceList {
    lib: &'static Library,
    raw: *mut *mut ibv_device,
    len: usize,
}

impl DeviceList {
    /// Reads the list. It is empty if the kernel has no verbs, for which the library returns
    /// ENOSYS.
    pub(crate) fn read(lib: &'static Library) -> DeviceList {
        let mut count: c_int = 0;
        // SAFETY: the count is valid for writing.
        let raw = unsafe { (lib.get_device_list)(&raw mut count) };
        let len = if raw.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
        DeviceList { lib, raw, len }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: the list has `len` entries until it is freed.
        (0..self.len).map(|n| unsafe { *self.raw.add(n) })
    }

    pub(crate) fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: the device exists until the list is freed, and its name ends with a zero.
        unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy().into_owned()
    }

    /// Opens a device, unless it is of a kind that is refused.
    pub(crate) fn open(&self, device: *mut ibv_device) -> Result<Context, Refusal> {
        // SAFETY: the device exists until the list is freed.
        match unsafe { (*device).transport_type } {
            IBV_TRANSPORT_IB => {}
            IBV_TRANSPORT_IWARP => return Err(Refusal::Iwarp),
            _ => return Err(Refusal::OtherTransport),
        }
        // SAFETY: as above.
        let raw = unsafe { (self.lib.open_device)(device) };
        if raw.is_null() {
            return Err(Refusal::Inaccessible(self.lib.last_errno().desc().to_owned()));
        }
        // SAFETY: the context was just opened.
        let context = unsafe { Context::new(raw, self.lib) };
        match port::query(&context) {
            Ok(attr) if attr.link_layer != IBV_LINK_LAYER_ETHERNET => Err(Refusal::InfiniBand),
            Ok(_) => Ok(context),
            Err(error) => Err(Refusal::Inaccessible(error.to_string())),
        }
    }

    fn describe(&self, raw: *mut ibv_device) -> Device {
        let opened = self.open(raw);
        let table = opened.as_ref().ok().and_then(|context| GidTable::read(context).ok());
        Device {
            name: self.name(raw),
            address: table.and_then(|table| table.preferred()).map(IpAddr::from),
            refusal: opened.err(),
        }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the list was read and not freed.
            unsafe { (self.lib.free_device_list)(self.raw) };
        }
    }
}
