//! The state SQD (send queue drained) of a vQP: the send queue drains and waits.
//!
//! The queue pair of the active rail drains on its NIC, because only the NIC knows when operations
//! without the SIGNALED flag end. If that rail fails, the vQP replays on the next rail the
//! operations that were not executed. Replays are signalled, so the ledger knows when they end.

use mitra_verbs::Result;

use super::VirtualQp;

impl VirtualQp {
    /// Stops the send queue. Requests that have begun still end, and no new request begins until
    /// [`VirtualQp::restart_sends`]. Posting stays possible. A failover continues, and replays
    /// requests that had begun. Does nothing if the send queue is stopped already.
    ///
    /// # Errors
    /// [`Error::Invalid`](mitra_verbs::Error::Invalid) if the vQP is closed or not yet connected.
    pub fn drain_sends(&mut self) -> Result<()> {
        self.check_open()?;
        if self.datapath.send.ledger.drain() {
            // If the queue pair refuses, it has failed, and the vQP moves to the next rail.
            let _ = self.datapath.rails.get(self.failover.recovery.active_rail()).modify_sqd(true);
        }
        Ok(())
    }

    /// Returns whether every request that had begun before [`VirtualQp::drain_sends`] has ended. To
    /// be called after a poll.
    pub fn are_sends_drained(&mut self) -> bool {
        let ledger = &self.datapath.send.ledger;
        if ledger.is_draining() && self.failover.recovery.may_post() {
            let rail = self.datapath.rails.get(self.failover.recovery.active_rail());
            if rail.is_sqd_drained().unwrap_or_else(|| ledger.has_no_begun_operation()) {
                self.datapath.send.ledger.set_drained();
            }
        }
        self.datapath.send.ledger.is_drained()
    }

    /// Restarts the send queue after [`VirtualQp::drain_sends`].
    ///
    /// # Errors
    /// [`Error::Invalid`](mitra_verbs::Error::Invalid) if the vQP is closed or not yet connected.
    pub fn restart_sends(&mut self) -> Result<()> {
        self.check_open()?;
        self.datapath.send.ledger.undrain();
        let rail = self.datapath.rails.get(self.failover.recovery.active_rail());
        if rail.is_sqd_drained().is_some() {
            // If the queue pair refuses, it has failed, and the vQP moves to the next rail.
            let _ = rail.modify_sqd(false);
        }
        self.post_pending_sends();
        Ok(())
    }
}
