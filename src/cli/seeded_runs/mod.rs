//! `mitra sim`: runs a workload once per seed, against an adversary that the seed determines.

mod coverage_table;
mod failing_seed;
mod mutant;
mod report;
mod seed_range;
mod summary;
mod sweep;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use mitra_bench::OutputFile;
use mitra_sweep::seeded::{Finding, Reduction, SeedRun};

use super::write_json;
use coverage_table::CoverageTable;
use failing_seed::FailingSeed;
use mitra_sweep::Workload;
use seed_range::{Limit, Minutes, SeedRange, Shard};
use summary::{Summary, counted};
use sweep::Sweep;

/// Run a workload from seeds, each of which draws the faults and the order of all steps
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra sim --workload failover --seeds 1000
  mitra sim --workload protected-memory-paxos --seeds 10000
  mitra sim --workload paxos --seeds 1 --from 4711
  mitra sim --workload failover --minutes 10
  mitra sim --workload failover --seeds 1000000 --shard 3/8
  mitra sim --workload late-packet-delay --seeds 1 --from 1
  mitra sim --workload failover --seeds 1 --from 7 --report seed-7.html
  cargo run --features mutants -- sim --mutant NAME
With the default of 10,000 seeds, many workloads take minutes. The example with late-packet-delay finds a violation on purpose,
and exits with 1. The failing seed, its last records and the command that repeats it go to standard error.
An adversary chooses the order of steps and the faults; then a stable period follows, in which everything must finish.
Workloads over simulated NICs run a pair of programs, and check every effect of every operation; --list shows them. The other workloads
are protocols (most of those that `mitra check --list` shows), and the key-value store, its log and its memory nodes. All processors are used. late-packet-delay runs the worlds of late-packet under the baseline
delay, which waits instead of fencing a failed rail, and finds operations that were executed twice.
--minutes begins at a fresh seed, which is printed, unless --from gives one. --shard I/N takes the seeds at the positions I, I+N, I+2N and so
on of the whole, so N shards with the same other arguments run each seed once; `seeds` counts those of the shard, and `from` is that of the whole.
The lowest failing seed of the workloads failover, failover-cases, filter, objects and rc is shrunk for up to 30 s: faults, connections, operations,
rails and options are taken away while the same checker still finds something, and the command that repeats what is left is printed.
--json: `workload`, `seeds` (how many ran), `from`, `operations` (operations of programs, or steps of a protocol), `faults` (failures of links, NICs and
hosts, or crashes and Byzantine processes), `false_alarms` (moves of vQPs away from a rail that an end took for failed because it heard nothing,
although no fault had affected the rail; null if the workload does not count them), `false_alarm_seeds` (the five lowest seeds with some), `violations` (seeds in which something happened that must not happen: an operation lost or
executed twice, a wrong value, processes that decided different values), `stuck` (seeds without a violation in which something did not
finish), `by_checker` (the number of seeds by the name of the checker that found something), `first` (the lowest seed that failed, or
null), `shrunk` (what is left of its world, for --shrunk, or null). --mutant --json: `mutant`, `workload`, `found`, `seeds_needed` (null if no seed finds it), `checker`, `detail`.
--coverage counts each operation in flight that a failure of its NIC or link met, by stage (1 to 8, docs/faults.md), failure, kind of operation, and
the last step that an end had made in a recovery. In a recovery, the stage is that at which the operation was when the recovery began. The
counts are of what happened in the runs. These cells cannot exist: a READ or an atomic at stage 4, because its request is one packet; a READ at stage
8, because it changes nothing at the responder; a NIC that hangs at the stages 3 and 7 outside a recovery, because it executes the packet that arrives.
--coverage --json: `cells` (an array with `stage`, `failure`, `operation`, `recovery`, `count`), `empty_cells` (how many have the count 0).
Exit codes: 0 no violation and nothing stuck, and with --coverage no empty cell, 1 otherwise (the output has the seed), 2 bad arguments. --mutant: 0 found, 1 not found.")]
pub(crate) struct Args {
    /// Workload to run, by a name that --list shows
    #[arg(long, required_unless_present_any = ["list", "mutants", "mutant"])]
    workload: Option<String>,
    /// List the workloads
    #[arg(long, conflicts_with = "workload")]
    list: bool,
    /// List the mutants, one a line (needs a build with the feature `mutants`)
    #[arg(long, conflicts_with_all = ["workload", "list"])]
    mutants: bool,
    /// Switch a deliberate bug on, and run its workload until a checker finds it (needs a build
    /// with the feature `mutants`)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["workload", "list", "mutants", "seeds", "from"])]
    mutant: Option<String>,
    /// Number of seeds
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Begin seeds until this many minutes have passed, instead of --seeds
    #[arg(long, value_name = "M", conflicts_with = "seeds")]
    minutes: Option<Minutes>,
    /// First seed [default: 0; with --minutes, a fresh one, which is printed]
    #[arg(long)]
    from: Option<u64>,
    /// Run the Ith of N parts of the seeds: every Nth seed, from the Ith one on
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Run each seed twice, and compare the two runs event by event (checker `repeat`)
    #[arg(long)]
    twice: bool,
    /// Print what failures met: stages, failures, operations and points of recovery, and the
    /// combinations that no seed had
    #[arg(long, conflicts_with_all = ["list", "mutants", "mutant", "shrunk"])]
    coverage: bool,
    /// Print a failing seed as it is, without a search for a smaller world that fails
    #[arg(long)]
    no_shrink: bool,
    /// Run what a search has left of the world of the seed --from, as its command says
    #[arg(long, value_name = "WORLD", requires = "from", conflicts_with_all = ["minutes", "shard", "twice"])]
    shrunk: Option<Reduction>,
    /// Write an HTML page with the time line of the lowest failing seed, shrunk, or of the first
    /// seed if none fails
    #[arg(long, value_name = "FILE.html", conflicts_with_all = ["list", "mutants", "mutant"])]
    report: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.mutants || args.mutant.is_some() {
        return mutant::run(args);
    }
    let mut out = io::stdout().lock();
    let Some(name) = &args.workload else {
        let mut listed = Workload::all().chain(Workload::baselines());
        if args.json {
            write_json(&mut out, &listed.map(|w| w.name).collect::<Vec<_>>())?;
        } else {
            listed.try_for_each(|w| writeln!(out, "{:<28} {}", w.name, w.world))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let workload = Workload::find(name).map_err(anyhow::Error::msg)?;
    if args.coverage && !workload.has_coverage() {
        anyhow::bail!(
            "--coverage counts failures of NICs and links, and the worlds of {name} have none; the workloads with coverage are: {}",
            Workload::all().filter(Workload::has_coverage).map(|w| w.name).collect::<Vec<_>>().join(", ")
        );
    }
    let report = args.report.clone().map(OutputFile::new).transpose()?;
    let begin = Instant::now();
    let mut reduction = args.shrunk.clone().unwrap_or_default();
    let mut summary = run_seeds(&workload, args, &reduction)?;
    if let Some(seed) = summary.first {
        let failing = FailingSeed::new(&workload, seed, &reduction, !args.no_shrink);
        failing.print(&mut io::stderr().lock())?;
        if let Some(shrunk) = failing.shrunk {
            summary.shrunk = Some(shrunk.reduction.to_string());
            reduction = shrunk.reduction;
        }
    }
    if let Some(file) = report {
        file.write(&report::page(&workload, summary.first.unwrap_or(summary.from), &reduction)?)?;
    }
    if args.json {
        write_json(&mut out, &summary)?;
    } else {
        writeln!(out, "{}: {}", workload.name, workload.world)?;
        let Summary { seeds, from, operations, faults, false_alarms, violations, stuck, .. } = &summary;
        let seconds = begin.elapsed().as_secs_f64();
        writeln!(
            out,
            "{} from {from}, {}, {} in {seconds:.1} s: {}, {stuck} stuck",
            counted(*seeds, "seed"),
            counted(*operations, workload.unit),
            counted(*faults, "fault"),
            counted(*violations, "violation"),
        )?;
        if let Some(false_alarms) = false_alarms {
            let seeds: Vec<_> = summary.false_alarm_seeds.iter().map(u64::to_string).collect();
            let named =
                if seeds.is_empty() { String::new() } else { format!(": seeds {}", seeds.join(", ")) };
            writeln!(out, "  {}{named}", counted(*false_alarms, "false alarm"))?;
        }
        for (checker, &seeds) in &summary.by_checker {
            writeln!(out, "  {checker}: {}", counted(seeds, "seed"))?;
        }
        if let Some(table) = &summary.coverage {
            table.print(&mut out)?;
        }
    }
    let is_covered = summary.coverage.as_ref().is_none_or(CoverageTable::is_full);
    Ok(if summary.first.is_none() && is_covered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_seeds(workload: &Workload, args: &Args, reduction: &Reduction) -> anyhow::Result<Summary> {
    let from = match (args.from, args.minutes) {
        (Some(from), _) => from,
        (None, None) => 0,
        (None, Some(_)) if args.shard.is_some() => {
            anyhow::bail!("--shard with --minutes needs --from, so that all shards begin at the same seed")
        }
        // 40 bits are short enough to be typed, and the seeds of nightly sweeps hardly ever
        // overlap.
        (None, Some(_)) => getrandom::u64()? >> 24,
    };
    if args.minutes.is_some() {
        eprintln!("{}: seeds from {from}", workload.name);
    }
    if !reduction.is_empty() {
        // An invalid reduction is an error of the command line, before anything runs.
        workload.run_reduced(from, reduction, 0).map_err(anyhow::Error::msg)?;
    }
    let seeds = if reduction.is_empty() { args.seeds } else { 1 };
    let run = |seed| match args.twice {
        true => workload.run_twice(seed),
        false => workload.run_reduced(seed, reduction, 0).unwrap_or_else(|error| SeedRun {
            findings: vec![Finding::violation("shrunk", error)],
            ..SeedRun::default()
        }),
    };
    let limit = args.minutes.map_or(Limit::Seeds(seeds), Limit::Minutes);
    let sweep = Sweep {
        workload,
        seeds: SeedRange::new(from, limit, args.shard.unwrap_or(Shard::WHOLE))?,
        run: &run,
        shows_progress: !args.json,
    };
    let coverage = args.coverage.then(CoverageTable::default);
    sweep.run(Summary { coverage, ..Summary::new(workload.name, from) })
}
