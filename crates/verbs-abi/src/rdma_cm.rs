//! librdmacm: connection identifiers, their events, and connection parameters.

use std::ffi::{c_char, c_int, c_void};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use super::*;

mirror! {
    types {
        #[derive(Clone, Copy)]
        struct rdma_ib_addr: 40 => {
            0 => sgid: ibv_gid,
            16 => dgid: ibv_gid,
            32 => pkey: u16,
        }
        #[derive(Clone, Copy)]
        union rdma_device_addr (rdma_addr.addr): 40 => {
            0 => ibaddr: rdma_ib_addr,
        }
        /// The addresses of both ends of a connection, as IP addresses with ports and as GIDs.
        #[derive(Clone, Copy)]
        struct rdma_addr: 296 => {
            0 => src [src_addr, src_sin, src_sin6, src_storage]: sockaddr_storage,
            128 => dst [dst_addr, dst_sin, dst_sin6, dst_storage]: sockaddr_storage,
            256 => addr: rdma_device_addr,
        }
        /// The addresses and the paths of an identifier.
        #[derive(Clone, Copy)]
        struct rdma_route: 312 => {
            0 => addr: rdma_addr,
            296 => path_rec: *mut ibv_sa_path_rec,
            304 => num_paths: c_int,
        }
        /// An event channel. Programs pass `fd` to `poll` and `fcntl`.
        #[derive(Clone, Copy)]
        struct rdma_event_channel: 4 => {
            0 => fd: c_int,
        }
        /// A connection identifier, the counterpart of a socket. Programs read every field. The
        /// inline functions of `rdma_verbs.h` post to `qp` or `srq`, and wait on `send_cq` and
        /// `recv_cq`.
        #[derive(Clone, Copy)]
        struct rdma_cm_id: 416 => {
            0 => verbs: *mut ibv_context,
            8 => channel: *mut rdma_event_channel,
            16 => context: *mut c_void,
            24 => qp: *mut ibv_qp,
            32 => route: rdma_route,
            344 => ps: rdma_port_space,
            348 => port_num: u8,
            352 => event: *mut rdma_cm_event,
            360 => send_cq_channel: *mut ibv_comp_channel,
            368 => send_cq: *mut ibv_cq,
            376 => recv_cq_channel: *mut ibv_comp_channel,
            384 => recv_cq: *mut ibv_cq,
            392 => srq: *mut ibv_srq,
            400 => pd: *mut ibv_pd,
            408 => qp_type: ibv_qp_type,
        }
        /// The parameters that the two ends of a connection exchange.
        #[derive(Clone, Copy)]
        struct rdma_conn_param: 24 => {
            0 => private_data: *const c_void,
            8 => private_data_len: u8,
            9 => responder_resources: u8,
            10 => initiator_depth: u8,
            11 => flow_control: u8,
            12 => retry_count: u8,
            13 => rnr_retry_count: u8,
            14 => srq: u8,
            16 => qp_num: u32,
        }
        /// The address of a datagram service: an address vector, a queue pair number and a Q_Key.
        #[derive(Clone, Copy)]
        struct rdma_ud_param: 56 => {
            0 => private_data: *const c_void,
            8 => private_data_len: u8,
            16 => ah_attr: ibv_ah_attr,
            48 => qp_num: u32,
            52 => qkey: u32,
        }
        /// The parameters of an event. The port space of the event's identifier determines which
        /// member is set.
        #[derive(Clone, Copy)]
        union rdma_cm_event_param (rdma_cm_event.param): 56 => {
            0 => conn: rdma_conn_param,
            0 => ud: rdma_ud_param,
        }
        #[derive(Clone, Copy)]
        struct rdma_cm_event: 80 => {
            0 => id: *mut rdma_cm_id,
            8 => listen_id: *mut rdma_cm_id,
            16 => event: rdma_cm_event_type,
            20 => status: c_int,
            24 => param: rdma_cm_event_param,
        }
        /// The hints for `rdma_getaddrinfo`, and also an element of the list that the call returns.
        #[derive(Clone, Copy)]
        struct rdma_addrinfo: 96 => {
            0 => ai_flags: c_int,
            4 => ai_family: c_int,
            8 => ai_qp_type: c_int,
            12 => ai_port_space: c_int,
            16 => ai_src_len: socklen_t,
            20 => ai_dst_len: socklen_t,
            24 => ai_src_addr: *mut sockaddr,
            32 => ai_dst_addr: *mut sockaddr,
            40 => ai_src_canonname: *mut c_char,
            48 => ai_dst_canonname: *mut c_char,
            56 => ai_route_len: usize,
            64 => ai_route: *mut c_void,
            72 => ai_connect_len: usize,
            80 => ai_connect: *mut c_void,
            88 => ai_next: *mut rdma_addrinfo,
        }
        #[derive(Clone, Copy)]
        struct rdma_cm_join_mc_attr_ex: 16 => {
            0 => comp_mask: u32,
            4 => join_flags: u32,
            8 => addr: *mut sockaddr,
        }
    }
    constants {
        enum rdma_cm_event_type: u32 {
            RDMA_CM_EVENT_ADDR_RESOLVED = 0,
            RDMA_CM_EVENT_ADDR_ERROR = 1,
            RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
            RDMA_CM_EVENT_ROUTE_ERROR = 3,
            RDMA_CM_EVENT_CONNECT_REQUEST = 4,
            RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
            RDMA_CM_EVENT_CONNECT_ERROR = 6,
            RDMA_CM_EVENT_UNREACHABLE = 7,
            RDMA_CM_EVENT_REJECTED = 8,
            RDMA_CM_EVENT_ESTABLISHED = 9,
            RDMA_CM_EVENT_DISCONNECTED = 10,
            RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
            RDMA_CM_EVENT_MULTICAST_JOIN = 12,
            RDMA_CM_EVENT_MULTICAST_ERROR = 13,
            RDMA_CM_EVENT_ADDR_CHANGE = 14,
            RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
        }
        enum rdma_port_space: u32 {
            RDMA_PS_IPOIB = 0x0002,
            RDMA_PS_TCP = 0x0106,
            RDMA_PS_UDP = 0x0111,
            RDMA_PS_IB = 0x013f,
        }
        /// The Q_Key of every UD queue pair that librdmacm creates.
        const rdma_udp_qkey: u32 {
            RDMA_UDP_QKEY = 0x0123_4567,
        }
        /// Values in [`rdma_conn_param`] that request the device's maximum.
        const rdma_max: u8 {
            RDMA_MAX_RESP_RES = 0xff,
            RDMA_MAX_INIT_DEPTH = 0xff,
        }
        const rdma_addrinfo_flags: c_int {
            RAI_PASSIVE = 1,
            RAI_NUMERICHOST = 2,
            RAI_NOROUTE = 4,
            RAI_FAMILY = 8,
        }
        const rdma_option_level: c_int {
            RDMA_OPTION_ID = 0,
            RDMA_OPTION_IB = 1,
        }
        const rdma_option_id: c_int {
            RDMA_OPTION_ID_TOS = 0,
            RDMA_OPTION_ID_REUSEADDR = 1,
            RDMA_OPTION_ID_AFONLY = 2,
            RDMA_OPTION_ID_ACK_TIMEOUT = 3,
        }
        const rdma_option_ib: c_int {
            RDMA_OPTION_IB_PATH = 1,
        }
        /// Bits of [`rdma_cm_join_mc_attr_ex::comp_mask`].
        enum rdma_cm_join_mc_attr_mask: u32 {
            RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
            RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
            RDMA_CM_JOIN_MC_ATTR_RESERVED = 1 << 2,
        }
        enum rdma_cm_mc_join_flags: u32 {
            RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
            RDMA_MC_JOIN_FLAG_RESERVED = 2,
        }
    }
    opaque {}
}
