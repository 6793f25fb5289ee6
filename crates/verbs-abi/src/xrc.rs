//! XRC domains, and the receive queue pairs that several contexts open.

use std::ffi::{c_int, c_void};

use super::*;

mirror! {
    types {
        struct ibv_xrcd: 8 => {
            0 => context: *mut ibv_context,
        }
        #[derive(Clone, Copy)]
        struct ibv_xrcd_init_attr: 12 => {
            0 => comp_mask: u32,
            4 => fd: c_int,
            8 => oflags: c_int,
        }
        #[derive(Clone, Copy)]
        struct ibv_qp_open_attr: 32 => {
            0 => comp_mask: u32,
            4 => qp_num: u32,
            8 => xrcd: *mut ibv_xrcd,
            16 => qp_context: *mut c_void,
            24 => qp_type: ibv_qp_type,
        }
    }
    constants {
        /// Bits of [`ibv_xrcd_init_attr::comp_mask`].
        enum ibv_xrcd_init_attr_mask: u32 {
            IBV_XRCD_INIT_ATTR_FD = 1 << 0,
            IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1,
            IBV_XRCD_INIT_ATTR_RESERVED = 1 << 2,
        }
        /// Bits of [`ibv_qp_open_attr::comp_mask`].
        enum ibv_qp_open_attr_mask: u32 {
            IBV_QP_OPEN_ATTR_NUM = 1 << 0,
            IBV_QP_OPEN_ATTR_XRCD = 1 << 1,
            IBV_QP_OPEN_ATTR_CONTEXT = 1 << 2,
            IBV_QP_OPEN_ATTR_TYPE = 1 << 3,
            IBV_QP_OPEN_ATTR_RESERVED = 1 << 4,
        }
    }
    opaque {}
}
