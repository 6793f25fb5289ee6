use mitra_verbs::Time;

use super::over_rails::OwnFailover;
use crate::telemetry::{PublishedFields, VqpPhase};
use crate::vqp::datapath::Datapath;

impl OwnFailover {
    /// Publishes the fields for monitoring: when the vQP is made, after each maintenance run, and
    /// when the vQP closes. `now` is the time of that step.
    pub(super) fn publish(&mut self, dp: &mut Datapath, now: Time) {
        let negotiation = self.recovery.negotiation();
        let ledger = &dp.send.ledger;
        self.telemetry.publish(&PublishedFields {
            qpn: dp.rails.qpn(),
            phase: self.phase(dp),
            active_rail: self.recovery.active_rail(),
            epoch: negotiation.map_or(0, |negotiation| negotiation.ballot().epoch),
            posted: ledger.next_seq(),
            completed: ledger.first_seq(),
            rejected_messages: self.recovery.control.as_ref().map_or(0, |control| control.rejected),
            now,
            close_reason: dp.termination.reason(),
        });
        dp.latency.switch(self.telemetry.shared().samples_latency());
    }

    fn phase(&self, dp: &Datapath) -> VqpPhase {
        if dp.termination.is_closed() {
            VqpPhase::Closed
        } else if self.recovery.control.is_none() {
            VqpPhase::Unconnected
        } else if self.recovery.replay.is_failover_in_progress() {
            VqpPhase::Recovering
        } else if self.recovery.replay.is_pending() {
            VqpPhase::Replaying
        } else if dp.send.ledger.is_halted() {
            VqpPhase::Halted
        } else {
            VqpPhase::Active
        }
    }

    /// Records the latency of the measured send, if the send has completed.
    #[inline]
    pub(super) fn sample_latency(&self, dp: &mut Datapath) {
        let (first_seq, domain) = (dp.send.ledger.first_seq(), &dp.domain);
        dp.latency.on_poll(first_seq, &self.telemetry, || domain.nics()[0].provider.now());
    }
}
