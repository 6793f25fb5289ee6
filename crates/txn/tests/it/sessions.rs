//! Processes that run transactions by key, sleep, and die at any step. Other processes or their own
//! next lives take their lives over. No committed transaction is lost.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use mitra_prng::Prng;
use mitra_txn::{
    Access, Client, Command, Ending, Inspector, Layout, Life, Loader, NodeId, NotCommitted, Op, Outcome,
    RecordKey, Schema, Session, TableId, TableSchema, Ticket, Timing, Transaction as _,
};

use crate::cluster::{Cluster, DOUBT_PPM};
use crate::history::{self, Transaction};

const NODES: u16 = 3;
const PROCESSES: u16 = 3;
const TASKS: usize = 2;
const KEYS: u32 = 6;
const TIMING: Timing = Timing { interval: Duration::from_micros(200), timeout: Duration::from_micros(3000) };
/// The mean number of steps between two deaths, and between two naps, while transactions are left.
const DEATH: u32 = 4_000;
const NAP: u32 = 6_000;

fn key(number: u32) -> RecordKey {
    RecordKey { table: TableId(0), key: number.into() }
}

fn list_of(value: &[u8]) -> Vec<u32> {
    value.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn value_of(list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|number| number.to_le_bytes()).collect()
}

struct History {
    now: Cell<u64>,
    to_do: Cell<u32>,
    committed: RefCell<BTreeMap<u32, Transaction>>,
    /// The transactions that may have taken effect without their callers knowing it.
    unknown: RefCell<BTreeMap<u32, Transaction>>,
}

async fn run_transactions(client: Client, history: Rc<History>, mut prng: Prng) {
    while history.to_do.get() > 0 {
        let number = history.to_do.get();
        history.to_do.set(number - 1);
        let items: BTreeMap<u32, bool> =
            (0..prng.between(1, 3)).map(|_| (prng.below(KEYS.into()) as u32, prng.chance(500_000))).collect();
        let transaction = Rc::new(RefCell::new(Transaction {
            reads: BTreeMap::new(),
            appends: items.iter().filter(|(_, appends)| **appends).map(|(&item, _)| item).collect(),
            begun: history.now.get(),
            told: None,
        }));
        let locks_first = prng.chance(500_000);
        // The history keeps the last attempt, even if the life ends during this attempt.
        history.unknown.borrow_mut().insert(number, transaction.borrow().clone());
        let result = client
            .run(async |tx| {
                let access = |appends| if appends && locks_first { Access::Update } else { Access::Read };
                let wanted: Vec<_> =
                    items.iter().map(|(&item, &appends)| (key(item), access(appends))).collect();
                let values = tx.get_all(&wanted).await?;
                let mut reads = BTreeMap::new();
                for ((&item, &appends), value) in items.iter().zip(values) {
                    let mut list = value.as_deref().map(list_of).unwrap_or_default();
                    reads.insert(item, list.clone());
                    list.push(number);
                    match (appends, value) {
                        (false, _) => {}
                        (true, None) => tx.insert(key(item), value_of(&list)),
                        (true, Some(_)) => tx.put(key(item), value_of(&list)),
                    }
                }
                transaction.borrow_mut().reads = reads;
                history.unknown.borrow_mut().insert(number, transaction.borrow().clone());
                Ok(())
            })
            .await;
        match result {
            Ok(_) => {
                let mut transaction = transaction.borrow().clone();
                transaction.told = Some(history.now.get());
                history.committed.borrow_mut().insert(number, transaction);
                history.unknown.borrow_mut().remove(&number);
            }
            Err(NotCommitted::Unknown) => {}
            Err(NotCommitted::Aborted(_)) => _ = history.unknown.borrow_mut().remove(&number),
        }
    }
}

struct Process {
    session: Session,
    life: Life,
    wakes: u64,
    /// The outcomes that arrived while the process slept.
    inbox: Vec<(Ticket, Vec<Outcome>)>,
    fenced: BTreeSet<NodeId>,
}

/// A fence that some nodes have not confirmed yet.
struct Fence {
    by: usize,
    life: Life,
    nodes: Vec<NodeId>,
}

struct World {
    layout: Rc<Layout>,
    cluster: Cluster,
    prng: Prng,
    history: Rc<History>,
    /// All processes; an ended process is `None`.
    processes: Vec<Option<Process>>,
    lives: Vec<Life>,
    /// The step in which a coordinator starts again.
    starts: BTreeMap<u16, u64>,
    highest: BTreeMap<u16, u16>,
    /// The process and ticket of each batch in flight, by the number of its client in the cluster.
    posted: BTreeMap<usize, (usize, Ticket)>,
    next_post: usize,
    fences: Vec<Fence>,
    /// Whether the processes die and sleep.
    is_wild: bool,
    recovered: u32,
}

impl World {
    fn start(&mut self, coordinator: u16) {
        let incarnation = self.highest.entry(coordinator).or_default();
        *incarnation += 1;
        let life = Life { coordinator, incarnation: *incarnation };
        let mut session = Session::new(Rc::clone(&self.layout), life, TIMING, &[]);
        for _ in 0..TASKS {
            let prng = Prng::stream(self.prng.below(u64::MAX), "task");
            let client = session.coordinator().client();
            session.coordinator().spawn(run_transactions(client, Rc::clone(&self.history), prng));
        }
        let (inbox, fenced) = (Vec::new(), BTreeSet::new());
        self.lives.push(life);
        self.processes.push(Some(Process { session, life, wakes: 0, inbox, fenced }));
    }

    fn end(&mut self, number: usize) {
        let Some(process) = self.processes[number].take() else { return };
        self.starts.insert(process.life.coordinator, self.history.now.get() + self.prng.below(6_000));
    }

    fn post(&mut self, number: usize, ticket: Ticket, requests: Vec<mitra_txn::Request>) {
        let process = self.processes[number].as_ref().expect("a process that runs");
        process.fenced.iter().for_each(|&node| self.cluster.refuse(self.next_post, node));
        self.cluster.post(self.next_post, requests);
        self.posted.insert(self.next_post, (number, ticket));
        self.next_post += 1;
    }

    fn poll(&mut self, number: usize) {
        let now = self.history.now.get();
        let Some(process) = &mut self.processes[number] else { return };
        if process.wakes > now {
            return;
        }
        for (ticket, outcomes) in process.inbox.drain(..) {
            process.session.on_outcomes(ticket, &outcomes);
        }
        if !process.fenced.is_empty() && self.prng.chance(100_000) {
            process.session.end(Ending::Disconnected);
        }
        let commands = process.session.poll(Duration::from_micros(now));
        self.recovered += process.session.take_recovered().len() as u32;
        if process.session.ending().is_some() {
            return self.end(number);
        }
        for command in commands {
            match command {
                Command::Post(ticket, requests) => self.post(number, ticket, requests),
                Command::Fence(life) => {
                    self.fences.push(Fence { by: number, life, nodes: self.layout.nodes().collect() });
                }
            }
        }
    }

    /// One node confirms a fence.
    fn fence(&mut self) {
        if self.fences.is_empty() {
            return;
        }
        let index = self.prng.index(self.fences.len());
        let Fence { by, life, nodes } = &mut self.fences[index];
        let node = nodes.swap_remove(self.prng.index(nodes.len()));
        let highest = self.highest.entry(life.coordinator).or_default();
        *highest = life.incarnation.max(*highest);
        let is_fenced =
            |other: &Life| other.coordinator == life.coordinator && other.incarnation <= life.incarnation;
        for process in self.processes.iter_mut().flatten().filter(|process| is_fenced(&process.life)) {
            process.fenced.insert(node);
        }
        // The requests of a dead process are also executed until a fence.
        let posts = self.posted.iter().filter(|(_, (owner, _))| is_fenced(&self.lives[*owner]));
        posts.for_each(|(&post, _)| self.cluster.fence_at(post, node));
        if nodes.is_empty() {
            let (by, life) = (*by, *life);
            self.fences.swap_remove(index);
            if let Some(process) = &mut self.processes[by] {
                process.session.on_fenced(life);
            }
        }
    }

    fn is_over(&mut self) -> bool {
        self.history.to_do.get() == 0
            && self.starts.is_empty()
            && self.fences.is_empty()
            && self
                .processes
                .iter_mut()
                .flatten()
                .all(|process| process.session.is_live() && process.session.coordinator().is_idle())
    }

    fn run(&mut self) {
        while !self.is_over() {
            let now = self.history.now.get() + 1;
            self.history.now.set(now);
            assert!(now < 2_000_000, "no end");
            self.is_wild &= self.history.to_do.get() > 0;
            let due: Vec<u16> = self.starts.iter().filter(|(_, at)| **at <= now).map(|(&c, _)| c).collect();
            for coordinator in due {
                self.starts.remove(&coordinator);
                self.start(coordinator);
            }
            let running: Vec<usize> =
                (0..self.processes.len()).filter(|&number| self.processes[number].is_some()).collect();
            running.iter().for_each(|&number| self.poll(number));
            if self.is_wild && !running.is_empty() {
                let number = *self.prng.pick(&running);
                if self.prng.chance(1_000_000 / DEATH) {
                    self.end(number);
                } else if self.prng.chance(1_000_000 / NAP)
                    && let Some(process) = &mut self.processes[number]
                {
                    process.wakes = now + self.prng.below(12_000);
                }
            }
            if self.prng.chance(20_000) {
                self.fence();
            }
            if self.cluster.is_idle() {
                continue;
            }
            let Some((post, outcomes)) = self.cluster.step() else { continue };
            let Some((number, ticket)) = self.posted.remove(&post) else { continue };
            if let Some(process) = &mut self.processes[number] {
                process.inbox.push((ticket, outcomes));
            }
        }
    }

    /// Returns the lists, if the memory is clean.
    fn lists(&self) -> Result<BTreeMap<u32, Vec<u32>>, String> {
        let mut inspector = Inspector::new(Rc::clone(&self.layout));
        for (&coordinator, &highest) in &self.highest {
            inspector.set_recovered(Life { coordinator, incarnation: highest - 1 });
        }
        let mut lists: BTreeMap<u32, Vec<u32>> = (0..KEYS).map(|key| (key, Vec::new())).collect();
        while let Some(requests) = inspector.requests() {
            let read = |request: &mitra_txn::Request| {
                let Op::Read(bytes) = request.op else { panic!("an inspection only reads") };
                Outcome::Executed(
                    self.cluster.memory(request.node)[request.at as usize..][..bytes as usize].to_vec(),
                )
            };
            let outcomes: Vec<_> = requests.iter().map(read).collect();
            inspector.on_outcomes(&outcomes, |at, value| _ = lists.insert(at.key as u32, list_of(value)));
        }
        let inspection = inspector.into_inspection();
        if inspection.is_clean() { Ok(lists) } else { Err(inspection.to_string()) }
    }
}

/// Runs a world. Returns the number of committed transactions and the number of recovered lives.
fn run(seed: u64) -> Result<(usize, u32), String> {
    let table = TableSchema { max_value_bytes: 800, partitions: 2, records: 8, group_bits: 0 };
    let schema = Schema {
        tables: vec![table],
        nodes: NODES,
        backups: 1,
        coordinators: PROCESSES,
        slots: TASKS as u16 + 1,
        slot_bytes: 4096,
    };
    let layout = Rc::new(Layout::new(schema, |at| at.key as u32).unwrap());
    let doubt_ppm = if seed.is_multiple_of(2) { DOUBT_PPM } else { 0 };
    let mut cluster =
        Cluster::new(NODES.into(), layout.bytes() as usize, Prng::stream(seed, "cluster"), doubt_ppm);
    cluster.load(Loader::new(&layout).finish(NonZeroU64::MIN).unwrap());
    let history = Rc::new(History {
        now: Cell::new(0),
        to_do: Cell::new(120),
        committed: RefCell::default(),
        unknown: RefCell::default(),
    });
    let mut world = World {
        layout,
        cluster,
        prng: Prng::stream(seed, "world"),
        history,
        processes: Vec::new(),
        lives: Vec::new(),
        starts: (1..=PROCESSES).map(|coordinator| (coordinator, 0)).collect(),
        highest: BTreeMap::new(),
        posted: BTreeMap::new(),
        next_post: 0,
        fences: Vec::new(),
        is_wild: true,
        recovered: 0,
    };
    world.run();
    let lists = world.lists()?;
    let committed = world.history.committed.borrow();
    let mut transactions = committed.clone();
    for (number, transaction) in world.history.unknown.borrow().iter() {
        if lists.values().any(|list| list.contains(number)) {
            transactions.insert(*number, transaction.clone());
        }
    }
    history::check(&transactions, &lists)?;
    Ok((committed.len(), world.recovered))
}

#[test]
fn processes_that_die_and_sleep_lose_and_repeat_nothing() {
    let (mut committed, mut recovered) = (0, 0);
    for seed in 0..30 {
        let (some, lives) = run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        (committed, recovered) = (committed + some, recovered + lives);
    }
    assert!(committed > 30 * 60 && recovered > 30, "{committed} committed, {recovered} lives recovered");
}
