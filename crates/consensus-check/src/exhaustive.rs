//! Every order of steps, at small sizes.

use std::hash::Hash;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::thread;

use mitra_consensus::{Process, ProcessId};
use stateright::{Checker, CheckerBuilder, Model, Property};

use crate::election::stable_period_violation;
use crate::{Step, World};

/// What an exhaustive search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exploration {
    /// Different worlds that it has seen.
    pub states: usize,
    /// The steps to a world that should not be, and what is wrong with it; the fewest steps, but for threads.
    pub counterexample: Option<(&'static str, Vec<Step>)>,
}

/// Within so many calm rounds an election must be over, and half of them silent.
const CALM: u32 = 600;

impl Exploration {
    /// What two searches found, of which the second is only made if nothing was wrong in the first.
    #[must_use]
    pub fn and_then(self, next: impl FnOnce() -> Exploration) -> Exploration {
        if self.counterexample.is_some() {
            return self;
        }
        let next = next();
        Exploration { states: self.states + next.states, ..next }
    }
}

/// A world to explore, and how far to follow it.
pub struct Exhaustive<P: Process> {
    start: World<P>,
    attempts: u64,
    valid: Vec<P::Value>,
    /// Whom a process names, if they are to elect one.
    leader: Option<fn(&P) -> ProcessId>,
    /// What those who give up must keep to, if processes may.
    aborts: Option<fn(&World<P>) -> bool>,
}

impl<P: Process> Exhaustive<P> {
    /// Every world that can come of `start` while nobody begins more than `attempts` attempts. Who decides must decide on one of `valid`,
    /// and on the same.
    pub fn agreement(start: World<P>, attempts: u64, valid: Vec<P::Value>) -> Exhaustive<P> {
        Exhaustive { start, attempts, valid, leader: None, aborts: None }
    }

    /// The same, where those who give up must keep to something, too.
    #[must_use]
    pub fn with_abort_check(self, keep: fn(&World<P>) -> bool) -> Exhaustive<P> {
        Exhaustive { aborts: Some(keep), ..self }
    }

    /// Every world that can come of `start` while nobody wakes more than `wakes` times. Whenever all is calm from there on, the living
    /// must come to name one of them, for good, and be silent. `leader` says whom a process names.
    pub fn election(start: World<P>, wakes: u64, leader: fn(&P) -> ProcessId) -> Exhaustive<P> {
        Exhaustive { start, attempts: wakes, valid: Vec::new(), leader: Some(leader), aborts: None }
    }
}

impl<P> Exhaustive<P>
where
    P: Process + Send + Sync + 'static,
    P::Cell: Send + Sync,
    P::Message: Send + Sync,
    P::Value: Send + Sync,
{
    /// Explores it all, or until a counterexample is found.
    pub fn explore(self) -> Exploration {
        explore(self.checker())
    }

    /// Serves it to a browser, for as long as the program runs.
    pub fn serve(self, at: SocketAddr) {
        self.checker().serve(at);
    }
}

/// Explores every world that a model has, or until a counterexample is found.
pub(crate) fn explore<M>(checker: CheckerBuilder<M>) -> Exploration
where
    M: Model<Action = Step> + Send + Sync + 'static,
    M::State: Clone + PartialEq + Hash + Send + Sync + 'static,
{
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let checker = checker.threads(threads).spawn_bfs().join();
    let discoveries = checker.discoveries();
    let paths = discoveries.into_iter().map(|(what, path)| (what, path.into_actions()));
    Exploration {
        states: checker.unique_state_count(),
        counterexample: paths.min_by_key(|(_, steps)| steps.len()),
    }
}

impl<P: Process> Model for Exhaustive<P> {
    type State = World<P>;
    type Action = Step;

    fn init_states(&self) -> Vec<World<P>> {
        vec![self.start.clone()]
    }

    fn actions(&self, world: &World<P>, actions: &mut Vec<Step>) {
        actions.extend(world.steps());
    }

    fn next_state(&self, world: &World<P>, step: Step) -> Option<World<P>> {
        let mut next = world.clone();
        next.apply(step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("agreement", |_, world: &World<P>| world.agrees()),
            Property::always("validity", |model: &Self, world: &World<P>| {
                world.decisions().iter().flatten().all(|value| model.valid.contains(value))
            }),
            Property::always("abort agreement", |model: &Self, world: &World<P>| {
                model.aborts.is_none_or(|keep| keep(world))
            }),
            Property::always("election", |model: &Self, world: &World<P>| {
                model.leader.is_none_or(|leader| {
                    stable_period_violation(world.clone(), CALM, leader, |_, _| 1).is_none()
                })
            }),
        ]
    }

    fn within_boundary(&self, world: &World<P>) -> bool {
        world.attempts() <= self.attempts
    }
}
