//! Symbols that only rdma-core's providers and its connection manager use. Without them, the loader
//! refuses a program that is linked with such a library. The functions fail with `EOPNOTSUPP` or do
//! nothing, because Mitra has no kernel driver.

use std::ffi::{c_int, c_void};

use crate::common::errno::{refuse, refuse_object};

const REASON: &str = "it asks a kernel driver, and Mitra has none; call the verb that the manual pages describe, without `cmd`";

macro_rules! functions {
    ($($type:ty, $answer:expr => $($name:ident)*;)*) => {$($(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() -> $type {
            let answer: fn(&str) -> $type = $answer;
            answer(stringify!($name))
        }
    )*)*};
}

macro_rules! refused_functions {
    ($($type:ty, $answer:expr => $($name:ident)*;)*) => {
        /// The functions of this file that are refused.
        pub const REFUSED_FUNCTIONS: &[&str] = &[$($(stringify!($name),)*)*];
        functions! { $($type, $answer => $($name)*;)* }
    };
}

refused_functions! {
    c_int, |call| refuse(call, libc::EOPNOTSUPP, REASON) =>
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
    // This function returns a negative error number.
    c_int, |call| -refuse(call, libc::EOPNOTSUPP, REASON) => ibv_read_ibdev_sysfs_file;
    *mut c_void, |call| refuse_object(call, libc::EOPNOTSUPP, REASON) => _verbs_init_and_alloc_context verbs_open_device;
}

functions! {
    // These functions return a count.
    c_int, |_| 0 => ibv_cmd_poll_cq __ioctl_final_num_attrs;
    // These functions return nothing, so they cannot be refused. A provider calls
    // `verbs_register_driver_34` when it is loaded.
    (), |_| () => __verbs_log verbs_init_cq verbs_register_driver_34 verbs_set_ops verbs_uninit_context
    ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern
    ibv_copy_qp_attr_from_kern;
}

/// Whether a provider may free an object although the kernel has not destroyed it. Providers read
/// the variable when a device is removed.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: bool = false;
