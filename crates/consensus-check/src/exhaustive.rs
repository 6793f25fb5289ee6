//! Exhaustive exploration: every order of steps, at small sizes.

use std::net::SocketAddr;

use mitra_consensus::{Process, ProcessId};
use stateright::{Model, Property};

use crate::election::stable_period_violation;
use crate::model_checker::{explore, serve};
use crate::{Step, World};

/// The result of an exhaustive exploration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exploration {
    /// The number of distinct worlds.
    pub states: usize,
    /// A violated property, and the steps to a world that violates it. The search is breadth-first; with several threads the
    /// steps may not be the shortest.
    pub counterexample: Option<(&'static str, Vec<String>)>,
}

/// The length of the stable period after each explored world, in rounds. The second half of them is checked.
const STABLE_ROUNDS: u32 = 600;

impl Exploration {
    /// Returns the combined result of this exploration and the next one, which runs only if this one found no counterexample.
    #[must_use]
    pub fn and_then(self, next: impl FnOnce() -> Exploration) -> Exploration {
        if self.counterexample.is_some() {
            return self;
        }
        let next = next();
        Exploration { states: self.states + next.states, ..next }
    }
}

/// An initial world to explore, the bound of the exploration, and the properties to check.
pub struct Exhaustive<P: Process> {
    start: World<P>,
    /// Worlds in which a process has begun more attempts are not explored.
    max_attempts: u64,
    /// The values that a process may decide.
    valid: Vec<P::Value>,
    /// Returns the leader that a process names. `None` if the protocol is not an election.
    leader: Option<fn(&P) -> ProcessId>,
    /// Checks the processes that have aborted. `None` if the protocol never aborts.
    aborts_agree: Option<fn(&World<P>) -> bool>,
}

impl<P: Process> Exhaustive<P> {
    /// Explores every world that is reachable from `start` while no process begins more than `max_attempts` attempts. All
    /// decisions must be equal and among `valid`.
    pub fn agreement(start: World<P>, max_attempts: u64, valid: Vec<P::Value>) -> Exhaustive<P> {
        Exhaustive { start, max_attempts, valid, leader: None, aborts_agree: None }
    }

    /// Adds a check of the processes that have aborted.
    #[must_use]
    pub fn with_abort_check(self, aborts_agree: fn(&World<P>) -> bool) -> Exhaustive<P> {
        Exhaustive { aborts_agree: Some(aborts_agree), ..self }
    }

    /// Explores every world that is reachable from `start` while no process wakes more than `max_wakes` times. If a stable period
    /// follows, the live processes must elect one of them: they name it and no other from then on, send no messages, and only
    /// the leader writes. `leader` returns the leader that a process names.
    pub fn election(start: World<P>, max_wakes: u64, leader: fn(&P) -> ProcessId) -> Exhaustive<P> {
        Exhaustive {
            start,
            max_attempts: max_wakes,
            valid: Vec::new(),
            leader: Some(leader),
            aborts_agree: None,
        }
    }
}

impl<P> Exhaustive<P>
where
    P: Process + Send + Sync + 'static,
    P::Cell: Send + Sync,
    P::Message: Send + Sync,
    P::Value: Send + Sync,
{
    /// Explores all worlds, or stops at the first counterexample.
    pub fn explore(self) -> Exploration {
        explore(self)
    }

    /// Serves the worlds to a web browser at an address, until the program ends.
    pub fn serve(self, address: SocketAddr) {
        serve(self, address);
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
                model.aborts_agree.is_none_or(|aborts_agree| aborts_agree(world))
            }),
            Property::always("election", |model: &Self, world: &World<P>| {
                model.leader.is_none_or(|leader| {
                    stable_period_violation(world.clone(), STABLE_ROUNDS, leader, |_, _| 1).is_none()
                })
            }),
        ]
    }

    fn within_boundary(&self, world: &World<P>) -> bool {
        world.attempts() <= self.max_attempts
    }
}
