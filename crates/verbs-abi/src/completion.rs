//! Completion queues, polled either with `ibv_poll_cq` or field by field (`ibv_start_poll`), and
//! completion channels.

use std::ffi::{c_int, c_uint, c_void};

use super::*;

mirror! {
    types {
        /// A work completion, as `ibv_poll_cq` fills it.
        #[derive(Clone, Copy)]
        struct ibv_wc: 48 => {
            0 => wr_id: u64,
            8 => status: ibv_wc_status,
            12 => opcode: ibv_wc_opcode,
            16 => vendor_err: u32,
            20 => byte_len: u32,
            // With IBV_WC_WITH_IMM an immediate in network byte order, with IBV_WC_WITH_INV an rkey
            // in host byte order.
            24 => imm_data [imm_data, invalidated_rkey]: u32,
            28 => qp_num: u32,
            32 => src_qp: u32,
            36 => wc_flags: c_uint,
            40 => pkey_index: u16,
            42 => slid: u16,
            44 => sl: u8,
            45 => dlid_path_bits: u8,
        }
        /// A completion channel. Programs pass `fd` to `poll`.
        struct ibv_comp_channel: 16 => {
            0 => context: *mut ibv_context,
            8 => fd: c_int,
            12 => refcnt: c_int,
        }
        /// A completion queue. It is a prefix of [`ibv_cq_ex`], and programs cast between the two.
        struct ibv_cq: 88 + MUTEX => {
            0 => context: *mut ibv_context,
            8 => channel: *mut ibv_comp_channel,
            16 => cq_context: *mut c_void,
            24 => handle: u32,
            28 => cqe: c_int,
            32 => mutex: libc::pthread_mutex_t,
            32 + MUTEX => cond: libc::pthread_cond_t,
            80 + MUTEX => comp_events_completed: u32,
            84 + MUTEX => async_events_completed: u32,
        }
        /// A completion queue that programs read field by field. The inline functions of the C
        /// header do not check the slots, so the slot of each field that the program requested at
        /// creation must be filled.
        struct ibv_cq_ex: 248 + MUTEX => {
            0 => context: *mut ibv_context,
            8 => channel: *mut ibv_comp_channel,
            16 => cq_context: *mut c_void,
            24 => handle: u32,
            28 => cqe: c_int,
            32 => mutex: libc::pthread_mutex_t,
            32 + MUTEX => cond: libc::pthread_cond_t,
            80 + MUTEX => comp_events_completed: u32,
            84 + MUTEX => async_events_completed: u32,
            88 + MUTEX => comp_mask: u32,
            92 + MUTEX => status: ibv_wc_status,
            96 + MUTEX => wr_id: u64,
            104 + MUTEX => start_poll:
                Option<unsafe extern "C" fn(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int>,
            112 + MUTEX => next_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_int>,
            120 + MUTEX => end_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>,
            128 + MUTEX => read_opcode:
                Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode>,
            136 + MUTEX => read_vendor_err: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
            144 + MUTEX => read_byte_len: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
            152 + MUTEX => read_imm_data: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
            160 + MUTEX => read_qp_num: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
            168 + MUTEX => read_src_qp: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
            176 + MUTEX => read_wc_flags: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_uint>,
            184 + MUTEX => read_slid: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
            192 + MUTEX => read_sl: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
            200 + MUTEX => read_dlid_path_bits: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
            208 + MUTEX => read_completion_ts: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
            216 + MUTEX => read_cvlan: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u16>,
            224 + MUTEX => read_flow_tag: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
            232 + MUTEX => read_tm_info:
                Option<unsafe extern "C" fn(current: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info)>,
            240 + MUTEX => read_completion_wallclock_ns:
                Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
        }
        #[derive(Clone, Copy)]
        struct ibv_cq_init_attr_ex: 56 => {
            0 => cqe: u32,
            8 => cq_context: *mut c_void,
            16 => channel: *mut ibv_comp_channel,
            24 => comp_vector: u32,
            32 => wc_flags: u64,
            40 => comp_mask: u32,
            44 => flags: u32,
            48 => parent_domain: *mut ibv_pd,
        }
        /// The argument of `ibv_start_poll`. No bits of its mask are defined.
        #[derive(Clone, Copy)]
        struct ibv_poll_cq_attr: 4 => {
            0 => comp_mask: u32,
        }
        #[derive(Clone, Copy)]
        struct ibv_wc_tm_info: 16 => {
            0 => tag: u64,
            8 => r#priv: u32,
        }
        /// Completion moderation. A queue raises an event after `cq_count` completions or after
        /// `cq_period` microseconds.
        #[derive(Clone, Copy)]
        struct ibv_moderate_cq: 4 => {
            0 => cq_count: u16,
            2 => cq_period: u16,
        }
        #[derive(Clone, Copy)]
        struct ibv_modify_cq_attr: 8 => {
            0 => attr_mask: u32,
            4 => moderate: ibv_moderate_cq,
        }
    }
    constants {
        enum ibv_wc_status: u32 {
            IBV_WC_SUCCESS = 0,
            IBV_WC_LOC_LEN_ERR = 1,
            IBV_WC_LOC_QP_OP_ERR = 2,
            IBV_WC_LOC_EEC_OP_ERR = 3,
            IBV_WC_LOC_PROT_ERR = 4,
            IBV_WC_WR_FLUSH_ERR = 5,
            IBV_WC_MW_BIND_ERR = 6,
            IBV_WC_BAD_RESP_ERR = 7,
            IBV_WC_LOC_ACCESS_ERR = 8,
            IBV_WC_REM_INV_REQ_ERR = 9,
            IBV_WC_REM_ACCESS_ERR = 10,
            IBV_WC_REM_OP_ERR = 11,
            IBV_WC_RETRY_EXC_ERR = 12,
            IBV_WC_RNR_RETRY_EXC_ERR = 13,
            IBV_WC_LOC_RDD_VIOL_ERR = 14,
            IBV_WC_REM_INV_RD_REQ_ERR = 15,
            IBV_WC_REM_ABORT_ERR = 16,
            IBV_WC_INV_EECN_ERR = 17,
            IBV_WC_INV_EEC_STATE_ERR = 18,
            IBV_WC_FATAL_ERR = 19,
            IBV_WC_RESP_TIMEOUT_ERR = 20,
            IBV_WC_GENERAL_ERR = 21,
            IBV_WC_TM_ERR = 22,
            IBV_WC_TM_RNDV_INCOMPLETE = 23,
        }
        /// The operation that completed. Bit 7 is set for receives.
        enum ibv_wc_opcode: u32 {
            IBV_WC_SEND = 0,
            IBV_WC_RDMA_WRITE = 1,
            IBV_WC_RDMA_READ = 2,
            IBV_WC_COMP_SWAP = 3,
            IBV_WC_FETCH_ADD = 4,
            IBV_WC_BIND_MW = 5,
            IBV_WC_LOCAL_INV = 6,
            IBV_WC_TSO = 7,
            IBV_WC_ATOMIC_WRITE = 9,
            IBV_WC_RECV = 1 << 7,
            IBV_WC_RECV_RDMA_WITH_IMM = 129,
            IBV_WC_TM_ADD = 130,
            IBV_WC_TM_DEL = 131,
            IBV_WC_TM_SYNC = 132,
            IBV_WC_TM_RECV = 133,
            IBV_WC_TM_NO_TAG = 134,
            IBV_WC_DRIVER1 = 135,
            IBV_WC_DRIVER2 = 136,
            IBV_WC_DRIVER3 = 137,
        }
        enum ibv_wc_flags: u32 {
            IBV_WC_GRH = 1 << 0,
            IBV_WC_WITH_IMM = 1 << 1,
            IBV_WC_IP_CSUM_OK = 1 << 2,
            IBV_WC_WITH_INV = 1 << 3,
            IBV_WC_TM_SYNC_REQ = 1 << 4,
            IBV_WC_TM_MATCH = 1 << 5,
            IBV_WC_TM_DATA_VALID = 1 << 6,
        }
        /// Bits of [`ibv_cq_init_attr_ex::wc_flags`]: the fields of an [`ibv_cq_ex`] that the
        /// program will read.
        enum ibv_create_cq_wc_flags: u32 {
            IBV_WC_EX_WITH_BYTE_LEN = 1 << 0,
            IBV_WC_EX_WITH_IMM = 1 << 1,
            IBV_WC_EX_WITH_QP_NUM = 1 << 2,
            IBV_WC_EX_WITH_SRC_QP = 1 << 3,
            IBV_WC_EX_WITH_SLID = 1 << 4,
            IBV_WC_EX_WITH_SL = 1 << 5,
            IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
            IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
            IBV_WC_EX_WITH_CVLAN = 1 << 8,
            IBV_WC_EX_WITH_FLOW_TAG = 1 << 9,
            IBV_WC_EX_WITH_TM_INFO = 1 << 10,
            IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
        }
        /// The set of fields that every device offers, the set of all fields that a program may
        /// request, and the bit number of [`IBV_WC_IP_CSUM_OK`].
        const wc_flag_sets: u32 {
            IBV_WC_STANDARD_FLAGS = 0x7f,
            IBV_CREATE_CQ_SUP_WC_FLAGS = 0xfff,
            IBV_WC_IP_CSUM_OK_SHIFT = 2,
        }
        /// Bits of [`ibv_cq_init_attr_ex::comp_mask`].
        enum ibv_cq_init_attr_mask: u32 {
            IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0,
            IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
        }
        /// Bits of [`ibv_cq_init_attr_ex::flags`].
        enum ibv_create_cq_attr_flags: u32 {
            IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0,
            IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
        }
        /// Bits of [`ibv_modify_cq_attr::attr_mask`].
        enum ibv_cq_attr_mask: u32 {
            IBV_CQ_ATTR_MODERATE = 1 << 0,
            IBV_CQ_ATTR_RESERVED = 1 << 1,
        }
    }
    opaque {}
}
