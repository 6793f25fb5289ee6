//! `ibv_query_port`.

use std::ffi::c_int;
use std::{mem, ptr};

use super::context::{Context, PORT};
use super::gid_table::GID_TABLE_LEN;
use super::mtu::mtu_code;
use crate::common::errno::{refuse, status};
use mitra_verbs_abi::*;

/// The value of `active_speed` for 25 Gbit/s (IBTA volume 1, 14.2.5.6). It is nominal, because the
/// speed of a software NIC is not known.
const SPEED_25_GBPS: u8 = 32;
const WIDTH_1X: u8 = 1;
const PHYS_STATE_LINK_UP: u8 = 5;
/// The value of `phys_state` for a link that is down and waits for a partner.
const PHYS_STATE_POLLING: u8 = 2;

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `context` is not closed during the call.
    let context = unsafe { Context::find_raw(context) };
    let context = context.map_err(|error| status("ibv_query_port", Err(error)));
    match context.and_then(|context| port_attr(context, port_num)) {
        Ok(out) => {
            let known = attr_len.min(size_of::<ibv_port_attr>());
            // SAFETY: rule *structures* (module `calls`): `attr` is valid for writing `attr_len`
            // bytes, and at most `known` of these are copied from `out`.
            unsafe {
                ptr::write_bytes(attr.cast::<u8>(), 0, attr_len);
                ptr::copy_nonoverlapping((&raw const out).cast::<u8>(), attr.cast::<u8>(), known);
            }
            0
        }
        Err(errno) => errno,
    }
}

fn port_attr(context: &Context, port_num: u8) -> Result<ibv_port_attr, c_int> {
    if port_num != PORT {
        return Err(refuse("ibv_query_port", libc::EINVAL, "the device has one port; use port 1"));
    }
    let mut out = port_attr_when(context.rails.is_up());
    out.active_mtu = mtu_code(context.rails.max_mtu);
    out.max_msg_sz = context.rails.device.limits().message_bytes;
    Ok(out)
}

/// Returns the attributes that depend only on whether the port is up. The port of a dead NIC is
/// down.
pub(crate) fn port_attr_when(up: bool) -> ibv_port_attr {
    let mut out = ibv_port_attr::zeroed();
    out.state = if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    out.max_mtu = IBV_MTU_4096;
    out.gid_tbl_len = GID_TABLE_LEN as c_int;
    out.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    out.pkey_tbl_len = 1;
    out.max_vl_num = 1;
    out.active_width = WIDTH_1X;
    out.active_speed = SPEED_25_GBPS;
    out.phys_state = if up { PHYS_STATE_LINK_UP } else { PHYS_STATE_POLLING };
    out.link_layer = IBV_LINK_LAYER_ETHERNET;
    out.flags = IBV_QPF_GRH_REQUIRED;
    out
}

/// The number of bytes that the exported function may write. Programs that are linked to this
/// function may have an older `struct ibv_port_attr`, which ends before `port_cap_flags2`.
const EXPORTED_PORT_ATTR: usize = mem::offset_of!(ibv_port_attr, port_cap_flags2);

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller upholds the rules of module `calls`, and its structure has at least
    // `EXPORTED_PORT_ATTR` bytes.
    unsafe { query_port(context, port_num, attr, EXPORTED_PORT_ATTR) }
}
