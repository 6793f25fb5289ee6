//! Shared receive queues.

use std::ffi::c_void;

use super::*;

mirror! {
    types {
        struct ibv_srq: 88 + MUTEX => {
            0 => context: *mut ibv_context,
            8 => srq_context: *mut c_void,
            16 => pd: *mut ibv_pd,
            24 => handle: u32,
            32 => mutex: libc::pthread_mutex_t,
            32 + MUTEX => cond: libc::pthread_cond_t,
            80 + MUTEX => events_completed: u32,
        }
        /// The capacities of a shared receive queue, and the number of receives below which the
        /// queue raises an event.
        #[derive(Clone, Copy)]
        struct ibv_srq_attr: 12 => {
            0 => max_wr: u32,
            4 => max_sge: u32,
            8 => srq_limit: u32,
        }
        #[derive(Clone, Copy)]
        struct ibv_srq_init_attr: 24 => {
            0 => srq_context: *mut c_void,
            8 => attr: ibv_srq_attr,
        }
        #[derive(Clone, Copy)]
        struct ibv_tm_cap: 8 => {
            0 => max_num_tags: u32,
            4 => max_ops: u32,
        }
        #[derive(Clone, Copy)]
        struct ibv_srq_init_attr_ex: 64 => {
            0 => srq_context: *mut c_void,
            8 => attr: ibv_srq_attr,
            20 => comp_mask: u32,
            24 => srq_type: ibv_srq_type,
            32 => pd: *mut ibv_pd,
            40 => xrcd: *mut ibv_xrcd,
            48 => cq: *mut ibv_cq,
            56 => tm_cap: ibv_tm_cap,
        }
    }
    constants {
        /// Bits that say which attributes in an [`ibv_srq_attr`] are set.
        enum ibv_srq_attr_mask: u32 {
            IBV_SRQ_MAX_WR = 1 << 0,
            IBV_SRQ_LIMIT = 1 << 1,
        }
        enum ibv_srq_type: u32 {
            IBV_SRQT_BASIC = 0,
            IBV_SRQT_XRC = 1,
            IBV_SRQT_TM = 2,
        }
        /// Bits of [`ibv_srq_init_attr_ex::comp_mask`].
        enum ibv_srq_init_attr_mask: u32 {
            IBV_SRQ_INIT_ATTR_TYPE = 1 << 0,
            IBV_SRQ_INIT_ATTR_PD = 1 << 1,
            IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
            IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
            IBV_SRQ_INIT_ATTR_TM = 1 << 4,
            IBV_SRQ_INIT_ATTR_RESERVED = 1 << 5,
        }
    }
    opaque {}
}
