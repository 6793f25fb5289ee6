//! The output of `--json`: counts over all rounds, times, and the verdict.

use std::collections::BTreeMap;

use mitra_failover::Resolution;
use serde::{Serialize, Serializer};

use super::checker::Counts;
use super::rounds::{PolicyRun, RoundResult, Settings};
use super::workload::Kind;

/// The object that `--json` prints.
#[derive(Serialize)]
pub(super) struct Summary {
    version: &'static str,
    /// The seed that reproduces workloads and faults, but not the scheduling of the processes.
    pub(super) seed: u64,
    pub(super) rounds: usize,
    pub(super) ops_per_round: usize,
    pub(super) in_flight: u32,
    pub(super) log: bool,
    /// The NICs that the user named: client and server, rail 0 first.
    device: Option<String>,
    pub(super) elapsed_ms: u64,
    #[serde(serialize_with = "as_map")]
    pub(super) policies: Vec<(String, PolicySummary)>,
    pub(super) verdict: Verdict,
}

/// The verdict: whether every failure occurred and was detected, `exact` had no violation, and
/// `blanket` had one.
#[derive(Clone, Default, Serialize)]
pub(super) struct Verdict {
    pub(super) ok: bool,
    /// The reasons why `ok` is false, one line each.
    pub(super) failures: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct PolicySummary {
    #[serde(serialize_with = "by_kind")]
    pub(super) kinds: [Counts; 5],
    pub(super) totals: Counts,
    /// The median time from the first detection to the last completion of an operation in flight,
    /// in µs.
    pub(super) failover_us: Option<f64>,
    pub(super) failover: Times,
    pub(super) bytes_in_flight: u64,
    pub(super) bytes_replayed: u64,
    pub(super) rounds: Vec<RoundSummary>,
}

/// Times over all rounds, in µs.
#[derive(Serialize)]
pub(super) struct Times {
    pub(super) detection_to_done_us: Option<Spread>,
    pub(super) fault_to_done_us: Option<Spread>,
    pub(super) fault_to_detection_us: Option<Spread>,
    pub(super) detection_to_fence_us: Option<Spread>,
    pub(super) fence_to_decision_us: Option<Spread>,
    pub(super) decision_to_done_us: Option<Spread>,
    /// For each detector, the number of failovers that it detected first.
    pub(super) detectors: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

#[derive(Serialize)]
pub(super) struct RoundSummary {
    fault: String,
    at: &'static str,
    /// The kind of the operation that the fault was aimed at.
    victim: Option<&'static str>,
    #[serde(rename = "struck")]
    fault_triggered: bool,
    moves: u16,
    failover_us: Option<f64>,
    totals: Counts,
    client_ended: Option<String>,
    server_ended: Option<String>,
}

impl Summary {
    pub(super) fn new(settings: &Settings, runs: &[PolicyRun], elapsed_ms: u64) -> Summary {
        let policies: Vec<_> = runs.iter().map(|run| (run.policy.clone(), PolicySummary::new(run))).collect();
        Summary {
            version: env!("CARGO_PKG_VERSION"),
            seed: settings.seed,
            rounds: settings.rounds,
            ops_per_round: settings.ops,
            in_flight: settings.in_flight,
            log: settings.log,
            device: settings.device.as_ref().map(ToString::to_string),
            elapsed_ms,
            verdict: verdict(settings, runs, &policies),
            policies,
        }
    }

    pub(super) fn policy(&self, name: &str) -> Option<&PolicySummary> {
        self.policies.iter().find(|(policy, _)| policy == name).map(|(_, summary)| summary)
    }
}

impl PolicySummary {
    fn new(run: &PolicyRun) -> PolicySummary {
        let (mut kinds, mut totals) = ([Counts::default(); 5], Counts::default());
        for round in &run.rounds {
            for (sum, counts) in kinds.iter_mut().zip(round.check.kinds) {
                *sum += counts;
                totals += counts;
            }
        }
        let times: Vec<FailoverTimes> = run.rounds.iter().filter_map(FailoverTimes::of).collect();
        let failover = Times::new(&times);
        let failovers = run.rounds.iter().filter_map(|round| round.client.failover.as_ref());
        PolicySummary {
            kinds,
            totals,
            failover_us: failover.detection_to_done_us.map(|spread| spread.median),
            failover,
            bytes_in_flight: failovers.clone().map(|f| f.bytes_in_flight).sum(),
            bytes_replayed: failovers.map(|f| f.bytes_replayed).sum(),
            rounds: run.rounds.iter().map(RoundSummary::new).collect(),
        }
    }
}

/// The times of a failover, in ns of the machine's monotonic clock.
#[derive(Clone, Debug)]
pub(super) struct FailoverTimes {
    /// The time of the fault. `None` if the fault was not observed.
    pub(super) fault: Option<u64>,
    /// The time of the first detection, at either side.
    pub(super) detected: u64,
    pub(super) detector: String,
    /// The time by which both sides had fenced the old rail.
    pub(super) fenced: u64,
    /// The time of the decision at the client.
    pub(super) decided: u64,
    /// The time of the last completion of an operation that was in flight.
    pub(super) done: u64,
}

impl FailoverTimes {
    pub(super) fn of(round: &RoundResult) -> Option<FailoverTimes> {
        let client = round.client.failover.as_ref()?;
        let first = round.server.failover.iter().chain([client]).min_by_key(|f| f.detected)?;
        let fenced = round.server.failover.iter().chain([client]).map(|f| f.fenced).max()?;
        let in_flight = round
            .client
            .ops
            .iter()
            .filter_map(|op| op.completion)
            .filter(|d| d.resolution != Resolution::Direct);
        let done = in_flight.map(|d| d.at).max().unwrap_or(client.decided);
        Some(FailoverTimes {
            fault: round.fault_at().map(|at| at.min(first.detected)),
            detected: first.detected,
            detector: first.cause.clone(),
            fenced: fenced.min(client.decided),
            decided: client.decided,
            done,
        })
    }
}

impl Times {
    fn new(times: &[FailoverTimes]) -> Times {
        let spread = |span: fn(&FailoverTimes) -> Option<(u64, u64)>| {
            Spread::of(times.iter().filter_map(span).map(|(a, b)| b.saturating_sub(a) as f64 / 1e3).collect())
        };
        let mut detectors = BTreeMap::new();
        for m in times {
            *detectors.entry(m.detector.clone()).or_default() += 1;
        }
        Times {
            detection_to_done_us: spread(|m| Some((m.detected, m.done))),
            fault_to_done_us: spread(|m| Some((m.fault?, m.done))),
            fault_to_detection_us: spread(|m| Some((m.fault?, m.detected))),
            detection_to_fence_us: spread(|m| Some((m.detected, m.fenced))),
            fence_to_decision_us: spread(|m| Some((m.fenced, m.decided))),
            decision_to_done_us: spread(|m| Some((m.decided, m.done))),
            detectors,
        }
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let n = values.len();
        Some(Spread { min, median: (values[(n - 1) / 2] + values[n / 2]) / 2.0, max })
    }
}

impl RoundSummary {
    fn new(round: &RoundResult) -> RoundSummary {
        let mut totals = Counts::default();
        for counts in round.check.kinds {
            totals += counts;
        }
        RoundSummary {
            fault: round.fault.trigger.to_string(),
            at: round.fault.at.name(),
            victim: round.fault.victim.map(|n| round.workload.ops[n].kind.name()),
            fault_triggered: round.fault_at().is_some(),
            moves: round.client.failover.as_ref().map_or(0, |f| f.moves),
            failover_us: FailoverTimes::of(round).map(|m| m.done.saturating_sub(m.detected) as f64 / 1e3),
            totals,
            client_ended: round.client.ended.clone(),
            server_ended: round.server.ended.clone(),
        }
    }
}

fn verdict(settings: &Settings, runs: &[PolicyRun], policies: &[(String, PolicySummary)]) -> Verdict {
    let mut failures = Vec::new();
    for (run, (name, summary)) in runs.iter().zip(policies) {
        // On a busy machine a side may miss heartbeats and move without the fault. Such a round
        // shows a failover too.
        let untriggered =
            run.rounds.iter().filter(|r| r.fault_at().is_none() && r.client.failover.is_none()).count();
        if untriggered > 0 {
            let fault = run.rounds[0].fault.trigger;
            failures.push(format!(
                "{name}: the rail did not fail in {untriggered} of {} rounds, so they show nothing (does {fault} come after the last packet?)",
                run.rounds.len()
            ));
        }
        let undetected =
            run.rounds.iter().filter(|r| r.fault_at().is_some() && r.client.failover.is_none()).count();
        if undetected > 0 && name != "none" {
            failures.push(format!(
                "{name}: all operations completed in {undetected} of {} rounds before the failure was detected (try more --ops)",
                run.rounds.len()
            ));
        }
        let t = summary.totals;
        match name.as_str() {
            "exact" => {
                if t.corrupted() > 0 {
                    failures.push(format!(
                        "exact: {} lost, {} doubled, {} wrong values",
                        t.lost, t.doubled, t.wrong_value
                    ));
                }
                // A device of the kernel saves no results of atomics (docs/promises.md).
                let allowed =
                    settings.are_resets() || run.rounds.iter().any(|round| round.fault.allows_named_errors());
                if t.not_completed() > 0 && !allowed {
                    failures.push(format!(
                        "exact: {} operations did not complete, but the promise table allows no errors for this fault",
                        t.not_completed()
                    ));
                }
                let stray: u64 = run.rounds.iter().map(|round| round.client.stray).sum();
                if stray > 0 {
                    failures.push(format!("exact: {stray} completions were out of order or duplicated"));
                }
            }
            // A reset device hands out the completions that it has written, so the responder may
            // have executed nothing else.
            "blanket" if t.corrupted() == 0 && !settings.are_resets() => {
                failures.push(
                    "blanket: no violation, so no executed operation was in flight at the failures"
                        .to_owned(),
                );
            }
            _ => {}
        }
    }
    Verdict { ok: failures.is_empty(), failures }
}

fn as_map<S: Serializer>(entries: &[(String, PolicySummary)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(entries.iter().map(|(name, value)| (name, value)))
}

fn by_kind<S: Serializer>(counts: &[Counts; 5], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(Kind::ALL.iter().map(|kind| (kind.name(), counts[kind.index()])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_value() {
        let spread = |values: &[f64]| Spread::of(values.to_vec()).map(|s| (s.min, s.median, s.max));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((1.0, 2.5, 4.0)));
    }
}
