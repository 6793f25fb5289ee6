//! The part of a UD queue pair on one rail.

use mitra_failover::LocalNic;
use mitra_verbs::{CqId, QpCap, QpInitAttr, Qpn, Result};

/// A queue pair of a NIC. Dropping the value destroys it.
pub(super) struct RailQp {
    pub(super) nic: LocalNic,
    pub(super) qpn: Qpn,
    pub(super) cq: CqId,
}

impl RailQp {
    /// Creates the queue pair with a completion queue of its own, whose events wake the progress
    /// thread.
    pub(super) fn create(nic: &LocalNic, init: &QpInitAttr, slots: u32) -> Result<RailQp> {
        let cap = QpCap { recv_wrs: slots, recv_sges: 1, ..init.cap };
        let cq = nic.provider.create_cq(cap.send_wrs + slots, nic.channel.as_ref())?;
        let on_rail = QpInitAttr { pd: nic.pd, send_cq: cq, recv_cq: cq, srq: None, cap, ..*init };
        match nic.provider.create_qp(&on_rail) {
            Ok(qpn) => Ok(RailQp { nic: nic.clone(), qpn, cq }),
            Err(error) => {
                let _ = nic.provider.destroy_cq(cq); // the first error is reported
                Err(error)
            }
        }
    }
}

impl Drop for RailQp {
    fn drop(&mut self) {
        let provider = &self.nic.provider;
        // Only a dead NIC refuses, and its objects no longer exist.
        let _ = provider.destroy_qp(self.qpn).and_then(|()| provider.destroy_cq(self.cq));
    }
}
