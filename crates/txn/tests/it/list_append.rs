//! Coordinators that read lists and append to them, some of which end at any moment and are recovered.

use std::collections::{BTreeMap, BTreeSet};

use mitra_prng::Prng;
use mitra_txn::{
    Attempt, Conflict, Copies, Life, Location, LockWord, NodeId, Place, PlaceKind, Recovery, RecoveryStep,
    Step, TableId, Write, free_stale_lock,
};

use crate::cluster::{Cluster, DOUBT_PPM};
use crate::history::{self, Transaction};

const NODES: u16 = 3;
const COPIES: usize = 2;
const RECORDS: u32 = 6;
const RECORD_BYTES: u32 = 512;
const SLOT_BYTES: u32 = 4096;
const CLIENTS: usize = 4;

fn location(node: u16, at: u64) -> Location {
    Location { node: NodeId(node % NODES), at }
}

/// The records come first, then the slots of the logs, one for each client.
fn copies(index: u32) -> Copies {
    let place = Place { table: TableId(0), partition: 0, kind: PlaceKind::Record, index };
    let at = u64::from(index * RECORD_BYTES);
    let primary = index as u16 % NODES;
    Copies {
        place,
        primary: location(primary, at),
        backups: vec![location(primary + 1, at)],
        bytes: RECORD_BYTES,
    }
}

fn resolve(place: Place) -> Option<Copies> {
    (place.index < RECORDS).then(|| copies(place.index))
}

fn slot(client: usize) -> Vec<Location> {
    let at = u64::from(RECORDS * RECORD_BYTES) + client as u64 * u64::from(SLOT_BYTES);
    (0..NODES).map(|node| location(node, at)).collect()
}

/// A value has the latest entry first, so that two values have different bytes at most places.
fn list_of(value: &[u8]) -> Vec<u32> {
    value.rchunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn value_of(list: &[u32]) -> Vec<u8> {
    list.iter().rev().flat_map(|number| number.to_le_bytes()).collect()
}

/// What a client is doing.
enum Work {
    Idle,
    Attempt(Box<Running>),
    Freeing,
    Recovering(Recovery, Life),
}

struct Running {
    attempt: Attempt,
    number: u32,
    transaction: Transaction,
    is_committing: bool,
}

struct World {
    cluster: Cluster,
    prng: Prng,
    now: u64,
    next: u32,
    incarnations: Vec<u16>,
    attempts: Vec<u32>,
    works: Vec<Work>,
    committed: BTreeMap<u32, Transaction>,
    /// The transactions of lives that have ended; what is in the lists of these has taken effect.
    open: BTreeMap<u32, Transaction>,
    recovered: BTreeSet<Life>,
    /// The clients whose lives have ended, to be recovered.
    ended: Vec<usize>,
    to_do: u32,
    /// When a node dies, if one does.
    dies_at: Option<u64>,
}

impl World {
    fn life(&self, client: usize) -> Life {
        Life { coordinator: client as u16 + 1, incarnation: self.incarnations[client] }
    }

    fn begin(&mut self, client: usize) {
        if let Some(dead) = self.ended.pop() {
            let life = self.life(dead);
            let mut recovery = Recovery::new(life, vec![slot(dead)], SLOT_BYTES, COPIES);
            let RecoveryStep::Post(requests) = recovery.start(resolve) else { panic!("nothing is read") };
            self.cluster.post(client, requests);
            self.works[client] = Work::Recovering(recovery, life);
            return;
        }
        if self.to_do == 0 {
            return;
        }
        self.to_do -= 1;
        self.attempts[client] += 1;
        let lock = LockWord::new(self.life(client), self.attempts[client]);
        let mut attempt = Attempt::new(lock, slot(client), COPIES);
        let wanted: BTreeMap<u32, bool> = (0..self.prng.between(1, 3))
            .map(|_| (self.prng.below(u64::from(RECORDS)) as u32, self.prng.chance(300_000)))
            .collect();
        let copies: Vec<_> = wanted.iter().map(|(&index, &locks)| (copies(index), locks)).collect();
        let mut appends: Vec<u32> =
            wanted.iter().filter(|(_, locks)| **locks).map(|(&index, _)| index).collect();
        appends.extend(wanted.keys().filter(|_| self.prng.chance(300_000)));
        appends.sort_unstable();
        appends.dedup();
        let transaction = Transaction { reads: BTreeMap::new(), appends, begun: self.now, told: None };
        let step = attempt.fetch(&copies);
        self.next += 1;
        let running = Running { attempt, number: self.next, transaction, is_committing: false };
        self.go_on(client, running, step);
    }

    fn go_on(&mut self, client: usize, mut running: Running, mut step: Step) {
        loop {
            if running.attempt.is_committed() && running.transaction.told.is_none() {
                running.transaction.told = Some(self.now);
                self.committed.insert(running.number, running.transaction.clone());
            }
            match step {
                Step::Post(requests) => {
                    self.cluster.post(client, requests);
                    self.works[client] = Work::Attempt(Box::new(running));
                    return;
                }
                Step::Fetched if !running.is_committing => {
                    running.is_committing = true;
                    for index in 0..RECORDS {
                        let copies = copies(index);
                        let Some(record) = running.attempt.record(copies.place) else { continue };
                        let mut list = list_of(&record.value);
                        running.transaction.reads.insert(index, list.clone());
                        if running.transaction.appends.contains(&index) {
                            list.push(running.number);
                            let value = Some(value_of(&list));
                            running.attempt.write(&copies, Write { key: index.into(), value });
                        }
                    }
                    step = running.attempt.commit();
                }
                Step::Applied => {
                    assert!(running.attempt.is_committed());
                    self.works[client] = Work::Idle;
                    return;
                }
                Step::Aborted(why) => {
                    self.works[client] = Work::Idle;
                    if let Conflict::Locked(place, lock) = why
                        && lock.life().is_some_and(|life| self.recovered.contains(&life))
                    {
                        self.cluster.post(client, vec![free_stale_lock(copies(place.index).primary, lock)]);
                        self.works[client] = Work::Freeing;
                    }
                    return;
                }
                Step::Fetched | Step::Undecided => panic!("all nodes live"),
            }
        }
    }

    /// Ends the life of a client at this moment. Another client recovers it; the process then starts again.
    fn end_life(&mut self, client: usize) {
        self.cluster.fence(client);
        match core::mem::replace(&mut self.works[client], Work::Idle) {
            Work::Attempt(running) => {
                self.open.insert(running.number, running.transaction);
                self.ended.push(client);
            }
            Work::Recovering(_, life) => {
                self.ended.push(usize::from(life.coordinator) - 1);
                self.ended.push(client);
            }
            Work::Idle | Work::Freeing => self.ended.push(client),
        }
    }

    fn run(&mut self) {
        loop {
            self.now += 1;
            assert!(self.now < 1_000_000, "no end");
            for client in 0..CLIENTS {
                let is_waiting = self.ended.contains(&client)
                    || self.works.iter().any(|work| {
                        matches!(work, Work::Recovering(_, life) if usize::from(life.coordinator) == client + 1)
                    });
                if matches!(self.works[client], Work::Idle) && !is_waiting {
                    self.begin(client);
                }
            }
            if self.works.iter().all(|work| matches!(work, Work::Idle)) {
                return;
            }
            if self.prng.chance(3_000) && self.ended.is_empty() {
                let client = self.prng.index(CLIENTS);
                let is_recovered = self.works.iter().any(|work| {
                    matches!(work, Work::Recovering(_, life) if usize::from(life.coordinator) == client + 1)
                });
                if !is_recovered {
                    self.end_life(client);
                    continue;
                }
            }
            if Some(self.now) == self.dies_at {
                self.cluster.kill(NodeId(self.prng.below(u64::from(NODES)) as u16));
            }
            let Some((client, outcomes)) = self.cluster.step() else { continue };
            match core::mem::replace(&mut self.works[client], Work::Idle) {
                Work::Idle => panic!("an idle client has posted nothing"),
                Work::Freeing => {}
                Work::Attempt(mut running) => {
                    let step = running.attempt.on_outcomes(&outcomes);
                    self.go_on(client, *running, step);
                }
                Work::Recovering(mut recovery, life) => match recovery.on_outcomes(&outcomes, resolve) {
                    RecoveryStep::Post(requests) => {
                        self.cluster.post(client, requests);
                        self.works[client] = Work::Recovering(recovery, life);
                    }
                    RecoveryStep::Recovered => {
                        self.recovered.insert(life);
                        let client = usize::from(life.coordinator) - 1;
                        self.incarnations[client] += 1;
                        self.attempts[client] = 0;
                    }
                    end => panic!("{end:?}"),
                },
            }
        }
    }

    /// Frees what lives without a recovery hold, and returns the lists.
    fn lists(&mut self) -> Result<BTreeMap<u32, Vec<u32>>, String> {
        let mut lists = BTreeMap::new();
        for index in 0..RECORDS {
            let copies = copies(index);
            let found = |at: Location| {
                let bytes = &self.cluster.memory(at.node)[at.at as usize..][..RECORD_BYTES as usize];
                let lock = LockWord::from_bits(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
                (lock, bytes[8..].to_vec())
            };
            let all = [copies.primary].into_iter().chain(copies.backups.iter().copied());
            let live: Vec<_> = all.filter(|at| !self.cluster.is_dead(at.node)).map(found).collect();
            let (lock, first) = &live[0];
            if lock.life().is_some_and(|life| !self.recovered.contains(&life)) {
                return Err(format!("record {index} is locked by {lock:?}"));
            }
            if live.iter().any(|(_, copy)| copy != first) {
                return Err(format!("the copies of record {index} differ"));
            }
            let len = u64::from_le_bytes(first[24..32].try_into().unwrap()) as usize;
            lists.insert(index, list_of(&first[32..32 + len]));
        }
        Ok(lists)
    }
}

/// Runs the workload from a seed. Returns the number of committed transactions, or what is wrong.
fn run(seed: u64) -> Result<usize, String> {
    let cluster_prng = Prng::stream(seed, "cluster");
    let bytes = (RECORDS * RECORD_BYTES + CLIENTS as u32 * SLOT_BYTES) as usize;
    let doubt_ppm = if seed.is_multiple_of(2) { DOUBT_PPM } else { 0 };
    let mut world = World {
        cluster: Cluster::new(usize::from(NODES), bytes, cluster_prng, doubt_ppm),
        prng: Prng::stream(seed, "world"),
        now: 0,
        next: 0,
        incarnations: vec![1; CLIENTS],
        attempts: vec![0; CLIENTS],
        works: (0..CLIENTS).map(|_| Work::Idle).collect(),
        committed: BTreeMap::new(),
        open: BTreeMap::new(),
        recovered: BTreeSet::new(),
        ended: Vec::new(),
        to_do: 300,
        dies_at: seed.is_multiple_of(3).then_some(1 + seed * 7 % 9000),
    };
    world.run();
    let lists = world.lists()?;
    let mut transactions = world.committed.clone();
    for (number, transaction) in &world.open {
        if lists.values().any(|list| list.contains(number)) {
            transactions.entry(*number).or_insert_with(|| transaction.clone());
        }
    }
    history::check(&transactions, &lists)?;
    Ok(world.committed.len())
}

#[test]
fn committed_transactions_are_strictly_serializable() {
    let mut committed = 0;
    for seed in 0..300 {
        committed += run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(committed > 300 * 50, "{committed} of {} transactions are committed", 300 * 300);
}
