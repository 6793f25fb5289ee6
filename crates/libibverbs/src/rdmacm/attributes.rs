//! What a QP is to be told at each step of a connection (`rdma_init_qp_attr`).

use nix::errno::Errno;

use super::device::{Device, GID_INDEX, PORT};
use super::socket::Space;
use super::state::{Identifier, Terms};
use crate::abi::*;

/// How long a packet may live, as the kernel's `CMA_IBOE_PACKET_LIFETIME`: 4.096 µs × 2^16 = 0.27 s. Processes that share
/// few processors do not run for long.
const PACKET_LIFETIME: u8 = 16;
/// Until a request is repeated: twice that, there and back.
const ACK_TIMEOUT: u8 = PACKET_LIFETIME + 1;
/// As many routers as there may be.
const HOP_LIMIT: u8 = 64;

/// The attributes, and the mask of those that are set, that bring an identifier's QP to `state`.
pub fn attributes(
    state: ibv_qp_state,
    identifier: &Identifier,
    device: &Device,
) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), Errno> {
    // SAFETY: plain integers and arrays of them, for which zeros are valid.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = state;
    let terms = &identifier.terms;
    let mut mask = IBV_QP_STATE;
    match (identifier.space, state) {
        (_, IBV_QPS_INIT) => {
            attr.port_num = PORT;
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
            if identifier.space == Space::Udp {
                attr.qkey = RDMA_UDP_QKEY;
                mask |= IBV_QP_QKEY;
            } else {
                attr.qp_access_flags = access(terms);
                mask |= IBV_QP_ACCESS_FLAGS;
            }
        }
        (Space::Udp, IBV_QPS_RTR) => {}
        (Space::Udp, IBV_QPS_RTS) => {
            attr.sq_psn = terms.starting_psn;
            mask |= IBV_QP_SQ_PSN;
        }
        (Space::Tcp, IBV_QPS_RTR) => {
            let peer = terms.peer.as_ref().ok_or(Errno::EINVAL)?;
            attr.path_mtu = ibv_mtu::from(peer.path_mtu.min(device.path_mtu));
            attr.dest_qp_num = peer.qpn;
            attr.rq_psn = peer.starting_psn;
            attr.ah_attr = path_to(peer.gid, identifier.options.traffic_class);
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            if identifier.qp_type == IBV_QPT_RC {
                attr.max_dest_rd_atomic = terms.responder_resources;
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            }
        }
        (Space::Tcp, IBV_QPS_RTS) => {
            terms.peer.as_ref().ok_or(Errno::EINVAL)?;
            attr.sq_psn = terms.starting_psn;
            mask |= IBV_QP_SQ_PSN;
            if identifier.qp_type == IBV_QPT_RC {
                attr.timeout = identifier.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
                attr.retry_cnt = terms.retry_count;
                attr.rnr_retry = terms.rnr_retry_count;
                attr.max_rd_atomic = terms.initiator_depth;
                mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok((attr, mask))
}

/// What a peer may do to this side's memory, as the kernel's connection manager sets it (`cm_init_qp_init_attr`).
fn access(terms: &Terms) -> u32 {
    let answers =
        if terms.responder_resources > 0 { IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
    IBV_ACCESS_REMOTE_WRITE | answers
}

/// The way to a NIC.
pub fn path_to(gid: [u8; 16], traffic_class: u8) -> ibv_ah_attr {
    // SAFETY: as above.
    let mut path: ibv_ah_attr = unsafe { std::mem::zeroed() };
    path.is_global = 1;
    path.port_num = PORT;
    path.grh.dgid.raw = gid;
    path.grh.sgid_index = GID_INDEX;
    path.grh.hop_limit = HOP_LIMIT;
    path.grh.traffic_class = traffic_class;
    path
}

/// The same as `rdma_route` holds it.
pub fn path_record(device: &Device, dgid: [u8; 16], traffic_class: u8) -> ibv_sa_path_rec {
    // "Exactly", of MTU, rate and lifetime (IBTA 15.2.5.16).
    const EXACTLY: u8 = 2;
    ibv_sa_path_rec {
        dgid: ibv_gid { raw: dgid },
        sgid: ibv_gid { raw: device.gid },
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: 0,
        hop_limit: HOP_LIMIT,
        traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: super::device::PKEY,
        sl: 0,
        mtu_selector: EXACTLY,
        mtu: device.path_mtu,
        rate_selector: EXACTLY,
        rate: IBV_RATE_MAX as u8,
        packet_life_time_selector: EXACTLY,
        packet_life_time: PACKET_LIFETIME,
        preference: 0,
    }
}
