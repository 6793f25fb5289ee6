//! Coordinators that read lists and append to them. Some lives end at any moment, and are
//! recovered.

use std::collections::{BTreeMap, BTreeSet};

use mitra_prng::Prng;
use mitra_txn::{Life, LockWord, NodeId, Recovery, RecoveryStep, Step};

use crate::cluster::{Cluster, DOUBT_PPM};
use crate::history::{self, Transaction};
use crate::workload::{self, COPIES, NODES, Next, Running, SLOT_BYTES, resolve, slot};

const CLIENTS: usize = 4;

enum Work {
    Idle,
    Attempt(Box<Running>),
    Freeing,
    Recovering(Recovery, Life),
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
    /// The transactions of ended lives. A transaction whose number is in the lists has taken
    /// effect.
    open: BTreeMap<u32, Transaction>,
    recovered: BTreeSet<Life>,
    /// The clients whose lives have ended, to be recovered.
    ended: Vec<usize>,
    to_do: u32,
    /// The step in which a node dies.
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
        self.next += 1;
        let (running, step) = Running::begin(&mut self.prng, lock, self.next, self.now);
        self.go_on(client, running, step);
    }

    fn go_on(&mut self, client: usize, mut running: Running, step: Step) {
        self.works[client] = match running.go_on(step, self.now, &mut self.committed) {
            Next::Post(requests) => {
                self.cluster.post(client, requests);
                Work::Attempt(Box::new(running))
            }
            Next::Ended(Some((place, lock)))
                if lock.life().is_some_and(|life| self.recovered.contains(&life)) =>
            {
                self.cluster.post(client, workload::free(place, lock));
                Work::Freeing
            }
            Next::Ended(_) => Work::Idle,
        };
    }

    /// Ends the life of a client at this moment. Another client recovers the life. Then the process
    /// starts again.
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
                    let step = running.on_outcomes(&outcomes);
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
}

/// Runs the workload from a seed. Returns the number of committed transactions, or the violation.
fn run(seed: u64) -> Result<usize, String> {
    let cluster_prng = Prng::stream(seed, "cluster");
    let bytes = workload::bytes(CLIENTS);
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
    let lists = workload::lists(&world.cluster, |life| world.recovered.contains(&life))?;
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
