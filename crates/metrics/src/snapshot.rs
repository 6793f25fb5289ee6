//! The state of a process's NICs and vQPs at one time, in the form of `mitra watch --json`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use mitra_failover::telemetry::{
    DurationHistogram, EventKind, FailoverCounts, FailoverEvent, Telemetry, VqpSnapshot,
};
use mitra_failover::{Cause, CloseReason};
use mitra_verbs::{Counter, Time};
use serde::{Deserialize, Serialize};

/// The largest number of vQPs in a snapshot. [`Snapshot::vqp_count`] counts all.
pub const MAX_VQPS: usize = 1000;
/// The largest number of events in a snapshot, the latest ones.
pub const MAX_EVENTS: usize = 100;

/// The state of a rail.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RailStatus {
    /// The IP address of the rail's local NIC.
    pub address: IpAddr,
    /// The kernel's name of the NIC. `None` for a software NIC, which is no device of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Whether the link and the NIC work.
    pub state: RailState,
}

impl RailStatus {
    /// Returns the address for text output, with the device's name if there is one.
    pub fn address_and_device(&self) -> String {
        match &self.device {
            Some(device) => format!("{} ({device})", self.address),
            None => self.address.to_string(),
        }
    }
}

/// Whether the link and the NIC of a rail work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RailState {
    /// The NIC and its link work.
    Up,
    /// The NIC works, and its link is down.
    Down,
    /// The NIC rejects verbs calls, because it is dead or hung.
    Failed,
}

impl fmt::Display for RailState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RailState::Up => "up",
            RailState::Down => "down",
            RailState::Failed => "failed",
        })
    }
}

/// The state of a process's NICs and vQPs at one time. Counts begin when the NICs were opened.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// The rails, rail 0 first.
    pub rails: Vec<RailSnapshot>,
    /// The number of open queue pairs. With several rails, only virtual queue pairs count.
    pub queue_pairs: usize,
    /// The number of vQPs.
    pub vqp_count: usize,
    /// The number of vQPs with a failover in progress.
    pub recovering: usize,
    /// The vQPs, at most [`MAX_VQPS`]. The vQPs with a failover in progress come first, then the
    /// vQPs that moved most often, then by number.
    pub vqps: Vec<VqpState>,
    /// The number of vQPs that closed, by reason.
    pub closed: BTreeMap<String, u64>,
    /// The last events, at most [`MAX_EVENTS`], oldest first.
    pub events: Vec<EventSnapshot>,
    /// The durations of failovers, by phase: `negotiate`, `fence`, `decide`, `replay` and `total`.
    pub durations: BTreeMap<String, HistogramSnapshot>,
    /// The latencies of operations. `None` if they are not sampled.
    pub latency: Option<HistogramSnapshot>,
}

/// A rail in a [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RailSnapshot {
    /// The address and the state.
    #[serde(flatten)]
    pub status: RailStatus,
    /// The counters of the NIC. Empty if the NIC is dead.
    pub counters: BTreeMap<String, u64>,
    /// Counts of all failovers that left this rail.
    pub failover: CountsSnapshot,
}

/// Counts of failovers; see [`FailoverCounts`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of FailoverCounts")]
pub struct CountsSnapshot {
    /// Failures detected, by detector.
    pub detected: BTreeMap<String, u64>,
    pub stayed: u64,
    pub fenced: u64,
    pub failovers: u64,
    pub failbacks: u64,
    pub recovered: u64,
    pub in_flight: u64,
    pub executed: u64,
    pub torn: u64,
    pub ambiguous: u64,
    pub replayed: u64,
    pub failed: u64,
    pub bytes_in_flight: u64,
    pub bytes_replayed: u64,
}

impl From<&FailoverCounts> for CountsSnapshot {
    fn from(counts: &FailoverCounts) -> CountsSnapshot {
        let detected = Cause::DETECTORS.iter().map(|name| (*name).to_owned()).zip(counts.detected).collect();
        CountsSnapshot {
            detected,
            stayed: counts.stayed,
            fenced: counts.fenced,
            failovers: counts.failovers,
            failbacks: counts.failbacks,
            recovered: counts.recovered,
            in_flight: counts.in_flight,
            executed: counts.executed,
            torn: counts.torn,
            ambiguous: counts.ambiguous,
            replayed: counts.replayed,
            failed: counts.failed,
            bytes_in_flight: counts.bytes_in_flight,
            bytes_replayed: counts.bytes_replayed,
        }
    }
}

/// A vQP in a [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VqpState {
    /// The vQP's number.
    pub vqp: u32,
    /// `unconnected`, `active`, `recovering`, `replaying`, `halted` or `closed`.
    pub phase: String,
    /// The active rail; during a failover, the old rail.
    pub active_rail: usize,
    /// The epoch, from 1; 0 before the vQP is connected.
    pub epoch: u16,
    /// The number of sends that were posted.
    pub posted: u64,
    /// The number of sends that have completed.
    pub completed: u64,
    /// The number of control datagrams that were malformed or not from the peer.
    pub rejected_messages: u64,
    /// The time since the application last drove the vQP, in nanoseconds.
    pub unpolled_ns: u64,
    /// The vQP's failovers.
    pub failover: CountsSnapshot,
}

/// An event in a [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventSnapshot {
    /// The position of the event among all events of the process, from 1.
    pub number: u64,
    /// The time since the event, in nanoseconds.
    pub age_ns: u64,
    /// The vQP's number.
    pub vqp: u32,
    /// The step.
    #[serde(flatten)]
    pub step: StepSnapshot,
}

/// The step of a failover that an event reports; see [`EventKind`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants and fields are those of EventKind")]
pub enum StepSnapshot {
    Detected {
        rail: usize,
        cause: String,
    },
    Stayed {
        rail: usize,
    },
    Fenced {
        rail: usize,
    },
    Decided {
        from: usize,
        to: usize,
        ballot: String,
        failback: bool,
        in_flight: u32,
        executed: u32,
        ambiguous: u32,
        replayed: u32,
        failed: u32,
    },
    Recovered {
        rail: usize,
        duration_ns: u64,
    },
    Closed {
        reason: String,
    },
}

impl From<EventKind> for StepSnapshot {
    fn from(kind: EventKind) -> StepSnapshot {
        match kind {
            EventKind::Detected { rail, cause } => StepSnapshot::Detected { rail, cause: cause.to_string() },
            EventKind::Stayed { rail } => StepSnapshot::Stayed { rail },
            EventKind::Fenced { rail } => StepSnapshot::Fenced { rail },
            EventKind::Decided { from, to, ballot, is_failback, stats } => StepSnapshot::Decided {
                from,
                to,
                ballot: ballot.to_string(),
                failback: is_failback,
                in_flight: stats.in_flight,
                executed: stats.executed,
                ambiguous: stats.ambiguous,
                replayed: stats.replayed,
                failed: stats.failed,
            },
            EventKind::Recovered { rail, duration } => {
                StepSnapshot::Recovered { rail, duration_ns: nanos(duration) }
            }
            EventKind::Closed { reason } => StepSnapshot::Closed { reason: reason_name(reason) },
        }
    }
}

impl fmt::Display for StepSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepSnapshot::Detected { rail, cause } => write!(f, "detected: rail {rail} failed: {cause}"),
            StepSnapshot::Stayed { rail } => write!(f, "stayed: rail {rail} works again"),
            StepSnapshot::Fenced { rail } => write!(f, "fenced rail {rail}"),
            StepSnapshot::Decided {
                from,
                to,
                ballot,
                failback,
                in_flight,
                executed,
                ambiguous,
                replayed,
                failed,
            } => {
                let verb = match failback {
                    true => "failed back",
                    false if from == to => "replaced queue pairs",
                    false => "moved",
                };
                write!(
                    f,
                    "{verb}: rail {from} to {to}, ballot {ballot}; in flight {in_flight}: executed {executed}, "
                )?;
                write!(f, "ambiguous {ambiguous}, replayed {replayed}, failed {failed}")
            }
            StepSnapshot::Recovered { rail, duration_ns } => {
                let duration = std::time::Duration::from_nanos(*duration_ns);
                write!(f, "recovered on rail {rail} after {duration:.1?}")
            }
            StepSnapshot::Closed { reason } => write!(f, "closed: {reason}"),
        }
    }
}

/// A histogram in a [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HistogramSnapshot {
    /// The number of durations.
    pub count: u64,
    /// The sum of the durations, in nanoseconds.
    pub sum_ns: u64,
    /// An upper bound of half of the durations, in nanoseconds. `None` without durations, or if the
    /// bound is above 50 s.
    pub p50_ns: Option<u64>,
    /// An upper bound of 99 % of the durations, in nanoseconds. `None` without durations, or if the
    /// bound is above 50 s.
    pub p99_ns: Option<u64>,
    /// The number of durations in each bucket. The upper bounds are 1, 2, 5, 10, … µs, up to 50 s.
    /// The last bucket has no bound.
    pub buckets: Vec<u64>,
}

impl From<&DurationHistogram> for HistogramSnapshot {
    fn from(histogram: &DurationHistogram) -> HistogramSnapshot {
        HistogramSnapshot {
            count: histogram.count(),
            sum_ns: nanos(histogram.sum()),
            p50_ns: histogram.quantile(0.5).map(nanos),
            p99_ns: histogram.quantile(0.99).map(nanos),
            buckets: histogram.counts().to_vec(),
        }
    }
}

impl Snapshot {
    /// Takes a snapshot. `rails` has the state and the counters of each rail's NIC, and `now` is
    /// the time on the NICs' clock. A process without vQPs has no telemetry.
    pub fn take(
        rails: impl IntoIterator<Item = (RailStatus, Vec<Counter>)>,
        queue_pairs: usize,
        now: Time,
        telemetry: Option<&Telemetry>,
    ) -> Snapshot {
        let vqps = telemetry.map(|telemetry| telemetry.snapshot(MAX_VQPS)).unwrap_or_default();
        let rail = |(index, (status, counters)): (usize, (RailStatus, Vec<Counter>))| RailSnapshot {
            status,
            counters: counters.into_iter().map(|counter| (counter.name.to_owned(), counter.value)).collect(),
            failover: vqps.rails.get(index).map(CountsSnapshot::from).unwrap_or_default(),
        };
        let skipped = vqps.events.len().saturating_sub(MAX_EVENTS);
        Snapshot {
            rails: rails.into_iter().enumerate().map(rail).collect(),
            queue_pairs,
            vqp_count: vqps.vqp_count,
            recovering: vqps.recovering,
            vqps: vqps.vqps.iter().map(|vqp| vqp_state(vqp, now)).collect(),
            closed: vqps.closed.iter().map(|(reason, count)| (reason_name(*reason), *count)).collect(),
            events: vqps.events[skipped..].iter().map(|event| event_snapshot(event, now)).collect(),
            durations: vqps.durations.phases().map(|(name, h)| (name.to_owned(), h.into())).into(),
            latency: (vqps.samples_latency || vqps.latency.count() > 0).then(|| (&vqps.latency).into()),
        }
    }
}

fn vqp_state(vqp: &VqpSnapshot, now: Time) -> VqpState {
    VqpState {
        vqp: vqp.qpn.value(),
        phase: vqp.phase.name().to_owned(),
        active_rail: vqp.active_rail,
        epoch: vqp.epoch,
        posted: vqp.posted,
        completed: vqp.completed,
        rejected_messages: vqp.rejected_messages,
        unpolled_ns: nanos(now - vqp.published_at),
        failover: (&vqp.counts).into(),
    }
}

fn event_snapshot(event: &FailoverEvent, now: Time) -> EventSnapshot {
    EventSnapshot {
        number: event.number,
        age_ns: nanos(now - event.at),
        vqp: event.vqp.value(),
        step: event.kind.into(),
    }
}

/// Returns the name of a reason in docs/promises.md.
fn reason_name(reason: CloseReason) -> String {
    format!("{reason:?}")
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use mitra_failover::telemetry::VqpPhase;
    use mitra_verbs::Qpn;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_count_of_a_vqp_has_its_own_name() {
        let counts = FailoverCounts {
            detected: std::array::from_fn(|detector| 100 + detector as u64),
            stayed: 1,
            fenced: 2,
            failovers: 3,
            failbacks: 4,
            recovered: 5,
            in_flight: 6,
            executed: 7,
            torn: 8,
            ambiguous: 9,
            replayed: 10,
            failed: 11,
            bytes_in_flight: 12,
            bytes_replayed: 13,
        };
        let vqp = VqpSnapshot {
            qpn: Qpn::new(14),
            phase: VqpPhase::Replaying,
            active_rail: 15,
            epoch: 16,
            posted: 17,
            completed: 18,
            rejected_messages: 19,
            published_at: Time::from_nanos(20),
            counts,
        };
        let state = serde_json::to_value(vqp_state(&vqp, Time::from_nanos(41))).expect("it has names only");
        let detected: BTreeMap<_, _> = Cause::DETECTORS.iter().zip(100..).collect();
        assert_eq!(
            state,
            json!({
                "vqp": 14, "phase": "replaying", "active_rail": 15, "epoch": 16, "posted": 17, "completed": 18,
                "rejected_messages": 19, "unpolled_ns": 21,
                "failover": {
                    "detected": detected, "stayed": 1, "fenced": 2, "failovers": 3, "failbacks": 4, "recovered": 5,
                    "in_flight": 6, "executed": 7, "torn": 8, "ambiguous": 9, "replayed": 10, "failed": 11,
                    "bytes_in_flight": 12, "bytes_replayed": 13,
                },
            })
        );
    }
}
