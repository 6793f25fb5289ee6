//! The one device, which the manager opens once in a process.

use std::ffi::c_int;

use nix::errno::Errno;

use super::return_code::{check_errno, check_pointer};
use crate::calls::device::device;
use crate::calls::gid_table::ibv_query_gid;
use crate::calls::open_device::ibv_open_device;
use crate::calls::pd::ibv_alloc_pd;
use crate::calls::query_device::ibv_query_device;
use crate::calls::query_port::ibv_query_port;
use mitra_verbs_abi::*;

pub const PORT_NUM: u8 = 1;
/// The index in the port's GID table that connections use.
pub const GID_INDEX: u8 = 0;
/// The default partition key with full membership. The value is the same in host and network order.
pub const PKEY: u16 = 0xffff;

/// The device stays open until the process ends, because `rdma_get_devices` returns its context.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub context: *mut ibv_context,
    /// The protection domain of identifiers for which the program provides none.
    pub pd: *mut ibv_pd,
    /// The present GID at [`GID_INDEX`].
    pub gid: [u8; 16],
    /// The path MTU of the port, as an `ibv_mtu`.
    pub path_mtu: u8,
    /// `max_qp_rd_atom`.
    pub max_responder_resources: u8,
    /// `max_qp_init_rd_atom`.
    pub max_initiator_depth: u8,
}

// SAFETY: any thread may use verbs objects (`man ibv_open_device`, rdma-core).
unsafe impl Send for Device {}

impl Device {
    /// # Errors
    /// The error of the verb that failed.
    pub fn open() -> Result<Self, Errno> {
        // SAFETY: the device of `device()` lives as long as the process. Each later call gets the
        // live context and a local structure of the type that the call fills. The structures
        // consist of integers, for which zeros are valid. `ibv_query_port` takes a pointer of its
        // old ABI.
        unsafe {
            let context = check_pointer(ibv_open_device(device()))?;
            let mut device: ibv_device_attr = std::mem::zeroed();
            check_errno(ibv_query_device(context, &raw mut device))?;
            let mut port: ibv_port_attr = std::mem::zeroed();
            check_errno(ibv_query_port(context, PORT_NUM, (&raw mut port).cast()))?;
            let mut gid = ibv_gid { raw: [0; 16] };
            check_errno(ibv_query_gid(context, PORT_NUM, GID_INDEX.into(), &raw mut gid))?;
            let to_u8 = |limit: c_int| limit.clamp(0, u8::MAX.into()) as u8;
            Ok(Self {
                context,
                pd: check_pointer(ibv_alloc_pd(context))?,
                gid: gid.raw,
                path_mtu: port.active_mtu as u8,
                max_responder_resources: to_u8(device.max_qp_rd_atom),
                max_initiator_depth: to_u8(device.max_qp_init_rd_atom),
            })
        }
    }

    /// # Safety
    /// `id` is the memory of a live identifier.
    pub unsafe fn bind(&self, id: *mut rdma_cm_id) {
        // SAFETY: by the contract `id` is readable and writable.
        unsafe {
            (*id).verbs = self.context;
            if (*id).pd.is_null() {
                (*id).pd = self.pd;
            }
            (*id).port_num = PORT_NUM;
            (*id).route.addr.addr.ibaddr.sgid.raw = self.gid;
            (*id).route.addr.addr.ibaddr.pkey = PKEY;
        }
    }
}
