//! `mitra sim`: runs a workload once per seed, against an adversary that the seed determines.

mod workload;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::write_json;
use mitra_sim::seeded::SeedRun;
use workload::Workload;

/// Run a protocol or the failover from seeds: an adversary chooses the order of steps and the faults, then a stable period follows in
/// which everything must finish
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra sim --workload failover --seeds 1000
  mitra sim --workload protected-memory-paxos --seeds 10000
  mitra sim --workload paxos --seeds 1 --from 4711
Workloads over simulated NICs run a pair of programs, and check every effect of every operation; --list shows them. The other workloads
are the protocols that `mitra check --list` shows. All processors are used.
--json: `workload`, `seeds`, `from`, `operations` (operations of programs, or steps of a protocol), `faults` (failures of links, NICs and
hosts, or crashes and Byzantine processes), `violations` (seeds in which something happened that must not happen: an operation lost or
executed twice, a wrong value, processes that decided different values), `stuck` (seeds without a violation in which something did not
finish), `by_checker` (the number of seeds by the name of the checker that found something), `first` (the lowest seed that failed, or
null).
Exit codes: 0 no violation and nothing stuck, 1 otherwise (the output has the seed), 2 bad arguments.")]
pub(crate) struct Args {
    /// Workload to run
    #[arg(long, required_unless_present = "list")]
    workload: Option<String>,
    /// List the workloads
    #[arg(long, conflicts_with = "workload")]
    list: bool,
    /// Number of seeds
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    workload: &'static str,
    seeds: u64,
    from: u64,
    operations: u64,
    faults: u64,
    violations: u64,
    stuck: u64,
    by_checker: BTreeMap<&'static str, u64>,
    first: Option<u64>,
}

impl Report {
    fn add(&mut self, seed: u64, result: &SeedRun) {
        self.operations += result.operations;
        self.faults += result.faults;
        let Some(worst) = result.findings.iter().min_by_key(|finding| finding.is_stuck) else { return };
        *if worst.is_stuck { &mut self.stuck } else { &mut self.violations } += 1;
        let mut checkers: Vec<_> = result.findings.iter().map(|finding| finding.checker).collect();
        checkers.sort_unstable();
        checkers.dedup();
        for checker in checkers {
            *self.by_checker.entry(checker).or_default() += 1;
        }
        self.first = Some(self.first.map_or(seed, |first| first.min(seed)));
    }
}

/// The number of failing seeds of which each is reported in one line while the others run.
const REPORTED_SEEDS: u64 = 20;
/// The number of records of a failing seed's trace that are printed.
const PRINTED_RECORDS: usize = 150;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let Some(name) = &args.workload else {
        if args.json {
            write_json(&mut out, &Workload::all().map(|w| w.name).collect::<Vec<_>>())?;
        } else {
            Workload::all().try_for_each(|w| writeln!(out, "{:<28} {}", w.name, w.world))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let workload = Workload::find(name)?;
    let report = run_seeds(&workload, args)?;
    if let Some(seed) = report.first {
        let result = workload.run(seed, PRINTED_RECORDS);
        let mut err = io::stderr().lock();
        result.trace.iter().try_for_each(|line| writeln!(err, "{line}"))?;
        for finding in &result.findings {
            writeln!(err, "seed {seed}, checker {}: {}", finding.checker, finding.detail)?;
        }
        writeln!(err, "{}", workload.reproduce_command(seed))?;
    }
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        writeln!(out, "{}: {}", workload.name, workload.world)?;
        let Report { seeds, operations, faults, violations, stuck, .. } = &report;
        let unit = workload.unit;
        writeln!(
            out,
            "{seeds} seeds, {operations} {unit}, {faults} faults: {violations} violations, {stuck} stuck"
        )?;
        report.by_checker.iter().try_for_each(|(checker, n)| writeln!(out, "  {checker}: {n} seeds"))?;
    }
    Ok(if report.first.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the seeds on all processors. The report does not depend on their number.
fn run_seeds(workload: &Workload, args: &Args) -> anyhow::Result<Report> {
    let (seeds, from) = (args.seeds, args.from);
    from.checked_add(seeds).ok_or_else(|| anyhow::anyhow!("--from and --seeds exceed 64 bits"))?;
    let report = Mutex::new(Report {
        workload: workload.name,
        seeds,
        from,
        operations: 0,
        faults: 0,
        violations: 0,
        stuck: 0,
        by_checker: BTreeMap::new(),
        first: None,
    });
    let style =
        ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} seeds, {per_sec}, {eta} left {msg}")?;
    let bar = ProgressBar::new(seeds).with_style(style);
    let next = AtomicU64::new(0);
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64).min(seeds);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= seeds {
                        break;
                    }
                    let seed = from + index;
                    let result = workload.run(seed, 0);
                    bar.inc(1);
                    let mut report = report.lock().unwrap_or_else(|e| e.into_inner());
                    report.add(seed, &result);
                    let failed = report.violations + report.stuck;
                    if let (Some(finding), 1..=REPORTED_SEEDS) = (result.findings.first(), failed) {
                        let what = finding.detail.lines().next().unwrap_or_default();
                        let line = format!(
                            "seed {seed}, checker {}: {what}; {}",
                            finding.checker,
                            workload.reproduce_command(seed)
                        );
                        bar.suspend(|| eprintln!("{line}"));
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    Ok(report.into_inner().unwrap_or_else(|e| e.into_inner()))
}
