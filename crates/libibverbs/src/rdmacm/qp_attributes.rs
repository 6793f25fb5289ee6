//! The attributes for each transition of a connection's queue pair (`rdma_init_qp_attr`), and
//! paths.

use nix::errno::Errno;

use super::device::{Device, GID_INDEX, PKEY, PORT_NUM};
use super::identifier::{Identifier, NegotiatedParams};
use super::rdma_port::PortSpace;
use mitra_verbs_abi::*;

/// 4.096 µs · 2^16 = 0.27 s, as the kernel's `CMA_IBOE_PACKET_LIFETIME`. A process may wait that
/// long for a processor.
const PACKET_LIFETIME: u8 = 16;
/// The local ACK timeout: twice the packet lifetime, for the request and its ACK.
pub const ACK_TIMEOUT: u8 = PACKET_LIFETIME + 1;
const HOP_LIMIT: u8 = 64;

/// Returns the attributes that bring an identifier's queue pair to `state`, and their mask.
///
/// # Errors
/// `EINVAL` for a state other than INIT, RTR and RTS, and for RTR and RTS of a connection before
/// the peer's parameters are known.
pub fn qp_attributes(
    state: ibv_qp_state,
    identifier: &Identifier,
    device: &Device,
) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), Errno> {
    // SAFETY: `ibv_qp_attr` consists of integers and arrays of integers, for which zeros are valid.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = state;
    let params = &identifier.params;
    let mut mask = IBV_QP_STATE;
    match (identifier.space, state) {
        (_, IBV_QPS_INIT) => {
            attr.port_num = PORT_NUM;
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
            if identifier.space == PortSpace::Udp {
                attr.qkey = RDMA_UDP_QKEY;
                mask |= IBV_QP_QKEY;
            } else {
                attr.qp_access_flags = access_flags(params);
                mask |= IBV_QP_ACCESS_FLAGS;
            }
        }
        (PortSpace::Udp, IBV_QPS_RTR) => {}
        (PortSpace::Udp, IBV_QPS_RTS) => {
            attr.sq_psn = params.starting_psn;
            mask |= IBV_QP_SQ_PSN;
        }
        (PortSpace::Tcp, IBV_QPS_RTR) => {
            let peer = params.peer.as_ref().ok_or(Errno::EINVAL)?;
            attr.path_mtu = ibv_mtu::from(peer.path_mtu.min(device.path_mtu));
            attr.dest_qp_num = peer.qpn;
            attr.rq_psn = params.starting_psn;
            attr.ah_attr = path_to(peer.gid, identifier.options.traffic_class);
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            if identifier.qp_type != IBV_QPT_UC {
                attr.max_dest_rd_atomic = params.responder_resources;
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            }
        }
        (PortSpace::Tcp, IBV_QPS_RTS) => {
            attr.sq_psn = params.peer.as_ref().ok_or(Errno::EINVAL)?.starting_psn;
            mask |= IBV_QP_SQ_PSN;
            if identifier.qp_type != IBV_QPT_UC {
                attr.timeout = identifier.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
                attr.retry_cnt = params.retry_count;
                attr.rnr_retry = params.rnr_retry_count;
                attr.max_rd_atomic = params.initiator_depth;
                mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok((attr, mask))
}

/// The same access rights as with the kernel's connection manager (`cm_init_qp_init_attr`).
fn access_flags(params: &NegotiatedParams) -> u32 {
    let read_and_atomic =
        if params.responder_resources > 0 { IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
    IBV_ACCESS_REMOTE_WRITE | read_and_atomic
}

/// Returns the address vector of the NIC with this GID.
pub fn path_to(gid: [u8; 16], traffic_class: u8) -> ibv_ah_attr {
    // SAFETY: `ibv_ah_attr` consists of integers and arrays of integers, for which zeros are valid.
    let mut path: ibv_ah_attr = unsafe { std::mem::zeroed() };
    path.is_global = 1;
    path.port_num = PORT_NUM;
    path.grh.dgid.raw = gid;
    path.grh.sgid_index = GID_INDEX;
    path.grh.hop_limit = HOP_LIMIT;
    path.grh.traffic_class = traffic_class;
    path
}

/// Returns the `rdma_route.path_rec` to the NIC with GID `dgid`.
pub fn path_record(device: &Device, dgid: [u8; 16], traffic_class: u8) -> ibv_sa_path_rec {
    // The selector "exactly" of MTU, rate and lifetime (IBTA 15.2.5.16).
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
        pkey: PKEY,
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
