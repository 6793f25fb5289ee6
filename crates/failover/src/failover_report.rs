use mitra_verbs::Time;

use crate::cause::Cause;
use crate::ledger::RecoveryStats;

/// The report of one failover at this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailoverReport {
    /// The epoch that began with the failover.
    pub epoch: u16,
    /// The old rail.
    pub from: usize,
    /// The new rail.
    pub to: usize,
    /// The detector that reported the failure first.
    pub cause: Cause,
    /// The statistics of the operations in flight at this end.
    pub stats: RecoveryStats,
    /// The time at which this end detected the failure, or learned of it from the peer.
    pub detected_at: Time,
    /// The time at which this end began to fence. Until then, the two ends agreed on the move.
    pub fence_began_at: Time,
    /// The time at which this end's fence was done.
    pub fenced_at: Time,
    /// The time at which this end had the peer's evidence.
    pub evidence_at: Time,
    /// The time at which this end had decided every operation in flight and began the replay.
    pub decided_at: Time,
    /// The time of the last completion of an operation that was in flight. `None` until then.
    pub completed_at: Option<Time>,
}
