//! Asynchronous events about a device, a port, a queue pair or a queue.

use std::ffi::c_int;

use super::*;

mirror! {
    types {
        /// The object that an event is about. The event's type determines which member is set.
        #[derive(Clone, Copy)]
        union ibv_async_event_element (ibv_async_event.element): 8 => {
            0 => cq: *mut ibv_cq,
            0 => qp: *mut ibv_qp,
            0 => srq: *mut ibv_srq,
            0 => wq: *mut ibv_wq,
            0 => port_num: c_int,
        }
        #[derive(Clone, Copy)]
        struct ibv_async_event: 16 => {
            0 => element: ibv_async_event_element,
            8 => event_type: ibv_event_type,
        }
    }
    constants {
        enum ibv_event_type: u32 {
            IBV_EVENT_CQ_ERR = 0,
            IBV_EVENT_QP_FATAL = 1,
            IBV_EVENT_QP_REQ_ERR = 2,
            IBV_EVENT_QP_ACCESS_ERR = 3,
            IBV_EVENT_COMM_EST = 4,
            IBV_EVENT_SQ_DRAINED = 5,
            IBV_EVENT_PATH_MIG = 6,
            IBV_EVENT_PATH_MIG_ERR = 7,
            IBV_EVENT_DEVICE_FATAL = 8,
            IBV_EVENT_PORT_ACTIVE = 9,
            IBV_EVENT_PORT_ERR = 10,
            IBV_EVENT_LID_CHANGE = 11,
            IBV_EVENT_PKEY_CHANGE = 12,
            IBV_EVENT_SM_CHANGE = 13,
            IBV_EVENT_SRQ_ERR = 14,
            IBV_EVENT_SRQ_LIMIT_REACHED = 15,
            IBV_EVENT_QP_LAST_WQE_REACHED = 16,
            IBV_EVENT_CLIENT_REREGISTER = 17,
            IBV_EVENT_GID_CHANGE = 18,
            IBV_EVENT_WQ_FATAL = 19,
        }
    }
    opaque {}
}
