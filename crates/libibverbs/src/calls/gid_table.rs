//! The GID table and the partition key table.
//!
//! Soft-RoCE has an interface's link-local GID at index 0 and the IPv4 GID at index 1, both of type
//! RoCE v2. Programs therefore use either index. A software NIC has one address, so both entries
//! hold its GID. The other entries are empty.

use std::ffi::{c_int, c_uint};
use std::ptr;

use mitra_verbs::Gid;

use super::context::{Context, PORT};
use crate::common::errno::{minus_one, refuse, status};
use crate::common::refusal::explain_if_verbose;
use mitra_verbs_abi::*;

/// As on soft-RoCE (`RXE_PORT_GID_TBL_LEN` in drivers/infiniband/sw/rxe/rxe_param.h).
pub(crate) const GID_TABLE_LEN: u32 = 1024;
/// The number of GIDs in the table, at the first indices.
pub(crate) const GID_COUNT: u32 = 2;

const NO_SUCH_GID: &str = "under `mitra run` the GID index is 0 (or 1, the same GID), whatever it is on the NIC, and the port is 1: ibv_*_pingpong -g 0, perftest -x 0, NCCL_IB_GID_INDEX=0";

/// Returns the GID at an index of a port's table, for the verb `call`.
///
/// # Errors
/// `EINVAL` for a port or an index that does not exist, `ENODATA` for an empty entry, or the
/// `errno` value for the error of [`Context::find_raw`] or of the NIC.
///
/// # Safety
/// The requirements of [`Context::find_raw`].
unsafe fn gid_at<'a>(
    call: &str,
    context: *mut ibv_context,
    port_num: u32,
    index: u32,
) -> Result<(&'a Context, Gid), c_int> {
    if port_num != u32::from(PORT) || index >= GID_TABLE_LEN {
        return Err(refuse(call, libc::EINVAL, NO_SUCH_GID));
    }
    let status_of = |error| status(call, Err(error));
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let context = unsafe { Context::find_raw(context) }.map_err(status_of)?;
    if index >= GID_COUNT {
        // Programs read the table entry by entry, and most entries are empty.
        explain_if_verbose(call, &NO_SUCH_GID);
        return Err(libc::ENODATA);
    }
    context.rails.device.gid().map(|gid| (context, gid)).map_err(status_of)
}

const NO_FLAGS: &str = "the query has no flags; pass 0";

/// Writes the GID at an index. As in rdma-core, an empty entry is a GID of zeros.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // A negative index becomes an index beyond the table, which is refused.
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    // SAFETY: rule *objects* (module `calls`): `context` is not closed during the call.
    let entry = unsafe { gid_at("ibv_query_gid", context, port_num.into(), index) }.map(|(_, gid)| gid);
    match entry.or_else(|errno| if errno == libc::ENODATA { Ok(Gid([0; 16])) } else { Err(errno) }) {
        Ok(value) => {
            // SAFETY: rule *structures* (module `calls`): the pointer is valid.
            unsafe { gid.write(ibv_gid { raw: value.0 }) };
            0
        }
        Err(errno) => minus_one(errno),
    }
}

fn entry(context: &Context, gid: Gid, gid_index: u32) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.0 },
        gid_index,
        port_num: PORT.into(),
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: context.rails.interface_index,
    }
}

/// Copies an entry, truncated to the size of the program's structure.
///
/// # Safety
/// `to` is valid for writing `size` bytes.
unsafe fn write_entry(to: *mut ibv_gid_entry, size: usize, entry: &ibv_gid_entry) {
    let known = size.min(size_of::<ibv_gid_entry>());
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(entry).cast::<u8>(), to.cast::<u8>(), known) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    if flags != 0 {
        return refuse("ibv_query_gid_ex", libc::EOPNOTSUPP, NO_FLAGS);
    }
    // SAFETY: rule *objects* (module `calls`): `context` is not closed during the call.
    match unsafe { gid_at("ibv_query_gid_ex", context, port_num, gid_index) } {
        Ok((context, gid)) => {
            // SAFETY: rule *structures* (module `calls`): `out` is valid for writing `entry_size`
            // bytes.
            unsafe { write_entry(out, entry_size, &entry(context, gid, gid_index)) };
            0
        }
        Err(errno) => errno,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    if flags != 0 {
        return -(refuse("ibv_query_gid_table", libc::EOPNOTSUPP, NO_FLAGS) as isize);
    }
    // SAFETY: rule *objects* (module `calls`): `context` is not closed during the call.
    match unsafe { gid_at("ibv_query_gid_table", context, PORT.into(), 0) } {
        Ok(_) if max_entries < GID_COUNT as usize => {
            let reason = "max_entries is smaller than the number of GIDs; pass room for two entries";
            -(refuse("ibv_query_gid_table", libc::EINVAL, reason) as isize)
        }
        Ok((context, gid)) => {
            for index in 0..GID_COUNT {
                // SAFETY: rule *structures* (module `calls`): `entries` has `max_entries` entries
                // of `entry_size` bytes, and `max_entries` is at least `GID_COUNT` here.
                unsafe {
                    let at = entries.byte_add(index as usize * entry_size);
                    write_entry(at, entry_size, &entry(context, gid, index));
                }
            }
            GID_COUNT as isize
        }
        Err(errno) => -(errno as isize),
    }
}

/// Returns the type of a GID as a value of rdma-core's `enum ibv_gid_type_sysfs`, in which 1 is
/// RoCE v2, and 0 the type of an empty entry.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `context` is not closed during the call.
    let found = match unsafe { gid_at("ibv_query_gid_type", context, port_num.into(), index) } {
        Ok(_) => 1,
        Err(libc::ENODATA) => 0,
        Err(errno) => return minus_one(errno),
    };
    // SAFETY: rule *structures* (module `calls`): the pointer is valid.
    unsafe { *gid_type = found };
    0
}

/// The default partition key with full membership (IBTA volume 1, 10.9.1.2).
pub(crate) const PKEY: u16 = 0xffff;
const NO_OTHER_PKEY: &str = "the device has one port with one partition key: use port 1, index 0, key 0xffff";

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port_num != PORT || index != 0 {
        return minus_one(refuse("ibv_query_pkey", libc::EINVAL, NO_OTHER_PKEY));
    }
    // SAFETY: rule *structures* (module `calls`): the pointer is valid.
    unsafe { *pkey = PKEY };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    if port_num == PORT && pkey == PKEY {
        return 0;
    }
    minus_one(refuse("ibv_get_pkey_index", libc::EINVAL, NO_OTHER_PKEY))
}

/// Returns a MAC address of zeros and no VLAN, because packets are sent through UDP sockets and the
/// library knows no MAC address.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    // SAFETY: rule *structures* (module `calls`): `mac` is valid for writing 6 bytes, and `vid` for
    // writing one value or null.
    unsafe {
        ptr::write_bytes(mac, 0, 6);
        if !vid.is_null() {
            *vid = 0xffff;
        }
    }
    0
}
