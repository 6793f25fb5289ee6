//! Messages and rounds until decision, if the order of steps is random and independent of the state
//! of the processes.

use mitra_consensus::{Process, ProcessId};

use crate::seeded_run::StepRng;
use crate::{Step, World};

/// The cost until every live process has decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageCost {
    /// Messages sent by all processes.
    pub messages: usize,
    /// The largest number of attempts, or rounds, of a process.
    pub attempts: u64,
}

/// Runs a world until every live process has decided. The seed selects the order of steps and the
/// `crashes` processes that crash. Such a process crashes before one of the first 64 steps, or as
/// soon as it has decided. Returns `None` if a live process has not decided after `max_steps`
/// steps.
pub fn message_cost<P: Process>(
    seed: u64,
    mut world: World<P>,
    crashes: usize,
    max_steps: u32,
) -> Option<MessageCost> {
    let mut rng = StepRng::new(seed);
    let mut pending_crashes = Vec::new();
    let mut candidates = world.live_processes();
    for _ in 0..crashes.min(candidates.len()) {
        let chosen = candidates.remove(rng.below(candidates.len() as u64) as usize);
        pending_crashes.push((rng.below(u64::from(max_steps).min(64)), chosen));
    }
    let mut delivered = 0;
    for step_number in 0..u64::from(max_steps) {
        let due =
            |&(at, p): &(u64, ProcessId)| at <= step_number || world.decisions()[usize::from(p.0)].is_some();
        let crashing: Vec<_> = pending_crashes.extract_if(.., |crash| due(crash)).collect();
        crashing.into_iter().for_each(|(_, p)| world.apply(Step::CrashProcess(p)));
        if pending_crashes.is_empty() && world.is_done() {
            let attempts = world.attempts();
            return Some(MessageCost { messages: delivered + world.messages_in_transit(), attempts });
        }
        let step = rng.weighted(&world.steps(), |_| 1)?;
        delivered += usize::from(matches!(step, Step::DeliverMessage(_)));
        world.apply(step);
    }
    None
}
