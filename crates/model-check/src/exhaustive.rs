//! Exhaustive exploration: every order of steps, at small sizes.

use mitra_consensus::{Process, ProcessId};

use crate::election::stable_period_violation;
use crate::{Exhaustive, Step, World};

/// The length of the stable period after each explored world, in rounds. The second half of the
/// rounds is checked.
const STABLE_ROUNDS: u32 = 600;

/// A process whose worlds several threads may explore.
pub trait Explorable:
    Process<Cell: Send + Sync, Message: Send + Sync, Value: Send + Sync> + Send + Sync + 'static
{
}

impl<P> Explorable for P where
    P: Process<Cell: Send + Sync, Message: Send + Sync, Value: Send + Sync> + Send + Sync + 'static
{
}

/// The worlds of a protocol.
pub type ExhaustiveWorld<P> = Exhaustive<World<P>, Step>;

impl<P: Explorable> ExhaustiveWorld<P> {
    /// Explores every world that is reachable from `start` while no process begins more than
    /// `max_attempts` attempts. All decisions must be equal and among `valid`.
    pub fn agreement(start: World<P>, max_attempts: u64, valid: Vec<P::Value>) -> Self {
        Exhaustive::new(start, World::steps, World::apply)
            .within(move |world| world.attempts() <= max_attempts)
            .always("agreement", World::agrees)
            .always("validity", move |world| {
                world.decisions().iter().flatten().all(|value| valid.contains(value))
            })
    }

    /// Explores every world that is reachable from `start` while no process wakes more than
    /// `max_wakes` times. If a stable period follows, the live processes must elect a leader: from
    /// then on, all of them name the same live process, no process sends a message, and only the
    /// leader writes. `leader` returns the leader that a process names.
    pub fn election(start: World<P>, max_wakes: u64, leader: fn(&P) -> ProcessId) -> Self {
        Exhaustive::agreement(start, max_wakes, Vec::new()).always("election", move |world| {
            stable_period_violation(world.clone(), STABLE_ROUNDS, leader, |_, _| 1).is_none()
        })
    }
}
