//! The identity, the state and the attributes of a queue pair.

use core::time::Duration;

use mitra_verbs::{Access, Gid, LocalAckTimeout, PdId, QpAttr, QpInitAttr, QpState, QpType, Qpn, Srqn};
use mitra_wire::Transport;

/// The part of a queue pair that requester, responder, senders and receivers all read. Only
/// [`crate::qp::Qp`] writes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct QpAttributes {
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInitAttr,
    /// The protection domain of the receives. It is the domain of the shared receive queue, if the
    /// queue pair has one.
    pub(crate) recv_pd: PdId,
    pub(crate) state: QpState,
    /// The attributes that `modify_qp` has set since the last reset.
    pub(crate) modified: QpAttr,
    /// The largest payload of a packet in bytes: the path MTU, or the port's MTU for UD.
    pub(crate) mtu: usize,
    pub(crate) dest_gid: Gid,
    pub(crate) dest_qpn: Qpn,
}

/// The attributes, with their defaults where `modify_qp` has not set them.
impl QpAttributes {
    pub(crate) fn access(&self) -> Access {
        self.modified.access.unwrap_or_default()
    }

    pub(crate) fn max_rd_atomic(&self) -> u8 {
        self.modified.max_rd_atomic.unwrap_or_default()
    }

    pub(crate) fn max_dest_rd_atomic(&self) -> u8 {
        self.modified.max_dest_rd_atomic.unwrap_or_default()
    }

    pub(crate) fn min_rnr_timer(&self) -> u8 {
        self.modified.min_rnr_timer.unwrap_or_default()
    }

    pub(crate) fn response_transport(&self) -> Transport {
        match self.init.qp_type {
            QpType::XrcRecv(_) => Transport::Xrc(Srqn::default()),
            _ => Transport::Rc,
        }
    }

    /// Returns the time after which the requester retransmits. `None` means never.
    pub(crate) fn local_ack_timeout(&self) -> Option<Duration> {
        LocalAckTimeout::from_code(self.modified.timeout.unwrap_or_default()).as_duration()
    }

    pub(crate) fn retry_cnt(&self) -> u8 {
        self.modified.retry_cnt.unwrap_or_default()
    }

    pub(crate) fn rnr_retry(&self) -> u8 {
        self.modified.rnr_retry.unwrap_or_default()
    }
}
