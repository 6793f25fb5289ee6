//! `mitra bench tpcc`: TPC-C by transactions over remote memory, through failing rails and dying
//! coordinators.

mod cluster;
mod evaluation;
mod history;
mod page;
mod process_messages;
mod processes;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use self::cluster::{Cluster, Faults};
use self::evaluation::Outcome;
use self::page::Timeline;
pub(crate) use self::process_messages::Role;
use self::process_messages::{Setup, Variant};
pub(crate) use self::processes::run as peer;
use super::report::{Machine, Report};
use super::{OutputFile, progress};

/// TPC-C by transactions over remote memory: throughput, latency, the twelve conditions, through
/// failures
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench tpcc
  mitra bench tpcc --warehouses 2 --json
Starts memory nodes and coordinators as processes of their own, loads the tables at full scale, and runs the five
transactions of TPC-C without keying and think times: new_orders_per_minute is no tpmC. Several policies run in turns, on
stores of their own; rows give their ratio to `bare`. At the middle of the run and at its end the coordinators pause, and all
tables are read: the twelve conditions of TPC-C, held locks, torn records, copies that differ. The committed transactions
of all processes are checked for a serial order that respects real time.
Rows: POLICY/throughput; POLICY/transactions and POLICY/database_transactions by CPU-second of the memory nodes and
coordinators (a Delivery is one transaction and ten database transactions); POLICY/latency/KIND beside its floor, the round trips of the transaction times the measured one;
POLICY/failover/... if rails fail. docs/benchmarks.md describes the fields of --json and reports figures.
Exit codes: 0 success, 1 a condition, the serial order or a table was violated under exact or bare, 2 bad arguments.")]
pub(crate) struct Args {
    /// Warehouses; each needs about 250 MB for each copy of its records, and so for each policy
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    warehouses: u16,
    /// Memory nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    memories: u16,
    /// Coordinators
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    coordinators: u16,
    /// Transactions that a coordinator runs at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    terminals: u16,
    /// Seconds of transactions for each policy
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Turns in which the seconds of the policies are divided
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,
    /// Policies to compare, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "exact")]
    policy: Vec<Variant>,
    /// Take a rail of a process down every so often, for half of the time; memory nodes, then
    /// coordinators, and rails take turns: 1s, 500ms
    #[arg(long, value_name = "PERIOD", value_parser = parse_time)]
    fault: Option<Duration>,
    /// Kill a coordinator this long after the beginning of each policy's second turn, and start it
    /// again later
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    kill_coordinator: Option<Duration>,
    /// The time after which a silent coordinator is taken over
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_time)]
    takeover_timeout: Duration,
    /// Seed of the first content and of the inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the figures and plots of the committed transactions to this file, as one page of HTML
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The highest rate of New-Orders and of Payments, per second, for which a warehouse has space.
const MAX_RATE: u64 = 3000;

fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| "use a time such as 1s or 500ms".to_owned())?;
    match (number, unit) {
        (0, _) => Err("the time is not 0".to_owned()),
        (_, "s") => Ok(Duration::from_secs(number)),
        (_, "ms") => Ok(Duration::from_millis(number)),
        _ => Err("use a time such as 1s or 500ms".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // The path is checked before the measurement, so that the command fails early.
    let page_file = args.report.clone().map(OutputFile::new).transpose()?;
    let machine = Machine::detect();
    let bar = progress(args.policy.len() as u64 * (u64::from(args.warehouses) + 1 + u64::from(args.rounds)));
    let mut clusters = Vec::new();
    for &variant in &args.policy {
        let setup = Setup {
            variant,
            warehouses: args.warehouses,
            memories: args.memories,
            coordinators: args.coordinators,
            terminals: args.terminals,
            growth: MAX_RATE * args.seconds / u64::from(args.warehouses) + 1000,
            timeout: args.takeover_timeout,
            seed: args.seed,
        };
        clusters.push(Cluster::start(setup, &bar)?);
    }
    let turn = Duration::from_secs(args.seconds) / args.rounds;
    let mut middle = Vec::new();
    for round in 0..args.rounds {
        for cluster in &mut clusters {
            let kill = args.kill_coordinator.filter(|_| round == 1);
            cluster.run(turn, Faults { period: args.fault, kill }, &bar)?;
            if round == args.rounds / 2 - 1 {
                middle.push(cluster.check()?);
            }
            bar.inc(1);
        }
    }
    let mut notes = machine.warnings();
    let (mut rows, mut outcomes, mut timelines): (Vec<_>, Vec<Outcome>, Vec<_>) = Default::default();
    for (cluster, middle) in clusters.into_iter().zip(middle) {
        bar.set_message(format!("{}: check", cluster.setup.variant.name()));
        let end = cluster.check()?;
        let measured = evaluation::Measured::new(&cluster);
        let results = cluster.stop()?;
        let (outcome, own) = evaluation::evaluate(&measured, &results, [&middle, &end], &mut notes);
        rows.extend(own);
        outcomes.push(outcome);
        timelines.push(Timeline::new(measured, results.entries.iter().map(|entry| entry.told)));
    }
    bar.finish_and_clear();
    evaluation::compare(&mut rows);
    let settings = serde_json::json!({
        "warehouses": args.warehouses, "memories": args.memories, "coordinators": args.coordinators,
        "terminals": args.terminals, "seconds": args.seconds, "rounds": args.rounds,
        "policy": args.policy.iter().map(|policy| policy.name()).collect::<Vec<_>>(),
        "fault_ms": args.fault.map(|period| period.as_millis() as u64),
        "kill_coordinator_ms": args.kill_coordinator.map(|at| at.as_millis() as u64),
        "takeover_timeout_ms": args.takeover_timeout.as_millis() as u64, "seed": args.seed,
        "nics": "software NICs of separate processes, loopback", "rails": 2,
    });
    let is_right = outcomes.iter().all(Outcome::is_right);
    let report = Report { name: "tpcc", unit: "us", machine, settings, rows, claims: Vec::new(), notes };
    // The figures are printed even if the page cannot be written.
    let written = page_file.map_or(Ok(()), |file| file.write(&page::render(&report, &outcomes, &timelines)?));
    evaluation::print(&report, &outcomes, args.json)?;
    written?;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
