//! A world of one memory node and its processes, from a seed: the state machines of
//! `mitra-consensus-memory` on simulated NICs, handshakes and files. Handshakes are lost or late,
//! connections break, requests of a broken connection are executed late, WRITEs are torn, processes
//! and the memory node crash and restart, disks fail, machines lose power, and NICs do not confirm
//! revocations.
//!
//! Faults happen only in the adversarial period. In the stable period that follows, every operation
//! must complete.

mod disk;
mod fabric;
mod history;
mod knobs;
mod process;
mod rights;
mod step;

use std::collections::BTreeMap;

use mitra_consensus::{OpId, ProcessId, Region, Response};
use mitra_consensus_memory::{Hello, Layout, Node, NodeConfig, Storage, StorageError, VERSION, Welcome};
use mitra_prng::Prng;

use self::disk::{Disk, WriteFault};
use self::fabric::{NodeSide, ProcessEnd, QpId};
use self::history::{History, Time, WriteId};
use self::knobs::Knobs;
use self::process::{Life, regions};
use self::rights::Rights;
use crate::{SeedResult, Violation};

const PROCESSES: u8 = 2;
/// The capacity of a register's contents, in bytes.
const REGISTER_CAPACITY: usize = 8;
/// The largest number of steps of the adversarial period.
const ADVERSARY_STEPS: u64 = 600;
/// The number of steps of the stable period within which all operations must complete.
const STABLE_STEPS: u32 = 20_000;

/// Whether and how the memory node keeps its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Keeping {
    /// In main memory.
    Nothing,
    /// In files. Writes are synchronous if the flag is set.
    Files(bool),
    /// In files. Each start decides anew whether writes are synchronous.
    AnyFiles,
}

/// A frame of a handshake in transit, with the life that dialled and the number of the life's
/// attempt.
#[derive(Debug)]
struct Frame<T> {
    life: usize,
    attempt: u64,
    content: T,
}

struct MemoryWorld {
    rng: Prng,
    knobs: Knobs,
    regions: Vec<Region>,
    keeping: Keeping,
    allow_restarts: bool,
    now: Time,
    node: Option<Node<u64, Disk>>,
    nic: NodeSide,
    disk: Disk,
    /// Whether the memory node has refused its files, and therefore never starts again.
    is_lost: bool,
    /// The lives of all processes, oldest first.
    lives: Vec<Life>,
    ends: BTreeMap<QpId, (usize, ProcessEnd)>,
    hellos: Vec<Frame<Hello>>,
    /// The answers of the memory node, each with the number of the node's contents at that time.
    welcomes: Vec<Frame<(Welcome, usize)>>,
    /// The writes to each contents that the memory node has had.
    histories: Vec<History>,
    rights: Rights,
    last_number: u64,
    last_write: WriteId,
    faults: u32,
    violation: Option<&'static str>,
}

/// Runs a world of a memory node from a seed.
pub fn run_memory_node(seed: u64) -> SeedResult {
    let mut world = MemoryWorld::new(seed);
    world.start_node();
    (0..PROCESSES).for_each(|p| world.start_life(ProcessId(p)));
    let mut weights = step::Weights::adversary(&mut world.rng);
    let end = world.rng.below(ADVERSARY_STEPS);
    while world.now < end && world.violation.is_none() {
        if world.rng.below(60) == 0 {
            weights = step::Weights::adversary(&mut world.rng);
        }
        world.step(&weights);
    }
    world.begin_stable_period();
    let stable = step::Weights::stable();
    for _ in 0..STABLE_STEPS {
        if world.violation.is_some() || world.is_done() {
            break;
        }
        world.step(&stable);
    }
    let violation = match world.violation {
        Some(property) => Some(Violation::Property(property)),
        None => (!world.is_done()).then_some(Violation::Stuck),
    };
    SeedResult { steps: world.now, faults: world.faults, violation }
}

impl MemoryWorld {
    fn new(seed: u64) -> MemoryWorld {
        let mut rng = Prng::new(seed);
        let keeping = *rng.pick(&[
            Keeping::Nothing,
            Keeping::Files(false),
            Keeping::Files(true),
            Keeping::Files(true),
            Keeping::AnyFiles,
        ]);
        let (regions, allow_restarts) = (regions(PROCESSES), rng.below(4) != 0);
        MemoryWorld {
            knobs: Knobs::new(regions.len(), &mut rng),
            rights: Rights::new(&regions, allow_restarts),
            rng,
            regions,
            keeping,
            allow_restarts,
            now: 0,
            node: None,
            nic: NodeSide::default(),
            disk: Disk::default(),
            is_lost: false,
            lives: Vec::new(),
            ends: BTreeMap::new(),
            hellos: Vec::new(),
            welcomes: Vec::new(),
            histories: Vec::new(),
            last_number: 0,
            last_write: 0,
            faults: 0,
            violation: None,
        }
    }

    fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn require(&mut self, holds: bool, property: &'static str) {
        if !holds {
            self.violation.get_or_insert(property);
        }
    }

    /// Starts the memory node, if its files permit.
    fn start_node(&mut self) {
        let incarnation = self.new_number();
        let sync = match self.keeping {
            Keeping::Nothing => None,
            Keeping::Files(sync) => Some(sync),
            Keeping::AnyFiles => Some(self.rng.below(2) == 0),
        };
        let layout = Layout::new(&self.regions, REGISTER_CAPACITY);
        let storage =
            sync.map(|sync| Storage::open(self.disk.clone(), sync, &layout, incarnation)).transpose();
        self.reboot_if_stopped();
        let storage = match storage {
            Ok(storage) => storage,
            Err(StorageError::PossibleDataLoss(_)) => {
                self.require(
                    self.keeping != Keeping::Files(true),
                    "a memory with synchronous writes survives a reboot",
                );
                self.is_lost = true;
                return;
            }
            Err(error) => {
                let holds = matches!(error, StorageError::Io { .. });
                return self.require(holds, "a memory node knows the files that it has written");
            }
        };
        if storage.is_none() || self.histories.is_empty() {
            self.histories.push(History::default());
            self.rights = Rights::new(&self.regions, self.allow_restarts);
        } else {
            self.rights.restart();
        }
        let config = NodeConfig {
            regions: self.regions.clone(),
            register_capacity: REGISTER_CAPACITY,
            tokens: vec![[7; 16]; PROCESSES.into()],
            allow_restarts: self.allow_restarts,
        };
        self.disk.forget_failure();
        self.node = Some(Node::new(config, storage, incarnation));
    }

    /// Stops the memory node. Requests that are not executed yet are never executed.
    fn stop_node(&mut self) {
        self.node = None;
        self.nic = self.nic.restarted();
        self.ends.retain(|_, (_, end)| !end.is_closed);
    }

    /// Completes a loss of power that happened during a write.
    fn reboot_if_stopped(&mut self) {
        if self.disk.has_stopped() {
            self.reboot();
        }
    }

    fn reboot(&mut self) {
        self.stop_node();
        self.disk.reboot(&mut self.rng);
    }

    fn start_life(&mut self, p: ProcessId) {
        let incarnation = self.new_number();
        self.lives.push(Life::new(p, incarnation, &self.regions, REGISTER_CAPACITY));
    }

    /// Lets a life dial, from a new queue pair, or again from a queue pair that was never
    /// connected.
    fn dial(&mut self, life: usize) {
        let (id, attempt) = (self.new_number(), self.new_number());
        let end = *self.lives[life].end.get_or_insert(id);
        self.ends.entry(end).or_insert_with(|| (life, ProcessEnd::new(end)));
        self.lives[life].attempt = Some(attempt);
        let hello = Hello {
            version: VERSION,
            from: self.lives[life].process,
            token: [7; 16],
            incarnation: self.lives[life].incarnation,
            info: end.to_le_bytes().to_vec(),
        };
        self.hellos.push(Frame { life, attempt, content: hello });
    }

    fn deliver_hello(&mut self, at: usize) {
        let Frame { life, attempt, content: hello } = self.hellos.swap_remove(at);
        let Some(node) = &mut self.node else { return self.end_attempt(life, attempt) };
        let welcome = node.accept(&hello, &mut self.nic);
        self.reboot_if_stopped();
        let Some(welcome) = welcome else {
            self.rights.dial(hello.from, hello.incarnation);
            return self.end_attempt(life, attempt);
        };
        if let Some(qp) = self.nic.connection(hello.from) {
            let accepted = self.rights.accept(hello.from, hello.incarnation, qp);
            self.require(accepted, "only the latest life of a process is accepted");
        }
        let contents = self.histories.len() - 1;
        self.welcomes.push(Frame { life, attempt, content: (welcome, contents) });
    }

    /// Ends a handshake if it is the current handshake of the life. The life then dials again.
    fn end_attempt(&mut self, life: usize, attempt: u64) {
        let life = &mut self.lives[life];
        if life.attempt == Some(attempt) {
            life.attempt = None;
        }
    }

    fn deliver_welcome(&mut self, at: usize) {
        let Frame { life, attempt, content: (welcome, contents) } = self.welcomes.swap_remove(at);
        let current = &mut self.lives[life];
        if current.attempt != Some(attempt) {
            return;
        }
        current.attempt = None;
        if !current.runs() {
            return;
        }
        let Some((_, end)) = current.end.and_then(|end| self.ends.get_mut(&end)) else { return };
        let mut responses = Vec::new();
        current.client.on_welcome(&welcome, end, &mut responses);
        if current.client.is_connected() {
            let first = *current.contents.get_or_insert(contents);
            self.require(first == contents, "a memory that has lost its contents is not used again");
        }
        self.handle(life, responses);
    }

    /// Checks the responses that a client has returned, and posts the requests that can be posted
    /// now.
    fn handle(&mut self, life: usize, mut responses: Vec<(OpId, Response<WriteId>)>) {
        let current = &mut self.lives[life];
        if let Some((_, end)) = current.end.and_then(|end| self.ends.get_mut(&end)) {
            current.client.post(end);
            current.client.nak_impossible(&mut responses);
        }
        for (id, response) in responses {
            let history = current.contents.and_then(|contents| self.histories.get_mut(contents));
            let violated = history.and_then(|history| current.check(id, &response, history));
            self.violation = self.violation.or(violated);
        }
    }

    fn begin_stable_period(&mut self) {
        self.disk.set_fault(WriteFault::None);
        self.nic.hung = false;
        if self.disk.has_failed() {
            self.stop_node();
        }
        if self.node.is_none() && !self.is_lost {
            self.start_node();
            let starts = self.node.is_some() || self.is_lost;
            self.require(starts, "a memory node starts with the files that it has written");
        }
        for life in 0..self.lives.len() {
            self.lives[life].is_suspended = false;
            if self.is_latest(life) && self.lives[life].may_submit() {
                let op = mitra_consensus::Op::Read { region: 0, first: 0, count: 2 };
                self.lives[life].submit(op, self.now);
                self.handle(life, Vec::new());
            }
        }
    }

    fn is_latest(&self, life: usize) -> bool {
        self.lives[life + 1..].iter().all(|other| other.process != self.lives[life].process)
    }

    /// Returns whether every operation of the latest life of each process has completed. A life is
    /// exempt if the memory is lost, if an earlier life of the process dialled later than this
    /// life, or if the memory refuses restarted processes.
    fn is_done(&self) -> bool {
        let must_finish = |&at: &usize| {
            let life = &self.lives[at];
            let is_first = self.lives[..at].iter().all(|other| other.process != life.process);
            self.is_latest(at)
                && life.runs()
                && !life.client.is_crashed()
                && !self.rights.may_be_superseded(life.process, life.incarnation)
                && (is_first || self.allow_restarts)
        };
        let mut unfinished = (0..self.lives.len()).filter(must_finish);
        self.node.is_none() || unfinished.all(|life| self.lives[life].outstanding().next().is_none())
    }
}
