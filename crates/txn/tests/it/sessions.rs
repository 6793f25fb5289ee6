//! Processes that run transactions by key, sleep, and die at any step. Other processes or their own
//! next lives take their lives over. No committed transaction is lost, even if all processes stop
//! at once and a single one starts on what they have left.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use mitra_prng::Prng;
use mitra_txn::{
    Access, Client, Command, Ending, Inspector, Layout, Life, LifeState, LifeWord, Loader, Location, NodeId,
    NotCommitted, Op, Outcome, RecordKey, Schema, Session, TableId, TableSchema, Ticket, Timing,
    Transaction as _, Verdict, Watch, Watched,
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
    /// The watch that precedes the start of the session, and whether its READ is in flight.
    watch: Option<(Watch, bool)>,
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
    /// Whether a process that has ended starts again.
    restarts: bool,
    recovered: u32,
    /// The lives whose start a watch has ended, because a process runs as the coordinator.
    refused: Vec<Life>,
}

/// The ticket of the READ of a watch.
const WATCH: Ticket = Ticket(u64::MAX);

impl World {
    /// Starts a process that takes over no life that runs.
    fn start_if_silent(&mut self, coordinator: u16) -> usize {
        self.start(coordinator);
        let number = self.processes.len() - 1;
        let at = self.layout.life_line(coordinator);
        let line = self.layout.nodes().map(|node| Location { node, at }).collect();
        let watch = Watch::new(coordinator, line, TIMING.timeout);
        self.processes[number].as_mut().expect("it has just started").watch = Some((watch, false));
        number
    }

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
        self.processes.push(Some(Process { session, life, watch: None, wakes: 0, inbox, fenced }));
    }

    fn end(&mut self, number: usize) {
        let Some(process) = self.processes[number].take() else { return };
        if self.restarts {
            self.starts.insert(process.life.coordinator, self.history.now.get() + self.prng.below(6_000));
        }
    }

    /// Continues the watch of a process. Returns whether the session may go on.
    fn watch(&mut self, number: usize) -> bool {
        let now = self.history.now.get();
        let Some(Process { watch: watching, inbox, session, fenced, .. }) = &mut self.processes[number]
        else {
            return false;
        };
        let Some((watch, is_posted)) = watching else { return true };
        // The READ of a process without rights has no outcome.
        if !fenced.is_empty() && self.prng.chance(100_000) {
            self.end(number);
            return false;
        }
        if let Some((_, outcomes)) = inbox.pop() {
            *is_posted = false;
            match watch.on_outcome(&outcomes[0], Duration::from_micros(now)) {
                Some(Watched::Silent(word)) => {
                    session.start_over(word);
                    *watching = None;
                    return true;
                }
                Some(Watched::Runs(_)) => {
                    self.refused.push(self.lives[number]);
                    self.end(number);
                    return false;
                }
                None => {}
            }
        }
        let is_due = now.is_multiple_of(TIMING.interval.as_micros() as u64);
        if is_due && !core::mem::replace(is_posted, *is_posted || is_due) {
            let request = watch.request().expect("the nodes live");
            self.post(number, WATCH, vec![request]);
        }
        false
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
        if process.wakes > now || !self.watch(number) {
            return;
        }
        let Some(process) = &mut self.processes[number] else { return };
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
        self.run_while(|world| !world.is_over());
    }

    fn run_while(&mut self, mut goes_on: impl FnMut(&mut World) -> bool) {
        while goes_on(self) {
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

    fn word(&self, coordinator: u16) -> LifeWord {
        let at = self.layout.life_line(coordinator) as usize;
        let word = self.cluster.memory(NodeId(0))[at..at + 8].try_into().expect("8 bytes");
        LifeWord::from_bits(u64::from_le_bytes(word))
    }

    /// Whether the latest life of a coordinator is recovered, or its process runs.
    fn is_recovered(&self, coordinator: u16) -> bool {
        let word = self.word(coordinator);
        let life = Life { coordinator, incarnation: word.incarnation() };
        let runs = |process: &Process| process.life == life && process.wakes <= self.history.now.get();
        match word.state() {
            LifeState::Recovered => true,
            LifeState::Live => self.processes.iter().flatten().any(runs),
            LifeState::Claimed(_) => false,
        }
    }

    /// Inspects the memory as `mitra txn check` does. Returns the lists, if the memory is clean.
    fn lists(&self) -> Result<BTreeMap<u32, Vec<u32>>, (Verdict, String)> {
        let mut inspector = Inspector::new(Rc::clone(&self.layout));
        for coordinator in 1..=PROCESSES {
            let word = self.word(coordinator);
            let incarnation = word.incarnation();
            if word.state() == LifeState::Recovered {
                inspector.set_recovered(Life { coordinator, incarnation });
            } else {
                inspector.set_recovered(Life { coordinator, incarnation: incarnation - 1 });
                inspector.set_unrecovered(Life { coordinator, incarnation });
            }
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
        match inspection.verdict() {
            Verdict::Clean => Ok(lists),
            verdict => Err((verdict, inspection.to_string())),
        }
    }

    /// Checks the memory and the history.
    fn check(&self) -> Result<(), String> {
        let lists = self.lists().map_err(|(_, text)| text)?;
        let mut transactions = self.history.committed.borrow().clone();
        for (number, transaction) in self.history.unknown.borrow().iter() {
            if lists.values().any(|list| list.contains(number)) {
                transactions.insert(*number, transaction.clone());
            }
        }
        history::check(&transactions, &lists)
    }
}

fn world(seed: u64) -> World {
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
    World {
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
        restarts: true,
        recovered: 0,
        refused: Vec::new(),
    }
}

/// Runs a world. Returns the number of committed transactions and the number of recovered lives.
fn run(seed: u64) -> Result<(usize, u32), String> {
    let mut world = world(seed);
    world.run();
    world.check()?;
    let committed = world.history.committed.borrow().len();
    Ok((committed, world.recovered))
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

/// What the worlds of `run_crash` have met.
#[derive(Default, Debug)]
struct Crashes {
    committed: usize,
    recovered: u32,
    /// The number of worlds with locks that were not recovered, directly after the end of all
    /// processes.
    unrecovered: u32,
    /// The number of processes that were stopped, and went on after the recovery.
    woken: u32,
}

/// All processes stop at a random step: they end, or pause until others have recovered their lives.
/// Then processes start, two at a time, and stop in the middle of the recovery, until the last two
/// are left alone. One of them runs the other transactions.
fn run_crash(seed: u64, all: &mut Crashes) -> Result<(), String> {
    let mut world = world(seed);
    world.is_wild = seed % 4 < 2;
    let stops_at = 300 + world.prng.below(6_000);
    world.run_while(|world| world.history.now.get() < stops_at);
    (world.is_wild, world.restarts) = (false, false);
    world.starts.clear();
    let mut paused = Vec::new();
    let mut stop = |world: &mut World, number: usize| {
        if world.prng.chance(300_000) {
            paused.push(number);
            world.processes[number].iter_mut().for_each(|process| process.wakes = u64::MAX);
        } else {
            world.end(number);
        }
    };
    (0..world.processes.len()).for_each(|number| stop(&mut world, number));
    // The nodes execute what was posted.
    world.run_while(|world| !world.cluster.is_idle());
    match world.lists() {
        Err((Verdict::Unrecovered, _)) => all.unrecovered += 1,
        Err((_, text)) => return Err(text),
        Ok(_) => {}
    }
    for is_last in [false, false, true] {
        let both = [(); 2].map(|()| world.start_if_silent(1));
        let ends_at = world.history.now.get() + 2_500 + world.prng.below(6_000);
        if !is_last {
            world.run_while(|world| world.history.now.get() < ends_at);
            both.into_iter().for_each(|number| stop(&mut world, number));
        }
    }
    world.run_while(|world| !(1..=PROCESSES).all(|coordinator| world.is_recovered(coordinator)));
    for number in paused {
        if let Some(process) = &mut world.processes[number] {
            process.wakes = 0;
            all.woken += 1;
        }
    }
    // A start beside a process that runs is refused.
    let started = world.start_if_silent(1);
    let life = world.lives[started];
    world.run_while(|world| world.processes[started].is_some());
    if !world.refused.contains(&life) {
        return Err(format!("{life:?} was not refused"));
    }
    world.run();
    world.check()?;
    all.committed += world.history.committed.borrow().len();
    all.recovered += world.recovered;
    Ok(())
}

#[test]
fn txn_crash_of_all_processes_loses_and_repeats_nothing() {
    let (seeds, mut all) = (40, Crashes::default());
    for seed in 0..u64::from(seeds) {
        run_crash(seed, &mut all).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let Crashes { committed, recovered, unrecovered, woken } = all;
    assert!(committed > seeds as usize * 80 && recovered > seeds * 3, "{all:?}");
    assert!(unrecovered > seeds / 2 && woken > seeds / 2, "{all:?}");
}
