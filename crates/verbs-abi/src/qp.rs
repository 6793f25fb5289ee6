//! Queue pairs: creation, attributes and states.

use std::ffi::{c_int, c_uint, c_void};

use super::*;

mirror! {
    types {
        /// A queue pair. Programs read, among others, `qp_num`, `state` and `qp_type`.
        struct ibv_qp: 120 + MUTEX => {
            0 => context: *mut ibv_context,
            8 => qp_context: *mut c_void,
            16 => pd: *mut ibv_pd,
            24 => send_cq: *mut ibv_cq,
            32 => recv_cq: *mut ibv_cq,
            40 => srq: *mut ibv_srq,
            48 => handle: u32,
            52 => qp_num: u32,
            56 => state: ibv_qp_state,
            60 => qp_type: ibv_qp_type,
            64 => mutex: libc::pthread_mutex_t,
            64 + MUTEX => cond: libc::pthread_cond_t,
            112 + MUTEX => events_completed: u32,
        }
        /// `ibv_create_qp` replaces the requested capacities by the granted capacities.
        #[derive(Clone, Copy)]
        struct ibv_qp_cap: 20 => {
            0 => max_send_wr: u32,
            4 => max_recv_wr: u32,
            8 => max_send_sge: u32,
            12 => max_recv_sge: u32,
            16 => max_inline_data: u32,
        }
        /// The argument of `ibv_create_qp`. It is a prefix of [`ibv_qp_init_attr_ex`].
        #[derive(Clone, Copy)]
        struct ibv_qp_init_attr: 64 => {
            0 => qp_context: *mut c_void,
            8 => send_cq: *mut ibv_cq,
            16 => recv_cq: *mut ibv_cq,
            24 => srq: *mut ibv_srq,
            32 => cap: ibv_qp_cap,
            52 => qp_type: ibv_qp_type,
            56 => sq_sig_all: c_int,
        }
        #[derive(Clone, Copy)]
        struct ibv_rx_hash_conf: 24 => {
            0 => rx_hash_function: u8,
            1 => rx_hash_key_len: u8,
            8 => rx_hash_key: *mut u8,
            16 => rx_hash_fields_mask: u64,
        }
        #[derive(Clone, Copy)]
        struct ibv_qp_init_attr_ex: 136 => {
            0 => qp_context: *mut c_void,
            8 => send_cq: *mut ibv_cq,
            16 => recv_cq: *mut ibv_cq,
            24 => srq: *mut ibv_srq,
            32 => cap: ibv_qp_cap,
            52 => qp_type: ibv_qp_type,
            56 => sq_sig_all: c_int,
            60 => comp_mask: u32,
            64 => pd: *mut ibv_pd,
            72 => xrcd: *mut ibv_xrcd,
            80 => create_flags: u32,
            84 => max_tso_header: u16,
            88 => rwq_ind_tbl: *mut ibv_rwq_ind_table,
            96 => rx_hash_conf: ibv_rx_hash_conf,
            120 => source_qpn: u32,
            128 => send_ops_flags: u64,
        }
        /// The argument of `ibv_modify_qp` and the result of `ibv_query_qp`.
        #[derive(Clone, Copy)]
        struct ibv_qp_attr: 144 => {
            0 => qp_state: ibv_qp_state,
            4 => cur_qp_state: ibv_qp_state,
            8 => path_mtu: ibv_mtu,
            12 => path_mig_state: ibv_mig_state,
            16 => qkey: u32,
            20 => rq_psn: u32,
            24 => sq_psn: u32,
            28 => dest_qp_num: u32,
            32 => qp_access_flags: c_uint,
            36 => cap: ibv_qp_cap,
            56 => ah_attr: ibv_ah_attr,
            88 => alt_ah_attr: ibv_ah_attr,
            120 => pkey_index: u16,
            122 => alt_pkey_index: u16,
            124 => en_sqd_async_notify: u8,
            125 => sq_draining: u8,
            126 => max_rd_atomic: u8,
            127 => max_dest_rd_atomic: u8,
            128 => min_rnr_timer: u8,
            129 => port_num: u8,
            130 => timeout: u8,
            131 => retry_cnt: u8,
            132 => rnr_retry: u8,
            133 => alt_port_num: u8,
            134 => alt_timeout: u8,
            136 => rate_limit: u32,
        }
        #[derive(Clone, Copy)]
        struct ibv_qp_rate_limit_attr: 16 => {
            0 => rate_limit: u32,
            4 => max_burst_sz: u32,
            8 => typical_pkt_sz: u16,
            12 => comp_mask: u32,
        }
        /// Enhanced connection establishment: the options that two NICs of one vendor negotiate.
        #[derive(Clone, Copy)]
        struct ibv_ece: 12 => {
            0 => vendor_id: u32,
            4 => options: u32,
            8 => comp_mask: u32,
        }
    }
    constants {
        enum ibv_qp_type: u32 {
            IBV_QPT_RC = 2,
            IBV_QPT_UC = 3,
            IBV_QPT_UD = 4,
            IBV_QPT_RAW_PACKET = 8,
            IBV_QPT_XRC_SEND = 9,
            IBV_QPT_XRC_RECV = 10,
            IBV_QPT_DRIVER = 255,
        }
        enum ibv_qp_state: u32 {
            IBV_QPS_RESET = 0,
            IBV_QPS_INIT = 1,
            IBV_QPS_RTR = 2,
            IBV_QPS_RTS = 3,
            IBV_QPS_SQD = 4,
            IBV_QPS_SQE = 5,
            IBV_QPS_ERR = 6,
            IBV_QPS_UNKNOWN = 7,
        }
        enum ibv_mig_state: u32 {
            IBV_MIG_MIGRATED = 0,
            IBV_MIG_REARM = 1,
            IBV_MIG_ARMED = 2,
        }
        /// Bits that say which attributes in an [`ibv_qp_attr`] are set.
        enum ibv_qp_attr_mask: u32 {
            IBV_QP_STATE = 1 << 0,
            IBV_QP_CUR_STATE = 1 << 1,
            IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
            IBV_QP_ACCESS_FLAGS = 1 << 3,
            IBV_QP_PKEY_INDEX = 1 << 4,
            IBV_QP_PORT = 1 << 5,
            IBV_QP_QKEY = 1 << 6,
            IBV_QP_AV = 1 << 7,
            IBV_QP_PATH_MTU = 1 << 8,
            IBV_QP_TIMEOUT = 1 << 9,
            IBV_QP_RETRY_CNT = 1 << 10,
            IBV_QP_RNR_RETRY = 1 << 11,
            IBV_QP_RQ_PSN = 1 << 12,
            IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
            IBV_QP_ALT_PATH = 1 << 14,
            IBV_QP_MIN_RNR_TIMER = 1 << 15,
            IBV_QP_SQ_PSN = 1 << 16,
            IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
            IBV_QP_PATH_MIG_STATE = 1 << 18,
            IBV_QP_CAP = 1 << 19,
            IBV_QP_DEST_QPN = 1 << 20,
            IBV_QP_RATE_LIMIT = 1 << 25,
        }
        /// Bits of [`ibv_qp_init_attr_ex::comp_mask`].
        enum ibv_qp_init_attr_mask: u32 {
            IBV_QP_INIT_ATTR_PD = 1 << 0,
            IBV_QP_INIT_ATTR_XRCD = 1 << 1,
            IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
            IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3,
            IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4,
            IBV_QP_INIT_ATTR_RX_HASH = 1 << 5,
            IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
        }
        /// Bits of [`ibv_qp_init_attr_ex::create_flags`].
        enum ibv_qp_create_flags: u32 {
            IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 1 << 1,
            IBV_QP_CREATE_SCATTER_FCS = 1 << 8,
            IBV_QP_CREATE_CVLAN_STRIPPING = 1 << 9,
            IBV_QP_CREATE_SOURCE_QPN = 1 << 10,
            IBV_QP_CREATE_PCI_WRITE_END_PADDING = 1 << 11,
        }
        /// Bits of [`ibv_qp_init_attr_ex::send_ops_flags`]: the operations that the program will
        /// request through the slots of [`ibv_qp_ex`].
        enum ibv_qp_create_send_ops_flags: u32 {
            IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0,
            IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
            IBV_QP_EX_WITH_SEND = 1 << 2,
            IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3,
            IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
            IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
            IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
            IBV_QP_EX_WITH_LOCAL_INV = 1 << 7,
            IBV_QP_EX_WITH_BIND_MW = 1 << 8,
            IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9,
            IBV_QP_EX_WITH_TSO = 1 << 10,
            IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12,
        }
    }
    opaque {}
}
