//! Every order of steps, at small sizes.

use std::net::SocketAddr;
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

/// A world to explore, and how far: every world that can come of it while nobody begins more attempts.
pub struct Exhaustive<P: Process> {
    /// Where it begins.
    pub start: World<P>,
    /// How often a process may begin an attempt.
    pub attempts: u64,
    /// What may be decided.
    pub valid: Vec<P::Value>,
}

impl<P> Exhaustive<P>
where
    P: Process + Send + Sync + 'static,
    P::Cell: Send + Sync,
    P::Message: Send + Sync,
    P::Value: Send + Sync,
{
    /// Explores it all, or until a counterexample is found.
    pub fn explore(self) -> Found {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let checker = self.checker().threads(threads).spawn_bfs().join();
        let discoveries = checker.discoveries();
        let paths = discoveries.into_iter().map(|(what, path)| (what, path.into_actions()));
        Found {
            states: checker.unique_state_count(),
            counterexample: paths.min_by_key(|(_, steps)| steps.len()),
        }
    }

    /// Serves it to a browser, for as long as the program runs.
    pub fn serve(self, at: SocketAddr) {
        self.checker().serve(at);
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
