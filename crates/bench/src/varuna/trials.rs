//! `inflight/MIX/CLASS`, `resent/POLICY/MIX` and `failover/PHASE`: failures at random packets and
//! stages, with operations in flight.

use std::time::Duration;

use mitra_peer_process::PeerProcess;
use mitra_prng::Prng;

use super::{Args, MESSAGE_BYTES};
use crate::endpoint::NicPlacement;
use crate::failover::{PolicyTrials, draw_fault};
use crate::failover_trial::{Mix, Sleepers, TrialPlan, TrialPolicy, TrialResult, measure_round_trip};
use crate::report::row;
use crate::report::{Row, median};
use crate::{PEER_ROLE, Task, progress};

/// The number of READs that measure the round-trip time of the rail.
const ROUND_TRIPS: u64 = 3000;

/// The length of short messages, in bytes.
const SMALL_BYTES: usize = 8;

/// The phases of a failover whose times add up, in order.
pub(super) const PHASES: [&str; 6] = ["detection", "agreement", "fence", "evidence", "decision", "replay"];

fn plan(args: &Args, remote: NicPlacement) -> TrialPlan {
    TrialPlan {
        placement: remote,
        policy: TrialPolicy::Exact,
        mix: Mix::Even,
        log: false,
        in_flight: args.in_flight,
        size: MESSAGE_BYTES,
        heartbeat: Duration::from_millis(20),
        misses: 5,
        failback: None,
        sleepers: Sleepers::default(),
        fault: Err(ROUND_TRIPS),
    }
}

struct MixTrials {
    mix: Mix,
    policies: Vec<PolicyTrials>,
}

/// Measures every policy on every mix. Returns the rows, and the number of violations of
/// exactly-once under `exact`.
pub(super) fn run_mixes(args: &Args, notes: &mut Vec<String>) -> anyhow::Result<(Vec<Row>, u64)> {
    let [local, remote] = args.common.placements();
    let plan = plan(args, remote);
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    peer.connection.send(&Task::Failover)?;
    let bar = progress((Mix::HEAVY.len() * TrialPolicy::ALL.len()) as u64 * u64::from(args.trials));
    let mut mixes = Vec::new();
    for mix in Mix::HEAVY {
        let policies = TrialPolicy::ALL.map(|policy| PolicyTrials::new(policy.name(), policy));
        let mut trials = MixTrials { mix, policies: policies.into() };
        let mut random = Prng::new(args.seed);
        for _ in 0..args.trials {
            // Every policy gets the same failure, one after the other.
            let fault = draw_fault(&mut random, args.in_flight, 1, args.common.has_devices());
            for of_policy in &mut trials.policies {
                bar.set_message(format!("{} under {}", mix.name(), of_policy.policy.name()));
                let plan = TrialPlan { policy: of_policy.policy, mix, fault: Ok(fault), ..plan.clone() };
                of_policy.run_trial(&plan, &local, &mut peer)?;
                bar.inc(1);
            }
        }
        mixes.push(trials);
    }
    bar.finish_and_clear();
    peer.connection.send(&None::<TrialPlan>)?;
    peer.wait()?;
    let untriggered: u32 = mixes.iter().flat_map(|mix| &mix.policies).map(|policy| policy.untriggered).sum();
    notes.push(format!(
        "inflight, resent: {} failures for each policy and mix, of {MESSAGE_BYTES}-byte messages, on software NICs; in {untriggered} \
         trials the fault did not trigger. A vQP keeps at most 16 READs and atomics in flight, and fewer operations in flight \
         behind them; cached counts all operations in the queue pair's send queue. post_failure counts executed operations that were sent again, except READs, which \
         change nothing. recovery is the time from detection to the last completion of what was in flight.",
        args.trials
    ));
    let violations = mixes.iter().flat_map(|mix| &mix.policies).filter(|p| p.policy == TrialPolicy::Exact);
    let violations = violations.map(PolicyTrials::violations).sum();
    Ok((
        mixes.iter().flat_map(|mix| in_flight_rows(mix).into_iter().chain(resent_rows(mix))).collect(),
        violations,
    ))
}

fn of(trials: &MixTrials, policy: TrialPolicy) -> impl Iterator<Item = &PolicyTrials> {
    trials.policies.iter().filter(move |trials| trials.policy == policy)
}

/// Returns the operations in flight by class, from the evidence of the trials under `exact`.
fn in_flight_rows(mix: &MixTrials) -> Vec<Row> {
    let mut trials: Vec<&TrialResult> = of(mix, TrialPolicy::Exact).flat_map(|exact| &exact.trials).collect();
    trials.sort_by_key(|trial| trial.before_fault);
    let class = |name: &str, unit, count: &dyn Fn(&TrialResult) -> f64| {
        let values: Vec<f64> = trials.iter().map(|trial| count(trial)).collect();
        let row = row(&format!("inflight/{}/{name}", mix.mix.name()), unit, &values);
        Row { blocks: values, ..row }
    };
    vec![
        class("pre-failure", "ops", &|trial| {
            f64::from(trial.report.stats.in_flight - trial.report.stats.executed)
        }),
        class("post-failure", "ops", &|trial| f64::from(trial.report.stats.executed)),
        class("failure_time", "us", &|trial| micros(trial.before_fault)),
    ]
}

/// Returns what each policy sent again, beside `blanket`.
fn resent_rows(mix: &MixTrials) -> Vec<Row> {
    let mut rows = Vec::new();
    for trials in &mix.policies {
        let name = |measure: &str| format!("resent/{}/{}{measure}", trials.policy.name(), mix.mix.name());
        let values =
            |of: &dyn Fn(&TrialResult) -> f64| -> Vec<f64> { trials.trials.iter().map(of).collect() };
        let bytes = row(&name(""), "B", &values(&|trial| trial.report.stats.bytes_replayed as f64));
        let ratio = of(mix, TrialPolicy::Blanket).next().filter(|_| trials.policy != TrialPolicy::Blanket);
        rows.push(match ratio {
            Some(blanket) if !trials.trials.is_empty() => Row {
                baseline: Some(format!("resent/blanket/{}", mix.mix.name())),
                baseline_median: Some(median(
                    &blanket.trials.iter().map(|t| t.report.stats.bytes_replayed as f64).collect::<Vec<_>>(),
                )),
                ratio: Some(trials.resent_bytes_ratio(blanket)),
                ..bytes
            },
            _ => bytes,
        });
        rows.push(row(
            &name("/bytes_in_flight"),
            "B",
            &values(&|trial| trial.report.stats.bytes_in_flight as f64),
        ));
        rows.push(row(&name("/ops"), "ops", &values(&|trial| trial.report.stats.replayed.into())));
        let resent: Vec<_> = trials.resent().collect();
        if !resent.is_empty() {
            rows.push(row(&name("/post_failure"), "ops", &resent));
        }
        rows.push(row(&name("/doubled"), "ops", &values(&|trial| trial.doubled as f64)));
        rows.push(row(&name("/failed"), "ops", &values(&|trial| trial.failed as f64)));
        // A vQP without failover recovers nothing.
        if trials.policy != TrialPolicy::None {
            rows.push(row(&name("/recovery"), "us", &values(&|trial| micros(total(trial)))));
        }
    }
    rows
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// The time from detection to the last completion of the operations that were in flight.
fn total(trial: &TrialResult) -> Duration {
    trial.report.completed_at.unwrap_or(trial.report.decided_at) - trial.report.detected_at
}

/// Measures the phases of failovers under `exact`, with messages of [`MESSAGE_BYTES`] and of
/// [`SMALL_BYTES`]. Returns the rows, and the number of violations of exactly-once.
pub(super) fn run_phases(args: &Args, notes: &mut Vec<String>) -> anyhow::Result<(Vec<Row>, u64)> {
    notes.push(format!(
        "failover: {} operations in flight (3 WRITE : 3 SEND : 1 READ : 1 FAA, {MESSAGE_BYTES} bytes; failover/small: {SMALL_BYTES} bytes); the \
         port event is the detector, and detection is the time from the fault to it. total begins at detection.",
        args.in_flight
    ));
    let (mut rows, violations) = phases_of(args, MESSAGE_BYTES, "failover")?;
    let (small, violations_of_small) = phases_of(args, SMALL_BYTES, "failover/small")?;
    rows.extend(small);
    Ok((rows, violations + violations_of_small))
}

fn phases_of(args: &Args, size: usize, prefix: &str) -> anyhow::Result<(Vec<Row>, u64)> {
    let [local, remote] = args.common.placements();
    let plan = TrialPlan { size, ..plan(args, remote) };
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    peer.connection.send(&Task::Failover)?;
    peer.connection.send(&Some(&plan))?;
    let rtt = measure_round_trip(&plan, &local, &mut peer.connection)? / 1000.0;
    let bar = progress(args.trials.into());
    let mut exact = PolicyTrials::new("exact", TrialPolicy::Exact);
    let mut random = Prng::new(args.seed);
    for _ in 0..args.trials {
        let fault = Ok(draw_fault(&mut random, args.in_flight, 1, args.common.has_devices()));
        exact.run_trial(&TrialPlan { fault, ..plan.clone() }, &local, &mut peer)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    peer.connection.send(&None::<TrialPlan>)?;
    peer.wait()?;
    let name_of_round_trip = format!("{prefix}/round_trip");
    let round_trip = row(&name_of_round_trip, "us", &[rtt]);
    let phase = |name: &str, time: &dyn Fn(&TrialResult) -> Duration| {
        let values: Vec<f64> = exact.trials.iter().map(|trial| micros(time(trial))).collect();
        let row = row(&format!("{prefix}/{name}"), "us", &values);
        let (baseline, baseline_median) = (Some(name_of_round_trip.clone()), Some(rtt));
        Row { baseline, baseline_median, ratio: Some(row.median / rtt), ..row }
    };
    let rows = vec![
        round_trip,
        phase("detection", &|trial| trial.report.detected_at - trial.fault_at),
        phase("agreement", &|trial| trial.report.fence_began_at - trial.report.detected_at),
        phase("fence", &|trial| trial.report.fenced_at - trial.report.fence_began_at),
        phase("evidence", &|trial| trial.report.evidence_at - trial.report.fenced_at),
        phase("decision", &|trial| trial.report.decided_at - trial.report.evidence_at),
        phase("replay", &|trial| {
            trial.report.completed_at.unwrap_or(trial.report.decided_at) - trial.report.decided_at
        }),
        phase("total", &total),
    ];
    Ok((rows, exact.violations()))
}
