//! What it takes to decide where nobody is against it: the order of steps is random and nothing else.

use mitra_consensus::{Process, ProcessId};

use crate::seeded_run::StepRng;
use crate::{Step, World};

/// What it took until all that lived had decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageCost {
    /// Messages that were sent.
    pub messages: usize,
    /// The most attempts, or rounds, of a process.
    pub attempts: u64,
}

/// Runs a world until all that live have decided. `crashes` processes of the dice's choice crash, each some time before its own
/// decision. None if that takes more than `most` steps.
pub fn message_cost<P: Process>(
    seed: u64,
    mut world: World<P>,
    crashes: usize,
    most: u32,
) -> Option<MessageCost> {
    let mut dice = StepRng::new(seed);
    let mut doomed = Vec::new();
    let mut all = world.live_processes();
    for _ in 0..crashes.min(all.len()) {
        let chosen = all.remove(dice.below(all.len() as u64) as usize);
        doomed.push((dice.below(u64::from(most).min(64)), chosen));
    }
    let mut delivered = 0;
    for nth in 0..u64::from(most) {
        let due = |&(at, p): &(u64, ProcessId)| at <= nth || world.decisions()[usize::from(p.0)].is_some();
        let now: Vec<_> = doomed.extract_if(.., |one| due(one)).collect();
        now.into_iter().for_each(|(_, p)| world.apply(Step::CrashProcess(p)));
        if doomed.is_empty() && world.is_done() {
            let attempts = world.attempts();
            return Some(MessageCost { messages: delivered + world.messages_in_transit(), attempts });
        }
        let step = dice.weighted(&world.steps(), |_| 1)?;
        delivered += usize::from(matches!(step, Step::DeliverMessage(_)));
        world.apply(step);
    }
    None
}
