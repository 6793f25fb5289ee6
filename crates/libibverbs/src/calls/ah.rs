//! Address handles.

use std::ffi::c_int;

use mitra_verbs::{AhId, Error, GRH_LEN, Gid, Result};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::{PORT, destroy_with_context, find_with_context};
use super::gid_table::GID_COUNT;
use super::pd::{Pd, PdMember};
use crate::common::errno::{minus_one, pointer, refuse};
use crate::common::grh::ReceivedHeader;
use mitra_verbs_abi::*;

#[repr(C)]
pub(crate) struct Ah {
    header: AbiHeader<ibv_ah>,
    pub(crate) id: AhId,
    _pd: PdMember,
}

abi_object!(Ah: ibv_ah, "address handle", handle, context);

/// # Errors
/// `Invalid` if the vector has no global route, because RoCE has no LIDs, if its GID is zero, or if
/// the device has no such port or no GID at the vector's index.
pub(crate) fn destination(attr: &ibv_ah_attr) -> Result<Gid> {
    if attr.is_global == 0 {
        return Err(Error::Invalid(
            "the address is a LID, and a RoCE device has none: set is_global and grh.dgid, or give the program its GID option (ibv_*_pingpong: -g 0, perftest: -x 0)",
        ));
    }
    if u32::from(attr.grh.sgid_index) >= GID_COUNT {
        return Err(Error::Invalid(
            "under `mitra run` the GID index is 0 (or 1, the same GID), whatever it is on the NIC: ibv_*_pingpong -g 0, perftest -x 0, NCCL_IB_GID_INDEX=0",
        ));
    }
    if attr.port_num != PORT {
        return Err(Error::Invalid("the device has port 1 only; set port_num to 1"));
    }
    // SAFETY: each member of the union covers all 16 bytes, so these are initialized.
    let gid = unsafe { attr.grh.dgid.raw };
    if gid == [0; 16] {
        return Err(Error::Invalid("grh.dgid is zero, which is the GID of no device"));
    }
    Ok(Gid(gid))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    pointer("ibv_create_ah", unsafe { create(pd, &*attr) })
}

/// # Safety
/// `pd` is a protection domain.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let (object, context) = unsafe { find_with_context::<Pd>(pd)? };
    let (gid, class) = (destination(attr)?, attr.grh.traffic_class);
    let id = context.rails.device.create_ah(object.id, gid, class)?;
    let header = ibv_ah { context: context.address(), pd, handle: id.0 };
    Ok(Ah { header: AbiHeader::new(header), id, _pd: PdMember::clone(&object.member) }.into_raw())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `ah` now.
    unsafe {
        destroy_with_context::<Ah>("ibv_destroy_ah", ah, |object, context| {
            context.rails.device.destroy_ah(object.id)
        })
    }
}

/// Returns the address vector of the sender of a received datagram. The index of the GID table is
/// 0, because all GIDs of the table are the same. The flow label is 0 for an IPv4 header, which has
/// none.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller upholds the rules of module `calls`, and passes its arguments.
    unsafe { init_from_wc("ibv_init_ah_from_wc", port_num, wc, grh, attr) }
}

/// Fills in the address of the sender of a datagram, for the verb `call`. Returns 0, or −1 with
/// `errno` set.
///
/// # Safety
/// The pointers are valid for their structures (rule *structures* of module `calls`).
unsafe fn init_from_wc(
    call: &str,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe {
        if (*wc).wc_flags & IBV_WC_GRH == 0 {
            let reason = "the completion has no GRH, so the sender's address is unknown; pass one of a datagram that arrived";
            return minus_one(refuse(call, libc::EINVAL, reason));
        }
        let header = ReceivedHeader::read(&*grh.cast::<[u8; GRH_LEN]>());
        let mut out = ibv_ah_attr::zeroed();
        out.grh.dgid = ibv_gid { raw: header.source };
        out.grh.flow_label = header.flow_label;
        out.grh.hop_limit = header.hop_limit;
        out.grh.traffic_class = header.traffic_class;
        out.is_global = 1;
        out.port_num = port_num;
        out.sl = (*wc).sl;
        attr.write(out);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    unsafe {
        let mut attr = ibv_ah_attr::zeroed();
        if init_from_wc("ibv_create_ah_from_wc", port_num, wc, grh, &raw mut attr) != 0 {
            return std::ptr::null_mut();
        }
        pointer("ibv_create_ah_from_wc", create(pd, &attr))
    }
}
