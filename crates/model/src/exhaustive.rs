//! Every order of steps, at small sizes.

use std::num::NonZeroUsize;
use std::thread;

use mitra_agreement::Process;
use stateright::{Checker, Model, Property};

use crate::{Step, World};

/// What an exhaustive search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Different worlds that it has seen.
    pub states: usize,
    /// The steps to a world that should not be, and what is wrong with it; the fewest steps, but for threads.
    pub counterexample: Option<(&'static str, Vec<Step>)>,
}

/// A world, and how far to follow it.
struct Bounded<P: Process> {
    start: World<P>,
    attempts: u64,
    valid: Vec<P::Value>,
}

/// Explores every world that can come of `start` while nobody begins more than `attempts` attempts. Who decides must decide on one
/// of `valid`, and on the same.
pub fn explore<P>(start: World<P>, attempts: u64, valid: Vec<P::Value>) -> Found
where
    P: Process + Send + Sync + 'static,
    P::Cell: Send + Sync,
    P::Message: Send + Sync,
    P::Value: Send + Sync,
{
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let checker = Bounded { start, attempts, valid }.checker().threads(threads).spawn_bfs().join();
    let discoveries = checker.discoveries();
    let shortest = discoveries.into_iter().min_by_key(|(_, path)| path.clone().into_actions().len());
    Found {
        states: checker.unique_state_count(),
        counterexample: shortest.map(|(what, path)| (what, path.into_actions())),
    }
}

impl<P: Process> Model for Bounded<P> {
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
        next.take(step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("agreement", |_, world: &World<P>| world.agrees()),
            Property::always("validity", |model: &Self, world: &World<P>| {
                world.decisions().iter().flatten().all(|value| model.valid.contains(value))
            }),
        ]
    }

    fn within_boundary(&self, world: &World<P>) -> bool {
        world.attempts() <= self.attempts
    }
}
