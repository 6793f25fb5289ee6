//! What `--json` says: counts added up over the rounds, times, and the verdict.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::coordinator::{Played, Run, Settings};
use super::oracle::Counts;
use super::protocol::Way;
use super::workload::Kind;

/// The object that `--json` prints.
#[derive(Serialize)]
pub(super) struct Summary {
    version: &'static str,
    /// Reproduces workloads and faults (not the scheduling of processes).
    pub(super) seed: u64,
    pub(super) rounds: usize,
    pub(super) ops_per_round: usize,
    pub(super) in_flight: u32,
    pub(super) log: bool,
    pub(super) elapsed_ms: u64,
    #[serde(serialize_with = "as_map")]
    pub(super) policies: Vec<(String, PolicySummary)>,
    pub(super) verdict: Verdict,
}

/// Whether the demo shows what it is to show.
#[derive(Clone, Default, Serialize)]
pub(super) struct Verdict {
    pub(super) ok: bool,
    /// Why not: one line each.
    pub(super) failures: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct PolicySummary {
    #[serde(serialize_with = "by_kind")]
    pub(super) kinds: [Counts; 5],
    pub(super) totals: Counts,
    /// Median, from the first end's detection to the last completion of an operation that was in flight.
    pub(super) failover_us: Option<f64>,
    pub(super) failover: Times,
    pub(super) bytes_in_flight: u64,
    pub(super) bytes_replayed: u64,
    pub(super) rounds: Vec<RoundSummary>,
}

/// Over the rounds, in µs.
#[derive(Serialize)]
pub(super) struct Times {
    pub(super) detection_to_done_us: Option<Spread>,
    pub(super) fault_to_done_us: Option<Spread>,
    pub(super) fault_to_detection_us: Option<Spread>,
    pub(super) detection_to_fence_us: Option<Spread>,
    pub(super) fence_to_decision_us: Option<Spread>,
    pub(super) decision_to_done_us: Option<Spread>,
    /// How the end that saw it first did, and how often.
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
    /// Kind of the operation that it struck at, if one was chosen.
    victim: Option<&'static str>,
    struck: bool,
    moves: u16,
    failover_us: Option<f64>,
    totals: Counts,
    client_ended: Option<String>,
    server_ended: Option<String>,
}

impl Summary {
    pub(super) fn new(settings: &Settings, runs: &[Run], elapsed_ms: u64) -> Summary {
        let policies: Vec<_> = runs.iter().map(|run| (run.policy.clone(), PolicySummary::new(run))).collect();
        Summary {
            version: env!("CARGO_PKG_VERSION"),
            seed: settings.seed,
            rounds: settings.rounds,
            ops_per_round: settings.ops,
            in_flight: settings.in_flight,
            log: settings.log,
            elapsed_ms,
            verdict: verdict(runs, &policies),
            policies,
        }
    }

    pub(super) fn policy(&self, name: &str) -> Option<&PolicySummary> {
        self.policies.iter().find(|(policy, _)| policy == name).map(|(_, summary)| summary)
    }
}

impl PolicySummary {
    fn new(run: &Run) -> PolicySummary {
        let (mut kinds, mut totals) = ([Counts::default(); 5], Counts::default());
        for round in &run.rounds {
            for (sum, counts) in kinds.iter_mut().zip(round.judgement.kinds) {
                *sum += counts;
                totals += counts;
            }
        }
        let moments: Vec<Moments> = run.rounds.iter().filter_map(Moments::of).collect();
        let failover = Times::new(&moments);
        let failovers = run.rounds.iter().filter_map(|round| round.posted.failover.as_ref());
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

/// When what happened in a failover, in ns of the machine's clock.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    /// Not known if the fault was not seen to strike.
    pub(super) fault: Option<u64>,
    /// By the end that was first.
    pub(super) detected: u64,
    pub(super) detector: String,
    /// By both ends.
    pub(super) fenced: u64,
    /// By the client.
    pub(super) decided: u64,
    /// The last completion of what was in flight.
    pub(super) done: u64,
}

impl Moments {
    pub(super) fn of(round: &Played) -> Option<Moments> {
        let client = round.posted.failover.as_ref()?;
        let first = round.seen.failover.iter().chain([client]).min_by_key(|f| f.detected)?;
        let fenced = round.seen.failover.iter().chain([client]).map(|f| f.fenced).max()?;
        let in_flight = round.posted.ops.iter().filter_map(|op| op.done).filter(|d| d.way != Way::Direct);
        let done = in_flight.map(|d| d.at).max().unwrap_or(client.decided);
        Some(Moments {
            fault: round.struck().map(|at| at.min(first.detected)),
            detected: first.detected,
            detector: first.cause.clone(),
            fenced: fenced.min(client.decided),
            decided: client.decided,
            done,
        })
    }
}

impl Times {
    fn new(moments: &[Moments]) -> Times {
        let spread = |span: fn(&Moments) -> Option<(u64, u64)>| {
            Spread::of(
                moments.iter().filter_map(span).map(|(a, b)| b.saturating_sub(a) as f64 / 1e3).collect(),
            )
        };
        let mut detectors = BTreeMap::new();
        for m in moments {
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
    fn new(round: &Played) -> RoundSummary {
        let mut totals = Counts::default();
        for counts in round.judgement.kinds {
            totals += counts;
        }
        RoundSummary {
            fault: round.fault.trigger.to_string(),
            at: round.fault.at.name(),
            victim: round.fault.victim.map(|n| round.workload.ops[n].kind.name()),
            struck: round.struck().is_some(),
            moves: round.posted.failover.as_ref().map_or(0, |f| f.moves),
            failover_us: Moments::of(round).map(|m| m.done.saturating_sub(m.detected) as f64 / 1e3),
            totals,
            client_ended: round.posted.ended.clone(),
            server_ended: round.seen.ended.clone(),
        }
    }
}

fn verdict(runs: &[Run], policies: &[(String, PolicySummary)]) -> Verdict {
    let mut failures = Vec::new();
    for (run, (name, summary)) in runs.iter().zip(policies) {
        // A round that moved of itself, on a machine so busy that an end seemed dead, shows a failover all the same.
        let missed =
            run.rounds.iter().filter(|r| r.struck().is_none() && r.posted.failover.is_none()).count();
        if missed > 0 {
            let fault = run.rounds[0].fault.trigger;
            failures.push(format!(
                "{name}: in {missed} rounds the rail did not fail, so nothing is shown (is {fault} beyond the last packet?)"
            ));
        }
        let unnoticed =
            run.rounds.iter().filter(|r| r.struck().is_some() && r.posted.failover.is_none()).count();
        if unnoticed > 0 && name != "none" {
            failures.push(format!(
                "{name}: in {unnoticed} rounds all was done before anybody noticed that the rail had failed (more --ops?)"
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
                let allowed = run.rounds.iter().any(|round| round.fault.allows_named_errors());
                if t.not_completed() > 0 && !allowed {
                    failures.push(format!(
                        "exact: {} operations did not complete, and the promise table allows no error here",
                        t.not_completed()
                    ));
                }
                let stray: u64 = run.rounds.iter().map(|round| round.posted.stray).sum();
                if stray > 0 {
                    failures.push(format!("exact: {stray} completions out of order, or twice"));
                }
            }
            "blanket" if t.corrupted() == 0 => {
                failures.push(
                    "blanket: no corruption, so the failures struck where nothing was in flight".to_owned(),
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
    fn a_median_lies_in_the_middle() {
        let spread = |values: &[f64]| Spread::of(values.to_vec()).map(|s| (s.min, s.median, s.max));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((1.0, 2.5, 4.0)));
    }
}
