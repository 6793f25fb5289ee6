//! The state SQD of a vQP: the send queue drains and waits.
//!
//! The queue pair of the active rail drains on its NIC, which alone knows when operations without
//! the SIGNALED flag end. If that rail fails, the operations that had not been executed are
//! replayed on the next rail. These are signalled, so the ledger knows when they end.

use mitra_verbs::Result;

use super::VirtualQp;

impl VirtualQp {
    /// Stops the send queue: requests that have begun end, and no other begins until
    /// [`VirtualQp::restart_sends`]. Requests can still be posted. Does nothing if the send queue
    /// is stopped. A failover goes on, and replays requests that had begun.
    ///
    /// # Errors
    /// [`Error::Invalid`](mitra_verbs::Error::Invalid) if the vQP is not connected or closed.
    pub fn drain_sends(&mut self) -> Result<()> {
        self.check_open()?;
        if self.datapath.send.drain() {
            // A queue pair that refuses has failed, and the vQP moves to the next rail.
            let _ = self.datapath.rails.get(self.failover.recovery.active_rail()).modify_sqd(true);
        }
        Ok(())
    }

    /// Returns whether every request that had begun when [`VirtualQp::drain_sends`] was called has
    /// ended. To be called after a poll.
    pub fn are_sends_drained(&mut self) -> bool {
        let ledger = self.datapath.send.ledger();
        if ledger.is_draining() && self.failover.recovery.may_post() {
            let rail = self.datapath.rails.get(self.failover.recovery.active_rail());
            if rail.is_sqd_drained().unwrap_or_else(|| ledger.has_no_begun_operation()) {
                self.datapath.send.set_drained();
            }
        }
        self.datapath.send.ledger().is_drained()
    }

    /// Restarts the send queue after [`VirtualQp::drain_sends`].
    ///
    /// # Errors
    /// [`Error::Invalid`](mitra_verbs::Error::Invalid) if the vQP is not connected or closed.
    pub fn restart_sends(&mut self) -> Result<()> {
        self.check_open()?;
        self.datapath.send.undrain();
        let rail = self.datapath.rails.get(self.failover.recovery.active_rail());
        if rail.is_sqd_drained().is_some() {
            // A queue pair that refuses has failed, and the vQP moves to the next rail.
            let _ = rail.modify_sqd(false);
        }
        self.post_pending_sends();
        Ok(())
    }
}
