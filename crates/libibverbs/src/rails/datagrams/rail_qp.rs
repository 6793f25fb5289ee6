//! The queue pair of a UD queue pair on one rail.

use mitra_failover::LocalNic;
use mitra_verbs::{CqId, QpCap, QpInitAttr, Qpn, Result};

pub(super) struct RailQp {
    pub(super) qpn: Qpn,
    pub(super) cq: CqId,
}

/// Creates the queue pair of a rail with a completion queue of its own, whose events wake the
/// progress thread.
pub(super) fn create_on(nic: &LocalNic, init: &QpInitAttr, slots: u32) -> Result<RailQp> {
    let cap = QpCap { recv_wrs: slots, recv_sges: 1, ..init.cap };
    let cq = nic.provider.create_cq(cap.send_wrs + slots, nic.channel.as_ref())?;
    let on_rail = QpInitAttr { pd: nic.pd, send_cq: cq, recv_cq: cq, srq: None, cap, ..*init };
    let created = nic.provider.create_qp(&on_rail).map(|qpn| RailQp { qpn, cq });
    if created.is_err() {
        let _ = nic.provider.destroy_cq(cq); // the first error is reported
    }
    created
}

/// Destroys the queue pair of a rail and its completion queue.
pub(super) fn destroy_on(nic: &LocalNic, qp: &RailQp) -> Result<()> {
    nic.provider.destroy_qp(qp.qpn)?;
    nic.provider.destroy_cq(qp.cq)
}
