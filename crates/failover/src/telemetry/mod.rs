//! What the vQPs of a process have done and do now, for monitoring.
//!
//! A vQP counts in fields of its own. Its maintenance runs, which are at least 30 µs apart, publish
//! the fields where other threads may read them without the vQP. An operation therefore costs
//! nothing here, except that a vQP whose domain samples latencies reads the clock twice for each
//! sample. The rare steps of a failover take the lock of the [`Telemetry`] and change its totals,
//! its histograms and its list of recent events.

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

/// The number of events that are kept. Older events are dropped; the totals contain them.
pub const MAX_EVENTS: usize = 1024;

/// What the vQPs of a domain have done, and of the domains that share its NICs by
/// [`Domain::with_own_pds`](crate::Domain::with_own_pds).
#[derive(Default)]
pub struct Telemetry {
    samples_latency: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The identity of the next vQP. Queue pair numbers may be used again, identities are not.
    next_id: u64,
    vqps: BTreeMap<u64, Entry>,
    /// The totals of each rail, of vQPs that are gone included.
    rails: [FailoverCounts; MAX_RAILS],
    events: VecDeque<FailoverEvent>,
    /// The number of events so far.
    event_count: u64,
    durations: RecoveryDurations,
    latency: DurationHistogram,
    closed: BTreeMap<CloseReason, u64>,
}

#[derive(Debug)]
struct Entry {
    live: Arc<LiveVqp>,
    counts: FailoverCounts,
    /// Rails that the vQP has left, as a bit set.
    left: u8,
}

impl Telemetry {
    /// Switches the sampling of operation latencies on or off. It is off at first. A vQP follows
    /// within a maintenance run.
    ///
    /// While it is on, a vQP measures one send at a time, from its post to the poll that takes its
    /// completion. Sends that begin while another one is measured are not measured.
    pub fn sample_latency(&self, on: bool) {
        self.samples_latency.store(on, Ordering::Relaxed);
    }

    /// Returns the state of all vQPs, the totals and the recent events. `max_vqps` limits the
    /// number of vQPs: those with a failover in progress come first, then those with the most
    /// failovers, then those with the smallest numbers.
    pub fn snapshot(&self, max_vqps: usize) -> TelemetrySnapshot {
        snapshot::take(&self.lock(), max_vqps, self.samples_latency())
    }

    pub(crate) fn samples_latency(&self) -> bool {
        self.samples_latency.load(Ordering::Relaxed)
    }

    /// Adds a vQP, until the result is dropped.
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

    /// Changes the counts of a vQP and the totals of a rail in the same way.
    fn count(&mut self, id: u64, rail: usize, change: impl Fn(&mut FailoverCounts)) {
        if let Some(entry) = self.vqps.get_mut(&id) {
            change(&mut entry.counts);
        }
        if let Some(totals) = self.rails.get_mut(rail) {
            change(totals);
        }
    }
}

/// The part of one vQP in its domain's [`Telemetry`].
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

    /// Publishes the fields of the vQP, and records its closing the first time.
    pub(crate) fn publish(&self, fields: &PublishedFields) {
        self.live.store(fields);
        let discarded = self.live.take_discarded_rail();
        let closed = fields.close_reason.filter(|_| self.live.mark_closed());
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

    /// Records that this end detected the failure of its active rail, or learned of it from the
    /// peer. A failback is no failure.
    pub(crate) fn on_detected(&self, report: &FailoverReport) {
        let (rail, cause, at) = (report.from, report.cause, report.detected_at);
        let Some(detector) = cause.detector() else { return };
        let mut state = self.shared.lock();
        state.count(self.id, rail, |counts| counts.detected[detector] += 1);
        state.push_event(at, &self.live, EventKind::Detected { rail, cause });
    }

    /// Records that this end has fenced the rail that failed.
    pub(crate) fn on_fenced(&self, report: &FailoverReport) {
        let rail = report.from;
        let mut state = self.shared.lock();
        state.count(self.id, rail, |counts| counts.fenced += 1);
        state.durations.negotiate.record(report.fence_began_at - report.detected_at);
        state.durations.fence.record(report.fenced_at - report.fence_began_at);
        state.push_event(report.fenced_at, &self.live, EventKind::Fenced { rail });
    }

    /// Records the decision on the operations in flight, and the move.
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

    /// Records that the last operation that was in flight has completed, at `completed_at`.
    pub(crate) fn on_recovered(&self, report: &FailoverReport, completed_at: Time) {
        let duration = completed_at - report.detected_at;
        let mut state = self.shared.lock();
        state.count(self.id, report.from, |counts| counts.recovered += 1);
        state.durations.replay.record(completed_at - report.decided_at);
        state.durations.total.record(duration);
        state.push_event(completed_at, &self.live, EventKind::Recovered { rail: report.to, duration });
    }

    /// Records the latency of one send.
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
