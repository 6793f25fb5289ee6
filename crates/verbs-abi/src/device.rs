//! The device before it is opened, and the attributes that `ibv_query_device` returns.

use std::ffi::{c_char, c_int, c_uint};

use super::*;

mirror! {
    types {
        /// Two slots that no program calls any more.
        #[derive(Clone, Copy)]
        struct _ibv_device_ops: 16 => {
            0 => _dummy1:
                Option<unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: c_int) -> *mut ibv_context>,
            8 => _dummy2: Option<unsafe extern "C" fn(context: *mut ibv_context)>,
        }
        /// A device. Programs read all fields. Providers keep private data after the structure.
        struct ibv_device: 664 => {
            0 => _ops: _ibv_device_ops,
            16 => node_type: ibv_node_type,
            20 => transport_type: ibv_transport_type,
            24 => name: [c_char; IBV_SYSFS_NAME_MAX],
            88 => dev_name: [c_char; IBV_SYSFS_NAME_MAX],
            152 => dev_path: [c_char; IBV_SYSFS_PATH_MAX],
            408 => ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
        }
        /// The result of `ibv_query_device`. GUIDs are in network byte order.
        #[derive(Clone, Copy)]
        struct ibv_device_attr: 232 => {
            0 => fw_ver: [c_char; 64],
            64 => node_guid: u64,
            72 => sys_image_guid: u64,
            80 => max_mr_size: u64,
            88 => page_size_cap: u64,
            96 => vendor_id: u32,
            100 => vendor_part_id: u32,
            104 => hw_ver: u32,
            108 => max_qp: c_int,
            112 => max_qp_wr: c_int,
            116 => device_cap_flags: c_uint,
            120 => max_sge: c_int,
            124 => max_sge_rd: c_int,
            128 => max_cq: c_int,
            132 => max_cqe: c_int,
            136 => max_mr: c_int,
            140 => max_pd: c_int,
            144 => max_qp_rd_atom: c_int,
            148 => max_ee_rd_atom: c_int,
            152 => max_res_rd_atom: c_int,
            156 => max_qp_init_rd_atom: c_int,
            160 => max_ee_init_rd_atom: c_int,
            164 => atomic_cap: ibv_atomic_cap,
            168 => max_ee: c_int,
            172 => max_rdd: c_int,
            176 => max_mw: c_int,
            180 => max_raw_ipv6_qp: c_int,
            184 => max_raw_ethy_qp: c_int,
            188 => max_mcast_grp: c_int,
            192 => max_mcast_qp_attach: c_int,
            196 => max_total_mcast_qp_attach: c_int,
            200 => max_ah: c_int,
            204 => max_fmr: c_int,
            208 => max_map_per_fmr: c_int,
            212 => max_srq: c_int,
            216 => max_srq_wr: c_int,
            220 => max_srq_sge: c_int,
            224 => max_pkeys: u16,
            226 => local_ca_ack_delay: u8,
            227 => phys_port_cnt: u8,
        }
    }
    constants {
        enum ibv_node_type: i32 {
            IBV_NODE_UNKNOWN = -1,
            IBV_NODE_CA = 1,
            IBV_NODE_SWITCH = 2,
            IBV_NODE_ROUTER = 3,
            IBV_NODE_RNIC = 4,
            IBV_NODE_USNIC = 5,
            IBV_NODE_USNIC_UDP = 6,
            IBV_NODE_UNSPECIFIED = 7,
        }
        /// The transport of a device. RoCE devices report InfiniBand here, and Ethernet as the
        /// port's link layer.
        enum ibv_transport_type: i32 {
            IBV_TRANSPORT_UNKNOWN = -1,
            IBV_TRANSPORT_IB = 0,
            IBV_TRANSPORT_IWARP = 1,
            IBV_TRANSPORT_USNIC = 2,
            IBV_TRANSPORT_USNIC_UDP = 3,
            IBV_TRANSPORT_UNSPECIFIED = 4,
        }
        enum ibv_device_cap_flags: u32 {
            IBV_DEVICE_RESIZE_MAX_WR = 1,
            IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1,
            IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
            IBV_DEVICE_RAW_MULTI = 1 << 3,
            IBV_DEVICE_AUTO_PATH_MIG = 1 << 4,
            IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5,
            IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
            IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
            IBV_DEVICE_SHUTDOWN_PORT = 1 << 8,
            IBV_DEVICE_INIT_TYPE = 1 << 9,
            IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
            IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
            IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
            IBV_DEVICE_SRQ_RESIZE = 1 << 13,
            IBV_DEVICE_N_NOTIFY_CQ = 1 << 14,
            IBV_DEVICE_MEM_WINDOW = 1 << 17,
            IBV_DEVICE_UD_IP_CSUM = 1 << 18,
            IBV_DEVICE_XRC = 1 << 20,
            IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
            IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
            IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
            IBV_DEVICE_RC_IP_CSUM = 1 << 25,
            IBV_DEVICE_RAW_IP_CSUM = 1 << 26,
            IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
        }
        /// Bits of [`ibv_device_attr_ex::device_cap_flags_ex`] above the 32 bits of
        /// [`ibv_device_cap_flags`].
        const device_cap_flags_ex: u64 {
            IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34,
            IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36,
        }
        enum ibv_atomic_cap: u32 {
            IBV_ATOMIC_NONE = 0,
            IBV_ATOMIC_HCA = 1,
            IBV_ATOMIC_GLOB = 2,
        }
        /// The result of `ibv_is_fork_initialized`.
        enum ibv_fork_status: u32 {
            IBV_FORK_DISABLED = 0,
            IBV_FORK_ENABLED = 1,
            IBV_FORK_UNNEEDED = 2,
        }
        /// The lengths of the strings in [`ibv_device`], including the terminating zero.
        const string_lengths: usize {
            IBV_SYSFS_NAME_MAX = 64,
            IBV_SYSFS_PATH_MAX = 256,
        }
    }
    opaque {}
}
