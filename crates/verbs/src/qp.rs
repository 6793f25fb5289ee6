//! Queue pairs: their states, their attributes, and the attributes that each transition between
//! states requires or allows.

use core::fmt;

use crate::{Access, CqId, Gid, Mtu, PdId, Psn, Qpn, SrqId, XrcdId};

/// The transport service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Unreliable datagram on queue pair 1, the general services interface, to which management
    /// datagrams are sent (IBTA volume 1, chapter 16). A NIC has at most one queue pair of this
    /// type. Its Q_Key is [`GSI_QKEY`].
    Gsi,
    /// The sending end of an extended reliable connection (XRC INI; IBTA volume 1, annex A14). It
    /// has no receive queue. Each send names a shared receive queue of the peer.
    XrcSend,
    /// The receiving end of an extended reliable connection (XRC TGT), in an XRC domain. It
    /// delivers each message to the shared receive queue that the message names, which must be in
    /// the same domain. It has no queues of its own.
    XrcRecv(XrcdId),
}

/// The Q_Key of every queue pair 1 (`IB_QP1_QKEY` in the kernel's `ib_mad.h`). Its top bit is set.
/// A send with such a Q_Key uses the sending queue pair's own Q_Key instead (IBTA volume 1,
/// 10.2.5), so only a queue pair with this Q_Key can send to queue pair 1.
pub const GSI_QKEY: u32 = 0x8001_0000;

impl QpType {
    /// Whether each send request contains its destination, as for UD and GSI.
    pub fn is_datagram(self) -> bool {
        matches!(self, QpType::Ud | QpType::Gsi)
    }

    /// Whether the queue pair is an end of an extended reliable connection.
    pub fn is_xrc(self) -> bool {
        matches!(self, QpType::XrcSend | QpType::XrcRecv(_))
    }
}

/// The states of a queue pair (IBTA volume 1, 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpState {
    /// The queue pair is new or was reset. No request can be posted.
    Reset,
    /// Receives can be posted. The NIC drops packets for the queue pair.
    Init,
    /// Ready to receive: the queue pair receives messages. Sends cannot be posted.
    Rtr,
    /// Ready to send: the queue pair sends and receives.
    Rts,
    /// Send queue drain: the queue pair completes the sends that were started, and starts no other.
    /// It continues to receive.
    Sqd,
    /// Send queue error: a send failed, and posted sends are flushed. The queue pair continues to
    /// receive. Only UC, UD and GSI queue pairs have this state.
    Sqe,
    /// The queue pair failed. All posted requests are flushed.
    Err,
}

/// The sizes of a queue pair's queues and of the requests in them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QpCap {
    /// The maximum number of outstanding send requests.
    pub send_wrs: u32,
    /// The maximum number of outstanding receive requests. It is not used if the queue pair has a
    /// shared receive queue.
    pub recv_wrs: u32,
    /// The maximum number of scatter/gather entries in a send request.
    pub send_sges: u32,
    /// The maximum number of scatter/gather entries in a receive request.
    pub recv_sges: u32,
    /// The maximum length of inline data in a send request, in bytes.
    pub inline: u32,
}

impl Default for QpCap {
    /// Returns sizes of 128 send and 128 receive requests, 4 entries in each, and 64 bytes of
    /// inline data.
    fn default() -> QpCap {
        QpCap { send_wrs: 128, recv_wrs: 128, send_sges: 4, recv_sges: 4, inline: 64 }
    }
}

/// The attributes of a new queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QpInitAttr {
    /// The transport service.
    pub qp_type: QpType,
    /// The protection domain. An [`XrcRecv`](QpType::XrcRecv) queue pair ignores it: its accesses
    /// are checked against the domain of the shared receive queue that the message names.
    pub pd: PdId,
    /// The completion queue of sends. Ignored by an `XrcRecv` queue pair.
    pub send_cq: CqId,
    /// The completion queue of receives. Ignored by XRC queue pairs: the receives of an XRC shared
    /// receive queue complete in that queue's own completion queue.
    pub recv_cq: CqId,
    /// The shared receive queue that the queue pair uses. `None` for a receive queue of its own,
    /// and for XRC queue pairs.
    pub srq: Option<SrqId>,
    /// The sizes of the queues.
    pub cap: QpCap,
    /// Whether every successful send creates a completion. Otherwise only signalled sends do.
    pub sq_sig_all: bool,
}

/// Attributes to set with [`crate::Provider::modify_qp`]. An attribute that is `None` is not
/// changed. Fields and units are those of `ibv_modify_qp`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QpAttr {
    /// The next state.
    pub state: Option<QpState>,
    /// The index into the P_Key table. The only valid index is 0.
    pub pkey_index: Option<u16>,
    /// The port. The only valid port is 1.
    pub port: Option<u8>,
    /// The operations that the peer may request through this queue pair.
    pub access: Option<Access>,
    /// The Q_Key of a UD or GSI queue pair.
    pub qkey: Option<u32>,
    /// The peer's address (the address vector).
    pub dest_gid: Option<Gid>,
    /// The number of the peer's queue pair.
    pub dest_qpn: Option<Qpn>,
    /// The maximum payload of a packet.
    pub path_mtu: Option<Mtu>,
    /// The PSN of the first packet that the peer sends.
    pub rq_psn: Option<Psn>,
    /// The PSN of the first packet that this queue pair sends.
    pub sq_psn: Option<Psn>,
    /// The maximum number of READs and atomics that the queue pair has outstanding as requester.
    pub max_rd_atomic: Option<u8>,
    /// The maximum number of READs and atomics that the queue pair accepts at once as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// The time that the peer waits after an RNR NAK, as the 5-bit code of IBTA volume 1, table 45.
    pub min_rnr_timer: Option<u8>,
    /// The code of the local ACK timeout, which is 4.096 µs · 2^code. The maximum code is 31. Code
    /// 0 means no timeout.
    pub timeout: Option<u8>,
    /// The number of retransmissions before a request fails with
    /// [`RetryExceeded`](crate::WcStatus::RetryExceeded). The maximum is 7.
    pub retry_cnt: Option<u8>,
    /// The number of retries after RNR NAKs before a request fails. The maximum is 7, which means
    /// no limit.
    pub rnr_retry: Option<u8>,
}

/// The result of [`crate::Provider::query_qp`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QpStatus {
    /// The current state.
    pub state: QpState,
    /// The attributes with which the queue pair was created.
    pub init: QpInitAttr,
    /// The attributes that were set by [`crate::Provider::modify_qp`], except `state`, `rq_psn` and
    /// `sq_psn`, which are `None`.
    pub attr: QpAttr,
    /// The PSN that the responder expects next. The responder has executed all requests in packets
    /// with earlier PSNs; a READ has at least been accepted. The PSN is valid in every state,
    /// including ERR, if the device reports [`crate::Capabilities::psn_query`]. In ERR, it is final
    /// when the receive marker has completed ([`crate::Provider::modify_qp`]).
    pub rq_psn: Psn,
    /// The PSN of the next new packet that the requester sends.
    pub sq_psn: Psn,
    /// The progress of the send queue if the queue pair is in SQD.
    pub sq_drain: SqDrain,
}

/// The progress of a send queue in SQD.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SqDrain {
    /// The queue pair is not in SQD.
    NotInSqd,
    /// Some requests that were started before the change to SQD are outstanding.
    Draining,
    /// All requests that were started before the change to SQD have completed.
    Drained,
}

/// The name of a queue pair attribute. Each variant stands for the field of [`QpAttr`] with the
/// same name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum QpAttribute {
    PkeyIndex,
    Port,
    Access,
    Qkey,
    DestGid,
    DestQpn,
    PathMtu,
    RqPsn,
    SqPsn,
    MaxRdAtomic,
    MaxDestRdAtomic,
    MinRnrTimer,
    Timeout,
    RetryCnt,
    RnrRetry,
}

impl fmt::Display for QpAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpAttribute::PkeyIndex => "pkey_index",
            QpAttribute::Port => "port",
            QpAttribute::Access => "access",
            QpAttribute::Qkey => "qkey",
            QpAttribute::DestGid => "dest_gid",
            QpAttribute::DestQpn => "dest_qpn",
            QpAttribute::PathMtu => "path_mtu",
            QpAttribute::RqPsn => "rq_psn",
            QpAttribute::SqPsn => "sq_psn",
            QpAttribute::MaxRdAtomic => "max_rd_atomic",
            QpAttribute::MaxDestRdAtomic => "max_dest_rd_atomic",
            QpAttribute::MinRnrTimer => "min_rnr_timer",
            QpAttribute::Timeout => "timeout",
            QpAttribute::RetryCnt => "retry_cnt",
            QpAttribute::RnrRetry => "rnr_retry",
        })
    }
}

/// Why [`crate::Provider::modify_qp`] refused a change. The queue pair is unchanged. Lists are
/// separated by commas.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ModifyError {
    /// The transition does not exist.
    #[error("the {qp_type} queue pair cannot go from {from} to {to}; from {from} it can go to {allowed}")]
    NoSuchTransition { qp_type: QpType, from: QpState, to: QpState, allowed: String },
    /// Attributes that the transition requires are missing.
    #[error("from {from} to {to}, the {qp_type} queue pair needs {missing}; set them too")]
    Missing { qp_type: QpType, from: QpState, to: QpState, missing: String },
    /// An attribute may not be set in this transition.
    #[error("{attribute} cannot be set from {from} to {to} of the {qp_type} queue pair; leave it out")]
    NotAllowed { qp_type: QpType, from: QpState, to: QpState, attribute: QpAttribute },
    /// An attribute's value is out of range.
    #[error("{attribute} must be {rule}")]
    OutOfRange {
        attribute: QpAttribute,
        /// The rule for the value. It completes the sentence "The attribute must be …".
        rule: &'static str,
    },
}

use QpAttribute as A;
use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
use QpType::{Gsi, Rc, Uc, Ud, XrcRecv, XrcSend};

/// The required and the optional attributes of a transition.
type TransitionRule = (&'static [QpAttribute], &'static [QpAttribute]);

/// Returns the rule of a transition, from the tables of `ibv_modify_qp(3)` and IBTA volume 1, table
/// 91, or `None` if the transition does not exist. The rules of XRC are those of the kernel's
/// `ib_modify_qp_is_ok`: the sending end has the requester's attributes of RC, and the receiving
/// end the responder's.
fn transition_rule(qp_type: QpType, from: QpState, to: QpState) -> Option<TransitionRule> {
    const NONE: &[QpAttribute] = &[];
    Some(match (qp_type, from, to) {
        (_, _, Reset | Err) => (NONE, NONE),
        (Rc | Uc | XrcSend | XrcRecv(_), Reset, Init) => (&[A::PkeyIndex, A::Port, A::Access], NONE),
        (Ud | Gsi, Reset, Init) => (&[A::PkeyIndex, A::Port, A::Qkey], NONE),
        (Rc | Uc | XrcSend | XrcRecv(_), Init, Init) => (NONE, &[A::PkeyIndex, A::Port, A::Access]),
        (Ud | Gsi, Init, Init) => (NONE, &[A::PkeyIndex, A::Port, A::Qkey]),
        (Rc | XrcRecv(_), Init, Rtr) => (
            &[A::DestGid, A::PathMtu, A::DestQpn, A::RqPsn, A::MaxDestRdAtomic, A::MinRnrTimer],
            &[A::PkeyIndex, A::Access],
        ),
        (Uc | XrcSend, Init, Rtr) => {
            (&[A::DestGid, A::PathMtu, A::DestQpn, A::RqPsn], &[A::PkeyIndex, A::Access])
        }
        (Ud | Gsi, Init, Rtr) => (NONE, &[A::PkeyIndex, A::Qkey]),
        (Rc, Rtr, Rts) => {
            (&[A::SqPsn, A::Timeout, A::RetryCnt, A::RnrRetry, A::MaxRdAtomic], &[A::Access, A::MinRnrTimer])
        }
        (XrcSend, Rtr, Rts) => {
            (&[A::SqPsn, A::Timeout, A::RetryCnt, A::RnrRetry, A::MaxRdAtomic], &[A::Access])
        }
        (XrcRecv(_), Rtr, Rts) => (&[A::SqPsn, A::Timeout], &[A::Access, A::MinRnrTimer]),
        (Uc, Rtr, Rts) => (&[A::SqPsn], &[A::Access]),
        (Ud | Gsi, Rtr, Rts) => (&[A::SqPsn], &[A::Qkey]),
        (Rc | XrcRecv(_), Rts | Sqd, Rts) => (NONE, &[A::Access, A::MinRnrTimer]),
        (XrcSend, Rts | Sqd, Rts) => (NONE, &[A::Access]),
        (Uc, Rts | Sqd | Sqe, Rts) => (NONE, &[A::Access]),
        (Ud | Gsi, Rts | Sqd | Sqe, Rts) => (NONE, &[A::Qkey]),
        (_, Rts, Sqd) => (NONE, NONE),
        (Rc, Sqd, Sqd) => (
            NONE,
            &[
                A::PkeyIndex,
                A::Port,
                A::Access,
                A::DestGid,
                A::MaxRdAtomic,
                A::MaxDestRdAtomic,
                A::MinRnrTimer,
                A::Timeout,
                A::RetryCnt,
                A::RnrRetry,
            ],
        ),
        (XrcSend, Sqd, Sqd) => (
            NONE,
            &[
                A::PkeyIndex,
                A::Port,
                A::Access,
                A::DestGid,
                A::MaxRdAtomic,
                A::Timeout,
                A::RetryCnt,
                A::RnrRetry,
            ],
        ),
        (XrcRecv(_), Sqd, Sqd) => (
            NONE,
            &[A::PkeyIndex, A::Port, A::Access, A::DestGid, A::MaxDestRdAtomic, A::MinRnrTimer, A::Timeout],
        ),
        (Uc, Sqd, Sqd) => (NONE, &[A::PkeyIndex, A::Access, A::DestGid]),
        (Ud | Gsi, Sqd, Sqd) => (NONE, &[A::PkeyIndex, A::Qkey]),
        _ => return None,
    })
}

/// Returns the attributes that a transition requires, or `None` if the transition does not exist.
pub fn required_attributes(qp_type: QpType, from: QpState, to: QpState) -> Option<&'static [QpAttribute]> {
    transition_rule(qp_type, from, to).map(|(required, _)| required)
}

impl QpAttr {
    /// Creates attributes that set only the state.
    pub fn to(state: QpState) -> QpAttr {
        QpAttr { state: Some(state), ..QpAttr::default() }
    }

    /// Replaces the attributes that are set in `new` by their values in `new`.
    pub fn update(&mut self, new: &QpAttr) {
        macro_rules! set {
            ($($field:ident)*) => { $( if new.$field.is_some() { self.$field = new.$field; } )* };
        }
        set!(state pkey_index port access qkey dest_gid dest_qpn path_mtu rq_psn sq_psn max_rd_atomic
            max_dest_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry);
    }

    /// Returns the names of the attributes that are set, except the state.
    pub fn attributes(&self) -> impl Iterator<Item = QpAttribute> {
        [
            (self.pkey_index.is_some(), A::PkeyIndex),
            (self.port.is_some(), A::Port),
            (self.access.is_some(), A::Access),
            (self.qkey.is_some(), A::Qkey),
            (self.dest_gid.is_some(), A::DestGid),
            (self.dest_qpn.is_some(), A::DestQpn),
            (self.path_mtu.is_some(), A::PathMtu),
            (self.rq_psn.is_some(), A::RqPsn),
            (self.sq_psn.is_some(), A::SqPsn),
            (self.max_rd_atomic.is_some(), A::MaxRdAtomic),
            (self.max_dest_rd_atomic.is_some(), A::MaxDestRdAtomic),
            (self.min_rnr_timer.is_some(), A::MinRnrTimer),
            (self.timeout.is_some(), A::Timeout),
            (self.retry_cnt.is_some(), A::RetryCnt),
            (self.rnr_retry.is_some(), A::RnrRetry),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
    }
}

/// Checks a modification against the rules of the verbs. Returns the state after the modification.
/// The device itself checks the values that depend on its limits (`path_mtu`, `max_rd_atomic` and
/// `max_dest_rd_atomic`).
///
/// # Errors
/// The first rule that the modification breaks (see [`ModifyError`]).
pub fn check_modify(qp_type: QpType, from: QpState, attr: &QpAttr) -> Result<QpState, ModifyError> {
    let to = attr.state.unwrap_or(from);
    let Some((required, optional)) = transition_rule(qp_type, from, to) else {
        let allowed: Vec<String> = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err]
            .into_iter()
            .filter(|&s| transition_rule(qp_type, from, s).is_some())
            .map(|s| s.to_string())
            .collect();
        return Result::Err(ModifyError::NoSuchTransition { qp_type, from, to, allowed: allowed.join(", ") });
    };
    let missing: Vec<String> =
        required.iter().filter(|a| !attr.attributes().any(|s| s == **a)).map(ToString::to_string).collect();
    if !missing.is_empty() {
        return Result::Err(ModifyError::Missing { qp_type, from, to, missing: missing.join(", ") });
    }
    if let Some(attribute) = attr.attributes().find(|a| !required.contains(a) && !optional.contains(a)) {
        return Result::Err(ModifyError::NotAllowed { qp_type, from, to, attribute });
    }
    let ranges: [(bool, QpAttribute, &'static str); 7] = [
        (attr.pkey_index.is_some_and(|v| v != 0), A::PkeyIndex, "0, the only P_Key of this port"),
        (attr.port.is_some_and(|v| v != 1), A::Port, "1, the only port of this device"),
        (qp_type == Gsi && attr.qkey.is_some_and(|v| v != GSI_QKEY), A::Qkey, "0x80010000 on queue pair 1"),
        (attr.min_rnr_timer.is_some_and(|v| v > 31), A::MinRnrTimer, "at most 31"),
        (attr.timeout.is_some_and(|v| v > 31), A::Timeout, "at most 31"),
        (attr.retry_cnt.is_some_and(|v| v > 7), A::RetryCnt, "at most 7"),
        (attr.rnr_retry.is_some_and(|v| v > 7), A::RnrRetry, "at most 7"),
    ];
    match ranges.into_iter().find(|(bad, ..)| *bad) {
        Some((_, attribute, rule)) => Result::Err(ModifyError::OutOfRange { attribute, rule }),
        None => Ok(to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rc_init() -> QpAttr {
        QpAttr { pkey_index: Some(0), port: Some(1), access: Some(Access::empty()), ..QpAttr::to(Init) }
    }

    #[test]
    fn unknown_transition_error_lists_possible_states() {
        let e = check_modify(Rc, Reset, &QpAttr::to(Rts)).unwrap_err();
        assert_eq!(
            e.to_string(),
            "the RC queue pair cannot go from RESET to RTS; from RESET it can go to RESET, INIT, ERR"
        );
    }

    #[test]
    fn missing_attribute_error_names_attributes() {
        let e =
            check_modify(Rc, Init, &QpAttr { path_mtu: Some(Mtu::M1024), ..QpAttr::to(Rtr) }).unwrap_err();
        assert_eq!(
            e.to_string(),
            "from INIT to RTR, the RC queue pair needs dest_gid, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer; set \
             them too"
        );
    }

    #[test]
    fn attributes_that_transition_does_not_allow_are_refused() {
        let e = check_modify(Rc, Reset, &QpAttr { qkey: Some(1), ..rc_init() }).unwrap_err();
        assert!(matches!(e, ModifyError::NotAllowed { attribute: A::Qkey, .. }), "{e}");
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let e = check_modify(Rc, Reset, &QpAttr { port: Some(2), ..rc_init() }).unwrap_err();
        assert_eq!(e.to_string(), "port must be 1, the only port of this device");
        assert_eq!(check_modify(Rc, Reset, &rc_init()), Ok(Init));
        let gsi = |qkey| QpAttr { access: None, qkey: Some(qkey), ..rc_init() };
        let e = check_modify(Gsi, Reset, &gsi(0x11)).unwrap_err();
        assert_eq!(e.to_string(), "qkey must be 0x80010000 on queue pair 1");
        assert_eq!(check_modify(Gsi, Reset, &gsi(GSI_QKEY)), Ok(Init));
        assert_eq!(check_modify(Ud, Reset, &gsi(0x11)), Ok(Init));
    }

    /// `ibv_modify_qp(3)` and the kernel's table of transitions (`qp_state_table`).
    #[test]
    fn drained_queue_pairs_with_reliable_service_take_the_port_again() {
        for (t, takes) in [(Rc, true), (XrcSend, true), (XrcRecv(XrcdId(0)), true), (Uc, false), (Ud, false)]
        {
            let same = QpAttr { port: Some(1), ..QpAttr::to(Sqd) };
            assert_eq!(check_modify(t, Sqd, &same).is_ok(), takes, "{t:?}");
        }
    }

    #[test]
    fn every_state_allows_err_and_reset() {
        for t in [Rc, Uc, Ud, Gsi, XrcSend, XrcRecv(XrcdId(0))] {
            for s in [Reset, Init, Rtr, Rts, Sqd, Sqe, Err] {
                assert_eq!(check_modify(t, s, &QpAttr::to(Err)), Ok(Err));
                assert_eq!(check_modify(t, s, &QpAttr::to(Reset)), Ok(Reset));
            }
        }
    }

    #[test]
    fn ends_of_xrc_connection_need_attributes_of_their_role() {
        let attributes = |t, from, to| required_attributes(t, from, to).unwrap();
        let recv = XrcRecv(XrcdId(3));
        assert_eq!(attributes(recv, Init, Rtr), attributes(Rc, Init, Rtr));
        assert_eq!(attributes(XrcSend, Init, Rtr), attributes(Uc, Init, Rtr));
        assert_eq!(attributes(XrcSend, Rtr, Rts), attributes(Rc, Rtr, Rts));
        assert_eq!(attributes(recv, Rtr, Rts), [A::SqPsn, A::Timeout]);
        let responder = QpAttr { min_rnr_timer: Some(1), ..QpAttr::to(Rts) };
        assert_eq!(check_modify(recv, Rts, &responder), Ok(Rts));
        assert!(check_modify(XrcSend, Rts, &responder).is_err());
    }
}
