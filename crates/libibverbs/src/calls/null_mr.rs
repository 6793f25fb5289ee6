//! Null memory regions, which read as zeros and discard what is written.

use std::sync::Arc;

use mitra_verbs::{Access, Buffer, Error, ForeignMemory, Result, Unmapped};

use super::abi_object::AbiObject;
use super::context::find_with_context;
use super::mr;
use super::pd::Pd;
use crate::common::errno::pointer;
use mitra_verbs_abi::*;

struct NullMemory;

impl ForeignMemory for NullMemory {
    fn read(&self, _: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        out.fill(0);
        Ok(())
    }

    fn write(&self, _: usize, _: &[u8]) -> Result<(), Unmapped> {
        Ok(())
    }

    fn compare_exchange(&self, _: usize, current: u64, _: u64) -> Result<Result<u64, u64>, Unmapped> {
        Ok(if current == 0 { Ok(0) } else { Err(0) })
    }
}

/// Allocates a region from address 0 with the largest length. Only its lkey is valid
/// (`ibv_alloc_null_mr(3)`).
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: rule *objects* (module `calls`): `pd` and its context exist during the call.
    let found = unsafe { find_with_context::<Pd>(pd) };
    let made = found.and_then(|domain| {
        if !domain.1.rails.has_on_demand_paging() {
            return Err(Error::Unsupported(
                "null regions over these NICs, which reach memory of the program only; register memory whose content nobody needs",
            ));
        }
        let memory = Arc::new(Buffer::from_foreign(Box::new(NullMemory), 0, usize::MAX));
        let region = mr::register(domain, memory, Access::LOCAL_WRITE, std::ptr::null_mut(), usize::MAX)?;
        Ok(region.into_raw())
    });
    pointer("ibv_alloc_null_mr", made)
}
