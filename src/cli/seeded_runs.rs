//! `mitra sim`: runs a consensus protocol once per seed, against an adversary that the seed determines.

use std::io::{self, Write};
use std::process::ExitCode;

use indicatif::ProgressBar;
use mitra_consensus_check::Violation;
use serde::Serialize;

use super::check::find;

/// Run a protocol from seeds: an adversary chooses the order of steps and the faults, then a stable period follows in
/// which every live process must decide
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra sim --workload protected-memory-paxos --seeds 10000
  mitra sim --workload paxos --seeds 1 --from 4711
--json: `workload`, `seeds`, `from`, `operations` (steps), `faults` (crashes and Byzantine processes), `violations` (seeds
in which processes decided different values, or a value that no process proposed), `stuck` (seeds in which a live process
did not decide, or the leader election did not stabilize), `first` (the first such seed, or null).
Exit codes: 0 no violation and no stuck process, 1 otherwise (the output has the seed), 2 bad arguments.")]
pub(crate) struct Args {
    /// Protocol to run; `mitra check --list` lists them
    #[arg(long)]
    workload: String,
    /// Number of seeds
    #[arg(long, default_value_t = 10_000)]
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
    first: Option<u64>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let entry = find(&args.workload)?;
    let (seeds, from) = (args.seeds, args.from);
    let end = from.checked_add(seeds).ok_or_else(|| anyhow::anyhow!("--from and --seeds exceed 64 bits"))?;
    let mut report = Report {
        workload: entry.name,
        seeds,
        from,
        operations: 0,
        faults: 0,
        violations: 0,
        stuck: 0,
        first: None,
    };
    let bar = ProgressBar::new(seeds);
    for seed in from..end {
        let ran = entry.run(seed);
        report.operations += ran.steps;
        report.faults += u64::from(ran.faults);
        match ran.violation {
            None => {}
            Some(Violation::Stuck | Violation::NoStableLeader | Violation::NotQuiescent) => report.stuck += 1,
            Some(_) => report.violations += 1,
        }
        if let (Some(violation), None) = (ran.violation, report.first) {
            report.first = Some(seed);
            let _ = writeln!(
                io::stderr(),
                "after {} steps, {violation}\nREPRODUCE WITH: mitra sim --workload {} --seeds 1 --from {seed}",
                ran.steps,
                entry.name
            );
        }
        if seed % 64 == 0 {
            bar.set_position(seed - from);
        }
    }
    bar.finish_and_clear();
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}: {}", entry.name, entry.simulated_world)?;
        writeln!(
            out,
            "{seeds} seeds, {} steps, {} faults: {} violations, {} stuck",
            report.operations, report.faults, report.violations, report.stuck
        )?;
    }
    Ok(if report.first.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
