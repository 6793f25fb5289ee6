//! The device of every identifier: Mitra's, opened once in a process.

use std::ffi::c_int;
use std::ptr;

use nix::errno::Errno;

use super::manager::manager;
use super::{checked, made};
use crate::abi::*;
use crate::calls::device::device;
use crate::calls::gid_table::ibv_query_gid;
use crate::calls::open_device::ibv_open_device;
use crate::calls::pd::ibv_alloc_pd;
use crate::calls::query_device::ibv_query_device;
use crate::calls::query_port::ibv_query_port;

/// The only port.
pub const PORT: u8 = 1;
/// The line of its GID table that connections use.
pub const GID_INDEX: u8 = 0;
/// The default partition, in network order.
pub const PKEY: u16 = 0xffff;

/// The open device. It stays open: identifiers come and go, and `rdma_get_devices` hands it out.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// It.
    pub context: *mut ibv_context,
    /// The protection domain of those who bring none.
    pub pd: *mut ibv_pd,
    /// Its address.
    pub gid: [u8; 16],
    /// Its path MTU, as an `ibv_mtu`.
    pub path_mtu: u8,
    /// How many READs and atomics a QP answers at once.
    pub max_responder_resources: u8,
    /// How many it has outstanding.
    pub max_initiator_depth: u8,
}

// SAFETY: verbs objects may be used from any thread (`man ibv_open_device` and libibverbs' thread safety).
unsafe impl Send for Device {}

impl Device {
    /// Opens it.
    pub fn open() -> Result<Self, Errno> {
        // SAFETY: each call gets what the one before it made, and memory that is as large as it says.
        unsafe {
            let context = made(ibv_open_device(device()))?;
            let mut device: ibv_device_attr = std::mem::zeroed();
            checked(ibv_query_device(context, &raw mut device))?;
            let mut port: ibv_port_attr = std::mem::zeroed();
            checked(ibv_query_port(context, PORT, (&raw mut port).cast()))?;
            let mut gid = ibv_gid { raw: [0; 16] };
            checked(ibv_query_gid(context, PORT, GID_INDEX.into(), &raw mut gid))?;
            let at_most = |limit: c_int| limit.clamp(0, u8::MAX.into()) as u8;
            Ok(Self {
                context,
                pd: made(ibv_alloc_pd(context))?,
                gid: gid.raw,
                path_mtu: port.active_mtu as u8,
                max_responder_resources: at_most(device.max_qp_rd_atom),
                max_initiator_depth: at_most(device.max_qp_init_rd_atom),
            })
        }
    }

    /// Binds an identifier to the device.
    ///
    /// # Safety
    /// `id` is an identifier's memory.
    pub unsafe fn bind(&self, id: *mut rdma_cm_id) {
        // SAFETY: by the contract.
        unsafe {
            (*id).verbs = self.context;
            if (*id).pd.is_null() {
                (*id).pd = self.pd;
            }
            (*id).port_num = PORT;
            (*id).route.addr.addr.ibaddr.sgid.raw = self.gid;
            (*id).route.addr.addr.ibaddr.pkey = PKEY;
        }
    }
}

/// `rdma_get_devices`: a list of the one device, ended by null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let listed = manager().and_then(|manager| manager.device()).and_then(|device| {
        // SAFETY: memory for two pointers, of which the second stays null.
        unsafe {
            let list: *mut *mut ibv_context = made(libc::calloc(2, size_of_val(&device.context)).cast())?;
            *list = device.context;
            Ok(list)
        }
    });
    if !num_devices.is_null() {
        // SAFETY: the caller's variable.
        unsafe { *num_devices = c_int::from(listed.is_ok()) };
    }
    listed.unwrap_or_else(|errno| {
        errno.set();
        ptr::null_mut()
    })
}

/// `rdma_free_devices`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the caller got it from `rdma_get_devices`.
    unsafe { libc::free(list.cast()) };
}
