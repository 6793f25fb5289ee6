//! Protection domains, memory regions, memory windows and device memory.

use std::ffi::{c_int, c_uint, c_void};

use super::*;

mirror! {
    types {
        /// A protection domain. A parent domain has the same structure.
        struct ibv_pd: 16 => {
            0 => context: *mut ibv_context,
            8 => handle: u32,
        }
        /// A thread domain: one thread at a time uses the objects that are created with it.
        struct ibv_td: 8 => {
            0 => context: *mut ibv_context,
        }
        /// The argument of `ibv_alloc_td`. No bits of its mask are defined.
        #[derive(Clone, Copy)]
        struct ibv_td_init_attr: 4 => {
            0 => comp_mask: u32,
        }
        #[derive(Clone, Copy)]
        struct ibv_parent_domain_init_attr: 48 => {
            0 => pd: *mut ibv_pd,
            8 => td: *mut ibv_td,
            16 => comp_mask: u32,
            24 => alloc: Option<unsafe extern "C" fn(
                pd: *mut ibv_pd,
                pd_context: *mut c_void,
                size: usize,
                alignment: usize,
                resource_type: u64,
            ) -> *mut c_void>,
            32 => free: Option<unsafe extern "C" fn(
                pd: *mut ibv_pd,
                pd_context: *mut c_void,
                ptr: *mut c_void,
                resource_type: u64,
            )>,
            40 => pd_context: *mut c_void,
        }
        struct ibv_mr: 48 => {
            0 => context: *mut ibv_context,
            8 => pd: *mut ibv_pd,
            16 => addr: *mut c_void,
            24 => length: usize,
            32 => handle: u32,
            36 => lkey: u32,
            40 => rkey: u32,
        }
        /// A memory window. The inline function `ibv_bind_mw` of the C header writes the `rkey` of
        /// a type 1 window.
        struct ibv_mw: 32 => {
            0 => context: *mut ibv_context,
            8 => pd: *mut ibv_pd,
            16 => rkey: u32,
            20 => handle: u32,
            24 => r#type: ibv_mw_type,
        }
        #[derive(Clone, Copy)]
        struct ibv_mw_bind_info: 32 => {
            0 => mr: *mut ibv_mr,
            8 => addr: u64,
            16 => length: u64,
            24 => mw_access_flags: c_uint,
        }
        /// Device memory. The inline functions `ibv_memcpy_to_dm` and `ibv_memcpy_from_dm` of the C
        /// header call the slots.
        struct ibv_dm: 32 => {
            0 => context: *mut ibv_context,
            8 => memcpy_to_dm: Option<unsafe extern "C" fn(
                dm: *mut ibv_dm,
                dm_offset: u64,
                host_addr: *const c_void,
                length: usize,
            ) -> c_int>,
            16 => memcpy_from_dm: Option<unsafe extern "C" fn(
                host_addr: *mut c_void,
                dm: *mut ibv_dm,
                dm_offset: u64,
                length: usize,
            ) -> c_int>,
            24 => comp_mask: u32,
            28 => handle: u32,
        }
        /// The argument of `ibv_alloc_dm`. The alignment is a power of two, given by its exponent.
        /// No bits of the mask are defined.
        #[derive(Clone, Copy)]
        struct ibv_alloc_dm_attr: 16 => {
            0 => length: usize,
            8 => log_align_req: u32,
            12 => comp_mask: u32,
        }
        #[derive(Clone, Copy)]
        struct ibv_mw_bind: 48 => {
            0 => wr_id: u64,
            8 => send_flags: c_uint,
            16 => bind_info: ibv_mw_bind_info,
        }
    }
    constants {
        enum ibv_access_flags: u32 {
            IBV_ACCESS_LOCAL_WRITE = 1,
            IBV_ACCESS_REMOTE_WRITE = 1 << 1,
            IBV_ACCESS_REMOTE_READ = 1 << 2,
            IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
            IBV_ACCESS_MW_BIND = 1 << 4,
            IBV_ACCESS_ZERO_BASED = 1 << 5,
            IBV_ACCESS_ON_DEMAND = 1 << 6,
            IBV_ACCESS_HUGETLB = 1 << 7,
            IBV_ACCESS_RELAXED_ORDERING = 0x100000,
        }
        /// The access flags that a device may ignore. A device must refuse all other unknown flags.
        const optional_access: u32 {
            IBV_ACCESS_OPTIONAL_FIRST = 1 << 20,
            IBV_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000,
        }
        /// The changes that `ibv_rereg_mr` makes.
        enum ibv_rereg_mr_flags: u32 {
            IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0,
            IBV_REREG_MR_CHANGE_PD = 1 << 1,
            IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
            IBV_REREG_MR_FLAGS_SUPPORTED = 7,
        }
        /// The errors of `ibv_rereg_mr`. Each error says whether the region is still valid.
        enum ibv_rereg_mr_err_code: i32 {
            IBV_REREG_MR_ERR_INPUT = -1,
            IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
            IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
            IBV_REREG_MR_ERR_CMD = -4,
            IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
        }
        /// Bits of [`ibv_dm::comp_mask`].
        enum ibv_dm_mask: u32 {
            IBV_DM_MASK_HANDLE = 1 << 0,
        }
        enum ibv_mw_type: u32 {
            IBV_MW_TYPE_1 = 1,
            IBV_MW_TYPE_2 = 2,
        }
        /// In C it is an alias of the kernel's `enum ib_uverbs_advise_mr_advice`.
        enum ibv_advise_mr_advice: u32 {
            IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
        }
        const advise_mr_flags: u32 {
            IBV_ADVISE_MR_FLAG_FLUSH = 1,
        }
        /// Bits of [`ibv_parent_domain_init_attr::comp_mask`].
        enum ibv_parent_domain_init_attr_mask: u32 {
            IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0,
            IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
        }
        /// The value, as an integer, that a parent domain's allocator returns to request the
        /// default allocator.
        const allocator_answer: usize {
            IBV_ALLOCATOR_USE_DEFAULT = usize::MAX,
        }
    }
    opaque {}
}
