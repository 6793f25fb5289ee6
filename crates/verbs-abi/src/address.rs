//! GIDs, address vectors, address handles and the Global Route Header.

use super::*;

mirror! {
    types {
        /// A GID. On RoCE v2 it is an IPv6 address, which may be an IPv4-mapped address.
        #[derive(Clone, Copy)]
        union ibv_gid: 16 => {
            0 => raw: [u8; 16],
            0 => global: ibv_gid_global,
        }
        /// The two halves of a GID, in network byte order.
        #[derive(Clone, Copy)]
        struct ibv_gid_global (ibv_gid.global): 16 => {
            0 => subnet_prefix: u64,
            8 => interface_id: u64,
        }
        #[derive(Clone, Copy)]
        struct ibv_gid_entry: 32 => {
            0 => gid: ibv_gid,
            16 => gid_index: u32,
            20 => port_num: u32,
            24 => gid_type: u32,
            28 => ndev_ifindex: u32,
        }
        /// The part of an address vector that routers use. On RoCE it is the whole address.
        #[derive(Clone, Copy)]
        struct ibv_global_route: 24 => {
            0 => dgid: ibv_gid,
            16 => flow_label: u32,
            20 => sgid_index: u8,
            21 => hop_limit: u8,
            22 => traffic_class: u8,
        }
        /// The 40 bytes that precede a datagram in the receive buffer. With RoCE v2 over IPv4, the
        /// last 20 bytes hold the IPv4 header.
        #[derive(Clone, Copy)]
        struct ibv_grh: 40 => {
            0 => version_tclass_flow: u32,
            4 => paylen: u16,
            6 => next_hdr: u8,
            7 => hop_limit: u8,
            8 => sgid: ibv_gid,
            24 => dgid: ibv_gid,
        }
        /// An address vector: the destination of a queue pair or an address handle.
        #[derive(Clone, Copy)]
        struct ibv_ah_attr: 32 => {
            0 => grh: ibv_global_route,
            24 => dlid: u16,
            26 => sl: u8,
            27 => src_path_bits: u8,
            28 => static_rate: u8,
            29 => is_global: u8,
            30 => port_num: u8,
        }
        struct ibv_ah: 24 => {
            0 => context: *mut ibv_context,
            8 => pd: *mut ibv_pd,
            16 => handle: u32,
        }
    }
    constants {
        /// The type of a GID. The numbers in `sysfs` and in the kernel differ from these.
        enum ibv_gid_type: u32 {
            IBV_GID_TYPE_IB = 0,
            IBV_GID_TYPE_ROCE_V1 = 1,
            IBV_GID_TYPE_ROCE_V2 = 2,
        }
        /// A static rate limit. The values are not in the order of the rates.
        enum ibv_rate: u32 {
            IBV_RATE_MAX = 0,
            IBV_RATE_2_5_GBPS = 2,
            IBV_RATE_5_GBPS = 5,
            IBV_RATE_10_GBPS = 3,
            IBV_RATE_20_GBPS = 6,
            IBV_RATE_30_GBPS = 4,
            IBV_RATE_40_GBPS = 7,
            IBV_RATE_60_GBPS = 8,
            IBV_RATE_80_GBPS = 9,
            IBV_RATE_120_GBPS = 10,
            IBV_RATE_14_GBPS = 11,
            IBV_RATE_56_GBPS = 12,
            IBV_RATE_112_GBPS = 13,
            IBV_RATE_168_GBPS = 14,
            IBV_RATE_25_GBPS = 15,
            IBV_RATE_100_GBPS = 16,
            IBV_RATE_200_GBPS = 17,
            IBV_RATE_300_GBPS = 18,
            IBV_RATE_28_GBPS = 19,
            IBV_RATE_50_GBPS = 20,
            IBV_RATE_400_GBPS = 21,
            IBV_RATE_600_GBPS = 22,
            IBV_RATE_800_GBPS = 23,
            IBV_RATE_1200_GBPS = 24,
        }
        /// The range of UDP source ports of RoCE v2, and the mask of a flow label.
        const udp_encapsulation: u32 {
            IB_ROCE_UDP_ENCAP_VALID_PORT_MIN = 0xc000,
            IB_ROCE_UDP_ENCAP_VALID_PORT_MAX = 0xffff,
            IB_GRH_FLOWLABEL_MASK = 0x000f_ffff,
        }
    }
    opaque {}
}
