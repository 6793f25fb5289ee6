//! `cargo xtask tpcc-postgres`: TPC-C on PostgreSQL with a synchronous standby, for comparison with
//! `mitra bench tpcc`.
//!
//! The data and the inputs come from `mitra_txn_workloads::tpcc`. Each of the five transactions is
//! a function in `tpcc_postgres/schema.sql`.

mod cluster;
mod columns;
mod cpu;
mod database;
mod measure;
mod session;
mod verify;

use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result};
use mitra_txn_workloads::tpcc::{Kind, Load, Rule, Scale, Terminal, Violation, check};
use serde_json::{Value, json};

use cluster::{Clusters, Server};
use measure::{CpuTimes, Tally};
use session::Isolation;

/// Run TPC-C on PostgreSQL with a synchronous standby (Debian's package postgresql)
///
/// Two servers run in a temporary directory, on Unix sockets, and nothing of them is left at the
/// end. Each number of clients has a run with the isolation level SERIALIZABLE, and one with READ
/// COMMITTED and locks of rows. Each run begins with the same data, and ends with a check of
/// TPC-C's twelve consistency conditions.
///
/// Build with optimization: cargo run --release --package xtask -- tpcc-postgres
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of warehouses
    #[arg(long, default_value_t = 4)]
    warehouses: u16,
    /// The seconds of each run
    #[arg(long, default_value = "60")]
    seconds: NonZeroU32,
    /// The numbers of clients
    #[arg(long, default_value = "1,2,4,8", value_delimiter = ',')]
    clients: Vec<NonZeroU32>,
    /// The seed of the data and of the inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Instead, compare the results of 5,000 transactions and the records after them with the model
    /// of a store
    #[arg(long, conflicts_with_all = ["warehouses", "seconds", "clients", "json"])]
    verify: bool,
}

struct Run {
    isolation: Isolation,
    clients: NonZeroU32,
    tally: Tally,
    cpu: CpuTimes,
    /// The consistency conditions that do not hold.
    violations: Vec<Violation>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.verify {
        verify::run(args.seed)?;
        return Ok(ExitCode::SUCCESS);
    }
    if cfg!(debug_assertions) {
        eprintln!("the clients are built without optimization: see `cargo xtask tpcc-postgres --help`");
    }
    let scale = Scale::full(args.warehouses)?;
    let machine = machine();
    let clusters = Clusters::start()?;
    database::load(&clusters, Load::new(scale, args.seed, measure::now()), &scale)?;
    clusters.add_standby()?;
    let mut runs = Vec::new();
    for isolation in Isolation::ALL {
        for &clients in &args.clients {
            eprintln!("{}, {clients} clients: {} s", isolation.name(), args.seconds);
            runs.push(run_once(&clusters, args, &scale, isolation, clients)?);
        }
    }
    if args.json {
        println!("{:#}", report(args, machine, &clusters.version()?, &runs));
    } else {
        print_table(args, &runs);
    }
    let mut is_consistent = true;
    for violation in runs.iter().flat_map(|run| &run.violations) {
        eprintln!("{violation}");
        is_consistent = false;
    }
    Ok(if is_consistent { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_once(
    clusters: &Clusters,
    args: &Args,
    scale: &Scale,
    isolation: Isolation,
    clients: NonZeroU32,
) -> Result<Run> {
    database::reset(clusters)?;
    let time = Duration::from_secs(args.seconds.get().into());
    let terminal = |client| Terminal::numbered(*scale, args.seed, client, 0);
    clusters.is_synchronous()?;
    let (tally, cpu) = measure::run(clusters, isolation, clients.get(), time, terminal)?;
    clusters.is_synchronous()?;
    let mut violations = check(&database::records(clusters, Server::Primary)?, scale).violations;
    // PostgreSQL has indexes of its own.
    violations.retain(|violation| !matches!(violation.rule, Rule::Index(_)));
    Ok(Run { isolation, clients, tally, cpu, violations })
}

impl Run {
    fn transactions(&self) -> u64 {
        self.tally.committed.iter().sum()
    }

    fn per_cpu_second(&self, count: u64) -> f64 {
        count as f64 / self.cpu.sum().as_secs_f64()
    }

    fn new_orders_per_minute(&self, args: &Args) -> f64 {
        self.tally.committed[Kind::NewOrder as usize] as f64 * 60.0 / f64::from(args.seconds.get())
    }

    /// A quantile of the time of a New-Order, in microseconds.
    fn new_order_time(&self, quantile: f64) -> f64 {
        let mut times = self.tally.new_order_times.clone();
        times.sort_unstable();
        let at = ((times.len() as f64 * quantile) as usize).min(times.len().saturating_sub(1));
        times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }
}

fn print_table(args: &Args, runs: &[Run]) {
    println!(
        "{} warehouses, {} s each. A Delivery is one transaction, and ten database transactions.\n",
        args.warehouses, args.seconds
    );
    println!(
        "{:<15} {:>7} {:>12} {:>12} {:>14} {:>9} {:>17} {:>24}  conditions",
        "isolation",
        "clients",
        "new orders",
        "transactions",
        "database tx",
        "conflicts",
        "New-Order, ms",
        "CPU s: primary,"
    );
    println!(
        "{:<15} {:>7} {:>12} {:>12} {:>14} {:>9} {:>17} {:>24}",
        "", "", "a minute", "a CPU second", "a CPU second", "", "median, p99", "standby, clients"
    );
    for run in runs {
        let cpu = [run.cpu.primary, run.cpu.standby, run.cpu.clients]
            .map(|time| format!("{:.1}", time.as_secs_f64()));
        println!(
            "{:<15} {:>7} {:>12.0} {:>12.0} {:>14.0} {:>9} {:>17} {:>24}  {}",
            run.isolation.name(),
            run.clients,
            run.new_orders_per_minute(args),
            run.per_cpu_second(run.transactions()),
            run.per_cpu_second(run.tally.database_transactions),
            run.tally.conflicts,
            format!("{:.2}, {:.2}", run.new_order_time(0.5) / 1e3, run.new_order_time(0.99) / 1e3),
            cpu.join(", "),
            if run.violations.is_empty() { "12 hold" } else { "VIOLATED" },
        );
    }
}

/// The object that docs/benchmarks.md describes.
fn report(args: &Args, machine: Value, version: &str, runs: &[Run]) -> Value {
    let rows = runs.iter().flat_map(|run| {
        let row = |name: &str, unit: &str, value: f64| {
            let name = format!("{}/{}/{name}", run.isolation.name().replace(' ', "-"), run.clients);
            json!({ "name": name, "unit": unit, "median": value })
        };
        let mut new_order = row("new_order", "us", run.new_order_time(0.5));
        new_order["p99"] = json!(run.new_order_time(0.99));
        [
            row("new_orders", "1/min", run.new_orders_per_minute(args)),
            row("transactions", "1/cpu-s", run.per_cpu_second(run.transactions())),
            row("database_transactions", "1/cpu-s", run.per_cpu_second(run.tally.database_transactions)),
            row("committed", "transactions", run.transactions() as f64),
            row("rolled_back", "transactions", run.tally.rolled_back as f64),
            row("conflicts", "transactions", run.tally.conflicts as f64),
            row("cpu/primary", "s", run.cpu.primary.as_secs_f64()),
            row("cpu/standby", "s", run.cpu.standby.as_secs_f64()),
            row("cpu/clients", "s", run.cpu.clients.as_secs_f64()),
            new_order,
            row("violations", "records", run.violations.len() as f64),
        ]
    });
    json!({
        "name": "tpcc-postgres",
        "unit": "1/cpu-s",
        "machine": machine,
        "settings": {
            "warehouses": args.warehouses, "seconds": args.seconds, "seed": args.seed, "postgres": version,
            "servers": cluster::SETTINGS.iter().map(|&(name, value)| (name.to_owned(), json!(value))).collect::<serde_json::Map<_, _>>(),
        },
        "rows": rows.collect::<Vec<_>>(),
        "notes": if cfg!(debug_assertions) { vec!["the clients are built without optimization"] } else { vec![] },
    })
}

/// The machine, with its load before the run.
fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).context("unknown").unwrap_or_default();
    let cpu_info = read("/proc/cpuinfo");
    let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let load = read("/proc/loadavg").split(' ').next().and_then(|load| load.parse::<f64>().ok());
    json!({
        "cpu": model.map(|(_, model)| model.trim()),
        "cpus": thread::available_parallelism().map_or(1, |cores| cores.get()),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": load,
    })
}
