//! The attributes that `ibv_query_device_ex` returns, and the device's clock.

use super::*;

mirror! {
    types {
        /// The argument of `ibv_query_device_ex`. No bits of its mask are defined.
        #[derive(Clone, Copy)]
        struct ibv_query_device_ex_input: 4 => {
            0 => comp_mask: u32,
        }
        /// The operations that support on-demand paging, by transport.
        #[derive(Clone, Copy)]
        struct ibv_odp_per_transport (ibv_odp_caps.per_transport_caps): 12 => {
            0 => rc_odp_caps: u32,
            4 => uc_odp_caps: u32,
            8 => ud_odp_caps: u32,
        }
        #[derive(Clone, Copy)]
        struct ibv_odp_caps: 24 => {
            0 => general_caps: u64,
            8 => per_transport_caps: ibv_odp_per_transport,
        }
        #[derive(Clone, Copy)]
        struct ibv_tso_caps: 8 => {
            0 => max_tso: u32,
            4 => supported_qpts: u32,
        }
        #[derive(Clone, Copy)]
        struct ibv_rss_caps: 32 => {
            0 => supported_qpts: u32,
            4 => max_rwq_indirection_tables: u32,
            8 => max_rwq_indirection_table_size: u32,
            16 => rx_hash_fields_mask: u64,
            24 => rx_hash_function: u8,
        }
        /// Packet pacing capabilities. Rates are in kbit/s.
        #[derive(Clone, Copy)]
        struct ibv_packet_pacing_caps: 12 => {
            0 => qp_rate_limit_min: u32,
            4 => qp_rate_limit_max: u32,
            8 => supported_qpts: u32,
        }
        #[derive(Clone, Copy)]
        struct ibv_tm_caps: 20 => {
            0 => max_rndv_hdr_size: u32,
            4 => max_num_tags: u32,
            8 => flags: u32,
            12 => max_ops: u32,
            16 => max_sge: u32,
        }
        /// Completion moderation capabilities. The period is in microseconds.
        #[derive(Clone, Copy)]
        struct ibv_cq_moderation_caps: 4 => {
            0 => max_cq_count: u16,
            2 => max_cq_period: u16,
        }
        /// Sizes of atomic operations on the PCI bus.
        #[derive(Clone, Copy)]
        struct ibv_pci_atomic_caps: 6 => {
            0 => fetch_add: u16,
            2 => swap: u16,
            4 => compare_swap: u16,
        }
        /// The result of `ibv_query_device_ex`, which writes only a prefix to a caller's smaller
        /// structure.
        #[derive(Clone, Copy)]
        struct ibv_device_attr_ex: 400 => {
            0 => orig_attr: ibv_device_attr,
            232 => comp_mask: u32,
            240 => odp_caps: ibv_odp_caps,
            264 => completion_timestamp_mask: u64,
            272 => hca_core_clock: u64,
            280 => device_cap_flags_ex: u64,
            288 => tso_caps: ibv_tso_caps,
            296 => rss_caps: ibv_rss_caps,
            328 => max_wq_type_rq: u32,
            332 => packet_pacing_caps: ibv_packet_pacing_caps,
            344 => raw_packet_caps: u32,
            348 => tm_caps: ibv_tm_caps,
            368 => cq_mod_caps: ibv_cq_moderation_caps,
            376 => max_dm_size: u64,
            384 => pci_atomic_caps: ibv_pci_atomic_caps,
            392 => xrc_odp_caps: u32,
            396 => phys_port_cnt_ex: u32,
        }
        /// The result of `ibv_query_rt_values_ex`: the device's clock.
        #[derive(Clone, Copy)]
        struct ibv_values_ex: 24 => {
            0 => comp_mask: u32,
            8 => raw_clock: libc::timespec,
        }
    }
    constants {
        enum ibv_odp_general_caps: u32 {
            IBV_ODP_SUPPORT = 1 << 0,
            IBV_ODP_SUPPORT_IMPLICIT = 1 << 1,
        }
        /// Bits of [`ibv_odp_caps::per_transport_caps`].
        enum ibv_odp_transport_cap_bits: u32 {
            IBV_ODP_SUPPORT_SEND = 1 << 0,
            IBV_ODP_SUPPORT_RECV = 1 << 1,
            IBV_ODP_SUPPORT_WRITE = 1 << 2,
            IBV_ODP_SUPPORT_READ = 1 << 3,
            IBV_ODP_SUPPORT_ATOMIC = 1 << 4,
            IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5,
        }
        enum ibv_raw_packet_caps: u32 {
            IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1 << 0,
            IBV_RAW_PACKET_CAP_SCATTER_FCS = 1 << 1,
            IBV_RAW_PACKET_CAP_IP_CSUM = 1 << 2,
            IBV_RAW_PACKET_CAP_DELAY_DROP = 1 << 3,
        }
        enum ibv_tm_cap_flags: u32 {
            IBV_TM_CAP_RC = 1 << 0,
        }
        enum ibv_pci_atomic_op_size: u32 {
            IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 1 << 0,
            IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 1 << 1,
            IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 1 << 2,
        }
        /// Bits of [`ibv_rss_caps::rx_hash_function`].
        enum ibv_rx_hash_function_flags: u32 {
            IBV_RX_HASH_FUNC_TOEPLITZ = 1 << 0,
        }
        /// Bits of [`ibv_rss_caps::rx_hash_fields_mask`].
        enum ibv_rx_hash_fields: u32 {
            IBV_RX_HASH_SRC_IPV4 = 1 << 0,
            IBV_RX_HASH_DST_IPV4 = 1 << 1,
            IBV_RX_HASH_SRC_IPV6 = 1 << 2,
            IBV_RX_HASH_DST_IPV6 = 1 << 3,
            IBV_RX_HASH_SRC_PORT_TCP = 1 << 4,
            IBV_RX_HASH_DST_PORT_TCP = 1 << 5,
            IBV_RX_HASH_SRC_PORT_UDP = 1 << 6,
            IBV_RX_HASH_DST_PORT_UDP = 1 << 7,
            IBV_RX_HASH_IPSEC_SPI = 1 << 8,
            IBV_RX_HASH_INNER = 1 << 31,
        }
        /// Bits of [`ibv_values_ex::comp_mask`].
        enum ibv_values_mask: u32 {
            IBV_VALUES_MASK_RAW_CLOCK = 1 << 0,
            IBV_VALUES_MASK_RESERVED = 1 << 1,
        }
    }
    opaque {}
}
