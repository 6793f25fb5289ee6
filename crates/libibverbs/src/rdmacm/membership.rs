//! The membership of an identifier in a multicast group.

use std::ffi::c_void;
use std::net::SocketAddr;

use mitra_verbs::Gid;
use nix::errno::Errno;

use super::caller_ptr::CallerPtr;
use super::return_code::check_errno;
use crate::calls::mcast::{ibv_attach_mcast, ibv_detach_mcast};
use mitra_verbs_abi::{ibv_gid, rdma_cm_id};

/// The destination queue pair number of multicast packets (IBTA volume 1, 10.5).
pub const MULTICAST_QPN: u32 = 0xff_ffff;

#[derive(Clone, Copy)]
pub struct Membership {
    /// Unique within the identifier. [`CmEvent::Joined`](super::cm_event::CmEvent::Joined) refers
    /// to the membership by this number.
    pub number: u64,
    pub address: SocketAddr,
    /// The program's context pointer for the group, returned in the event.
    pub context: CallerPtr<c_void>,
    /// Whether the program only sends to the group. The identifier's queue pair is then not
    /// attached.
    pub is_send_only: bool,
}

impl Membership {
    /// With RoCEv2, the group's address determines its GID (the kernel's `cma_iboe_set_mgid`).
    pub fn gid(&self) -> ibv_gid {
        ibv_gid { raw: Gid::from(self.address.ip()).0 }
    }

    /// Attaches the identifier's queue pair, if it has one, unless the membership is send-only.
    ///
    /// # Errors
    /// The error of `ibv_attach_mcast`.
    ///
    /// # Safety
    /// `id` is the memory of a live identifier, and its `qp` is null or a live queue pair.
    pub unsafe fn attach(&self, id: *mut rdma_cm_id) -> Result<(), Errno> {
        // SAFETY: by the contract `id` is readable, and a queue pair that is not null is live.
        unsafe {
            if (*id).qp.is_null() || self.is_send_only {
                Ok(())
            } else {
                check_errno(ibv_attach_mcast((*id).qp, &self.gid(), 0))
            }
        }
    }

    /// Detaches the identifier's queue pair, if it is attached.
    ///
    /// # Safety
    /// As for [`attach`](Self::attach).
    pub unsafe fn detach(&self, id: *mut rdma_cm_id) {
        // SAFETY: as in `attach`.
        unsafe {
            if !(*id).qp.is_null() && !self.is_send_only {
                // Fails if the queue pair is not attached, because the program left the group
                // before reading the event of the join.
                let _ = ibv_detach_mcast((*id).qp, &self.gid(), 0);
            }
        }
    }
}
