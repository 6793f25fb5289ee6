//! The extended context that surrounds an [`ibv_context`], with the verbs that were added later.

use std::ffi::{c_int, c_uint};

use super::*;

mirror! {
    types {
        /// rdma-core adds new slots at the front. An inline function of the C header checks that
        /// the slot is filled, and that `sz` is at least the slot's distance from the end of the
        /// structure. Otherwise the function returns EOPNOTSUPP or calls an older verb.
        struct verbs_context: 608 + MUTEX => {
            0 => query_port: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                port_num: u8,
                port_attr: *mut ibv_port_attr,
                port_attr_len: usize,
            ) -> c_int>,
            8 => advise_mr: Option<unsafe extern "C" fn(
                pd: *mut ibv_pd,
                advice: ibv_advise_mr_advice,
                flags: u32,
                sg_list: *mut ibv_sge,
                num_sges: u32,
            ) -> c_int>,
            16 => alloc_null_mr: Option<unsafe extern "C" fn(pd: *mut ibv_pd) -> *mut ibv_mr>,
            24 => read_counters: Option<unsafe extern "C" fn(
                counters: *mut ibv_counters,
                counters_value: *mut u64,
                ncounters: u32,
                flags: u32,
            ) -> c_int>,
            32 => attach_counters_point_flow: Option<unsafe extern "C" fn(
                counters: *mut ibv_counters,
                attr: *mut ibv_counter_attach_attr,
                flow: *mut ibv_flow,
            ) -> c_int>,
            40 => create_counters: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                init_attr: *mut ibv_counters_init_attr,
            ) -> *mut ibv_counters>,
            48 => destroy_counters: Option<unsafe extern "C" fn(counters: *mut ibv_counters) -> c_int>,
            56 => reg_dm_mr: Option<unsafe extern "C" fn(
                pd: *mut ibv_pd,
                dm: *mut ibv_dm,
                dm_offset: u64,
                length: usize,
                access: c_uint,
            ) -> *mut ibv_mr>,
            64 => alloc_dm: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                attr: *mut ibv_alloc_dm_attr,
            ) -> *mut ibv_dm>,
            72 => free_dm: Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> c_int>,
            80 => modify_flow_action_esp: Option<unsafe extern "C" fn(
                action: *mut ibv_flow_action,
                attr: *mut ibv_flow_action_esp_attr,
            ) -> c_int>,
            88 => destroy_flow_action: Option<unsafe extern "C" fn(action: *mut ibv_flow_action) -> c_int>,
            96 => create_flow_action_esp: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                attr: *mut ibv_flow_action_esp_attr,
            ) -> *mut ibv_flow_action>,
            104 => modify_qp_rate_limit:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int>,
            112 => alloc_parent_domain: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                attr: *mut ibv_parent_domain_init_attr,
            ) -> *mut ibv_pd>,
            120 => dealloc_td: Option<unsafe extern "C" fn(td: *mut ibv_td) -> c_int>,
            128 => alloc_td: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                init_attr: *mut ibv_td_init_attr,
            ) -> *mut ibv_td>,
            136 => modify_cq:
                Option<unsafe extern "C" fn(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int>,
            144 => post_srq_ops: Option<unsafe extern "C" fn(
                srq: *mut ibv_srq,
                op: *mut ibv_ops_wr,
                bad_op: *mut *mut ibv_ops_wr,
            ) -> c_int>,
            152 => destroy_rwq_ind_table:
                Option<unsafe extern "C" fn(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int>,
            160 => create_rwq_ind_table: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                init_attr: *mut ibv_rwq_ind_table_init_attr,
            ) -> *mut ibv_rwq_ind_table>,
            168 => destroy_wq: Option<unsafe extern "C" fn(wq: *mut ibv_wq) -> c_int>,
            176 => modify_wq:
                Option<unsafe extern "C" fn(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int>,
            184 => create_wq: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                wq_init_attr: *mut ibv_wq_init_attr,
            ) -> *mut ibv_wq>,
            192 => query_rt_values:
                Option<unsafe extern "C" fn(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int>,
            200 => create_cq_ex: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                init_attr: *mut ibv_cq_init_attr_ex,
            ) -> *mut ibv_cq_ex>,
            208 => r#priv: *mut verbs_ex_private,
            216 => query_device_ex: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                input: *const ibv_query_device_ex_input,
                attr: *mut ibv_device_attr_ex,
                attr_size: usize,
            ) -> c_int>,
            224 => ibv_destroy_flow: Option<unsafe extern "C" fn(flow: *mut ibv_flow) -> c_int>,
            232 => ABI_placeholder2: Option<unsafe extern "C" fn()>,
            240 => ibv_create_flow:
                Option<unsafe extern "C" fn(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow>,
            248 => ABI_placeholder1: Option<unsafe extern "C" fn()>,
            256 => open_qp: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                attr: *mut ibv_qp_open_attr,
            ) -> *mut ibv_qp>,
            264 => create_qp_ex: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
            ) -> *mut ibv_qp>,
            272 => get_srq_num: Option<unsafe extern "C" fn(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int>,
            280 => create_srq_ex: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
            ) -> *mut ibv_srq>,
            288 => open_xrcd: Option<unsafe extern "C" fn(
                context: *mut ibv_context,
                xrcd_init_attr: *mut ibv_xrcd_init_attr,
            ) -> *mut ibv_xrcd>,
            296 => close_xrcd: Option<unsafe extern "C" fn(xrcd: *mut ibv_xrcd) -> c_int>,
            304 => _ABI_placeholder3: u64,
            312 => sz: usize,
            320 => context: ibv_context,
        }
    }
    constants {}
    opaque {
        /// Private data of rdma-core.
        verbs_ex_private,
    }
}
