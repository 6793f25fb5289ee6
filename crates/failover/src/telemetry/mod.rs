//! Counts, events and states of the vQPs of a process, for monitoring.
//!
//! A vQP counts in its own fields. Its maintenance runs, at least 30 µs apart, publish the fields
//! for other threads. An operation therefore costs nothing here, except that a vQP reads the clock
//! twice for each sampled latency. The rare steps of a failover take the lock of the [`Telemetry`]
//! and change its totals, histograms and recent events.

mod event;
mod failover_counts;
mod histogram;
mod latency_sampler;
mod live_vqp;
mod recovery_span;
mod snapshot;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mitra_verbs::Time;

use crate::close_reason::CloseReason;
use crate::config::MAX_RAILS;
use crate::failover_report::FailoverReport;

pub use crate::ballot::{Ballot, Role};
pub use event::{EventKind, FailoverEvent};
pub use failover_counts::FailoverCounts;
pub use histogram::DurationHistogram;
pub use snapshot::{RecoveryDurations, TelemetrySnapshot, VqpPhase, VqpSnapshot};

pub(crate) use latency_sampler::LatencySampler;
pub(crate) use live_vqp::{LiveVqp, PublishedFields};
pub(crate) use recovery_span::RecoverySpan;

/// The number of stored events. Older events are dropped, and stay counted in the totals.
pub const MAX_EVENTS: usize = 1024;

/// The telemetry of the vQPs of a domain, and of the domains over its NICs
/// ([`Domain::with_own_pds`](crate::Domain::with_own_pds)).
#[derive(Default)]
pub struct Telemetry {
    samples_latency: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The identity of the next vQP. Unlike queue pair numbers, identities are not used again.
    next_id: u64,
    vqps: BTreeMap<u64, Entry>,
    /// The totals of each rail, closed vQPs included.
    rails: [FailoverCounts; MAX_RAILS],
    events: VecDeque<FailoverEvent>,
    event_count: u64,
    durations: RecoveryDurations,
    latency: DurationHistogram,
    closed: BTreeMap<CloseReason, u64>,
}

#[derive(Debug)]
struct Entry {
    live: Arc<LiveVqp>,
    counts: FailoverCounts,
    /// Bit i: the vQP has left rail i.
    left: u8,
}

impl Telemetry {
    /// Switches the sampling of operation latencies, which is off at first. A vQP follows at its
    /// next maintenance run.
    ///
    /// A vQP measures one send at a time, from its post to the poll that takes its completion. It
    /// skips sends that begin in the meantime.
    pub fn sample_latency(&self, on: bool) {
        self.samples_latency.store(on, Ordering::Relaxed);
    }

    /// Returns the state of up to `max_vqps` vQPs, the totals and the recent events. VQPs with a
    /// failover in progress come first, then the vQPs with the most failovers, then the smallest
    /// numbers.
    pub fn snapshot(&self, max_vqps: usize) -> TelemetrySnapshot {
        snapshot::take(&self.lock(), max_vqps, self.samples_latency())
    }

    pub(crate) fn samples_latency(&self) -> bool {
        self.samples_latency.load(Ordering::Relaxed)
    }

    /// The vQP is removed when the result is dropped.
    pub(crate) fn add_vqp(self: &Arc<Self>) -> Arc<VqpTelemetry> {
        let live = Arc::<LiveVqp>::default();
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.vqps.insert(id, Entry { live: Arc::clone(&live), counts: FailoverCounts::default(), left: 0 });
        drop(state);
        Arc::new(VqpTelemetry { shared: Arc::clone(self), id, live })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").field("samples_latency", &self.samples_latency()).finish_non_exhaustive()
    }
}

impl State {
    fn push_event(&mut self, at: Time, vqp: &LiveVqp, kind: EventKind) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.event_count += 1;
        self.events.push_back(FailoverEvent { number: self.event_count, at, vqp: vqp.qpn(), kind });
    }

    /// Changes the counts of a vQP and the totals of a rail alike.
    fn count(&mut self, id: u64, rail: usize, change: impl Fn(&mut FailoverCounts)) {
        if let Some(entry) = self.vqps.get_mut(&id) {
            change(&mut entry.counts);
        }
        if let Some(totals) = self.rails.get_mut(rail) {
            change(totals);
        }
    }
}

#[derive(Debug)]
pub(crate) struct VqpTelemetry {
    shared: Arc<Telemetry>,
    id: u64,
    live: Arc<LiveVqp>,
}

impl VqpTelemetry {
    pub(crate) fn live(&self) -> &LiveVqp {
        &self.live
    }

    pub(crate) fn shared(&self) -> &Telemetry {
        &self.shared
    }

    /// Publishes the fields. Records the closing if these fields are the first to show it.
    pub(crate) fn publish(&self, fields: &PublishedFields) {
        let (before, discarded) = self.live.replace(fields);
        let closed = fields.close_reason.filter(|_| before.close_reason.is_none());
        if discarded.is_none() && closed.is_none() {
            return;
        }
        let mut state = self.shared.lock();
        if let Some(rail) = discarded.filter(|_| fields.close_reason.is_none()) {
            state.count(self.id, rail, |counts| counts.stayed += 1);
            state.push_event(fields.now, &self.live, EventKind::Stayed { rail });
        }
        if let Some(reason) = closed {
            *state.closed.entry(reason).or_default() += 1;
            state.push_event(fields.now, &self.live, EventKind::Closed { reason });
        }
    }

    /// Records the failure of the active rail, which this end detected or learned of from the peer.
    /// A failback is no failure.
    pub(crate) fn on_detected(&self, report: &FailoverReport) {
        let (rail, cause, at) = (report.from, report.cause, report.detected_at);
        let Some(detector) = cause.detector() else { return };
        let mut state = self.shared.lock();
        state.count(self.id, rail, |counts| counts.detected[detector] += 1);
        state.push_event(at, &self.live, EventKind::Detected { rail, cause });
    }

    pub(crate) fn on_fenced(&self, report: &FailoverReport) {
        let rail = report.from;
        let mut state = self.shared.lock();
        state.count(self.id, rail, |counts| counts.fenced += 1);
        state.durations.negotiate.record(report.fence_began_at - report.detected_at);
        state.durations.fence.record(report.fenced_at - report.fence_began_at);
        state.push_event(report.fenced_at, &self.live, EventKind::Fenced { rail });
    }

    pub(crate) fn on_decided(&self, report: &FailoverReport, ballot: Ballot) {
        let (from, to, stats) = (report.from, report.to, report.stats);
        let mut state = self.shared.lock();
        let mut is_failback = false;
        if let Some(entry) = state.vqps.get_mut(&self.id) {
            is_failback = from != to && entry.left & (1 << to) != 0;
            entry.left |= 1 << from;
        }
        state.count(self.id, from, |counts| counts.add_decision(&stats));
        if is_failback {
            state.count(self.id, to, |counts| counts.failbacks += 1);
        }
        state.durations.decide.record(report.decided_at - report.fenced_at);
        state.push_event(
            report.decided_at,
            &self.live,
            EventKind::Decided { from, to, ballot, is_failback, stats },
        );
    }

    /// At `completed_at`, the last operation that was in flight completed.
    pub(crate) fn on_recovered(&self, report: &FailoverReport, completed_at: Time) {
        let duration = completed_at - report.detected_at;
        let mut state = self.shared.lock();
        state.count(self.id, report.from, |counts| counts.recovered += 1);
        state.durations.replay.record(completed_at - report.decided_at);
        state.durations.total.record(duration);
        state.push_event(completed_at, &self.live, EventKind::Recovered { rail: report.to, duration });
    }

    pub(crate) fn on_latency_sample(&self, latency: Duration) {
        self.shared.lock().latency.record(latency);
    }
}

impl Drop for VqpTelemetry {
    fn drop(&mut self) {
        self.shared.lock().vqps.remove(&self.id);
    }
}

#[cfg(test)]
mod tests;
