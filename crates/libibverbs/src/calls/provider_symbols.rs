//! Symbols that only rdma-core's providers and its connection manager use. They must exist, because otherwise the loader refuses a program
//! that is linked with such a library. The functions fail with `EOPNOTSUPP` or do nothing, because Mitra has no kernel driver.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::common::errno::set_errno;

macro_rules! unsupported {
    ($($type:ty, $answer:expr => $($name:ident)*;)*) => {$($(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() -> $type {
            $answer
        }
    )*)*};
}

/// Returns null, with `errno` set to `EOPNOTSUPP`.
fn null_unsupported() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

unsupported! {
    c_int, libc::EOPNOTSUPP =>
    execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
    ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
    ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_post_recv ibv_cmd_post_send
    ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr
    ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq;
    // These functions return a count or a negative error number.
    c_int, 0 => ibv_cmd_poll_cq __ioctl_final_num_attrs;
    c_int, -libc::EOPNOTSUPP => ibv_read_ibdev_sysfs_file;
    *mut c_void, null_unsupported() => _verbs_init_and_alloc_context verbs_open_device;
    (), () => __verbs_log verbs_init_cq verbs_register_driver_34 verbs_set_ops verbs_uninit_context
    ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern
    ibv_copy_qp_attr_from_kern;
}

/// Whether a provider may free an object although the kernel has not destroyed it. Providers read the variable when a device is removed.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: bool = false;
