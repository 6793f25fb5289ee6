//! `ibv_query_device` and `ibv_query_device_ex`.

use std::ffi::c_int;
use std::ptr;

use mitra_verbs::{AtomicScope, Extras, Limits};

use super::context::{Context, PORT};
use super::{device, dm, on_demand};
use crate::common::errno::{refuse, status};
use crate::rails::open;
use crate::rails::rail_set::RailSet;
use mitra_verbs_abi::*;

/// The supported page sizes as a bitmap, in which bit n stands for 2ⁿ bytes: all sizes from 4 KiB.
const PAGE_SIZES: u64 = !0xfff;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `context` is not closed during the call.
    let queried = unsafe { Context::find_raw_or_inherited(context) }.map(|context| {
        // SAFETY: rule *structures* (module `calls`): `attr` is valid for writing.
        unsafe { attr.write(device_attr(context)) };
    });
    status("ibv_query_device", queried)
}

/// Takes no lock, because the context may belong to the parent process.
fn device_attr(context: &Context) -> ibv_device_attr {
    let device = &context.rails.device;
    let limits = device.limits();
    let count = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    let mut out = ibv_device_attr::zeroed();
    device::copy_c_string(&mut out.fw_ver, env!("CARGO_PKG_VERSION"));
    out.node_guid = open::guid_of(context.rails.first_gid);
    out.sys_image_guid = out.node_guid;
    out.max_mr_size = i64::MAX as u64;
    out.page_size_cap = PAGE_SIZES;
    // No vendor has this id, so no program uses vendor extensions.
    out.vendor_id = 0x00ff_ffff;
    out.max_qp = count(limits.qps);
    out.max_qp_wr = count(limits.wrs);
    let extras = extras(&context.rails);
    let has_windows = context.rails.nics.iter().all(|nic| nic.attr().capabilities.windows);
    out.device_cap_flags = [
        (true, IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_MEM_MGT_EXTENSIONS),
        (extras.xrc, IBV_DEVICE_XRC),
        (extras.srq_resize, IBV_DEVICE_SRQ_RESIZE),
        (extras.type_1_windows, IBV_DEVICE_MEM_WINDOW),
        (has_windows, IBV_DEVICE_MEM_WINDOW_TYPE_2B),
        (device.reports_each_port_change(), IBV_DEVICE_PORT_ACTIVE_EVENT),
    ]
    .into_iter()
    .fold(0, |all, (is_set, flag)| if is_set { all | flag } else { all });
    out.max_sge = count(limits.sges);
    out.max_sge_rd = count(limits.sges);
    out.max_cq = count(limits.cqs);
    out.max_cqe = count(limits.cqe);
    out.max_mr = count(limits.mrs);
    out.max_pd = count(limits.pds);
    out.max_qp_rd_atom = limits.rd_atomic.into();
    out.max_res_rd_atom = count(limits.qps).saturating_mul(limits.rd_atomic.into());
    out.max_qp_init_rd_atom = limits.rd_atomic.into();
    out.atomic_cap =
        weakest_atomics(context.rails.nics.iter().map(|nic| nic.attr().capabilities.atomic_scope));
    out.max_mw = count(limits.mws);
    out.max_ah = count(limits.ahs);
    out.max_mcast_grp = count(limits.mcast_groups);
    out.max_mcast_qp_attach = count(limits.mcast_qps);
    out.max_total_mcast_qp_attach = count(limits.mcast_attached);
    out.max_srq = count(limits.srqs);
    out.max_srq_wr = count(extras.srq_wrs);
    out.max_srq_sge = count(extras.srq_sges);
    out.max_pkeys = 1;
    out.phys_port_cnt = PORT;
    out
}

/// Returns what the NIC of a device with one rail has. Over several rails the shared receive queues
/// and the XRC domains are virtual, and a window is one on each NIC.
fn extras(rails: &RailSet) -> Extras {
    let Limits { wrs, sges, .. } = rails.device.limits();
    match &rails.nics[..] {
        [nic] => nic.extras(),
        nics => {
            let type_1_windows = nics.iter().all(|nic| nic.extras().type_1_windows);
            Extras { srq_wrs: wrs, srq_sges: sges, srq_resize: true, xrc: true, type_1_windows }
        }
    }
}

/// Returns the capability that the atomics of all rails have, because each rail may execute the
/// next one.
fn weakest_atomics(rails: impl Iterator<Item = AtomicScope>) -> ibv_atomic_cap {
    rails.fold(IBV_ATOMIC_GLOB, |weakest, scope| match (scope, weakest) {
        (AtomicScope::None, _) | (_, IBV_ATOMIC_NONE) => IBV_ATOMIC_NONE,
        (AtomicScope::Nic, _) => IBV_ATOMIC_HCA,
        (AtomicScope::Global, weakest) => weakest,
    })
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: rule *structures* (module `calls`): `input` is valid for reading, or null.
    if attr_size < size_of::<ibv_device_attr>() || unsafe { input.as_ref() }.is_some_and(|i| i.comp_mask != 0)
    {
        let reason = "the structure is smaller than ibv_device_attr, or the input has options; pass a whole structure and no options";
        return refuse("ibv_query_device_ex", libc::EINVAL, reason);
    }
    let mut out = ibv_device_attr_ex::zeroed();
    // SAFETY: rule *objects* (module `calls`): `context` is not closed during the call.
    let context = match unsafe { Context::find_raw_or_inherited(context) } {
        Ok(context) => context,
        Err(error) => return status("ibv_query_device_ex", Err(error)),
    };
    out.orig_attr = device_attr(context);
    out.device_cap_flags_ex = out.orig_attr.device_cap_flags.into();
    out.phys_port_cnt_ex = PORT.into();
    out.odp_caps = on_demand::capabilities(&context.rails);
    out.max_dm_size = dm::size(&context.rails) as u64;
    let known = attr_size.min(size_of::<ibv_device_attr_ex>());
    // SAFETY: rule *structures* (module `calls`): `attr` is valid for writing `attr_size` bytes,
    // and at most `known` of these are copied from `out`.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, attr_size);
        ptr::copy_nonoverlapping((&raw const out).cast::<u8>(), attr.cast::<u8>(), known);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_are_as_weak_as_on_the_weakest_rail() {
        use AtomicScope::{Global, Nic, None};
        for (rails, expected) in [
            ([Global, Global], IBV_ATOMIC_GLOB),
            ([Global, Nic], IBV_ATOMIC_HCA),
            ([Nic, Global], IBV_ATOMIC_HCA),
            ([None, Global], IBV_ATOMIC_NONE),
            ([Nic, None], IBV_ATOMIC_NONE),
            ([None, Nic], IBV_ATOMIC_NONE),
        ] {
            assert_eq!(weakest_atomics(rails.into_iter()), expected, "{rails:?}");
        }
    }
}
