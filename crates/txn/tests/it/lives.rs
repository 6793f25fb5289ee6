//! Coordinators that start, end, sleep and wake at any moment, also in two processes at once. They
//! detect ended lives and take them over, while they run transactions.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use mitra_prng::Prng;
use mitra_txn::{
    Detector, LIFE_LINE_BYTES, Life, LifeState, LifeWord, Location, LockWord, Log, NodeId, Outcome, Takeover,
    TakeoverStep,
};

use crate::cluster::{Cluster, DOUBT_PPM};
use crate::history::{self, Transaction};
use crate::workload::{self, COPIES, NODES, Next, Running, SLOT_BYTES, location, resolve, slot};

const COORDINATORS: u16 = 3;
const TRANSACTIONS: u32 = 150;
/// The step at which the faults end, and the times of the detectors and sleepers, in steps.
const CALM_AT: u64 = 15_000;
const INTERVAL: u64 = 200;
const TIMEOUT: u64 = 2_000;
const MAX_SLEEP: u64 = 6_000;
const SEEDS_FOR_MUTANTS: u64 = 2000;

/// The rule that a run breaks.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mutant {
    /// The log of a life is read although nothing has fenced the life.
    NotFenced,
    /// A claim is replaced although nothing has fenced its life.
    RecovererNotFenced,
    /// A life that seems to have ended is not fenced.
    SilenceTrusted,
    /// The nodes admit a life twice.
    AdmittedTwice,
}

#[derive(Clone, Copy, PartialEq)]
enum Activity {
    Takeover,
    Detector,
    Transaction,
}

/// The event that a takeover waits for.
enum Waiting {
    Outcomes,
    /// These nodes do not have the fence yet.
    Fence(Life, Vec<NodeId>),
    Claim(Life, u64),
}

struct Process {
    life: Life,
    /// The nodes that have not admitted the life yet.
    admitting: Vec<NodeId>,
    takeover: Option<(Takeover, Waiting)>,
    is_live: bool,
    detector: Detector,
    beats_at: Option<u64>,
    running: Option<Running>,
    is_freeing: bool,
    attempts: u32,
    asleep_until: u64,
    inbox: VecDeque<(Activity, Vec<Outcome>)>,
}

struct World {
    cluster: Cluster,
    prng: Prng,
    now: u64,
    next: u32,
    /// The highest incarnation that a node has admitted or fenced.
    highest: BTreeMap<(NodeId, u16), u16>,
    /// The life of every process. `processes` has only the processes that have not ended. A process
    /// that has ended may still have requests in queues.
    lives: Vec<Life>,
    processes: BTreeMap<usize, Process>,
    /// The lives that have begun, by process. `recoveries` are the running recoveries, each with
    /// its process.
    begun: BTreeMap<usize, Life>,
    recoveries: Vec<(usize, Life)>,
    takeovers: u32,
    to_do: u32,
    committed: BTreeMap<u32, Transaction>,
    open: BTreeMap<u32, Transaction>,
    dies_at: Option<u64>,
    mutant: Option<Mutant>,
}

fn client(process: usize, activity: Activity) -> usize {
    process * 3 + activity as usize
}

fn line(coordinator: u16) -> Vec<Location> {
    let bytes = u64::from(coordinator - 1) * u64::from(LIFE_LINE_BYTES);
    let at = workload::bytes(COORDINATORS.into()) as u64 + bytes;
    (0..NODES).map(|node| location(node, at)).collect()
}

fn log(coordinator: u16) -> Log {
    Log { slots: vec![slot(usize::from(coordinator) - 1)], slot_bytes: SLOT_BYTES, copies: COPIES }
}

impl World {
    fn live_nodes(&self) -> Vec<NodeId> {
        (0..NODES).map(NodeId).filter(|&node| !self.cluster.is_dead(node)).collect()
    }

    fn word(&self, coordinator: u16) -> LifeWord {
        let node = self.live_nodes()[0];
        let at = line(coordinator)[usize::from(node.0)].at as usize;
        LifeWord::from_bits(u64::from_le_bytes(self.cluster.memory(node)[at..at + 8].try_into().unwrap()))
    }

    fn is_recovered(&self, life: Life) -> bool {
        self.word(life.coordinator).is_recovered(life)
    }

    fn is_fenced(&self, process: usize) -> bool {
        let fenced = |&node: &NodeId| self.cluster.is_fenced(client(process, Activity::Takeover), node);
        self.live_nodes().iter().all(fenced)
    }

    fn spawn(&mut self, coordinator: u16) {
        let nodes = self.live_nodes();
        let highest = nodes.iter().map(|&node| self.highest.get(&(node, coordinator)).copied().unwrap_or(0));
        let life = Life::next(coordinator, highest.max().unwrap()).unwrap();
        let process = Process {
            life,
            admitting: (0..NODES).rev().map(NodeId).collect(),
            takeover: None,
            is_live: false,
            detector: Detector::new(life, line(1), COORDINATORS, Duration::from_micros(TIMEOUT)),
            beats_at: None,
            running: None,
            is_freeing: false,
            attempts: 0,
            asleep_until: 0,
            inbox: VecDeque::new(),
        };
        self.processes.insert(self.lives.len(), process);
        self.lives.push(life);
    }

    fn end(&mut self, id: usize) {
        let running = self.processes.remove(&id).and_then(|process| process.running);
        if let Some(running) = running {
            self.open.insert(running.number, running.transaction);
        }
    }

    /// Lets a process take one of its possible steps.
    fn turn(&mut self, id: usize) -> Result<(), String> {
        let process = self.processes.get_mut(&id).unwrap();
        let takeover = client(id, Activity::Takeover);
        let is_cut = (0..NODES)
            .map(NodeId)
            .any(|node| self.cluster.is_fenced(takeover, node) && !self.cluster.is_dead(node));
        if is_cut && self.prng.chance(50_000) {
            self.end(id);
            return Ok(());
        }
        if let Some(&node) = process.admitting.last() {
            return self.admit(id, node);
        }
        match self.prng.index(4) {
            0 => {
                let Some((activity, outcomes)) = process.inbox.pop_front() else { return Ok(()) };
                self.on_outcomes(id, activity, &outcomes)
            }
            1 => self.wait(id),
            2 if process.beats_at.is_some_and(|at| at <= self.now) => {
                process.beats_at = None;
                let requests = process.detector.requests();
                self.cluster.post(client(id, Activity::Detector), requests);
                Ok(())
            }
            3 if process.is_live && process.running.is_none() && !process.is_freeing && self.to_do > 0 => {
                self.to_do -= 1;
                self.next += 1;
                process.attempts += 1;
                let lock = LockWord::new(process.life, process.attempts);
                let (running, step) = Running::begin(&mut self.prng, lock, self.next, self.now);
                self.go_on(id, running, step);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn admit(&mut self, id: usize, node: NodeId) -> Result<(), String> {
        let process = self.processes.get_mut(&id).unwrap();
        process.admitting.pop();
        if !self.cluster.is_dead(node) {
            let life = process.life;
            let highest = self.highest.entry((node, life.coordinator)).or_default();
            if *highest >= life.incarnation && self.mutant != Some(Mutant::AdmittedTwice) {
                self.end(id);
                return Ok(());
            }
            *highest = life.incarnation;
        }
        if process.admitting.is_empty() {
            let Life { coordinator, .. } = process.life;
            let mut takeover = Takeover::start(process.life, line(coordinator), log(coordinator));
            process.beats_at = Some(self.now);
            let step = takeover.retry(resolve);
            return self.on_takeover(id, takeover, step);
        }
        Ok(())
    }

    /// Continues a takeover that does not wait for outcomes.
    fn wait(&mut self, id: usize) -> Result<(), String> {
        let process = self.processes.get_mut(&id).unwrap();
        let now = Duration::from_micros(self.now);
        let Some((takeover, waiting)) = &mut process.takeover else { return Ok(()) };
        let step = match waiting {
            Waiting::Outcomes => return Ok(()),
            Waiting::Claim(_, until) if *until > self.now => return Ok(()),
            Waiting::Claim(by, _) if process.detector.is_silent(*by, now) => takeover.replace(resolve),
            Waiting::Claim(..) => takeover.retry(resolve),
            Waiting::Fence(life, nodes) => {
                let life = *life;
                if let Some(node) = nodes.pop() {
                    let highest = self.highest.entry((node, life.coordinator)).or_default();
                    *highest = life.incarnation.max(*highest);
                    for (other, it) in self.lives.iter().enumerate() {
                        if it.coordinator == life.coordinator && it.incarnation <= life.incarnation {
                            for activity in [Activity::Takeover, Activity::Detector, Activity::Transaction] {
                                self.cluster.fence_at(client(other, activity), node);
                            }
                        }
                    }
                    return Ok(());
                }
                takeover.on_fenced(resolve)
            }
        };
        let (takeover, waiting) = process.takeover.take().unwrap();
        if let Waiting::Fence(of, _) = waiting
            && of == takeover.of()
        {
            self.check_recovery(id, of)?;
        }
        self.on_takeover(id, takeover, step)
    }

    /// Checks the invariants at the start of a recovery.
    fn check_recovery(&mut self, id: usize, of: Life) -> Result<(), String> {
        self.takeovers += 1;
        self.recoveries.push((id, of));
        // A process that was fenced while it slept may be wrong, because its requests have no
        // effect.
        if self.mutant.is_some() || self.is_fenced(id) {
            return Ok(());
        }
        for (&process, _) in self.begun.iter().filter(|(_, life)| **life == of) {
            if !self.is_fenced(process) {
                return Err(format!("{of:?} is recovered and not fenced"));
            }
        }
        for &(process, life) in &self.recoveries {
            if process != id && life == of && !self.is_fenced(process) {
                return Err(format!("{of:?} is recovered by {:?}, too", self.lives[process]));
            }
        }
        Ok(())
    }

    fn on_takeover(&mut self, id: usize, takeover: Takeover, step: TakeoverStep) -> Result<(), String> {
        let live_nodes = self.live_nodes();
        let process = self.processes.get_mut(&id).unwrap();
        let is_silent = |life| process.detector.is_silent(life, Duration::from_micros(self.now));
        let waiting = match step {
            TakeoverStep::Post(requests) => {
                // The recovery itself is over when the life word is changed again.
                if requests[0].at == line(takeover.of().coordinator)[0].at {
                    self.recoveries.retain(|&(process, _)| process != id);
                }
                self.cluster.post(client(id, Activity::Takeover), requests);
                if self.prng.chance(30_000) {
                    process.asleep_until = self.now + self.prng.below(MAX_SLEEP);
                }
                Waiting::Outcomes
            }
            TakeoverStep::Fence(life) => {
                let is_fenced = match self.mutant {
                    Some(Mutant::NotFenced) => takeover.of() != life,
                    Some(Mutant::RecovererNotFenced) => takeover.of() == life,
                    Some(Mutant::SilenceTrusted) => !is_silent(life),
                    _ => true,
                };
                let mut nodes = if is_fenced { live_nodes } else { Vec::new() };
                self.prng.shuffle(&mut nodes);
                Waiting::Fence(life, nodes)
            }
            TakeoverStep::ClaimedBy(life) => Waiting::Claim(life, self.now + INTERVAL),
            TakeoverStep::Live => {
                let life = process.life;
                process.is_live = true;
                let is_checked = self.mutant.is_none() && !self.is_fenced(id);
                for (&other, begun) in self.begun.iter().filter(|_| is_checked) {
                    let is_same = begun.coordinator == life.coordinator;
                    if is_same && (*begun >= life || !self.is_fenced(other)) {
                        return Err(format!("{begun:?} and {life:?} are live"));
                    }
                }
                self.begun.insert(id, life);
                return Ok(());
            }
            TakeoverStep::Recovered => return Ok(()),
            TakeoverStep::Lost if process.is_live => return Ok(()),
            TakeoverStep::Lost => {
                self.end(id);
                return Ok(());
            }
            end => return Err(format!("{end:?}")),
        };
        process.takeover = Some((takeover, waiting));
        Ok(())
    }

    fn on_outcomes(&mut self, id: usize, activity: Activity, outcomes: &[Outcome]) -> Result<(), String> {
        let process = self.processes.get_mut(&id).unwrap();
        match activity {
            Activity::Takeover => {
                let (mut takeover, _) = process.takeover.take().unwrap();
                let step = takeover.on_outcomes(outcomes, resolve);
                self.on_takeover(id, takeover, step)
            }
            Activity::Detector => {
                process.beats_at = Some(self.now + INTERVAL);
                let suspects = process.detector.on_outcomes(outcomes, Duration::from_micros(self.now));
                if process.detector.is_taken_over() && self.prng.chance(300_000) {
                    self.end(id);
                    return Ok(());
                }
                if let Some(&of) = suspects.first()
                    && process.is_live
                    && process.takeover.is_none()
                {
                    let mut takeover =
                        Takeover::new(of, process.life, line(of.coordinator), log(of.coordinator));
                    let step = takeover.retry(resolve);
                    return self.on_takeover(id, takeover, step);
                }
                Ok(())
            }
            Activity::Transaction => {
                process.is_freeing = false;
                if let Some(mut running) = process.running.take() {
                    let step = running.on_outcomes(outcomes);
                    self.go_on(id, running, step);
                }
                Ok(())
            }
        }
    }

    fn go_on(&mut self, id: usize, mut running: Running, step: mitra_txn::Step) {
        let process = self.processes.get_mut(&id).unwrap();
        match running.go_on(step, self.now, &mut self.committed) {
            Next::Post(requests) => {
                self.cluster.post(client(id, Activity::Transaction), requests);
                process.running = Some(running);
            }
            Next::Ended(Some((place, lock)))
                if lock.life().is_some_and(|life| {
                    let is_later = |last: Life| {
                        last.coordinator == life.coordinator && last.incarnation >= life.incarnation
                    };
                    process.detector.recovered().any(is_later)
                }) =>
            {
                self.cluster.post(client(id, Activity::Transaction), workload::free(place, lock));
                process.is_freeing = true;
            }
            Next::Ended(_) => {}
        }
    }

    /// Events outside the processes: processes start, end and sleep, and a node dies.
    fn fate(&mut self) {
        let coordinator = self.prng.between(1, COORDINATORS.into()) as u16;
        let of = self.processes.iter().filter(|(_, process)| process.life.coordinator == coordinator);
        let of: Vec<usize> = of.map(|(&id, _)| id).collect();
        match self.prng.index(4) {
            0 if of.is_empty() => {
                (0..self.prng.between(1, 2)).for_each(|_| self.spawn(coordinator));
            }
            1 if of.len() < 3 && self.prng.chance(100_000) => self.spawn(coordinator),
            2 if !of.is_empty() && self.prng.chance(100_000) => {
                let id = *self.prng.pick(&of);
                self.end(id);
            }
            3 if !of.is_empty() && self.prng.chance(200_000) => {
                let until = self.now + self.prng.below(MAX_SLEEP);
                self.processes.get_mut(self.prng.pick(&of)).unwrap().asleep_until = until;
            }
            _ => {}
        }
    }

    /// Whether every ended life is recovered, and no process has work.
    fn is_at_rest(&self) -> bool {
        let is_over = |coordinator| {
            let word = self.word(coordinator);
            let life = Life { coordinator, incarnation: word.incarnation() };
            match word.state() {
                LifeState::Recovered => true,
                LifeState::Live => {
                    self.processes.values().any(|process| process.life == life && process.is_live)
                }
                LifeState::Claimed(_) => false,
            }
        };
        let is_idle = |process: &Process| {
            process.is_live && process.takeover.is_none() && process.running.is_none() && !process.is_freeing
        };
        self.to_do == 0 && self.processes.values().all(is_idle) && (1..=COORDINATORS).all(is_over)
    }

    fn run(&mut self) -> Result<(), String> {
        while self.now < CALM_AT || !self.is_at_rest() {
            self.now += 1;
            if self.now > 20 * CALM_AT {
                return Err("no end".into());
            }
            if self.now < CALM_AT && self.prng.chance(10_000) {
                self.fate();
            }
            if self.now >= CALM_AT && self.processes.is_empty() {
                self.spawn(1);
            }
            if self.dies_at == Some(self.now) {
                let first = self.prng.chance(700_000);
                let node = if first { 0 } else { self.prng.below(u64::from(NODES)) as u16 };
                self.cluster.kill(NodeId(node));
            }
            if let Some((client, outcomes)) = self.cluster.step()
                && let Some(process) = self.processes.get_mut(&(client / 3))
            {
                let activity = [Activity::Takeover, Activity::Detector, Activity::Transaction][client % 3];
                process.inbox.push_back((activity, outcomes));
            }
            let is_awake = |process: &Process| self.now >= process.asleep_until || self.now >= CALM_AT;
            let awake: Vec<usize> =
                self.processes.iter().filter(|(_, it)| is_awake(it)).map(|(&id, _)| id).collect();
            for id in awake {
                self.turn(id)?;
            }
        }
        Ok(())
    }
}

#[derive(Default, Debug)]
struct Counts {
    committed: usize,
    takeovers: u32,
}

fn run(seed: u64, mutant: Option<Mutant>) -> Result<Counts, String> {
    let bytes = workload::bytes(COORDINATORS.into()) + usize::from(COORDINATORS) * LIFE_LINE_BYTES as usize;
    let doubt_ppm = if seed.is_multiple_of(2) { DOUBT_PPM } else { 0 };
    let mut world = World {
        cluster: Cluster::new(NODES.into(), bytes, Prng::stream(seed, "cluster"), doubt_ppm),
        prng: Prng::stream(seed, "world"),
        now: 0,
        next: 0,
        highest: BTreeMap::new(),
        lives: Vec::new(),
        processes: BTreeMap::new(),
        begun: BTreeMap::new(),
        recoveries: Vec::new(),
        takeovers: 0,
        to_do: TRANSACTIONS,
        committed: BTreeMap::new(),
        open: BTreeMap::new(),
        dies_at: seed.is_multiple_of(3).then_some(1 + seed * 977 % CALM_AT),
        mutant,
    };
    (1..=COORDINATORS).for_each(|coordinator| world.spawn(coordinator));
    world.run()?;
    let lists = workload::lists(&world.cluster, |life| world.is_recovered(life))?;
    let mut transactions = world.committed.clone();
    for (number, transaction) in &world.open {
        if lists.values().any(|list| list.contains(number)) {
            transactions.entry(*number).or_insert_with(|| transaction.clone());
        }
    }
    history::check(&transactions, &lists)?;
    Ok(Counts { committed: world.committed.len(), takeovers: world.takeovers })
}

#[test]
fn lives_are_taken_over_once_and_transactions_stay_serializable() {
    let mut all = Counts::default();
    for seed in 0..200 {
        let counts = run(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        all.committed += counts.committed;
        all.takeovers += counts.takeovers;
    }
    assert!(all.committed > 200 * 50 && all.takeovers > 200, "{all:?}");
}

#[test]
fn rules_that_are_not_kept_are_found() {
    use Mutant::{AdmittedTwice, NotFenced, RecovererNotFenced, SilenceTrusted};
    for mutant in [NotFenced, RecovererNotFenced, SilenceTrusted, AdmittedTwice] {
        // A mutant counts as found only if the history of transactions is wrong. So the invariants
        // are not checked for a mutant, and a run that does not end does not count.
        let is_found = |seed: &u64| run(*seed, Some(mutant)).is_err_and(|error| error != "no end");
        let found = (0..SEEDS_FOR_MUTANTS).find(is_found);
        println!("{mutant:?} is found by seed {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}
