//! Path records in the format of a subnet administrator. RoCE has no subnet administrator, so
//! librdmacm fills only the fields that have a meaning on RoCE.

use std::ffi::c_int;

use super::*;

mirror! {
    types {
        /// The path record of an `rdma_route`. Queries of a subnet administrator use
        /// [`ibv_path_data`].
        #[derive(Clone, Copy)]
        struct ibv_sa_path_rec: 64 => {
            0 => dgid: ibv_gid,
            16 => sgid: ibv_gid,
            32 => dlid: u16,
            34 => slid: u16,
            36 => raw_traffic: c_int,
            40 => flow_label: u32,
            44 => hop_limit: u8,
            45 => traffic_class: u8,
            48 => reversible: c_int,
            52 => numb_path: u8,
            54 => pkey: u16,
            56 => sl: u8,
            57 => mtu_selector: u8,
            58 => mtu: u8,
            59 => rate_selector: u8,
            60 => rate: u8,
            61 => packet_life_time_selector: u8,
            62 => packet_life_time: u8,
            63 => preference: u8,
        }
    }
    constants {}
    opaque {
        /// The value of an option that Mitra does not accept.
        ibv_path_data,
        ibv_path_record,
        ibv_sa_mcmember_rec,
        ibv_sa_service_rec,
    }
}
