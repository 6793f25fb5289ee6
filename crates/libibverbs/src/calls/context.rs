//! Open devices, and what they say of themselves.

use std::ffi::{c_int, c_uint};
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;

use mitra_softnic::SoftNic;
use mitra_verbs::{AtomicScope, Gid, Mtu, Provider};

use super::abi_object::AbiHeader;
use super::events::AsyncEvents;
use super::{cq, cq_ex, device, mr, mw, post, qp, srq};
use crate::abi::*;
use crate::common::errno::{log_failure, minus_one, pointer, status};
use crate::rails::{self, Rails};

/// An open device. Programs hold the address of `face.context`.
#[repr(C)]
pub(crate) struct Context {
    face: AbiHeader<verbs_context>,
    pub(crate) rails: Arc<Rails>,
    pub(crate) events: AsyncEvents,
}

/// The port that every device has.
const PORT: u8 = 1;
/// Pages of 4 KiB and all larger sizes: any memory can be registered.
const PAGE_SIZES: u64 = !0xfff;
/// 25 Gbit/s on one lane, of the values of IBTA volume 1, 14.2.5.6: nobody should plan by it.
const SPEED: u8 = 32;
const ONE_LANE: u8 = 1;
const LINK_UP: u8 = 5;
const POLLING: u8 = 2;

impl Context {
    /// The context that the program means.
    ///
    /// # Safety
    /// As for [`AbiObject::of`].
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: every context that programs know is the end of the face of one of these.
        unsafe { &*context.byte_sub(mem::offset_of!(verbs_context, context)).cast::<Context>() }
    }

    /// Its address as programs know it.
    pub(crate) fn address(&self) -> *mut ibv_context {
        // SAFETY: within the face.
        unsafe { &raw mut (*self.face.get()).context }
    }

    /// The NIC, of rail 0 if there are more.
    pub(crate) fn nic(&self) -> &SoftNic {
        self.rails.nic()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer("ibv_open_device", open(device))
}

fn open(device: *mut ibv_device) -> mitra_verbs::Result<*mut ibv_context> {
    let rails = Rails::open()?;
    let events = AsyncEvents::new()?;
    // SAFETY: integers, pointers and optional functions.
    let mut face: verbs_context = unsafe { mem::zeroed() };
    face.sz = size_of::<verbs_context>();
    face.query_port = Some(query_port);
    face.query_device_ex = Some(query_device_ex);
    face.query_rt_values = Some(query_rt_values);
    face.create_cq_ex = Some(cq_ex::create_cq_ex);
    face.create_qp_ex = Some(qp::create_qp_ex);
    face.create_srq_ex = Some(srq::create_srq_ex);
    face.modify_cq = Some(cq::modify_cq);
    face.advise_mr = Some(mr::advise_mr);
    face.context.device = device;
    face.context.ops.poll_cq = Some(cq::poll_cq);
    face.context.ops.req_notify_cq = Some(cq::req_notify_cq);
    face.context.ops.post_send = Some(post::post_send);
    face.context.ops.post_recv = Some(post::post_recv);
    face.context.ops.post_srq_recv = Some(post::post_srq_recv);
    face.context.ops.alloc_mw = Some(mw::alloc_mw);
    face.context.ops.bind_mw = Some(mw::bind_mw);
    face.context.ops.dealloc_mw = Some(mw::dealloc_mw);
    face.context.cmd_fd = -1;
    face.context.async_fd = events.fd().as_raw_fd();
    face.context.num_comp_vectors = 1;
    face.context.abi_compat = ptr::without_provenance_mut(__VERBS_ABI_IS_EXTENDED);
    let context = Box::leak(Box::new(Context { face: AbiHeader::new(face), rails, events }));
    let address = context.address();
    context.rails.objects().contexts.push(address as usize);
    Ok(address)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: an open device.
    let found = unsafe { Context::of(context) };
    found.rails.objects().contexts.retain(|other| *other != context as usize);
    // SAFETY: it was leaked when it was opened, and the program gives it back.
    drop(unsafe { Box::from_raw(ptr::from_ref(found).cast_mut()) });
    0
}

/// A device of another process cannot be had: there is no descriptor that stands for one.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    crate::common::errno::set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: an open device, and the caller's structure.
    unsafe { attr.write(device_attr(Context::of(context))) };
    0
}

fn device_attr(context: &Context) -> ibv_device_attr {
    let attr = context.nic().attr();
    let limits = context.rails.limits();
    let count = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    // SAFETY: integers.
    let mut out: ibv_device_attr = unsafe { mem::zeroed() };
    device::copy_text(&mut out.fw_ver, env!("CARGO_PKG_VERSION"));
    out.node_guid = rails::guid();
    out.sys_image_guid = out.node_guid;
    out.max_mr_size = i64::MAX as u64;
    out.page_size_cap = PAGE_SIZES;
    // No vendor that a program has a special way for: 0xffffff is nobody's.
    out.vendor_id = 0x00ff_ffff;
    out.max_qp = count(limits.qps);
    out.max_qp_wr = count(limits.wrs);
    out.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID;
    if context.rails.spanning.is_none() {
        out.device_cap_flags |=
            IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    }
    out.max_sge = count(limits.sges);
    out.max_sge_rd = count(limits.sges);
    out.max_cq = count(limits.cqs);
    out.max_cqe = count(limits.cqe);
    out.max_mr = count(limits.mrs);
    out.max_pd = count(limits.pds);
    out.max_qp_rd_atom = limits.rd_atomic.into();
    out.max_res_rd_atom = count(limits.qps).saturating_mul(limits.rd_atomic.into());
    out.max_qp_init_rd_atom = limits.rd_atomic.into();
    out.atomic_cap = match attr.capabilities.atomic_scope {
        AtomicScope::None => IBV_ATOMIC_NONE,
        AtomicScope::Nic => IBV_ATOMIC_HCA,
        AtomicScope::Global => IBV_ATOMIC_GLOB,
    };
    out.max_mw = count(limits.mws);
    out.max_ah = count(limits.ahs);
    out.max_mcast_grp = count(limits.mcast_groups);
    out.max_mcast_qp_attach = count(limits.mcast_qps);
    out.max_total_mcast_qp_attach = count(limits.mcast_attached);
    out.max_srq = count(limits.srqs);
    out.max_srq_wr = count(limits.wrs);
    out.max_srq_sge = count(limits.sges);
    out.max_pkeys = 1;
    out.phys_port_cnt = PORT;
    out
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: the caller's question, if there is one.
    if attr_size < size_of::<ibv_device_attr>() || unsafe { input.as_ref() }.is_some_and(|i| i.comp_mask != 0)
    {
        return libc::EINVAL;
    }
    // SAFETY: integers.
    let mut out: ibv_device_attr_ex = unsafe { mem::zeroed() };
    // SAFETY: an open device.
    out.orig_attr = device_attr(unsafe { Context::of(context) });
    out.device_cap_flags_ex = out.orig_attr.device_cap_flags.into();
    out.phys_port_cnt_ex = PORT.into();
    let known = attr_size.min(size_of::<ibv_device_attr_ex>());
    // SAFETY: the caller's structure has `attr_size` bytes; what a newer one has behind ours is zero.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, attr_size);
        ptr::copy_nonoverlapping((&raw const out).cast::<u8>(), attr.cast::<u8>(), known);
    }
    0
}

unsafe extern "C" fn query_rt_values(_context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    // SAFETY: the caller's structure.
    let values = unsafe { &mut *values };
    if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
        return libc::EINVAL;
    }
    values.comp_mask = 0; // there is no free-running clock: nothing is answered
    0
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    // SAFETY: an open device.
    let context = unsafe { Context::of(context) };
    match port_attr(context, port_num) {
        Ok(out) => {
            let known = attr_len.min(size_of::<ibv_port_attr>());
            // SAFETY: the caller's structure has `attr_len` bytes.
            unsafe {
                ptr::write_bytes(attr.cast::<u8>(), 0, attr_len);
                ptr::copy_nonoverlapping((&raw const out).cast::<u8>(), attr.cast::<u8>(), known);
            }
            0
        }
        Err(number) => number,
    }
}

fn port_attr(context: &Context, port_num: u8) -> Result<ibv_port_attr, c_int> {
    if port_num != PORT {
        log_failure("ibv_query_port", &"the device has one port, number 1");
        return Err(libc::EINVAL);
    }
    let port = context.nic().query_port();
    // SAFETY: integers.
    let mut out: ibv_port_attr = unsafe { mem::zeroed() };
    // A NIC that died has a port all the same: it is down.
    let up = context.rails.is_up();
    out.state = if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    out.max_mtu = IBV_MTU_4096;
    out.active_mtu = mtu_code(port.map_or(Mtu::M1024, |port| port.max_mtu));
    out.gid_tbl_len = 1;
    out.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    out.max_msg_sz = context.nic().attr().limits.message_bytes;
    out.pkey_tbl_len = 1;
    out.max_vl_num = 1;
    out.active_width = ONE_LANE;
    out.active_speed = SPEED;
    out.phys_state = if up { LINK_UP } else { POLLING };
    out.link_layer = IBV_LINK_LAYER_ETHERNET;
    out.flags = IBV_QPF_GRH_REQUIRED;
    Ok(out)
}

/// `enum ibv_mtu` for a path MTU.
pub(crate) fn mtu_code(mtu: Mtu) -> ibv_mtu {
    match mtu {
        Mtu::M256 => IBV_MTU_256,
        Mtu::M512 => IBV_MTU_512,
        Mtu::M1024 => IBV_MTU_1024,
        Mtu::M2048 => IBV_MTU_2048,
        Mtu::M4096 => IBV_MTU_4096,
    }
}

/// The bytes of `struct ibv_port_attr` that programs linked to the exported function know: those before
/// `port_cap_flags2`.
const EXPORTED_PORT_ATTR: usize = mem::offset_of!(ibv_port_attr, port_cap_flags2);

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: an open device, and the caller's structure, of which this many bytes are there.
    unsafe { query_port(context, port_num, attr, EXPORTED_PORT_ATTR) }
}

/// The one line of the GID table.
fn gid_at(context: &Context, port_num: u32, index: u32) -> Result<Gid, c_int> {
    if port_num != u32::from(PORT) || index != 0 {
        return Err(libc::EINVAL);
    }
    context.rails.gid().map_err(|error| status_of(&error))
}

fn status_of(error: &mitra_verbs::Error) -> c_int {
    status("reading the GID table", Err(error.clone()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: an open device.
    let found = u32::try_from(index)
        .map_err(|_| libc::EINVAL)
        .and_then(|index| gid_at(unsafe { Context::of(context) }, port_num.into(), index));
    match found {
        Ok(found) => {
            // SAFETY: the caller's structure.
            unsafe { gid.write(ibv_gid { raw: found.0 }) };
            0
        }
        Err(number) => minus_one(number),
    }
}

fn entry(gid: Gid) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.0 },
        gid_index: 0,
        port_num: PORT.into(),
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: 0,
    }
}

/// Copies an entry, of which the caller knows so many bytes.
///
/// # Safety
/// `to` has room for them.
unsafe fn put_entry(to: *mut ibv_gid_entry, size: usize, entry: &ibv_gid_entry) {
    let known = size.min(size_of::<ibv_gid_entry>());
    // SAFETY: the caller's promise.
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
        return libc::EOPNOTSUPP;
    }
    // SAFETY: an open device.
    match gid_at(unsafe { Context::of(context) }, port_num, gid_index) {
        Ok(gid) => {
            // SAFETY: the caller's structure, of the size it says.
            unsafe { put_entry(out, entry_size, &entry(gid)) };
            0
        }
        Err(number) => number,
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
        return -(libc::EOPNOTSUPP as isize);
    }
    // SAFETY: an open device.
    match gid_at(unsafe { Context::of(context) }, PORT.into(), 0) {
        Ok(_) if max_entries == 0 => -(libc::EINVAL as isize),
        Ok(gid) => {
            // SAFETY: the caller's array, of at least one entry of the size it says.
            unsafe { put_entry(entries, entry_size, &entry(gid)) };
            1
        }
        Err(number) => -(number as isize),
    }
}

/// What older programs ask instead of [`_ibv_query_gid_ex`]; counted as `sysfs` does: 1 is RoCE v2.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    // SAFETY: an open device.
    match gid_at(unsafe { Context::of(context) }, port_num.into(), index) {
        Ok(_) => {
            // SAFETY: the caller's variable.
            unsafe { *gid_type = 1 };
            0
        }
        Err(number) => minus_one(number),
    }
}

/// The default P_Key, full member (IBTA volume 1, 10.9.1.2).
const PKEY: u16 = 0xffff;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port_num != PORT || index != 0 {
        return minus_one(libc::EINVAL);
    }
    // SAFETY: the caller's variable.
    unsafe { *pkey = PKEY };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    if port_num == PORT && pkey == PKEY { 0 } else { minus_one(libc::EINVAL) }
}

/// RoCE v2 asks the network for nothing but IP: there is a MAC address on no rail.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    // SAFETY: the caller's six bytes, and its variable where it has one.
    unsafe {
        ptr::write_bytes(mac, 0, 6);
        if !vid.is_null() {
            *vid = 0xffff;
        }
    }
    0
}

/// Memory is the program's own, read and written by its own process: nothing is pinned, so a fork takes nothing away.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dontfork_range(_base: *mut libc::c_void, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dofork_range(_base: *mut libc::c_void, _size: usize) -> c_int {
    0
}
