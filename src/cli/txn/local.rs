//! `mitra txn local`: a store on this machine, from its load to its check.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stderr};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::Range;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use mitra_prng::Prng;
use mitra_txn::{
    Abort, Access, Client, Layout, NotCommitted, RecordKey, StoreError, StoreState, Transaction as _,
};
use mitra_txn_rdma::{Driver, Links, StateError, store_state};
use mitra_txn_workloads::Program;
use mitra_txn_workloads::smallbank::{self, Hotspot, Inputs};
use mitra_txn_workloads::tpcc::{Load, Terminal};
use serde_json::{Value, json};

use super::check::Found;
use super::memory;
use super::signals::EndSignals;
use super::store::{StoreArgs, TASKS, TIMING, Workload, connect};
use crate::cli::cluster::ClusterArgs;
use crate::cli::{complain, write_json};

/// The coordinator that loads the store and runs the transactions.
const COORDINATOR: u16 = 1;
const SEED: u64 = 1;
/// The number of accounts whose balances are read in one transaction.
const ACCOUNTS_PER_READ: u64 = 50;

/// Load a store, run transactions, and check it: memory nodes and a coordinator on this machine
///
/// The memory nodes are processes of their own and end with this one. With --nodes, those are used
/// instead, and stay. Standard error shows the progress of the loading, if it is a terminal, and
/// when transactions begin. --fault makes rails of the coordinator fail.
///
/// If the memory nodes of --nodes already have a store, nothing is loaded, and transactions run on
/// it. If the program that ran there was killed, its transactions are completed or undone first:
/// one whose log entry is complete takes effect, and no other one does. A program that still runs
/// is not disturbed, and this one ends. One that has paused for a second counts as killed: the
/// memory nodes take its rights away, and when it goes on, it ends with an error. A store whose
/// loading was interrupted cannot be used.
///
/// SIGINT (Ctrl-C) and SIGTERM end the transactions early, as --seconds does, with the report and
/// the check. A second signal ends the program at once, and so does the first one while the store
/// is loaded.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  mitra txn local --workload smallbank --fault 'rail0 down at 1s'
--json: `is_opened` (the memory nodes had a store, so nothing was loaded), `committed`, `rolled_back` (by the program,
as the workload asks for), `aborts` (attempts without an effect, by reason), `seconds`, `failovers` (memory nodes to which
the coordinator moved to another rail), `is_full` (a table had no place left, so the transactions ended early), `total`
(smallbank: the sum of all balances `before`, `expected` and `found`), `check` (as of `mitra txn check`).
Exit codes: 0 success, also after a signal, 1 something is wrong with the store, or the coordinator has lost it, 2 bad
arguments or input, or another program runs on the store, 130 and 143 a signal (SIGINT, SIGTERM) has ended it at once.")]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Use these memory nodes, from memory node 0
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
    let signals = EndSignals::handle()?;
    let store = &args.store;
    let layout = store.layout()?;
    // The processes end when they are dropped.
    let (_memories, nodes) = match args.nodes.as_slice() {
        [] => memory::start_all(store, &args.cluster.for_own_peer())?,
        nodes => (Vec::new(), nodes.to_vec()),
    };
    let config = store.links(COORDINATOR, &nodes, &args.cluster)?;
    let (domain, _faults) = args.cluster.open()?;
    let mut links = connect(|| Links::connect(&domain, &config))?;
    let loaded = match state(&mut links, &layout)? {
        Ok(StoreState::Empty) => Some(load(store, &layout, &mut links)?),
        Ok(StoreState::Loaded) => None,
        Ok(StoreState::Loading(node)) => {
            complain(format_args!(
                "memory node {}: the loading of the store has begun and not ended: another program loads it, or was ended meanwhile; if none does, start new memory nodes, with `mitra txn memory`",
                node.0
            ));
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Ok(cannot_be_used(&error.into())),
    };
    drop(links);
    signals.defer();
    let driver = connect(|| Driver::connect_if_silent(&domain, &layout, config.clone(), TIMING))?;
    let ran = match transactions(args, &layout, driver, loaded, &signals) {
        Ok(ran) => ran,
        Err(error) => return Ok(cannot_be_used(&error)),
    };
    let total = ran.total.map(|total| total + ran.change.get());
    let checker = store.links(store.checker(), &nodes, &args.cluster)?;
    let mut links = connect(|| Links::connect(&domain, &checker))?;
    let found = Found::read(store, &mut links, &layout)?;
    let found_total = total.and_then(|_| smallbank::total(&found.records).ok());
    let mut out = std::io::stdout().lock();
    if args.json {
        let mut object = ran.json();
        if let Some(expected) = total {
            let (before, found) = (ran.total.map(|sum| sum as i64), found_total.map(|sum| sum as i64));
            object["total"] = json!({"before": before, "expected": expected as i64, "found": found});
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

fn cannot_be_used(error: &anyhow::Error) -> ExitCode {
    complain(format_args!("the store cannot be used: {error:#}"));
    ExitCode::FAILURE
}

/// Returns the state of the store on the memory nodes, or why they do not have one store.
fn state(links: &mut Links, layout: &Layout) -> anyhow::Result<Result<StoreState, StoreError>> {
    match store_state(links, layout) {
        Ok(state) => Ok(Ok(state)),
        Err(StateError::Store(error)) => Ok(Err(error)),
        Err(StateError::Lost(lost)) => Err(lost.into()),
    }
}

/// Loads a store. Returns the sum of all balances of smallbank.
fn load(store: &StoreArgs, layout: &Layout, links: &mut Links) -> anyhow::Result<Option<i128>> {
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
    let target =
        if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(parts.len() as u64), target);
    let style = ProgressStyle::with_template("  loading {bar:40} {pos}/{len} parts {elapsed} {msg}");
    bar.set_style(style.context("the template is valid")?.progress_chars("━╸·"));
    let number = NonZeroU64::MIN | getrandom::u64()?;
    mitra_txn_rdma::load(links, layout, number, parts, |written, bytes| {
        bar.set_position(written as u64);
        bar.set_message(HumanBytes(bytes).to_string());
    })?;
    bar.finish_and_clear();
    Ok(total)
}

/// The counts and errors of the transactions.
#[derive(Default)]
struct Ran {
    /// Whether the memory nodes had a store.
    is_opened: bool,
    ends: Cell<bool>,
    committed: Cell<u64>,
    rolled_back: Cell<u64>,
    is_full: Cell<bool>,
    /// The change of the sum of all balances, for smallbank.
    change: Cell<i128>,
    /// The sum before the transactions, for smallbank.
    total: Option<i128>,
    /// The reason why the store is no longer usable.
    failed: RefCell<Option<String>>,
    aborts: BTreeMap<&'static str, u64>,
    failovers: usize,
    seconds: f64,
}

/// Begins the life, which recovers the earlier one. Then runs transactions for a time or until a
/// signal, and waits for the transactions under way. `loaded` has the sum of all balances of
/// smallbank if this process has loaded the store.
fn transactions(
    args: &Args,
    layout: &Layout,
    mut driver: Driver,
    loaded: Option<Option<i128>>,
    signals: &EndSignals,
) -> anyhow::Result<Ran> {
    let ran = Rc::new(Ran { is_opened: loaded.is_none(), ..Ran::default() });
    drive(&mut driver, &ran, |_| true)?;
    let total = match (loaded, args.store.workload) {
        (Some(total), _) => total,
        (None, Workload::Tpcc) => None,
        (None, Workload::Smallbank) => Some(total(&args.store, &mut driver, &ran)?),
    };
    spawn(&args.store, &mut driver, &ran)?;
    let is_opened = if ran.is_opened { "opened" } else { "loaded" };
    complain(format_args!("the store is {is_opened}; transactions run"));
    let (begin, time) = (Instant::now(), Duration::from_secs(args.seconds));
    drive(&mut driver, &ran, |driver| {
        if begin.elapsed() >= time || signals.is_asked() {
            ran.ends.set(true);
        }
        driver.session().coordinator().is_idle()
    })?;
    let failovers = layout.nodes().filter(|&node| driver.links().last_failover(node).is_some()).count();
    let aborts = driver.session().coordinator().aborts();
    drop(driver);
    let ran = Rc::into_inner(ran).context("the tasks have ended")?;
    Ok(Ran { aborts, failovers, total, seconds: begin.elapsed().as_secs_f64(), ..ran })
}

/// Polls until the life has begun and `is_over` returns true.
fn drive(driver: &mut Driver, ran: &Ran, mut is_over: impl FnMut(&mut Driver) -> bool) -> anyhow::Result<()> {
    loop {
        if let Some(ending) = driver.poll() {
            return Err(match driver.links().lost() {
                Some(lost) => anyhow!("{ending}: {lost}"),
                None => ending.into(),
            });
        }
        if let Some(failed) = ran.failed.take() {
            anyhow::bail!(failed);
        }
        if driver.session().is_live() && is_over(driver) {
            return Ok(());
        }
    }
}

/// Reads the sum of all balances of smallbank, before other transactions run.
fn total(store: &StoreArgs, driver: &mut Driver, ran: &Rc<Ran>) -> anyhow::Result<i128> {
    let (accounts, client) = (store.accounts(), driver.session().coordinator().client());
    let (sum, failed) = (Rc::new(Cell::new(0)), Rc::clone(ran));
    let read = Rc::clone(&sum);
    driver.session().coordinator().spawn(async move {
        for first in (0..accounts).step_by(ACCOUNTS_PER_READ as usize) {
            match balances(&client, first..accounts.min(first + ACCOUNTS_PER_READ)).await {
                Ok(some) => read.set(read.get() + some),
                Err(why) => {
                    failed.failed.replace(Some(why.to_string()));
                    return;
                }
            }
        }
    });
    drive(driver, ran, |driver| driver.session().coordinator().is_idle())?;
    Ok(sum.get())
}

/// Reads the sum of the balances of some accounts.
async fn balances(client: &Client, accounts: Range<u64>) -> anyhow::Result<i128> {
    let tables = [smallbank::SAVINGS, smallbank::CHECKING];
    let items: Vec<_> =
        accounts.flat_map(|key| tables.map(|table| (RecordKey { table, key }, Access::Read))).collect();
    let read = client.run(async |tx| tx.get_all(&items).await).await.map_err(|why| anyhow!("{why}"))?;
    let record = |((at, _), value): (&(RecordKey, Access), Option<Vec<u8>>)| {
        Ok((*at, value.with_context(|| format!("the store has no {at:?}"))?))
    };
    let records = items.iter().zip(read.value).map(record).collect::<anyhow::Result<_>>()?;
    smallbank::total(&records).map_err(|(at, damaged)| anyhow!("{at:?}: {damaged}"))
}

/// Adds the tasks that run transactions one after the other.
fn spawn(store: &StoreArgs, driver: &mut Driver, ran: &Rc<Ran>) -> anyhow::Result<()> {
    // Each life draws other inputs.
    let life = driver.links().life().incarnation;
    let coordinator = driver.session().coordinator();
    for task in 0..TASKS {
        let (client, ran) = (coordinator.client(), Rc::clone(ran));
        match store.workload {
            Workload::Tpcc => {
                let mut terminal = Terminal::numbered(store.scale()?, SEED, task.into(), life.into());
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
                let prng = Prng::stream(SEED, &format!("smallbank task {task} {life}"));
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
            "is_opened": self.is_opened,
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
        if self.is_opened {
            writeln!(out, "the memory nodes had a store, so nothing was loaded")?;
        }
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
