//! Worlds of the key-value store: what clients are told must be linearizable, and in the end they are told.

use mitra_consensus::ProcessId;
use mitra_consensus::kv_store::{Change, Rules};

use crate::linearizability::{Operation, is_linearizable};
use crate::seeded_run::TestedSystem;
use crate::store_nodes::{ClientEvent, Invocation, StoreNode};
use crate::{Step, Violation, World};

/// A world of servers, which come first, and clients, and all that the clients were told.
pub struct StoreWorld<R: Rules, const LOCAL_READS: bool> {
    world: World<StoreNode<R, LOCAL_READS>>,
    servers: u8,
    /// How much each process was told so far.
    told: Vec<usize>,
    /// By key. Time is the number of the event.
    histories: Vec<Vec<Operation<Invocation, ClientEvent>>>,
    /// The key and the operation that each process has under way, or had last.
    open: Vec<(usize, usize)>,
    events: usize,
    violation: Option<Violation>,
}

impl<R: Rules, const LOCAL_READS: bool> StoreWorld<R, LOCAL_READS> {
    /// A world in which nothing was asked yet, with so many keys.
    pub fn new(world: World<StoreNode<R, LOCAL_READS>>, servers: u8, keys: u8) -> StoreWorld<R, LOCAL_READS> {
        let n = world.decisions().len();
        StoreWorld {
            world,
            servers,
            told: vec![0; n],
            histories: vec![Vec::new(); keys.into()],
            open: vec![(0, 0); n],
            events: 0,
            violation: None,
        }
    }

    /// How many operations have returned.
    pub fn completed_operations(&self) -> usize {
        self.histories.iter().flatten().filter(|op| op.response.is_some()).count()
    }

    fn watch(&mut self) {
        for p in self.world.live_processes() {
            let Some(node) = self.world.process(p) else { continue };
            let p = usize::from(p.0);
            for told in &node.events()[self.told[p]..] {
                self.told[p] += 1;
                self.events += 1;
                let at = self.events;
                if let ClientEvent::Invoked(what) = told {
                    let (Invocation::Get(key) | Invocation::Change(key, _)) = what;
                    let history = &mut self.histories[usize::from(*key)];
                    self.open[p] = (usize::from(*key), history.len());
                    history.push(Operation { invocation: what.clone(), invoked_at: at, response: None });
                } else {
                    let (key, nth) = self.open[p];
                    self.histories[key][nth].response = Some((at, told.clone()));
                    if !is_linearizable(&None, &self.histories[key], apply) {
                        self.violation = Some(Violation::NotLinearizable);
                    }
                }
            }
        }
    }
}

/// What is to become of a key, by the plainest of stores.
fn apply(value: &mut Option<Vec<u8>>, asked: &Invocation) -> ClientEvent {
    let Invocation::Change(_, change) = asked else { return ClientEvent::Value(value.clone()) };
    let (done, new) = match change {
        Change::Put { value: new, .. } => (true, Some(new.clone())),
        Change::Cas { expected, value: new, .. } => (value == expected, new.clone()),
        Change::Delete { .. } => (value.is_some(), None),
    };
    if done {
        *value = new;
    }
    ClientEvent::Changed(done)
}

impl<R: Rules, const LOCAL_READS: bool> TestedSystem for StoreWorld<R, LOCAL_READS> {
    /// Clients neither lead nor crash: they may be as slow as if they had.
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
        self.watch();
        self.violation.clone()
    }

    fn live_processes(&self) -> Vec<ProcessId> {
        self.world.live_processes().into_iter().filter(|p| p.0 < self.servers).collect()
    }

    fn begin_stable_period(&mut self, leader: ProcessId) {
        self.world.begin_stable_period(leader);
    }

    /// All clients have all that they want, unless there is nobody to ask.
    fn is_done(&self) -> bool {
        let content = |p| self.world.process(p).is_none_or(StoreNode::is_finished);
        self.live_processes().is_empty() || self.world.live_processes().into_iter().all(content)
    }
}
