//! `mitra txn local`: a store on this machine, from its load to its check.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stderr};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use mitra_control::RailsConfig;
use mitra_failover::Domain;
use mitra_prng::Prng;
use mitra_txn::{Abort, Client, Layout, NotCommitted, RecordKey};
use mitra_txn_rdma::{Driver, Links, LinksConfig};
use mitra_txn_workloads::Program;
use mitra_txn_workloads::smallbank::{self, Hotspot, Inputs};
use mitra_txn_workloads::tpcc::{Load, Terminal};
use serde_json::{Value, json};

use super::check::Found;
use super::memory;
use super::store::{StoreArgs, TASKS, TIMING, Workload};
use crate::cli::cluster::ClusterArgs;
use crate::cli::{complain, write_json};

/// The coordinator that loads the store and runs the transactions.
const COORDINATOR: u16 = 1;
const SEED: u64 = 1;

/// Load a store, run transactions, and check it: memory nodes and a coordinator on this machine
///
/// The memory nodes are processes of their own and end with this one. With --nodes, those are used
/// instead, and stay. The loading shows its progress if standard error is a terminal. --fault makes
/// rails of the coordinator fail.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  mitra txn local --workload smallbank --fault 'rail0 down at 1s'
--json: `committed`, `rolled_back` (by the program, as the workload asks for), `aborts` (attempts without an effect, by
reason), `seconds`, `failovers` (memory nodes to which the coordinator moved to another rail), `is_full` (a table had no
place left, so the transactions ended early), `total` (smallbank: `expected`, `found`), `check` (as of `mitra txn check`).
Exit codes: 0 success, 1 something is wrong with the store, or the coordinator has lost it, 2 bad arguments or input.")]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Use these memory nodes, from memory node 0, which no coordinator has used before
    #[arg(long, value_name = "ADDRESS:PORT,...", value_delimiter = ',')]
    nodes: Vec<SocketAddr>,
    /// For how long to run transactions
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86400))]
    seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let store = &args.store;
    let layout = store.layout()?;
    let rails = match args.cluster.rails() {
        RailsConfig::Count(count) => *count,
        RailsConfig::Addresses(addresses) => addresses.len(),
    };
    // The processes end when they are dropped.
    let (_memories, nodes) = match args.nodes.as_slice() {
        [] => memory::start_all(store, rails)?,
        nodes => (Vec::new(), nodes.to_vec()),
    };
    let config = store.links(COORDINATOR, &nodes, &args.cluster)?;
    let (domain, _faults) = args.cluster.open()?;
    let total = load(store, &layout, &domain, &config)?;
    let ran = match transactions(args, &domain, &layout, config) {
        Ok(ran) => ran,
        Err(error) => {
            complain(format_args!("the store cannot be used: {error:#}"));
            return Ok(ExitCode::FAILURE);
        }
    };
    let mut links = Links::connect(&domain, &store.links(store.checker(), &nodes, &args.cluster)?)?;
    let found = Found::read(store, &mut links, &layout)?;
    let total = total.map(|total| total + ran.change.get());
    let found_total = total.and_then(|_| smallbank::total(&found.records).ok());
    let mut out = std::io::stdout().lock();
    if args.json {
        let mut object = ran.json();
        if let Some(expected) = total {
            object["total"] =
                json!({"expected": expected as i64, "found": found_total.map(|found| found as i64)});
        }
        object["check"] = found.json();
        write_json(&mut out, &object)?;
    } else {
        ran.print(&mut out)?;
        found.print(&mut out)?;
        if let Some(expected) = total {
            let found = found_total.map_or("damaged".to_owned(), |found| found.to_string());
            writeln!(out, "the sum of all balances in cents is {found}, and must be {expected}")?;
        }
    }
    out.flush()?;
    Ok(if found.is_clean() && total == found_total { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Loads a store. Returns the sum of all balances of smallbank.
fn load(
    store: &StoreArgs,
    layout: &Layout,
    domain: &Arc<Domain>,
    config: &LinksConfig,
) -> anyhow::Result<Option<i128>> {
    let mut total = None;
    type Part = Box<dyn Iterator<Item = (RecordKey, Vec<u8>)>>;
    let parts: Vec<Part> = match store.workload {
        Workload::Tpcc => Load::new(store.scale()?, SEED, 0).parts().collect(),
        Workload::Smallbank => {
            let all = smallbank::load(store.accounts(), SEED).collect();
            total =
                Some(smallbank::total(&all).map_err(|(at, damaged)| anyhow::anyhow!("{at:?}: {damaged}"))?);
            vec![Box::new(all.into_iter())]
        }
    };
    let mut links = Links::connect(domain, config)?;
    ensure!(
        links.life().incarnation == 1,
        "the memory nodes have been used before; start new ones, with `mitra txn memory`"
    );
    let target =
        if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(parts.len() as u64), target);
    let style = ProgressStyle::with_template("  loading {bar:40} {pos}/{len} parts {elapsed} {msg}");
    bar.set_style(style.context("the template is valid")?.progress_chars("━╸·"));
    let number = NonZeroU64::MIN | getrandom::u64()?;
    mitra_txn_rdma::load(&mut links, layout, number, parts, |written, bytes| {
        bar.set_position(written as u64);
        bar.set_message(HumanBytes(bytes).to_string());
    })?;
    bar.finish_and_clear();
    Ok(total)
}

/// The counts and errors of the transactions.
#[derive(Default)]
struct Ran {
    ends: Cell<bool>,
    committed: Cell<u64>,
    rolled_back: Cell<u64>,
    is_full: Cell<bool>,
    /// The change of the sum of all balances, for smallbank.
    change: Cell<i128>,
    /// The reason why the store is no longer usable.
    failed: RefCell<Option<String>>,
    aborts: BTreeMap<&'static str, u64>,
    failovers: usize,
    seconds: f64,
}

/// Runs transactions for a time, then waits for the transactions under way.
fn transactions(
    args: &Args,
    domain: &Arc<Domain>,
    layout: &Rc<Layout>,
    config: LinksConfig,
) -> anyhow::Result<Ran> {
    let mut driver = Driver::connect(domain, layout, config, TIMING)?;
    let ran = Rc::new(Ran::default());
    spawn(&args.store, &mut driver, &ran)?;
    let mut begin = None;
    let time = Duration::from_secs(args.seconds);
    loop {
        if let Some(ending) = driver.poll() {
            return Err(match driver.links().lost() {
                Some(lost) => anyhow::anyhow!("{ending}: {lost}"),
                None => ending.into(),
            });
        }
        if let Some(failed) = ran.failed.take() {
            anyhow::bail!(failed);
        }
        if driver.session().is_live() && begin.get_or_insert_with(Instant::now).elapsed() >= time {
            ran.ends.set(true);
        }
        if driver.session().is_live() && driver.session().coordinator().is_idle() {
            break;
        }
    }
    let failovers = layout.nodes().filter(|&node| driver.links().last_failover(node).is_some()).count();
    let aborts = driver.session().coordinator().aborts();
    drop(driver);
    let ran = Rc::into_inner(ran).context("the tasks have ended")?;
    let seconds = begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64());
    Ok(Ran { aborts, failovers, seconds, ..ran })
}

/// Adds the tasks that run transactions one after the other.
fn spawn(store: &StoreArgs, driver: &mut Driver, ran: &Rc<Ran>) -> anyhow::Result<()> {
    let coordinator = driver.session().coordinator();
    for task in 0..TASKS {
        let (client, ran) = (coordinator.client(), Rc::clone(ran));
        match store.workload {
            Workload::Tpcc => {
                let mut terminal = Terminal::numbered(store.scale()?, SEED, task.into(), 0);
                coordinator.spawn(async move {
                    while !ran.ends.get() {
                        let now = SystemTime::now().duration_since(UNIX_EPOCH);
                        for input in terminal.next(now.map_or(0, |since| since.as_micros() as u64)) {
                            run_one(&client, &input, &ran, |_| 0).await;
                        }
                    }
                });
            }
            Workload::Smallbank => {
                let prng = Prng::stream(SEED, &format!("smallbank task {task}"));
                let mut inputs = Inputs::new(store.accounts(), Hotspot::USUAL, prng);
                coordinator.spawn(async move {
                    while !ran.ends.get() {
                        run_one(&client, &inputs.next_input(), &ran, |output| output.change.into()).await;
                    }
                });
            }
        }
    }
    Ok(())
}

/// Runs a transaction. `change` returns by how much the output has changed the sum of all balances.
async fn run_one<P: Program>(client: &Client, input: &P, ran: &Ran, change: impl Fn(&P::Output) -> i128) {
    match client.run(async |tx| input.execute(tx).await).await {
        Ok(committed) => match committed.value {
            Ok(output) => {
                ran.committed.set(ran.committed.get() + 1);
                ran.change.set(ran.change.get() + change(&output));
            }
            Err(corrupt) => _ = ran.failed.replace(Some(corrupt.to_string())),
        },
        Err(NotCommitted::Aborted(Abort::RolledBack)) => ran.rolled_back.set(ran.rolled_back.get() + 1),
        Err(NotCommitted::Aborted(Abort::Full(_))) => {
            ran.is_full.set(true);
            ran.ends.set(true);
        }
        Err(why) => {
            ran.failed.borrow_mut().get_or_insert(why.to_string());
            ran.ends.set(true);
        }
    }
}

impl Ran {
    fn json(&self) -> Value {
        json!({
            "committed": self.committed.get(),
            "rolled_back": self.rolled_back.get(),
            "aborts": self.aborts,
            "seconds": self.seconds,
            "failovers": self.failovers,
            "is_full": self.is_full.get(),
        })
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let (committed, rolled_back, seconds) = (self.committed.get(), self.rolled_back.get(), self.seconds);
        writeln!(out, "{committed} transactions committed and {rolled_back} rolled back in {seconds:.1} s")?;
        for (reason, count) in &self.aborts {
            writeln!(out, "  attempts without an effect, {reason}: {count}")?;
        }
        if self.failovers > 0 {
            writeln!(out, "the coordinator moved to another rail at {} memory nodes", self.failovers)?;
        }
        if self.is_full.get() {
            writeln!(
                out,
                "a table had no place left, so the transactions ended early; give more --warehouses"
            )?;
        }
        Ok(())
    }
}
