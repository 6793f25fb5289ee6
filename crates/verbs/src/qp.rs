//! Queue pairs: their states, attributes, and which transition needs which attribute.

use core::fmt;

use crate::{Access, CqId, Gid, Mtu, PdId, Psn, Qpn, SrqId};

/// The transport service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Unreliable datagram on queue pair 1, the general services interface, where management datagrams go
    /// (IBTA volume 1, chapter 16). A NIC has at most one. Its Q_Key is [`GSI_QKEY`].
    Gsi,
}

/// The Q_Key of every queue pair 1 (`IB_QP1_QKEY` in the kernel's `ib_mad.h`). Its top bit is set, so only a queue pair that has it
/// as its own Q_Key can send with it (IBTA volume 1, 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;

impl QpType {
    /// Whether each send carries its destination.
    pub fn is_datagram(self) -> bool {
        matches!(self, QpType::Ud | QpType::Gsi)
    }
}

/// The states of a queue pair (IBTA volume 1, 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpState {
    /// Newly created or reset: nothing can be posted.
    Reset,
    /// Receives may be posted; packets are dropped.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// The send queue drains and starts no new request; receiving continues.
    Sqd,
    /// The send queue failed; receiving continues (UC and UD only).
    Sqe,
    /// Failed: all posted requests are flushed.
    Err,
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QpCap {
    /// The number of outstanding send requests.
    pub send_wrs: u32,
    /// The number of outstanding receive requests; 0 with a shared receive queue.
    pub recv_wrs: u32,
    /// Scatter/gather entries of a send request.
    pub send_sges: u32,
    /// Scatter/gather entries of a receive request.
    pub recv_sges: u32,
    /// Bytes of inline data in a send request.
    pub inline: u32,
}

impl Default for QpCap {
    /// 128 requests each way, 4 entries each, 64 bytes inline.
    fn default() -> QpCap {
        QpCap { send_wrs: 128, recv_wrs: 128, send_sges: 4, recv_sges: 4, inline: 64 }
    }
}

/// The attributes of a new queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QpInitAttr {
    /// Transport service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// The completion queue of sends.
    pub send_cq: CqId,
    /// The completion queue of receives.
    pub recv_cq: CqId,
    /// A shared receive queue in place of a receive queue of its own.
    pub srq: Option<SrqId>,
    /// The sizes of the queues.
    pub cap: QpCap,
    /// Whether every send gets a completion, signalled or not.
    pub sq_sig_all: bool,
}

/// Attributes to set with [`crate::Provider::modify_qp`]; `None` leaves one as it is. Fields and units as in
/// `ibv_modify_qp`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QpAttr {
    /// The next state.
    pub state: Option<QpState>,
    /// Index into the P_Key table; this project's NICs have index 0 only.
    pub pkey_index: Option<u16>,
    /// The port; this project's NICs have port 1 only.
    pub port: Option<u8>,
    /// Remote rights through this queue pair.
    pub access: Option<Access>,
    /// Q_Key, on UD.
    pub qkey: Option<u32>,
    /// The peer's address (the address vector).
    pub dest_gid: Option<Gid>,
    /// The peer's queue pair.
    pub dest_qpn: Option<Qpn>,
    /// Payload bytes per packet.
    pub path_mtu: Option<Mtu>,
    /// First PSN expected.
    pub rq_psn: Option<Psn>,
    /// First PSN sent.
    pub sq_psn: Option<Psn>,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics accepted and remembered as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// The time that the peer waits after an RNR NAK, as the 5-bit code of IBTA volume 1, table 45.
    pub min_rnr_timer: Option<u8>,
    /// The local ACK timeout of 4.096 µs · 2^timeout; at most 31, and 0 disables retransmission.
    pub timeout: Option<u8>,
    /// Retransmissions before RETRY_EXC, at most 7.
    pub retry_cnt: Option<u8>,
    /// Retries after RNR NAKs, at most 7; 7 means without limit.
    pub rnr_retry: Option<u8>,
}

/// The result of [`crate::Provider::query_qp`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QpStatus {
    /// The current state.
    pub state: QpState,
    /// The attributes from its creation.
    pub init: QpInitAttr,
    /// The attributes as set, except `state`, `rq_psn` and `sq_psn`, which are `None` here.
    pub attr: QpAttr,
    /// As responder, the next PSN expected: every request packet before it was executed (READ: accepted).
    /// Valid in ERR too, if the device reports [`crate::Capabilities::psn_query`].
    pub rq_psn: Psn,
    /// As requester, the PSN of the next new packet.
    pub sq_psn: Psn,
    /// Whether a send queue in SQD has drained.
    pub sq_drain: SqDrain,
}

/// The progress of a send queue in SQD.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SqDrain {
    /// The queue pair is not in SQD.
    NotInSqd,
    /// Requests that were started before are outstanding.
    Draining,
    /// All requests that were started before have completed.
    Drained,
}

/// The name of a queue pair attribute, in transition tables and errors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // each is the field of `QpAttr` with that name
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

/// Why [`crate::Provider::modify_qp`] refused a change. The queue pair is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The transition does not exist.
    #[error(
        "a {qp_type:?} queue pair cannot go from {from:?} to {to:?}; from {from:?} it can go to {allowed}"
    )]
    NoSuchTransition {
        /// Transport service.
        qp_type: QpType,
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// The states that can be reached.
        allowed: String,
    },
    /// An attribute is missing.
    #[error("{from:?} to {to:?} of a {qp_type:?} queue pair needs {missing}")]
    Missing {
        /// Transport service.
        qp_type: QpType,
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// Comma-separated attributes.
        missing: String,
    },
    /// An attribute may not be set in this transition.
    #[error("{attribute} cannot be set from {from:?} to {to:?} of a {qp_type:?} queue pair")]
    NotAllowed {
        /// Transport service.
        qp_type: QpType,
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// The attribute.
        attribute: QpAttribute,
    },
    /// An attribute's value is out of range.
    #[error("{attribute} must be {rule}")]
    OutOfRange {
        /// The attribute.
        attribute: QpAttribute,
        /// What it must be.
        rule: &'static str,
    },
}

use QpAttribute as A;
use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
use QpType::{Gsi, Rc, Uc, Ud};

/// The required and the optional attributes of a transition.
type TransitionRule = (&'static [QpAttribute], &'static [QpAttribute]);

/// Returns the rule of a transition, from the tables of `ibv_modify_qp(3)` and IBTA volume 1, table 91, or `None` if the transition
/// does not exist.
fn transition_rule(qp_type: QpType, from: QpState, to: QpState) -> Option<TransitionRule> {
    const NONE: &[QpAttribute] = &[];
    Some(match (qp_type, from, to) {
        (_, _, Reset | Err) => (NONE, NONE),
        (Rc | Uc, Reset, Init) => (&[A::PkeyIndex, A::Port, A::Access], NONE),
        (Ud | Gsi, Reset, Init) => (&[A::PkeyIndex, A::Port, A::Qkey], NONE),
        (Rc | Uc, Init, Init) => (NONE, &[A::PkeyIndex, A::Port, A::Access]),
        (Ud | Gsi, Init, Init) => (NONE, &[A::PkeyIndex, A::Port, A::Qkey]),
        (Rc, Init, Rtr) => (
            &[A::DestGid, A::PathMtu, A::DestQpn, A::RqPsn, A::MaxDestRdAtomic, A::MinRnrTimer],
            &[A::PkeyIndex, A::Access],
        ),
        (Uc, Init, Rtr) => (&[A::DestGid, A::PathMtu, A::DestQpn, A::RqPsn], &[A::PkeyIndex, A::Access]),
        (Ud | Gsi, Init, Rtr) => (NONE, &[A::PkeyIndex, A::Qkey]),
        (Rc, Rtr, Rts) => {
            (&[A::SqPsn, A::Timeout, A::RetryCnt, A::RnrRetry, A::MaxRdAtomic], &[A::Access, A::MinRnrTimer])
        }
        (Uc, Rtr, Rts) => (&[A::SqPsn], &[A::Access]),
        (Ud | Gsi, Rtr, Rts) => (&[A::SqPsn], &[A::Qkey]),
        (Rc, Rts, Rts) | (Rc, Sqd, Rts) => (NONE, &[A::Access, A::MinRnrTimer]),
        (Uc, Rts | Sqd | Sqe, Rts) => (NONE, &[A::Access]),
        (Ud | Gsi, Rts | Sqd | Sqe, Rts) => (NONE, &[A::Qkey]),
        (_, Rts, Sqd) => (NONE, NONE),
        (Rc, Sqd, Sqd) => (
            NONE,
            &[
                A::PkeyIndex,
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

    /// Overwrites the attributes that are set in `new`.
    pub fn update(&mut self, new: &QpAttr) {
        macro_rules! set {
            ($($field:ident)*) => { $( if new.$field.is_some() { self.$field = new.$field; } )* };
        }
        set!(state pkey_index port access qkey dest_gid dest_qpn path_mtu rq_psn sq_psn max_rd_atomic
            max_dest_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry);
    }

    /// Returns the attributes that are set, except the state.
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

/// Checks a modification against the rules of the verbs and returns the next state. The device checks the values that depend on its
/// limits (MTU, rd_atomic).
///
/// # Errors
/// The rule that the modification breaks; see [`ModifyError`].
pub fn check_modify(qp_type: QpType, from: QpState, attr: &QpAttr) -> Result<QpState, ModifyError> {
    let to = attr.state.unwrap_or(from);
    let Some((required, optional)) = transition_rule(qp_type, from, to) else {
        let allowed: Vec<String> = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err]
            .into_iter()
            .filter(|&s| transition_rule(qp_type, from, s).is_some())
            .map(|s| format!("{s:?}"))
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
            "a Rc queue pair cannot go from Reset to Rts; from Reset it can go to Reset, Init, Err"
        );
    }

    #[test]
    fn missing_attribute_error_names_them() {
        let e =
            check_modify(Rc, Init, &QpAttr { path_mtu: Some(Mtu::M1024), ..QpAttr::to(Rtr) }).unwrap_err();
        assert_eq!(
            e.to_string(),
            "Init to Rtr of a Rc queue pair needs dest_gid, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer"
        );
    }

    #[test]
    fn extra_attributes_are_refused() {
        let e = check_modify(Rc, Reset, &QpAttr { qkey: Some(1), ..rc_init() }).unwrap_err();
        assert!(matches!(e, ModifyError::NotAllowed { attribute: A::Qkey, .. }), "{e}");
    }

    #[test]
    fn ranges_are_checked() {
        let e = check_modify(Rc, Reset, &QpAttr { port: Some(2), ..rc_init() }).unwrap_err();
        assert_eq!(e.to_string(), "port must be 1, the only port of this device");
        assert_eq!(check_modify(Rc, Reset, &rc_init()), Ok(Init));
        let gsi = |qkey| QpAttr { access: None, qkey: Some(qkey), ..rc_init() };
        let e = check_modify(Gsi, Reset, &gsi(0x11)).unwrap_err();
        assert_eq!(e.to_string(), "qkey must be 0x80010000 on queue pair 1");
        assert_eq!(check_modify(Gsi, Reset, &gsi(GSI_QKEY)), Ok(Init));
        assert_eq!(check_modify(Ud, Reset, &gsi(0x11)), Ok(Init));
    }

    #[test]
    fn every_state_allows_err_and_reset() {
        for t in [Rc, Uc, Ud, Gsi] {
            for s in [Reset, Init, Rtr, Rts, Sqd, Sqe, Err] {
                assert_eq!(check_modify(t, s, &QpAttr::to(Err)), Ok(Err));
                assert_eq!(check_modify(t, s, &QpAttr::to(Reset)), Ok(Reset));
            }
        }
    }
}
