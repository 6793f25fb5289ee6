//! The queue pair with slots for functions that build work requests call by call
//! (`ibv_wr_start(3)`).

use std::ffi::{c_int, c_uint, c_void};

use super::*;

mirror! {
    types {
        /// `ibv_qp_to_qp_ex` casts, so every queue pair is allocated with this structure.
        struct ibv_qp_ex: 312 + MUTEX => {
            0 => qp_base: ibv_qp,
            120 + MUTEX => comp_mask: u64,
            128 + MUTEX => wr_id: u64,
            136 + MUTEX => wr_flags: c_uint,
            144 + MUTEX => wr_atomic_cmp_swp: Option<unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                rkey: u32,
                remote_addr: u64,
                compare: u64,
                swap: u64,
            )>,
            152 + MUTEX => wr_atomic_fetch_add:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64)>,
            160 + MUTEX => wr_bind_mw: Option<unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                mw: *mut ibv_mw,
                rkey: u32,
                bind_info: *const ibv_mw_bind_info,
            )>,
            168 + MUTEX => wr_local_inv:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
            176 + MUTEX => wr_rdma_read:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
            184 + MUTEX => wr_rdma_write:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
            192 + MUTEX => wr_rdma_write_imm:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: u32)>,
            200 + MUTEX => wr_send: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
            208 + MUTEX => wr_send_imm: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, imm_data: u32)>,
            216 + MUTEX => wr_send_inv:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>,
            224 + MUTEX => wr_send_tso:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16)>,
            232 + MUTEX => wr_set_ud_addr: Option<unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                ah: *mut ibv_ah,
                remote_qpn: u32,
                remote_qkey: u32,
            )>,
            240 + MUTEX => wr_set_xrc_srqn:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, remote_srqn: u32)>,
            248 + MUTEX => wr_set_inline_data:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize)>,
            256 + MUTEX => wr_set_inline_data_list: Option<unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                num_buf: usize,
                buf_list: *const ibv_data_buf,
            )>,
            264 + MUTEX => wr_set_sge:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32)>,
            272 + MUTEX => wr_set_sge_list:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge)>,
            280 + MUTEX => wr_start: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
            288 + MUTEX => wr_complete: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> c_int>,
            296 + MUTEX => wr_abort: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
            304 + MUTEX => wr_atomic_write: Option<unsafe extern "C" fn(
                qp: *mut ibv_qp_ex,
                rkey: u32,
                remote_addr: u64,
                atomic_wr: *const c_void,
            )>,
        }
    }
    constants {}
    opaque {}
}
