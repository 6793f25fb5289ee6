use crate::cause::Cause;
use crate::ledger::RecoveryStats;

/// Counts of failovers and their operations, of one vQP or of all vQPs that left one rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FailoverCounts {
    /// Failures, by detector in the order of [`Cause::DETECTORS`].
    pub detected: [u64; Cause::DETECTORS.len()],
    /// Failures after which the vQP stayed on the rail, because it worked again before a move
    /// began.
    pub stayed: u64,
    /// Fences of the rail that failed.
    pub fenced: u64,
    /// Failovers whose operations were decided.
    pub failovers: u64,
    /// Failovers to a rail that the vQP had left before. In the totals of the rails, a failback
    /// counts for the new rail, and everything else for the old one.
    pub failbacks: u64,
    /// Failovers after which every operation that was in flight has completed.
    pub recovered: u64,
    /// Operations in flight at a failover.
    pub in_flight: u64,
    /// Operations in flight that the peer had executed, by the evidence.
    pub executed: u64,
    /// Operations in flight that the peer had executed in part.
    pub torn: u64,
    /// Operations in flight that the evidence did not decide.
    pub ambiguous: u64,
    /// Operations in flight that were sent again, completely or in part.
    pub replayed: u64,
    /// Operations in flight that ended in an error.
    pub failed: u64,
    /// Payload bytes of the operations in flight.
    pub bytes_in_flight: u64,
    /// Payload bytes that were sent or requested again.
    pub bytes_replayed: u64,
}

impl FailoverCounts {
    pub(super) fn add_decision(&mut self, stats: &RecoveryStats) {
        self.failovers += 1;
        self.in_flight += u64::from(stats.in_flight);
        self.executed += u64::from(stats.executed);
        self.torn += u64::from(stats.torn);
        self.ambiguous += u64::from(stats.ambiguous);
        self.replayed += u64::from(stats.replayed);
        self.failed += u64::from(stats.failed);
        self.bytes_in_flight += stats.bytes_in_flight;
        self.bytes_replayed += stats.bytes_replayed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_statistic_is_added_to_its_count() {
        let stats = RecoveryStats {
            in_flight: 1,
            executed: 2,
            torn: 3,
            ambiguous: 4,
            replayed: 5,
            failed: 6,
            bytes_in_flight: 7,
            bytes_replayed: 8,
            ..RecoveryStats::default()
        };
        let mut counts = FailoverCounts::default();
        counts.add_decision(&stats);
        counts.add_decision(&stats);
        let expected = FailoverCounts {
            failovers: 2,
            in_flight: 2,
            executed: 4,
            torn: 6,
            ambiguous: 8,
            replayed: 10,
            failed: 12,
            bytes_in_flight: 14,
            bytes_replayed: 16,
            ..FailoverCounts::default()
        };
        assert_eq!(counts, expected);
    }
}
