//! `mitra bench failover`: measures the time of a failover for the operations in flight, and the
//! bytes that are sent again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::failover_trial::{self, Fault, Mix, Sleepers, TrialPlan, TrialPolicy, TrialResult};
use super::report::{Machine, Report, Row, row};
use super::silent_run::{SilentProgram, SilentRuns, Wait};
use super::{Common, PEER_ROLE, Task, progress, run_error};
use mitra_peer_process::{PeerConnection, PeerProcess};
use mitra_prng::Prng;

/// The number of READs that measure the round-trip time of the rail.
const ROUND_TRIPS: u64 = 5000;

/// The trials with a silent loss: the first part of the names of their rows, and the ends that
/// sleep.
const SILENT: [(&str, Sleepers); 4] = [
    ("exact/silent", Sleepers { requester: false, responder: false }),
    ("exact/silent_responder_sleeps", Sleepers { requester: false, responder: true }),
    ("exact/silent_requester_sleeps", Sleepers { requester: true, responder: false }),
    ("exact/silent_both_sleep", Sleepers { requester: true, responder: true }),
];
/// The same for the runs of a program under `mitra run`.
const SILENT_RUNS: [(&str, Wait); 2] =
    [("exact/silent_run", Wait::Poll), ("exact/silent_run_sleeps", Wait::Events)];

/// The note of a report of trials over devices of the kernel, whose links do not fail on demand.
pub(crate) const RESET_NOTE: &str = "Devices of the kernel do not fail on demand: the requester resets its NIC of rail 0, \
    and detects it when it posts or polls. They save no results of atomics, so operations in flight may end with named \
    errors (`failed`). Silent trials need software NICs, and are left out.";

/// The largest number of attempts for one trial with a silent loss. On a busy machine, an end may
/// leave the rail before the loss.
const MAX_ATTEMPTS: u32 = 5;

/// Time from a failure to the last completion, and bytes sent again, under `exact` and `blanket`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench failover
  mitra bench failover --trials 20 --silent-trials 0 --log --seed 7
Each trial connects a new vQP over two rails between two processes, keeps a mix of WRITEs, SENDs, READs and FAAs in
flight, and takes the link of rail 0 down when a random packet reaches a random stage (docs/faults.md) at either end.
Row names begin with the policy. In `silent` trials the rail loses every packet without a port event. The first rows,
`…/fault_to_last`, are the times from such a loss to the last completion: both ends poll (`silent`), or one or both sleep
until an event (`silent_responder_sleeps`, `silent_requester_sleeps`, `silent_both_sleep`). In `silent_run`, a libibverbs
program under `mitra run` polls for its completions, and in `silent_run_sleeps` it waits in ibv_get_cq_event; its peer
only lends memory. These rows need a C compiler and Debian's libibverbs-dev. `gap` is the longest time between two
completions of the program. post_failure_resent counts operations that the responder had executed and that were
sent again, except READs, whose data is recovered by reading again. Under exact it must be 0, and the highest value in
`spread` of --json shows that it is. docs/benchmarks.md describes the fields of --json and reports figures.
Exit codes: 0 success, 1 data was wrong, lost or duplicated under exact, 2 bad arguments.")]
pub(crate) struct Args {
    /// Failures under each policy
    #[arg(long, alias = "rounds", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    trials: u32,
    /// Failures without a port event of each kind, under exact
    #[arg(long, alias = "silent-rounds", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    silent_trials: u32,
    /// Operations in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100))]
    in_flight: u32,
    /// Bytes of a WRITE, SEND or READ, a multiple of 8
    #[arg(long, default_value = "4096", value_parser = super::parse_size)]
    size: usize,
    /// Seed of the failure stages and packets; the same seed gives the same failures
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Milliseconds between two heartbeats
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    heartbeat: u64,
    /// Number of consecutive missed heartbeats after which a rail is considered failed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    misses: u32,
    /// Keep a completion log
    #[arg(long)]
    log: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let has_devices = args.common.has_devices();
    let silent_trials = if has_devices { 0 } else { args.silent_trials };
    let [local, remote] = args.common.placements();
    let plan = TrialPlan {
        placement: remote,
        policy: TrialPolicy::Exact,
        mix: Mix::Even,
        log: args.log,
        in_flight: args.in_flight,
        size: args.size,
        heartbeat: Duration::from_millis(args.heartbeat),
        misses: args.misses,
        failback: None,
        sleepers: Sleepers::default(),
        fault: Err(ROUND_TRIPS),
    };
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    peer.connection.send(&Task::Failover)?;
    let silent_kinds = (SILENT.len() + SILENT_RUNS.len()) as u64;
    let bar = progress(2 * u64::from(args.trials) + silent_kinds * u64::from(silent_trials));
    peer.connection.send(&Some(&plan))?;
    let rtt = failover_trial::measure_round_trip(&plan, &local, &mut peer.connection)? / 1000.0;

    let mut exact = PolicyTrials::new("exact", TrialPolicy::Exact);
    let mut blanket = PolicyTrials::new("blanket", TrialPolicy::Blanket);
    let mut silent = SILENT.map(|(name, _)| PolicyTrials::new(name, TrialPolicy::Exact));
    let mut random = Prng::new(args.seed);
    // Stage 4 lies between two packets of one message, so only messages of several packets pass it.
    let packets = args.size.div_ceil(args.common.mtu.unwrap_or(4096)) as u64;
    for _ in 0..args.trials {
        // Both policies get the same failure, one after the other.
        let fault = draw_fault(&mut random, args.in_flight, packets, has_devices);
        for policy in [&mut exact, &mut blanket] {
            let plan = TrialPlan { policy: policy.policy, fault: Ok(fault), ..plan.clone() };
            policy.run_trial(&plan, &local, &mut peer)?;
            bar.inc(1);
        }
    }
    for _ in 0..silent_trials {
        let after = 100 + random.below(100);
        for (silent, (_, sleepers)) in silent.iter_mut().zip(SILENT) {
            let plan = TrialPlan { fault: Ok(Fault::Silent(after)), sleepers, ..plan.clone() };
            let trials = silent.trials.len();
            for _ in 0..MAX_ATTEMPTS {
                silent.run_trial(&plan, &local, &mut peer)?;
                if silent.trials.len() > trials {
                    break;
                }
            }
            bar.inc(1);
        }
    }
    peer.connection.send(&None::<TrialPlan>)?;
    peer.wait()?;
    let program = match silent_trials {
        0 => None,
        _ => Some(SilentProgram::compile(&args.common, args.log, args.in_flight, args.size)),
    };
    let mut silent_runs = Vec::new();
    if let Some(Ok(program)) = &program {
        silent_runs.extend(SILENT_RUNS.map(|(name, wait)| SilentRuns::new(name, wait, program)));
    }
    for _ in 0..silent_trials {
        for runs in &mut silent_runs {
            for _ in 0..MAX_ATTEMPTS {
                if runs.run()? {
                    break;
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();

    let mut rows = vec![Row { median: rtt, p99: rtt, ..row("rail_round_trip", "us", &[rtt]) }];
    rows.extend(exact.times(rtt));
    rows.extend(exact.costs());
    rows.extend(blanket.costs());
    if let Some(resent) = rows.iter().find(|row| row.name == "blanket/bytes_resent").map(|row| row.median) {
        let share = exact.resent_bytes_ratio(&blanket);
        if let Some(row) = rows.iter_mut().find(|row| row.name == "exact/bytes_resent") {
            (row.baseline, row.baseline_median, row.ratio) =
                (Some("blanket/bytes_resent".to_owned()), Some(resent), Some(share));
        }
    }
    let mut silent_rows = Vec::new();
    for (silent, (_, sleepers)) in silent.iter().zip(SILENT).filter(|(silent, _)| !silent.trials.is_empty()) {
        // Only the detection differs if an end sleeps.
        let is_shown = |row: &Row| sleepers == Sleepers::default() || row.name.contains("/fault_to_");
        silent_rows.extend(silent.times(rtt).into_iter().filter(is_shown));
    }
    silent_rows.extend(silent_runs.iter().flat_map(SilentRuns::rows));
    // The whole cost of a failure that nothing reports comes first.
    let (whole, others): (Vec<Row>, Vec<Row>) =
        silent_rows.into_iter().partition(|row| row.name.ends_with("/fault_to_last"));
    rows.splice(0..0, whole);
    rows.extend(others);
    let mut notes = machine.warnings();
    notes.push(format!(
        "{} trials under each policy, {} of which ended before the fault triggered; {} silent trials of each kind.",
        args.trials,
        exact.untriggered + blanket.untriggered,
        silent_trials
    ));
    notes.push(if has_devices {
        RESET_NOTE.to_owned()
    } else {
        "Detector: the port event; in silent trials, questions that one rail does not answer.".to_owned()
    });
    if let Some(Err(error)) = &program {
        notes.push(format!(
            "the rows of {} and {} are left out: {error:#}",
            SILENT_RUNS[0].0, SILENT_RUNS[1].0
        ));
    }
    let untriggered = silent.iter().map(|silent| (silent.name, silent.untriggered));
    for (name, count) in untriggered.chain(silent_runs.iter().map(SilentRuns::untriggered)) {
        if count > 0 {
            notes.push(format!("{name}: {count} trials more ended, or left the rail, before it fell silent"));
        }
    }
    let violations = exact.violations()
        + silent.iter().map(PolicyTrials::violations).sum::<u64>()
        + silent_runs.iter().map(SilentRuns::violations).sum::<u64>();
    if violations > 0 {
        notes.push(format!("exact VIOLATED exactly-once for {violations} operations"));
    }
    let settings = serde_json::json!({
        "rounds": args.trials, "silent_rounds": silent_trials, "in_flight": args.in_flight,
        "size": args.size, "seed": args.seed, "heartbeat_ms": args.heartbeat, "misses": args.misses,
        "log": args.log, "nics": args.common.nics(), "links": args.common.links.to_string(), "mix": "3 WRITE : 3 SEND : 1 READ : 1 FAA", "missed": exact.untriggered + blanket.untriggered,
    });
    Report { name: "failover", unit: "us", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.common.json)?;
    Ok(if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn peer(connection: &mut PeerConnection) -> anyhow::Result<()> {
    while let Some(plan) = connection.receive::<Option<TrialPlan>>()? {
        failover_trial::run_responder(&plan, connection)?;
    }
    Ok(())
}

pub(crate) struct PolicyTrials {
    name: &'static str,
    pub(crate) policy: TrialPolicy,
    pub(crate) trials: Vec<TrialResult>,
    /// The number of trials that ended before the fault triggered.
    pub(crate) untriggered: u32,
}

impl PolicyTrials {
    pub(crate) fn new(name: &'static str, policy: TrialPolicy) -> PolicyTrials {
        PolicyTrials { name, policy, trials: Vec::new(), untriggered: 0 }
    }

    pub(crate) fn run_trial(
        &mut self,
        plan: &TrialPlan,
        placement: &super::endpoint::NicPlacement,
        peer: &mut PeerProcess,
    ) -> anyhow::Result<()> {
        peer.connection.send(&Some(plan))?;
        let trial = failover_trial::run_requester(plan, placement, &mut peer.connection)
            .map_err(|error| run_error(peer, error))
            .with_context(|| match &plan.fault {
                Ok(fault) => format!("in a trial under {} with {fault}", self.name),
                Err(_) => format!("in a trial under {} without a fault", self.name),
            })?;
        match trial {
            Some(trial) => self.trials.push(trial),
            None => self.untriggered += 1,
        }
        Ok(())
    }

    /// Returns the number of violations of `exact`: executed operations that were sent again,
    /// duplicate executions, and failed operations. A device of the kernel has no saved results, so
    /// an operation may end with a named error there.
    pub(crate) fn violations(&self) -> u64 {
        let failed = |trial: &TrialResult| if trial.was_reset { 0 } else { trial.failed };
        self.trials.iter().map(|trial| trial.resent.unwrap_or(0) + trial.doubled + failed(trial)).sum()
    }

    fn row(&self, measure: &str, unit: &'static str, of: impl Fn(&TrialResult) -> f64) -> Row {
        let values: Vec<f64> = self.trials.iter().map(of).collect();
        row(&format!("{}/{measure}", self.name), unit, &values)
    }

    fn times(&self, rtt: f64) -> Vec<Row> {
        let us = |duration: Duration| duration.as_secs_f64() * 1e6;
        let done = |trial: &TrialResult| trial.report.completed_at.unwrap_or(trial.report.decided_at);
        let total = move |trial: &TrialResult| us(done(trial) - trial.report.detected_at);
        vec![
            self.row("detected_to_last", "us", total),
            self.row("detected_to_last_in_round_trips", "rtt", |trial| total(trial) / rtt),
            self.row("detected_to_fenced", "us", |trial| {
                us(trial.report.fenced_at - trial.report.detected_at)
            }),
            self.row("fenced_to_decided", "us", |trial| us(trial.report.decided_at - trial.report.fenced_at)),
            self.row("decided_to_last", "us", |trial| us(done(trial) - trial.report.decided_at)),
            self.row("fault_to_detected", "us", |trial| us(trial.report.detected_at - trial.fault_at)),
            self.row("fault_to_last", "us", |trial| us(done(trial) - trial.fault_at)),
        ]
    }

    fn costs(&self) -> Vec<Row> {
        let resent: Vec<_> = self.resent().collect();
        let mut rows = vec![
            self.row("in_flight", "ops", |trial| trial.report.stats.in_flight.into()),
            self.row("replayed", "ops", |trial| trial.report.stats.replayed.into()),
            self.row("bytes_in_flight", "B", |trial| trial.report.stats.bytes_in_flight as f64),
            self.row("bytes_resent", "B", |trial| trial.report.stats.bytes_replayed as f64),
        ];
        if !resent.is_empty() {
            rows.push(row(&format!("{}/post_failure_resent", self.name), "ops", &resent));
        }
        rows.push(self.row("doubled", "ops", |trial| trial.doubled as f64));
        rows.push(self.row("failed", "ops", |trial| trial.failed as f64));
        rows
    }

    /// The executed operations that were sent again, in each trial whose responder counts them.
    pub(crate) fn resent(&self) -> impl Iterator<Item = f64> {
        self.trials.iter().filter_map(|trial| trial.resent).map(|count| count as f64)
    }

    /// Returns all bytes resent under this policy, divided by all bytes resent under `other`.
    pub(crate) fn resent_bytes_ratio(&self, other: &PolicyTrials) -> f64 {
        let bytes = |policy: &PolicyTrials| -> u64 {
            policy.trials.iter().map(|trial| trial.report.stats.bytes_replayed).sum()
        };
        bytes(self) as f64 / bytes(other).max(1) as f64
    }
}

/// Draws a reset on devices of the kernel, else a link failure at a stage that messages of
/// `packets` packets pass. The link fails at a packet after the window of operations in flight is
/// full.
pub(crate) fn draw_fault(random: &mut Prng, in_flight: u32, packets: u64, has_devices: bool) -> Fault {
    if has_devices {
        return Fault::Reset(u64::from(in_flight) + random.below(200));
    }
    let stages: &[u8] = if packets > 1 { &[1, 2, 3, 4, 5, 6, 7] } else { &[1, 2, 3, 5, 6, 7] };
    let stage = *random.pick(stages);
    let fill = u64::from(in_flight) * packets;
    // There are fewer responses than requests, because an acknowledgement can cover several
    // requests. At least a quarter of the operations are READs and atomics, and only these are
    // certain to get separate responses.
    let count = if matches!(stage, 6 | 7) { fill.div_ceil(4) } else { fill };
    Fault::Link { stage, nth: (count + random.below(2 * count)) as u32 }
}
