//! The names of enumeration values (`ibv_wc_status_str` and its family).

use std::ffi::{CStr, c_char};

use crate::abi::*;

/// Returns the name of a value from a list, or `otherwise` for a value that is not in the list.
fn name(names: &'static [(i64, &'static CStr)], value: i64, otherwise: &'static CStr) -> *const c_char {
    names.iter().find(|(listed, _)| *listed == value).map_or(otherwise, |(_, name)| name).as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    let names = &[
        (IBV_NODE_CA as i64, c"InfiniBand channel adapter"),
        (IBV_NODE_SWITCH as i64, c"InfiniBand switch"),
        (IBV_NODE_ROUTER as i64, c"InfiniBand router"),
        (IBV_NODE_RNIC as i64, c"iWARP NIC"),
        (IBV_NODE_USNIC as i64, c"usNIC"),
        (IBV_NODE_USNIC_UDP as i64, c"usNIC UDP"),
        (IBV_NODE_UNSPECIFIED as i64, c"unspecified"),
    ];
    name(names, node_type.into(), c"unknown")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    let names = &[
        (IBV_PORT_NOP as i64, c"no state change (NOP)"),
        (IBV_PORT_DOWN as i64, c"down"),
        (IBV_PORT_INIT as i64, c"init"),
        (IBV_PORT_ARMED as i64, c"armed"),
        (IBV_PORT_ACTIVE as i64, c"active"),
        (IBV_PORT_ACTIVE_DEFER as i64, c"active defer"),
    ];
    name(names, state.into(), c"unknown")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    let names = &[
        (IBV_EVENT_CQ_ERR as i64, c"CQ error"),
        (IBV_EVENT_QP_FATAL as i64, c"local work queue catastrophic error"),
        (IBV_EVENT_QP_REQ_ERR as i64, c"invalid request local work queue error"),
        (IBV_EVENT_QP_ACCESS_ERR as i64, c"local access violation work queue error"),
        (IBV_EVENT_COMM_EST as i64, c"communication established"),
        (IBV_EVENT_SQ_DRAINED as i64, c"send queue drained"),
        (IBV_EVENT_PATH_MIG as i64, c"path migrated"),
        (IBV_EVENT_PATH_MIG_ERR as i64, c"path migration request error"),
        (IBV_EVENT_DEVICE_FATAL as i64, c"local catastrophic error"),
        (IBV_EVENT_PORT_ACTIVE as i64, c"port active"),
        (IBV_EVENT_PORT_ERR as i64, c"port error"),
        (IBV_EVENT_LID_CHANGE as i64, c"LID change"),
        (IBV_EVENT_PKEY_CHANGE as i64, c"P_Key change"),
        (IBV_EVENT_SM_CHANGE as i64, c"SM change"),
        (IBV_EVENT_SRQ_ERR as i64, c"SRQ catastrophic error"),
        (IBV_EVENT_SRQ_LIMIT_REACHED as i64, c"SRQ limit reached"),
        (IBV_EVENT_QP_LAST_WQE_REACHED as i64, c"last WQE reached"),
        (IBV_EVENT_CLIENT_REREGISTER as i64, c"client reregistration"),
        (IBV_EVENT_GID_CHANGE as i64, c"GID table change"),
        (IBV_EVENT_WQ_FATAL as i64, c"WQ fatal"),
    ];
    name(names, event.into(), c"unknown")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    let names = &[
        (IBV_WC_SUCCESS as i64, c"success"),
        (IBV_WC_LOC_LEN_ERR as i64, c"local length error"),
        (IBV_WC_LOC_QP_OP_ERR as i64, c"local QP operation error"),
        (IBV_WC_LOC_EEC_OP_ERR as i64, c"local EE context operation error"),
        (IBV_WC_LOC_PROT_ERR as i64, c"local protection error"),
        (IBV_WC_WR_FLUSH_ERR as i64, c"Work Request Flushed Error"),
        (IBV_WC_MW_BIND_ERR as i64, c"memory bind operation error"),
        (IBV_WC_BAD_RESP_ERR as i64, c"bad response error"),
        (IBV_WC_LOC_ACCESS_ERR as i64, c"local access error"),
        (IBV_WC_REM_INV_REQ_ERR as i64, c"remote invalid request error"),
        (IBV_WC_REM_ACCESS_ERR as i64, c"remote access error"),
        (IBV_WC_REM_OP_ERR as i64, c"remote operation error"),
        (IBV_WC_RETRY_EXC_ERR as i64, c"transport retry counter exceeded"),
        (IBV_WC_RNR_RETRY_EXC_ERR as i64, c"RNR retry counter exceeded"),
        (IBV_WC_LOC_RDD_VIOL_ERR as i64, c"local RDD violation error"),
        (IBV_WC_REM_INV_RD_REQ_ERR as i64, c"remote invalid RD request"),
        (IBV_WC_REM_ABORT_ERR as i64, c"aborted error"),
        (IBV_WC_INV_EECN_ERR as i64, c"invalid EE context number"),
        (IBV_WC_INV_EEC_STATE_ERR as i64, c"invalid EE context state"),
        (IBV_WC_FATAL_ERR as i64, c"fatal error"),
        (IBV_WC_RESP_TIMEOUT_ERR as i64, c"response timeout error"),
        (IBV_WC_GENERAL_ERR as i64, c"general error"),
        (IBV_WC_TM_ERR as i64, c"TM error"),
        (IBV_WC_TM_RNDV_INCOMPLETE as i64, c"TM software rendezvous"),
    ];
    name(names, status.into(), c"unknown")
}
