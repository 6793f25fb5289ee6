//! Worlds of the key-value store. The clients' histories must be linearizable, and all operations
//! must complete in the stable period.

use mitra_consensus::kv_store::{Change, Rules};
use mitra_consensus::{AllRules, ProcessId};

use crate::linearizability::{Operation, is_linearizable};
use crate::seeded_run::{TestedSystem, run_adversary};
use crate::store_nodes::{ClientEvent, Invocation, StoreNode};
use crate::{FaultLimits, RunLimits, SeedResult, Step, Violation, World, protocol_worlds};

/// A world of servers and clients, with the histories of the clients. The servers are the first
/// processes.
pub struct StoreWorld<R: Rules, const LOCAL_READS: bool> {
    world: World<StoreNode<R, LOCAL_READS>>,
    servers: u8,
    /// By process: the number of its events that are in the histories.
    recorded_events: Vec<usize>,
    /// The history of each key. The time of an event is its number in the world.
    histories: Vec<Vec<Operation<Invocation, ClientEvent>>>,
    /// By process: the key of the current or last operation, and the operation's index in the key's
    /// history.
    current_operations: Vec<(usize, usize)>,
    /// The number of events of all clients.
    events: usize,
    violation: Option<Violation>,
}

impl<R: Rules, const LOCAL_READS: bool> StoreWorld<R, LOCAL_READS> {
    /// Creates a world in which no operation has begun. The clients use `keys` keys.
    pub fn new(world: World<StoreNode<R, LOCAL_READS>>, servers: u8, keys: u8) -> StoreWorld<R, LOCAL_READS> {
        let n = world.decisions().len();
        StoreWorld {
            world,
            servers,
            recorded_events: vec![0; n],
            histories: vec![Vec::new(); keys.into()],
            current_operations: vec![(0, 0); n],
            events: 0,
            violation: None,
        }
    }

    /// Returns the number of completed operations.
    pub fn completed_operations(&self) -> usize {
        self.histories.iter().flatten().filter(|op| op.response.is_some()).count()
    }

    /// Records new events, and checks the history of a key at each response.
    fn check(&mut self) {
        for p in self.world.live_processes() {
            let Some(node) = self.world.process(p) else { continue };
            let p = usize::from(p.0);
            for event in &node.events()[self.recorded_events[p]..] {
                self.recorded_events[p] += 1;
                self.events += 1;
                let time = self.events;
                if let ClientEvent::Invoked(invocation) = event {
                    let (Invocation::Get(key) | Invocation::Change(key, _)) = invocation;
                    let history = &mut self.histories[usize::from(*key)];
                    self.current_operations[p] = (usize::from(*key), history.len());
                    history.push(Operation {
                        invocation: invocation.clone(),
                        invoked_at: time,
                        response: None,
                    });
                } else {
                    let (key, index) = self.current_operations[p];
                    self.histories[key][index].response = Some((time, event.clone()));
                    if !is_linearizable(&None, &self.histories[key], apply) {
                        self.violation = Some(Violation::NotLinearizable);
                    }
                }
            }
        }
    }
}

/// Runs three servers and three clients over three memories from a seed. Two servers and one memory
/// may crash.
pub fn run_store_from_seed(seed: u64) -> SeedResult {
    let faults = FaultLimits {
        leader_changes: 16,
        process_crashes: 2,
        memory_crashes: 1,
        disconnects: 4,
        ..FaultLimits::default()
    };
    let world: StoreWorld<AllRules, false> = protocol_worlds::store(seed, (3, 3, 8), faults);
    run_adversary(seed, world, RunLimits { adversary_steps: 1000, stable_steps: 30_000 }).into()
}

/// Runs three servers and two clients over one memory from a seed. The servers depose each other
/// often.
pub fn run_competing_leaders_from_seed(seed: u64) -> SeedResult {
    let faults = FaultLimits { leader_changes: 60, ..FaultLimits::default() };
    let world: StoreWorld<AllRules, false> = protocol_worlds::store(seed, (1, 2, 20), faults);
    run_adversary(seed, world, RunLimits { adversary_steps: 3000, stable_steps: 30_000 }).into()
}

/// The sequential specification of a key: applies an operation to its value, and returns the
/// response.
fn apply(value: &mut Option<Vec<u8>>, invocation: &Invocation) -> ClientEvent {
    let Invocation::Change(_, change) = invocation else { return ClientEvent::Value(value.clone()) };
    let (takes_effect, new) = match change {
        Change::Put { value: new, .. } => (true, Some(new.clone())),
        Change::Cas { expected, value: new, .. } => (value == expected, new.clone()),
        Change::Delete { .. } => (value.is_some(), None),
    };
    if takes_effect {
        *value = new;
    }
    ClientEvent::Changed(takes_effect)
}

impl<R: Rules, const LOCAL_READS: bool> TestedSystem for StoreWorld<R, LOCAL_READS> {
    /// Returns the possible steps. Clients neither lead nor crash. The adversary can delay a
    /// client, which has the same effect as a crash.
    fn steps(&self) -> Vec<Step> {
        let mut steps = self.world.steps();
        steps.retain(|step| match step {
            Step::Lead(p) | Step::Follow(p) | Step::CrashProcess(p) => p.0 < self.servers,
            _ => true,
        });
        steps
    }

    fn apply(&mut self, step: Step) -> Option<Violation> {
        self.world.apply(step);
        self.check();
        self.violation
    }

    fn live_processes(&self) -> Vec<ProcessId> {
        self.world.live_processes().into_iter().filter(|p| p.0 < self.servers).collect()
    }

    fn begin_stable_period(&mut self, leader: ProcessId) {
        self.world.begin_stable_period(leader);
    }

    /// Returns whether all clients have completed their operations, or all servers have crashed.
    fn is_done(&self) -> bool {
        let is_finished = |p| self.world.process(p).is_none_or(StoreNode::is_finished);
        self.live_processes().is_empty() || self.world.live_processes().into_iter().all(is_finished)
    }
}
