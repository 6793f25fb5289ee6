//! Port attributes.

use std::ffi::c_int;


mirror! {
    types {
        /// The result of `ibv_query_port`. The exported function fills only the first 48 bytes. The
        /// function in the slot of [`verbs_context`](super::verbs_context) takes the length of the
        /// caller's structure.
        #[derive(Clone, Copy)]
        struct ibv_port_attr: 52 => {
            0 => state: ibv_port_state,
            4 => max_mtu: ibv_mtu,
            8 => active_mtu: ibv_mtu,
            12 => gid_tbl_len: c_int,
            16 => port_cap_flags: u32,
            20 => max_msg_sz: u32,
            24 => bad_pkey_cntr: u32,
            28 => qkey_viol_cntr: u32,
            32 => pkey_tbl_len: u16,
            34 => lid: u16,
            36 => sm_lid: u16,
            38 => lmc: u8,
            39 => max_vl_num: u8,
            40 => sm_sl: u8,
            41 => subnet_timeout: u8,
            42 => init_type_reply: u8,
            43 => active_width: u8,
            44 => active_speed: u8,
            45 => phys_state: u8,
            46 => link_layer: u8,
            47 => flags: u8,
            48 => port_cap_flags2: u16,
        }
    }
    constants {
        enum ibv_mtu: u32 {
            IBV_MTU_256 = 1,
            IBV_MTU_512 = 2,
            IBV_MTU_1024 = 3,
            IBV_MTU_2048 = 4,
            IBV_MTU_4096 = 5,
        }
        enum ibv_port_state: u32 {
            IBV_PORT_NOP = 0,
            IBV_PORT_DOWN = 1,
            IBV_PORT_INIT = 2,
            IBV_PORT_ARMED = 3,
            IBV_PORT_ACTIVE = 4,
            IBV_PORT_ACTIVE_DEFER = 5,
        }
        const link_layer: u8 {
            IBV_LINK_LAYER_UNSPECIFIED = 0,
            IBV_LINK_LAYER_INFINIBAND = 1,
            IBV_LINK_LAYER_ETHERNET = 2,
        }
        /// Bits of [`ibv_port_attr::flags`].
        const port_flags: u8 {
            IBV_QPF_GRH_REQUIRED = 1,
        }
        enum ibv_port_cap_flags: u32 {
            IBV_PORT_SM = 1 << 1,
            IBV_PORT_NOTICE_SUP = 1 << 2,
            IBV_PORT_TRAP_SUP = 1 << 3,
            IBV_PORT_OPT_IPD_SUP = 1 << 4,
            IBV_PORT_AUTO_MIGR_SUP = 1 << 5,
            IBV_PORT_SL_MAP_SUP = 1 << 6,
            IBV_PORT_MKEY_NVRAM = 1 << 7,
            IBV_PORT_PKEY_NVRAM = 1 << 8,
            IBV_PORT_LED_INFO_SUP = 1 << 9,
            IBV_PORT_SYS_IMAGE_GUID_SUP = 1 << 11,
            IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12,
            IBV_PORT_EXTENDED_SPEEDS_SUP = 1 << 14,
            IBV_PORT_CAP_MASK2_SUP = 1 << 15,
            IBV_PORT_CM_SUP = 1 << 16,
            IBV_PORT_SNMP_TUNNEL_SUP = 1 << 17,
            IBV_PORT_REINIT_SUP = 1 << 18,
            IBV_PORT_DEVICE_MGMT_SUP = 1 << 19,
            IBV_PORT_VENDOR_CLASS_SUP = 1 << 20,
            IBV_PORT_DR_NOTICE_SUP = 1 << 21,
            IBV_PORT_CAP_MASK_NOTICE_SUP = 1 << 22,
            IBV_PORT_BOOT_MGMT_SUP = 1 << 23,
            IBV_PORT_LINK_LATENCY_SUP = 1 << 24,
            IBV_PORT_CLIENT_REG_SUP = 1 << 25,
            IBV_PORT_IP_BASED_GIDS = 1 << 26,
        }
        enum ibv_port_cap_flags2: u32 {
            IBV_PORT_SET_NODE_DESC_SUP = 1 << 0,
            IBV_PORT_INFO_EXT_SUP = 1 << 1,
            IBV_PORT_VIRT_SUP = 1 << 2,
            IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 1 << 3,
            IBV_PORT_LINK_WIDTH_2X_SUP = 1 << 4,
            IBV_PORT_LINK_SPEED_HDR_SUP = 1 << 5,
            IBV_PORT_LINK_SPEED_NDR_SUP = 1 << 10,
        }
    }
    opaque {}
}
