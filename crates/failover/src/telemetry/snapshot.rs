use std::cmp::Reverse;
use std::collections::BTreeMap;

use mitra_verbs::{Qpn, Time};

use super::State;
use crate::close_reason::CloseReason;
use crate::telemetry::{DurationHistogram, FailoverCounts, FailoverEvent};

/// The state of a [`Telemetry`](super::Telemetry) at one time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TelemetrySnapshot {
    /// The number of vQPs that are not dropped.
    pub vqp_count: usize,
    /// The number of vQPs with a failover in progress: detected, and not all operations completed.
    pub recovering: usize,
    /// The vQPs, in the number and order of [`Telemetry::snapshot`](super::Telemetry::snapshot).
    pub vqps: Vec<VqpSnapshot>,
    /// The totals of each rail, over all vQPs that left it.
    pub rails: Vec<FailoverCounts>,
    /// The last events, at most [`MAX_EVENTS`](super::MAX_EVENTS), oldest first.
    pub events: Vec<FailoverEvent>,
    /// The durations of failovers.
    pub durations: RecoveryDurations,
    /// Whether latencies are sampled now
    /// ([`Telemetry::sample_latency`](super::Telemetry::sample_latency)).
    pub samples_latency: bool,
    /// The sampled latencies of operations.
    pub latency: DurationHistogram,
    /// The number of closed vQPs, by reason.
    pub closed: BTreeMap<CloseReason, u64>,
}

/// Histograms of the durations of failovers at this end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecoveryDurations {
    /// From the detection until the fence begins. In this time, the two ends agree on the move, and
    /// nothing is posted.
    pub negotiate: DurationHistogram,
    /// From the beginning of the fence until its end.
    pub fence: DurationHistogram,
    /// From the end of the fence until the operations in flight are decided, including the exchange
    /// of the evidence.
    pub decide: DurationHistogram,
    /// From the decision until the last operation that was in flight has completed.
    pub replay: DurationHistogram,
    /// From the detection until the last operation that was in flight has completed.
    pub total: DurationHistogram,
}

impl RecoveryDurations {
    /// The histograms with their names.
    pub fn phases(&self) -> [(&'static str, &DurationHistogram); 5] {
        [
            ("negotiate", &self.negotiate),
            ("fence", &self.fence),
            ("decide", &self.decide),
            ("replay", &self.replay),
            ("total", &self.total),
        ]
    }
}

/// The state of one vQP when it was made, at its last maintenance run or when it closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VqpSnapshot {
    /// The vQP's number.
    pub qpn: Qpn,
    /// What the vQP does.
    pub phase: VqpPhase,
    /// The active rail. During a failover, the old rail.
    pub active_rail: usize,
    /// The epoch. The first is 1. Before the vQP is connected, it is 0.
    pub epoch: u16,
    /// The number of sends that were posted.
    pub posted: u64,
    /// The number of sends that have completed, successfully or not.
    pub completed: u64,
    /// The number of control datagrams that were malformed or not from the peer.
    pub rejected_messages: u64,
    /// The time of that step on the NICs' clock. An old time means that the application does not
    /// poll.
    pub published_at: Time,
    /// The vQP's failovers.
    pub counts: FailoverCounts,
}

/// What a vQP does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum VqpPhase {
    /// It is not connected.
    #[default]
    Unconnected,
    /// It moves data.
    Active,
    /// Its active rail has failed, and it has not moved yet.
    Recovering,
    /// It has moved, and not all operations that were in flight have completed.
    Replaying,
    /// An operation ended in an error, and the application has not called
    /// [`VirtualQp::resume`](crate::VirtualQp::resume).
    Halted,
    /// It is closed.
    Closed,
}

impl VqpPhase {
    /// The name in snapshots and metrics.
    pub fn name(self) -> &'static str {
        match self {
            VqpPhase::Unconnected => "unconnected",
            VqpPhase::Active => "active",
            VqpPhase::Recovering => "recovering",
            VqpPhase::Replaying => "replaying",
            VqpPhase::Halted => "halted",
            VqpPhase::Closed => "closed",
        }
    }

    fn is_failing_over(self) -> bool {
        matches!(self, VqpPhase::Recovering | VqpPhase::Replaying)
    }
}

pub(super) fn take(state: &State, max_vqps: usize, samples_latency: bool) -> TelemetrySnapshot {
    let mut vqps: Vec<VqpSnapshot> = state
        .vqps
        .values()
        .map(|entry| {
            let live = entry.live.fields();
            VqpSnapshot {
                qpn: live.qpn,
                phase: live.phase,
                active_rail: live.active_rail,
                epoch: live.epoch,
                posted: live.posted,
                completed: live.completed,
                rejected_messages: live.rejected_messages,
                published_at: live.now,
                counts: entry.counts,
            }
        })
        .collect();
    let recovering = vqps.iter().filter(|vqp| vqp.phase.is_failing_over()).count();
    let vqp_count = vqps.len();
    vqps.sort_by_key(|vqp| (!vqp.phase.is_failing_over(), Reverse(vqp.counts.failovers), vqp.qpn));
    vqps.truncate(max_vqps);
    TelemetrySnapshot {
        vqp_count,
        recovering,
        vqps,
        rails: state.rails.to_vec(),
        events: state.events.iter().copied().collect(),
        durations: state.durations,
        samples_latency,
        latency: state.latency,
        closed: state.closed.clone(),
    }
}
