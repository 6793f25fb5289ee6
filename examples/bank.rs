//! Two coordinators move money between accounts, which are in the memory of three nodes. Meanwhile
//! a node's rail fails and heals, and a coordinator ends in the middle of its transactions, without
//! a message. The other coordinator takes over, and no money is lost or made.
//!
//! Run with `cargo run --example bank`.

use std::cell::Cell;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use mitra::failover::Domain;
use mitra::softnic::{SoftNic, fault::Failure};
use mitra::txn::{
    Abort, Access, Client, Layout, NodeId, RecordKey, Schema, TableId, TableSchema, Timing, Transaction,
};
use mitra::txn_rdma::{Driver, Links, LinksConfig, MemoryNode, NodeConfig, QpKind, Token};
use mitra::verbs::Provider;

const ACCOUNTS: u64 = 100;
const FIRST_BALANCE: u64 = 1000;
/// The transfers that a coordinator has under way at once.
const TASKS: u64 = 8;
/// The tokens of coordinators 1 and 2.
const TOKENS: [Token; 2] = [*b"first token (1)!", *b"second token(2)!"];
/// A coordinator is taken over after a second without a heartbeat. A second is longer than the
/// failover of a rail.
const TIMING: Timing = Timing { interval: Duration::from_millis(5), timeout: Duration::from_secs(1) };

type Failed = Box<dyn Error + Send + Sync>;

/// The state that the threads of the two coordinators share.
#[derive(Default)]
struct Shared {
    /// The committed transfers of each coordinator.
    transfers: [AtomicU64; 2],
    accounts_exist: AtomicBool,
    crash: AtomicBool,
    nodes_end: AtomicBool,
}

/// A table of accounts, in three partitions, with a backup of each. All processes must compute the
/// same layout.
fn layout() -> Result<Rc<Layout>, Failed> {
    let accounts = TableSchema { max_value_bytes: 8, partitions: 3, records: ACCOUNTS as u32, group_bits: 0 };
    let slots = 2 * TASKS as u16; // a transaction may still be written to the backups when the next one begins
    let schema =
        Schema { tables: vec![accounts], nodes: 3, backups: 1, coordinators: 2, slots, slot_bytes: 32 << 10 };
    Ok(Rc::new(Layout::new(schema, |account| account.key as u32)?))
}

/// Opens two software NICs, the local ends of two rails.
fn open() -> Result<(Arc<Domain>, Arc<SoftNic>), Failed> {
    let open = || SoftNic::open(mitra::softnic::Config::loopback());
    let rails = [open()?, open()?];
    let first = Arc::clone(&rails[0]);
    let domain =
        Domain::with_completion_channels(rails.into_iter().map(|nic| nic as Arc<dyn Provider>).collect())?;
    Ok((domain, first))
}

fn memory_node(number: u16) -> Result<(MemoryNode, Arc<SoftNic>), Failed> {
    let ((domain, rail0), layout) = (open()?, layout()?);
    let config = NodeConfig {
        node: NodeId(number),
        bytes: layout.bytes() as usize,
        fingerprint: layout.fingerprint(),
        tokens: TOKENS.to_vec(),
        kind: QpKind::Virtual,
        failover: mitra::failover::Config::default(),
    };
    Ok((MemoryNode::new(domain, TcpListener::bind("127.0.0.1:0")?, config)?, rail0))
}

fn config(coordinator: u16, nodes: &[SocketAddr]) -> Result<LinksConfig, Failed> {
    Ok(LinksConfig {
        coordinator,
        token: TOKENS[usize::from(coordinator) - 1],
        fingerprint: layout()?.fingerprint(),
        nodes: nodes.to_vec(),
        dead: Vec::new(),
        repeatable: Vec::new(),
        kind: QpKind::Virtual,
        failover: mitra::failover::Config::default(),
        staging_bytes: 1 << 16,
        timeout: Duration::from_secs(10),
    })
}

fn connect(coordinator: u16, nodes: &[SocketAddr]) -> Result<Driver, Failed> {
    Ok(Driver::connect(&open()?.0, &layout()?, config(coordinator, nodes)?, TIMING)?)
}

/// Loads a store without records: each node only gets the store's number. By this number,
/// coordinators notice that a node has lost its memory.
fn load(nodes: &[SocketAddr]) -> Result<(), Failed> {
    let mut links = Links::connect(&open()?.0, &config(1, nodes)?)?;
    let number = NonZeroU64::MIN | RandomState::new().hash_one("store"); // at random
    Ok(mitra::txn_rdma::load(&mut links, &*layout()?, number, None::<Vec<_>>, |_, _| ())?)
}

fn account(key: u64) -> RecordKey {
    RecordKey { table: TableId(0), key }
}

async fn open_accounts(tx: &mut impl Transaction) -> Result<(), Abort> {
    (0..ACCOUNTS).for_each(|key| tx.insert(account(key), FIRST_BALANCE.to_le_bytes().to_vec()));
    Ok(())
}

/// Reads the balances of accounts, in one round trip.
async fn balances(tx: &mut impl Transaction, keys: &[u64], access: Access) -> Result<Vec<u64>, Abort> {
    let items: Vec<_> = keys.iter().map(|&key| (account(key), access)).collect();
    let values = tx.get_all(&items).await?;
    let balance = |(value, at): (Option<Vec<u8>>, _)| {
        value.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?))).ok_or(Abort::Missing(at))
    };
    values.into_iter().zip(items.iter().map(|(at, _)| *at)).map(balance).collect()
}

async fn transfer(tx: &mut impl Transaction, from: u64, to: u64, amount: u64) -> Result<(), Abort> {
    let found = balances(tx, &[from, to], Access::Update).await?;
    let rest = found[0].checked_sub(amount).ok_or(Abort::RolledBack)?;
    tx.put(account(from), rest.to_le_bytes().to_vec());
    tx.put(account(to), (found[1] + amount).to_le_bytes().to_vec());
    Ok(())
}

/// Makes transfers between random accounts, one after the other, until `ends`.
async fn make_transfers(client: Client, mut random: u64, transfers: impl Fn(), ends: Rc<Cell<bool>>) {
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    while !ends.get() {
        let (from, distance, amount) = (next(ACCOUNTS), 1 + next(ACCOUNTS - 1), 1 + next(FIRST_BALANCE));
        let done =
            client.run(async |tx| transfer(tx, from, (from + distance) % ACCOUNTS, amount).await).await;
        done.is_ok().then(&transfers); // an account with less than the amount rolls its transfer back
    }
}

/// The observations of coordinator 2.
struct End {
    aborted: u64,
    failover: String,
    recovered: String,
    sum: u64,
}

/// Runs a transaction, and drives the coordinator until it has committed.
fn run<T: 'static>(
    driver: &mut Driver,
    program: impl AsyncFn(&mut mitra::txn::RemoteTransaction) -> Result<T, Abort> + 'static,
) -> Result<T, Failed> {
    let result = Rc::new(Cell::new(None));
    let (client, told) = (driver.session().coordinator().client(), Rc::clone(&result));
    driver.session().coordinator().spawn(async move { told.set(Some(client.run(program).await)) });
    loop {
        if let Some(ending) = driver.poll() {
            return Err(ending.into());
        }
        if let Some(result) = result.take() {
            return Ok(result?.value);
        }
    }
}

/// Adds the tasks that make transfers. The tasks end after the returned cell is set.
fn spawn_transfers(driver: &mut Driver, coordinator: usize, shared: &Arc<Shared>) -> Rc<Cell<bool>> {
    let ends = Rc::new(Cell::new(false));
    let running = driver.session().coordinator();
    for task in 0..TASKS {
        let shared = Arc::clone(shared);
        let count = move || _ = shared.transfers[coordinator - 1].fetch_add(1, Relaxed);
        let seed = coordinator as u64 * TASKS + task;
        running.spawn(make_transfers(running.client(), seed, count, Rc::clone(&ends)));
    }
    ends
}

/// Coordinator 1: opens the accounts, and makes transfers until it crashes.
fn first(nodes: &[SocketAddr], shared: &Arc<Shared>) -> Result<u64, Failed> {
    load(nodes)?;
    let mut driver = connect(1, nodes)?;
    run(&mut driver, async |tx| open_accounts(tx).await)?;
    shared.accounts_exist.store(true, Relaxed);
    spawn_transfers(&mut driver, 1, shared);
    while !shared.crash.load(Relaxed) {
        if let Some(ending) = driver.poll() {
            return Err(ending.into());
        }
    }
    let aborted = driver.session().coordinator().aborts().values().sum();
    Ok(aborted) // transfers are under way: their locks are held, and their log entries may be complete
}

/// Coordinator 2: makes transfers, takes over from coordinator 1, and adds all balances up.
fn second(nodes: &[SocketAddr], shared: &Arc<Shared>) -> Result<End, Failed> {
    let mut driver = connect(2, nodes)?;
    let ends = spawn_transfers(&mut driver, 2, shared);
    let mut recovered = Vec::new();
    while recovered.is_empty() || shared.transfers[1].load(Relaxed) < 1200 {
        if let Some(ending) = driver.poll() {
            return Err(ending.into());
        }
        recovered.extend(driver.session().take_recovered());
    }
    ends.set(true);
    let all: Vec<u64> = (0..ACCOUNTS).collect();
    let found = run(&mut driver, async move |tx| balances(tx, &all, Access::Read).await)?;
    let failover = driver.links().last_failover(NodeId(0)).ok_or("no failover happened")?;
    Ok(End {
        aborted: driver.session().coordinator().aborts().values().sum(),
        failover: format!(
            "moved from rail {} to rail {} with {} requests in flight: {} had been executed, {} were sent again",
            failover.from,
            failover.to,
            failover.stats.in_flight,
            failover.stats.executed,
            failover.stats.replayed
        ),
        recovered: format!(
            "incarnation {} of coordinator {}",
            recovered[0].incarnation, recovered[0].coordinator
        ),
        sum: found.iter().sum(),
    })
}

/// Waits until `is_reached`, or until a coordinator has failed.
fn wait<T>(coordinator: &ScopedJoinHandle<'_, T>, is_reached: impl Fn() -> bool) {
    while !is_reached() && !coordinator.is_finished() {
        thread::sleep(Duration::from_millis(1));
    }
}

fn run_bank() -> Result<(), Failed> {
    let nodes = (0..3).map(memory_node).collect::<Result<Vec<_>, _>>()?;
    let addresses: Vec<_> = nodes.iter().map(|(node, _)| node.address()).collect();
    let rail0_of_node_0 = Arc::clone(&nodes[0].1);
    let shared = &Arc::new(Shared::default());
    let (aborted, end) = thread::scope(|scope| {
        for (mut node, _) in nodes {
            scope.spawn(move || {
                while !shared.nodes_end.load(Relaxed) {
                    node.serve_for(Duration::from_millis(5));
                }
            });
        }
        let first = scope.spawn(|| first(&addresses, shared));
        wait(&first, || shared.accounts_exist.load(Relaxed));
        let second = scope.spawn(|| second(&addresses, shared));
        let transfers = |count| wait(&second, move || shared.transfers[1].load(Relaxed) >= count);
        transfers(300);
        rail0_of_node_0.faults().fail(Failure::LinkDown);
        transfers(600);
        shared.crash.store(true, Relaxed);
        let aborted = first.join();
        transfers(900);
        rail0_of_node_0.faults().heal();
        let end = second.join();
        shared.nodes_end.store(true, Relaxed);
        (aborted, end)
    });
    let aborted = aborted.map_err(|_| "coordinator 1 panicked")??;
    let end = end.map_err(|_| "coordinator 2 panicked")??;
    let [by_first, by_second] = [0, 1].map(|index: usize| shared.transfers[index].load(Relaxed));
    println!(
        "coordinator 1 committed {by_first} transfers and ended, coordinator 2 {by_second}; {} attempts had no effect",
        aborted + end.aborted
    );
    println!("rail 0 of memory node 0 failed: coordinator 2 {}", end.failover);
    println!("coordinator 2 has recovered {}", end.recovered);
    println!("the sum of {ACCOUNTS} balances was {}, and is {}", ACCOUNTS * FIRST_BALANCE, end.sum);
    if end.sum == ACCOUNTS * FIRST_BALANCE { Ok(()) } else { Err("money was lost or made".into()) }
}

/// Runs the example.
pub fn main() -> Result<(), Box<dyn Error>> {
    run_bank().map_err(|error| -> Box<dyn Error> { error })
}
