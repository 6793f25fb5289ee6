//! Worlds of a replicated log: all processes must apply the same commands in the same order, whoever leads and crashes.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mitra_consensus::log::Rules;
use mitra_consensus::{ProcessId, ProcessSet};
use stateright::{Model, Property};

use crate::exhaustive::explore;
use crate::seeded_run::TestedSystem;
use crate::{Command, Exploration, Replica, Step, Violation, World};

/// How many commands the leader must get committed once all is calm.
const CALM_COMMANDS: u8 = 3;

/// A world of the replicated log and all that was ever committed in it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LogWorld<R: Rules> {
    world: World<Replica<R>>,
    /// The longest list that any process has applied.
    history: Vec<Command>,
    /// How long the list is after each entry that a process has stopped at.
    ends: BTreeMap<u64, usize>,
    /// How many commands each process has submitted.
    submitted: Vec<u8>,
    leader: Option<ProcessId>,
    violation: Option<Violation>,
}

impl<R: Rules> LogWorld<R> {
    /// A world in which nothing has been committed yet.
    pub fn new(world: World<Replica<R>>) -> LogWorld<R> {
        let submitted = vec![0; world.decisions().len()];
        LogWorld {
            world,
            history: Vec::new(),
            ends: BTreeMap::new(),
            submitted,
            leader: None,
            violation: None,
        }
    }

    /// All that was committed so far.
    pub fn history(&self) -> &[Command] {
        &self.history
    }

    /// The processes and memories.
    pub fn world(&self) -> &World<Replica<R>> {
        &self.world
    }

    /// The leader submits who may lead from then on.
    ///
    /// # Panics
    /// It does not lead.
    pub fn set_eligible_leaders(&mut self, leader: ProcessId, leaders: ProcessSet) {
        self.world.call(leader, |replica, out| replica.set_eligible_leaders(leaders, out));
    }

    /// One network delay of a synchronous world.
    pub fn pass_delay(&mut self) {
        self.world.pass_delay();
        self.watch();
    }

    /// Looks whether all that the living have applied is one list.
    fn watch(&mut self) {
        for p in self.world.live_processes() {
            let Some(replica) = self.world.process(p) else { continue };
            self.submitted[usize::from(p.0)] = replica.submitted();
            let (index, applied) = replica.applied();
            let common = applied.len().min(self.history.len());
            let ends = *self.ends.entry(index).or_insert(applied.len()) == applied.len();
            if applied[..common] != self.history[..common] || !ends {
                self.violation.get_or_insert(Violation::Disagreement);
            }
            for command @ [from, nth] in &applied[common..] {
                let submitted = self.submitted.get(usize::from(*from)).is_some_and(|count| nth < count);
                if !submitted || self.history.contains(command) {
                    self.violation.get_or_insert(Violation::Invalid);
                }
                self.history.push(*command);
            }
            if replica.has_violation() {
                self.violation.get_or_insert(Violation::Invalid);
            }
        }
    }
}

impl<R: Rules> TestedSystem for LogWorld<R> {
    fn steps(&self) -> Vec<Step> {
        self.world.steps()
    }

    fn apply(&mut self, step: Step) -> Option<Violation> {
        self.world.apply(step);
        self.watch();
        self.violation.clone()
    }

    fn live_processes(&self) -> Vec<ProcessId> {
        self.world.live_processes()
    }

    fn begin_stable_period(&mut self, leader: ProcessId) {
        self.leader = Some(leader);
        self.world.begin_stable_period(leader);
        self.world.call(leader, |replica, out| replica.add_commands(CALM_COMMANDS, out));
    }

    /// The leader's commands are committed, and everybody alive has applied all that is.
    fn is_done(&self) -> bool {
        let content = |p| self.world.process(p).is_none_or(Replica::is_finished);
        let up_to_date =
            |p| self.world.process(p).is_none_or(|replica| replica.applied().1.len() == self.history.len());
        self.leader.is_none_or(content) && self.live_processes().into_iter().all(up_to_date)
    }
}

/// A world of the log to explore, in which nobody begins more than so many terms.
#[derive(Clone)]
pub struct ExhaustiveLog<R: Rules> {
    start: LogWorld<R>,
    terms: u64,
}

impl<R: Rules + Send + Sync + 'static> ExhaustiveLog<R> {
    /// Every world that can come of `start` while nobody begins more than `terms` terms.
    pub fn new(start: LogWorld<R>, terms: u64) -> ExhaustiveLog<R> {
        ExhaustiveLog { start, terms }
    }

    /// Explores it all, or until a counterexample is found.
    pub fn explore(self) -> Exploration {
        explore(self.checker())
    }

    /// Serves it to a browser, for as long as the program runs.
    pub fn serve(self, at: SocketAddr) {
        self.checker().serve(at);
    }
}

impl<R: Rules> Model for ExhaustiveLog<R> {
    type State = LogWorld<R>;
    type Action = Step;

    fn init_states(&self) -> Vec<LogWorld<R>> {
        vec![self.start.clone()]
    }

    fn actions(&self, world: &LogWorld<R>, actions: &mut Vec<Step>) {
        actions.extend(world.steps());
    }

    fn next_state(&self, world: &LogWorld<R>, step: Step) -> Option<LogWorld<R>> {
        let mut next = world.clone();
        next.apply(step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("agreement", |_, world: &LogWorld<R>| {
                world.violation != Some(Violation::Disagreement)
            }),
            Property::always("validity", |_, world: &LogWorld<R>| {
                world.violation != Some(Violation::Invalid)
            }),
        ]
    }

    fn within_boundary(&self, world: &LogWorld<R>) -> bool {
        world.world.attempts() <= self.terms
    }
}
