//! The entry points that are refused for all arguments: slots of the context for features that the
//! device does not have, and exported functions. Each logs why ([`crate::common::refusal`]).

use std::ffi::{c_int, c_void};
use std::mem;

use crate::common::errno::{refuse, refuse_object};
use mitra_verbs_abi::*;

trait RefusedValue {
    fn refused(call: &str, reason: &'static str) -> Self;
}

impl RefusedValue for c_int {
    fn refused(call: &str, reason: &'static str) -> c_int {
        refuse(call, libc::EOPNOTSUPP, reason)
    }
}

impl<T> RefusedValue for *mut T {
    fn refused(call: &str, reason: &'static str) -> *mut T {
        refuse_object(call, libc::EOPNOTSUPP, reason)
    }
}

/// A slot of the context whose verb is always refused.
#[derive(Clone, Copy, Debug)]
pub struct RefusedSlot {
    /// The verb, as programs call it.
    pub call: &'static str,
    /// The offset of the slot in `verbs_context`, in bytes.
    pub offset: usize,
}

macro_rules! refused_slots {
    ($($slot:ident($($argument:ty),*) -> $value:ty, $call:literal: $reason:expr;)*) => {
        /// Every slot of the context whose verb is refused. `post_srq_ops` has a function of its
        /// own.
        pub const REFUSED_SLOTS: &[RefusedSlot] = &[
            RefusedSlot { call: "ibv_post_srq_ops", offset: mem::offset_of!(verbs_context, post_srq_ops) },
            $(RefusedSlot { call: $call, offset: mem::offset_of!(verbs_context, $slot) },)*
        ];

        /// Fills the slots of all verbs that are refused. The caller fills the slots of the other
        /// verbs afterwards.
        pub(super) fn fill(header: &mut verbs_context) {
            header.post_srq_ops = Some(post_srq_ops);
            $({
                unsafe extern "C" fn refused($(_: $argument),*) -> $value {
                    <$value as RefusedValue>::refused($call, $reason)
                }
                header.$slot = Some(refused);
            })*
        }
    };
}

const NO_COUNTERS: &str = "the device has no hardware counters; count completions in the program";
const NO_FLOWS: &str =
    "the device has no flow steering; packets reach a queue pair by its number, so no rule is needed";
const NO_WORK_QUEUES: &str =
    "the device has no work queues outside queue pairs; create a queue pair, or a shared receive queue";

refused_slots! {
    create_counters(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters, "ibv_create_counters":
        NO_COUNTERS;
    destroy_counters(*mut ibv_counters) -> c_int, "ibv_destroy_counters": NO_COUNTERS;
    read_counters(*mut ibv_counters, *mut u64, u32, u32) -> c_int, "ibv_read_counters": NO_COUNTERS;
    attach_counters_point_flow(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int,
        "ibv_attach_counters_point_flow": NO_COUNTERS;
    ibv_create_flow(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow, "ibv_create_flow": NO_FLOWS;
    ibv_destroy_flow(*mut ibv_flow) -> c_int, "ibv_destroy_flow": NO_FLOWS;
    create_flow_action_esp(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action,
        "ibv_create_flow_action_esp": NO_FLOWS;
    modify_flow_action_esp(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr) -> c_int,
        "ibv_modify_flow_action_esp": NO_FLOWS;
    destroy_flow_action(*mut ibv_flow_action) -> c_int, "ibv_destroy_flow_action": NO_FLOWS;
    modify_qp_rate_limit(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int, "ibv_modify_qp_rate_limit":
        "the device does not limit the rate of a queue pair; limit it in the program, or with tc(8)";
    modify_cq(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int, "ibv_modify_cq":
        "the device does not moderate completion events; request an event for each wake-up (ibv_req_notify_cq)";
    query_rt_values(*mut ibv_context, *mut ibv_values_ex) -> c_int, "ibv_query_rt_values_ex":
        "the device has no clock of its own; read the program's (clock_gettime)";
    create_wq(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq, "ibv_create_wq": NO_WORK_QUEUES;
    modify_wq(*mut ibv_wq, *mut ibv_wq_attr) -> c_int, "ibv_modify_wq": NO_WORK_QUEUES;
    destroy_wq(*mut ibv_wq) -> c_int, "ibv_destroy_wq": NO_WORK_QUEUES;
    create_rwq_ind_table(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table,
        "ibv_create_rwq_ind_table": NO_WORK_QUEUES;
    destroy_rwq_ind_table(*mut ibv_rwq_ind_table) -> c_int, "ibv_destroy_rwq_ind_table": NO_WORK_QUEUES;
}

/// Refuses tag matching. Stores the first operation in `bad_op`, as for any request that cannot be
/// posted.
unsafe extern "C" fn post_srq_ops(
    _srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: rule *structures* (module `calls`): the pointer is valid.
    unsafe { *bad_op = op };
    refuse(
        "ibv_post_srq_ops",
        libc::EOPNOTSUPP,
        "the device has no tag matching; post receives to the shared receive queue, and match tags in the program",
    )
}

macro_rules! refused_functions {
    ($($name:ident($($argument:ty),*) -> $value:ty: $reason:expr;)*) => {
        /// The exported functions of this file.
        pub const REFUSED_FUNCTIONS: &[&str] = &[$(stringify!($name)),*];
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($(_: $argument),*) -> $value {
                <$value as RefusedValue>::refused(stringify!($name), $reason)
            }
        )*
    };
}

const NOTHING_TO_IMPORT: &str =
    "a software NIC lives in one process, so no other has an object to import; open the device in this one";

refused_functions! {
    ibv_import_device(c_int) -> *mut ibv_context: NOTHING_TO_IMPORT;
    ibv_import_pd(*mut ibv_context, u32) -> *mut ibv_pd: NOTHING_TO_IMPORT;
    ibv_import_mr(*mut ibv_pd, u32) -> *mut ibv_mr: NOTHING_TO_IMPORT;
    ibv_import_dm(*mut ibv_context, u32) -> *mut c_void: NOTHING_TO_IMPORT;
}
