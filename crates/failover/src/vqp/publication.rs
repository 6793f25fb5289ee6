//! What a vQP publishes for monitoring.

use crate::telemetry::{PublishedFields, VqpPhase};
use crate::vqp::VirtualQp;
use crate::vqp::control_protocol::ControlProtocol;

impl VirtualQp {
    /// Publishes the vQP's fields. Called after each maintenance run, and when the vQP closes.
    pub(super) fn publish(&mut self) {
        let negotiation = self.recovery.control().map(ControlProtocol::negotiation);
        let ledger = self.datapath.send().ledger();
        self.telemetry.publish(&PublishedFields {
            qpn: self.qpn(),
            phase: self.phase(),
            active_rail: self.active_rail(),
            epoch: negotiation.map_or(0, |negotiation| negotiation.ballot().epoch),
            posted: ledger.next_seq(),
            completed: ledger.first_seq(),
            rejected_messages: self.rejected_messages(),
            now: self.maintenance.last_run(),
            close_reason: self.close_reason(),
        });
        self.latency.switch(self.telemetry.shared().samples_latency());
    }

    fn phase(&self) -> VqpPhase {
        if self.recovery.is_closed() {
            VqpPhase::Closed
        } else if self.recovery.control().is_none() {
            VqpPhase::Unconnected
        } else if self.recovery.is_failover_in_progress() {
            VqpPhase::Recovering
        } else if self.recovery.is_replaying() {
            VqpPhase::Replaying
        } else if self.is_halted() {
            VqpPhase::Halted
        } else {
            VqpPhase::Active
        }
    }

    /// Takes the latency of the send that is measured, if it has completed.
    #[inline]
    pub(super) fn sample_latency(&mut self) {
        let first_seq = self.datapath.send().ledger().first_seq();
        self.latency.on_poll(first_seq, &self.telemetry, || self.datapath.now());
    }
}
