//! Send and receive requests.

use std::ffi::{c_int, c_uint, c_void};

use super::*;

mirror! {
    types {
        /// A scatter/gather entry: a range of registered memory.
        #[derive(Clone, Copy)]
        struct ibv_sge: 16 => {
            0 => addr: u64,
            8 => length: u32,
            12 => lkey: u32,
        }
        /// A range of memory that is copied when the request is posted.
        #[derive(Clone, Copy)]
        struct ibv_data_buf: 16 => {
            0 => addr: *mut c_void,
            8 => length: usize,
        }
        #[derive(Clone, Copy)]
        struct ibv_send_wr_rdma (ibv_send_wr.wr.rdma): 16 => {
            0 => remote_addr: u64,
            8 => rkey: u32,
        }
        /// The remote memory and the operands of an atomic operation.
        #[derive(Clone, Copy)]
        struct ibv_send_wr_atomic (ibv_send_wr.wr.atomic): 32 => {
            0 => remote_addr: u64,
            8 => compare_add: u64,
            16 => swap: u64,
            24 => rkey: u32,
        }
        #[derive(Clone, Copy)]
        struct ibv_send_wr_ud (ibv_send_wr.wr.ud): 16 => {
            0 => ah: *mut ibv_ah,
            8 => remote_qpn: u32,
            12 => remote_qkey: u32,
        }
        /// The fields of a request that depend on the opcode and the transport.
        #[derive(Clone, Copy)]
        union ibv_send_wr_wr (ibv_send_wr.wr): 32 => {
            0 => rdma: ibv_send_wr_rdma,
            0 => atomic: ibv_send_wr_atomic,
            0 => ud: ibv_send_wr_ud,
        }
        #[derive(Clone, Copy)]
        struct ibv_send_wr_xrc (ibv_send_wr.qp_type.xrc): 4 => {
            0 => remote_srqn: u32,
        }
        /// The fields of a request that depend on the transport only.
        #[derive(Clone, Copy)]
        union ibv_send_wr_qp_type (ibv_send_wr.qp_type): 4 => {
            0 => xrc: ibv_send_wr_xrc,
        }
        /// The fields of a request that binds a type 2 window.
        #[derive(Clone, Copy)]
        struct ibv_send_wr_bind_mw (ibv_send_wr.bind_mw): 48 => {
            0 => mw: *mut ibv_mw,
            8 => rkey: u32,
            16 => bind_info: ibv_mw_bind_info,
        }
        #[derive(Clone, Copy)]
        struct ibv_send_wr_tso (ibv_send_wr.tso): 16 => {
            0 => hdr: *mut c_void,
            8 => hdr_sz: u16,
            10 => mss: u16,
        }
        /// A send request. Programs set only the members that the opcode uses. The other members
        /// have arbitrary values.
        #[derive(Clone, Copy)]
        struct ibv_send_wr: 128 => {
            0 => wr_id: u64,
            8 => next: *mut ibv_send_wr,
            16 => sg_list: *mut ibv_sge,
            24 => num_sge: c_int,
            28 => opcode: ibv_wr_opcode,
            32 => send_flags: c_uint,
            // An immediate in network byte order, or an rkey to invalidate in host byte order.
            36 => imm_data [imm_data, invalidate_rkey]: u32,
            40 => wr: ibv_send_wr_wr,
            72 => qp_type: ibv_send_wr_qp_type,
            // In C this is a union of `bind_mw` and `tso` ([`ibv_send_wr_tso`]), which is not
            // larger than `bind_mw`.
            80 => bind_mw [bind_mw, tso]: ibv_send_wr_bind_mw,
        }
        #[derive(Clone, Copy)]
        struct ibv_recv_wr: 32 => {
            0 => wr_id: u64,
            8 => next: *mut ibv_recv_wr,
            16 => sg_list: *mut ibv_sge,
            24 => num_sge: c_int,
        }
        #[derive(Clone, Copy)]
        struct ibv_ops_wr_tm_add (ibv_ops_wr.tm.add): 40 => {
            0 => recv_wr_id: u64,
            8 => sg_list: *mut ibv_sge,
            16 => num_sge: c_int,
            24 => tag: u64,
            32 => mask: u64,
        }
        #[derive(Clone, Copy)]
        struct ibv_ops_wr_tm (ibv_ops_wr.tm): 48 => {
            0 => unexpected_cnt: u32,
            4 => handle: u32,
            8 => add: ibv_ops_wr_tm_add,
        }
        /// A request to a tag matching queue. Only the signature of [`verbs_context::post_srq_ops`]
        /// uses it.
        #[derive(Clone, Copy)]
        struct ibv_ops_wr: 72 => {
            0 => wr_id: u64,
            8 => next: *mut ibv_ops_wr,
            16 => opcode: ibv_ops_wr_opcode,
            20 => flags: c_int,
            24 => tm: ibv_ops_wr_tm,
        }
    }
    constants {
        enum ibv_wr_opcode: u32 {
            IBV_WR_RDMA_WRITE = 0,
            IBV_WR_RDMA_WRITE_WITH_IMM = 1,
            IBV_WR_SEND = 2,
            IBV_WR_SEND_WITH_IMM = 3,
            IBV_WR_RDMA_READ = 4,
            IBV_WR_ATOMIC_CMP_AND_SWP = 5,
            IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
            IBV_WR_LOCAL_INV = 7,
            IBV_WR_BIND_MW = 8,
            IBV_WR_SEND_WITH_INV = 9,
            IBV_WR_TSO = 10,
            IBV_WR_DRIVER1 = 11,
            IBV_WR_ATOMIC_WRITE = 15,
        }
        enum ibv_send_flags: u32 {
            IBV_SEND_FENCE = 1 << 0,
            IBV_SEND_SIGNALED = 1 << 1,
            IBV_SEND_SOLICITED = 1 << 2,
            IBV_SEND_INLINE = 1 << 3,
            IBV_SEND_IP_CSUM = 1 << 4,
        }
        enum ibv_ops_wr_opcode: u32 {
            IBV_WR_TAG_ADD = 0,
            IBV_WR_TAG_DEL = 1,
            IBV_WR_TAG_SYNC = 2,
        }
        enum ibv_ops_flags: u32 {
            IBV_OPS_SIGNALED = 1 << 0,
            IBV_OPS_TM_SYNC = 1 << 1,
        }
    }
    opaque {}
}
