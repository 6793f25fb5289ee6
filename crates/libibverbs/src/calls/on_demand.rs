//! On-demand paging: the capabilities of the device, and `ibv_advise_mr`.
//!
//! A software NIC never pins memory, so a region with on-demand paging differs from another region
//! only in that its pages need not be mapped when it is registered. The capabilities are the same
//! as on soft-RoCE (`rxe_init_device_param` in the kernel's `drivers/infiniband/sw/rxe/rxe.c`),
//! which has no implicit regions. A device has no on-demand paging if one of its NICs has none.

use std::ffi::c_int;

use mitra_verbs::{Error, Key, PdId, Result};

use super::context::find_with_context;
use super::pd::Pd;
use crate::common::errno::status;
use crate::common::lock::lock;
use crate::program_memory::page_check;
use crate::rails::on_demand_regions::OnDemandRegions;
use crate::rails::rail_set::RailSet;
use mitra_verbs_abi::*;

/// # Errors
/// `Unsupported` if a NIC of the device needs the pages of a region when it is registered.
pub(super) fn check_paging(rails: &RailSet) -> Result<()> {
    if rails.has_on_demand_paging() {
        return Ok(());
    }
    Err(Error::Unsupported(
        "on-demand paging over these NICs, which need the pages of a region when it is registered; register mapped memory without IBV_ACCESS_ON_DEMAND",
    ))
}

pub(crate) fn capabilities(rails: &RailSet) -> ibv_odp_caps {
    if !rails.has_on_demand_paging() {
        return ibv_odp_caps::zeroed();
    }
    let datagrams = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    ibv_odp_caps {
        general_caps: IBV_ODP_SUPPORT.into(),
        per_transport_caps: ibv_odp_per_transport {
            rc_odp_caps: datagrams | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC,
            uc_odp_caps: 0,
            ud_odp_caps: datagrams,
        },
    }
}

/// Makes pages of on-demand regions present. Without `IBV_ADVISE_MR_FLAG_FLUSH`, a page that cannot
/// be made present is not an error (`ibv_advise_mr(3)`).
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sges: u32,
) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `pd` and its context exist during the call.
    let found = unsafe { find_with_context::<Pd>(pd) };
    let count = if sg_list.is_null() { 0 } else { num_sges as usize };
    // SAFETY: rule *structures* (module `calls`): `sg_list` points to `num_sges` entries.
    let sges = (0..count).map(|index| unsafe { sg_list.add(index).read_unaligned() });
    let advised = found.and_then(|(object, context)| {
        check_paging(&context.rails)?;
        advise(&lock(&context.rails.on_demand), object.id, advice, flags, sges)
    });
    status("ibv_advise_mr", advised)
}

fn advise(
    regions: &OnDemandRegions,
    pd: PdId,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sges: impl ExactSizeIterator<Item = ibv_sge>,
) -> Result<()> {
    let known = [
        IBV_ADVISE_MR_ADVICE_PREFETCH,
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    ];
    if !known.contains(&advice) {
        return Err(Error::Unsupported("this advice; only prefetching is supported"));
    }
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || sges.len() == 0 {
        return Err(Error::Invalid(
            "advice needs at least one entry, and no flag but IBV_ADVISE_MR_FLAG_FLUSH",
        ));
    }
    for sge in sges {
        let region = regions.get(&Key(sge.lkey)).filter(|region| region.pd == pd).ok_or(Error::Invalid(
            "the lkey is not that of a region of the protection domain with on-demand paging; register it with IBV_ACCESS_ON_DEMAND",
        ))?;
        let write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        if write && !region.writable {
            return Err(Error::NotPermitted("prefetching for writing in a region without write access"));
        }
        let start = sge.addr.wrapping_sub(region.iova);
        let present = match start.checked_add(sge.length.into()) {
            Some(end) if end <= region.len && advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => {
                page_check::make_present(region.start + start, sge.length.into(), write)
            }
            // IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT concerns only pages that are present.
            Some(end) if end <= region.len => Ok(()),
            _ => Err(Error::Inaccessible { addr: sge.addr, right: "reading" }),
        };
        if flags & IBV_ADVISE_MR_FLAG_FLUSH != 0 {
            present?;
        }
    }
    Ok(())
}
