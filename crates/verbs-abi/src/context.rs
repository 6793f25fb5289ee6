//! The context of an open device, and its table of verbs. Programs call these verbs through the
//! table, not by symbol.

use std::ffi::{c_int, c_void};

use super::*;

/// A slot of a verb that programs now call by symbol. No program calls the slot.
pub type unused_slot = Option<unsafe extern "C" fn() -> *mut c_void>;

mirror! {
    types {
        /// The inline functions of the C header do not check the slots, so each slot without
        /// `_compat` in its name must be filled.
        #[derive(Clone, Copy)]
        struct ibv_context_ops: 256 => {
            0 => _compat_query_device: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                device_attr: *mut ibv_device_attr,
            ) -> c_int>,
            8 => _compat_query_port: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                port_num: u8,
                port_attr: *mut _compat_ibv_port_attr,
            ) -> c_int>,
            16 => _compat_alloc_pd: unused_slot,
            24 => _compat_dealloc_pd: unused_slot,
            32 => _compat_reg_mr: unused_slot,
            40 => _compat_rereg_mr: unused_slot,
            48 => _compat_dereg_mr: unused_slot,
            56 => alloc_mw: Option<unsafe extern "C" fn(pd: *mut ibv_pd, r#type: ibv_mw_type) -> *mut ibv_mw>,
            64 => bind_mw: Option<unsafe extern "C" fn(
                qp: *mut ibv_qp,
                mw: *mut ibv_mw,
                mw_bind: *mut ibv_mw_bind,
            ) -> c_int>,
            72 => dealloc_mw: Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> c_int>,
            80 => _compat_create_cq: unused_slot,
            88 => poll_cq:
                Option<unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int>,
            96 => req_notify_cq:
                Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int>,
            104 => _compat_cq_event: unused_slot,
            112 => _compat_resize_cq: unused_slot,
            120 => _compat_destroy_cq: unused_slot,
            128 => _compat_create_srq: unused_slot,
            136 => _compat_modify_srq: unused_slot,
            144 => _compat_query_srq: unused_slot,
            152 => _compat_destroy_srq: unused_slot,
            160 => post_srq_recv: Option<unsafe extern "C" fn(
                srq: *mut ibv_srq,
                recv_wr: *mut ibv_recv_wr,
                bad_recv_wr: *mut *mut ibv_recv_wr,
            ) -> c_int>,
            168 => _compat_create_qp: unused_slot,
            176 => _compat_query_qp: unused_slot,
            184 => _compat_modify_qp: unused_slot,
            192 => _compat_destroy_qp: unused_slot,
            200 => post_send: Option<unsafe extern "C" fn(
                qp: *mut ibv_qp,
                wr: *mut ibv_send_wr,
                bad_wr: *mut *mut ibv_send_wr,
            ) -> c_int>,
            208 => post_recv: Option<unsafe extern "C" fn(
                qp: *mut ibv_qp,
                wr: *mut ibv_recv_wr,
                bad_wr: *mut *mut ibv_recv_wr,
            ) -> c_int>,
            216 => _compat_create_ah: unused_slot,
            224 => _compat_destroy_ah: unused_slot,
            232 => _compat_attach_mcast: unused_slot,
            240 => _compat_detach_mcast: unused_slot,
            248 => _compat_async_event: unused_slot,
        }
        /// An open device. If all bits of `abi_compat` are set, the structure is the last field of
        /// a [`verbs_context`].
        struct ibv_context: 288 + MUTEX => {
            0 => device: *mut ibv_device,
            8 => ops: ibv_context_ops,
            264 => cmd_fd: c_int,
            268 => async_fd: c_int,
            272 => num_comp_vectors: c_int,
            280 => mutex: libc::pthread_mutex_t,
            280 + MUTEX => abi_compat: *mut c_void,
        }
    }
    constants {
        /// The value of [`ibv_context::abi_compat`], as an integer, in a context that is part of a
        /// [`verbs_context`].
        const abi_compat: usize {
            __VERBS_ABI_IS_EXTENDED = usize::MAX,
        }
    }
    opaque {
        /// The port attributes of an older ABI, which are a prefix of [`ibv_port_attr`]. The
        /// exported function `ibv_query_port` writes them. The C header only declares the type.
        _compat_ibv_port_attr,
    }
}
