//! Attributes of queue pairs, as C has them.

use std::ffi::c_uint;

use mitra_verbs::{Access, Gid, QpAttr, QpState, QpType, Result};
use mitra_verbs_abi::*;

use crate::context::PORT;
use crate::port::mtu_to;

/// The hop limit of packets (the default time to live of IPv4).
const HOP_LIMIT: u8 = 64;

/// The largest number of retransmissions: soft-RoCE takes 7 for "no limit", and a lost path would
/// then never end a request.
const MAX_RETRIES: u8 = 6;

/// Returns the type in C, or `None` for a type that the crate does not have.
pub(crate) fn type_to(qp_type: QpType) -> Option<ibv_qp_type> {
    match qp_type {
        QpType::Rc => Some(IBV_QPT_RC),
        QpType::Uc => Some(IBV_QPT_UC),
        QpType::Ud => Some(IBV_QPT_UD),
        QpType::Gsi | QpType::XrcSend | QpType::XrcRecv(_) => None,
    }
}

pub(crate) fn state_to(state: QpState) -> ibv_qp_state {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::Rtr => IBV_QPS_RTR,
        QpState::Rts => IBV_QPS_RTS,
        QpState::Sqd => IBV_QPS_SQD,
        QpState::Sqe => IBV_QPS_SQE,
        QpState::Err => IBV_QPS_ERR,
    }
}

pub(crate) fn access_to(access: Access) -> c_uint {
    [
        (Access::LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
        (Access::WINDOW_BIND, IBV_ACCESS_MW_BIND),
    ]
    .into_iter()
    .filter(|(right, _)| access.contains(*right))
    .fold(0, |flags, (_, flag)| flags | flag)
}

/// Returns the address vector of a peer. `sgid_index` is the index of this NIC's GID.
pub(crate) fn address_vector(dgid: Gid, sgid_index: u8, traffic_class: u8) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: dgid.0 },
            flow_label: 0,
            sgid_index,
            hop_limit: HOP_LIMIT,
            traffic_class,
        },
        is_global: 1,
        port_num: PORT,
        ..ibv_ah_attr::zeroed()
    }
}

/// Returns the attributes and the mask of `ibv_modify_qp(3)`. `sgid_index` returns the index of
/// this NIC's GID, for attributes that contain the peer's address.
pub(crate) fn attributes_to(
    attr: &QpAttr,
    sgid_index: impl FnOnce() -> Result<u8>,
) -> Result<(ibv_qp_attr, ibv_qp_attr_mask)> {
    let (mut to, mut mask) = (ibv_qp_attr::zeroed(), 0);
    macro_rules! set {
        ($($field:ident => $to:ident, $bit:ident, $convert:expr;)*) => {$(
            if let Some(value) = attr.$field {
                to.$to = $convert(value);
                mask |= $bit;
            }
        )*};
    }
    set! {
        state => qp_state, IBV_QP_STATE, state_to;
        pkey_index => pkey_index, IBV_QP_PKEY_INDEX, |index| index;
        port => port_num, IBV_QP_PORT, |_| PORT;
        access => qp_access_flags, IBV_QP_ACCESS_FLAGS, access_to;
        qkey => qkey, IBV_QP_QKEY, |qkey| qkey;
        dest_qpn => dest_qp_num, IBV_QP_DEST_QPN, |qpn: mitra_verbs::Qpn| qpn.value();
        path_mtu => path_mtu, IBV_QP_PATH_MTU, mtu_to;
        rq_psn => rq_psn, IBV_QP_RQ_PSN, |psn: mitra_verbs::Psn| psn.value();
        sq_psn => sq_psn, IBV_QP_SQ_PSN, |psn: mitra_verbs::Psn| psn.value();
        max_rd_atomic => max_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC, |n| n;
        max_dest_rd_atomic => max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC, |n| n;
        min_rnr_timer => min_rnr_timer, IBV_QP_MIN_RNR_TIMER, |code| code;
        timeout => timeout, IBV_QP_TIMEOUT, |code| code;
        retry_cnt => retry_cnt, IBV_QP_RETRY_CNT, |count: u8| count.min(MAX_RETRIES);
        rnr_retry => rnr_retry, IBV_QP_RNR_RETRY, |count| count;
    }
    if let Some(gid) = attr.dest_gid {
        to.ah_attr = address_vector(gid, sgid_index()?, 0);
        mask |= IBV_QP_AV;
    }
    Ok((to, mask))
}

#[cfg(test)]
mod tests {
    use mitra_verbs::{Psn, Qpn, RcConnection};

    use super::*;

    #[test]
    fn changes_of_a_connection_set_what_c_requires() {
        let mut connection = RcConnection::to(Gid([7; 16]), Qpn::new(17));
        connection.retry_cnt = 7;
        connection.rq_psn = Psn::new(5);
        let (attr, mask) = attributes_to(&connection.rtr(), || Ok(3)).unwrap();
        let required = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        assert_eq!(mask, required);
        assert_eq!((attr.qp_state, attr.dest_qp_num, attr.rq_psn), (IBV_QPS_RTR, 17, 5));
        assert_eq!((attr.ah_attr.is_global, attr.ah_attr.grh.sgid_index), (1, 3));
        // SAFETY: `raw` was set.
        assert_eq!(unsafe { attr.ah_attr.grh.dgid.raw }, [7; 16]);
        let (attr, mask) = attributes_to(&connection.rts(), || unreachable!("no address is set")).unwrap();
        assert_eq!(attr.retry_cnt, MAX_RETRIES, "7 retries never end on soft-RoCE");
        assert_eq!(mask & IBV_QP_AV, 0);
    }

    #[test]
    fn no_right_of_relaxed_ordering_is_ever_granted() {
        assert_eq!(access_to(Access::all()) & IBV_ACCESS_RELAXED_ORDERING, 0);
        assert_eq!(access_to(Access::REMOTE_READ), IBV_ACCESS_REMOTE_READ);
    }
}
