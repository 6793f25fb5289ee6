//! Runs of a leader election: chaos, then calm, in which all the living must come to name one of them, for good; and then be silent.

use mitra_consensus::{Process, ProcessId};

use crate::seeded_run::{Deciding, StepRng, disturb};
use crate::{RunLimits, RunReport, Step, Violation, World};

/// Runs a world from a seed. `leader` says whom a process names. In the calm, of [`RunLimits::calm`] rounds, each process wakes at a pace
/// of its own, some rounds in a row and then some not; but one of them may sleep ever longer, so that it is no leader to be. The
/// second half of the rounds is judged.
pub fn run_election<P: Process>(
    seed: u64,
    world: World<P>,
    chaos: RunLimits,
    leader: impl Fn(&P) -> ProcessId,
) -> RunReport {
    let mut dice = StepRng::new(seed);
    let mut subject = Deciding { world, valid: &[], judge: |_: &World<P>| None };
    let mut report = disturb(&mut dice, &mut subject, chaos.adversary_steps);
    let living = subject.world.live_processes();
    let mut paces: Vec<Pace> = living.iter().map(|_| Pace::new(&mut dice)).collect();
    if living.len() > 1 && dice.below(2) == 0 {
        paces[dice.below(living.len() as u64) as usize] = Pace::Slower(20);
    }
    report.violation = stable_period_violation(subject.world, chaos.stable_steps, leader, |nth, woken| {
        paces[nth].pause(woken)
    });
    report
}

/// When a process wakes. Not by dice each time: then a pause that nobody had to wait for yet might come at any time.
enum Pace {
    /// So many rounds in a row, then not for so many.
    Bursts(u64, u64),
    /// Ever more rarely, by so many rounds: the others' patience must not grow as fast.
    Slower(u64),
}

impl Pace {
    fn new(dice: &mut StepRng) -> Pace {
        Pace::Bursts(1 + dice.below(8), 1 + dice.below(8))
    }

    /// For how many rounds it sleeps, having woken so often.
    fn pause(&self, woken: u64) -> u64 {
        match *self {
            Pace::Bursts(burst, rest) if woken.is_multiple_of(burst) => rest,
            Pace::Bursts(..) => 1,
            Pace::Slower(by) => by * (5 + woken),
        }
    }
}

/// Calm rounds, and what is wrong in the second half of them. The nth of the living wakes again after as many rounds as `pause`
/// says for it, having woken so often.
pub(crate) fn stable_period_violation<P: Process>(
    mut world: World<P>,
    rounds: u32,
    leader: impl Fn(&P) -> ProcessId,
    pause: impl Fn(usize, u64) -> u64,
) -> Option<Violation> {
    let living = world.live_processes();
    if living.is_empty() {
        return None;
    }
    let mut wakes = vec![(0, 0); living.len()];
    let named = |world: &World<P>| {
        let mut named: Vec<ProcessId> =
            living.iter().filter_map(|&p| world.process(p).map(&leader)).collect();
        named.dedup();
        named
    };
    let mut elected = Vec::new();
    for round in 0..rounds {
        world.pass_delay();
        for (nth, (&p, (woken, next))) in living.iter().zip(&mut wakes).enumerate() {
            if *next <= round.into() {
                *woken += 1;
                *next = u64::from(round) + pause(nth, *woken);
                world.apply(Step::Wake(p));
            }
        }
        if round == rounds / 2 {
            elected = named(&world);
        }
        if round >= rounds / 2 {
            match named(&world)[..] {
                [one] if elected == [one] && living.contains(&one) => {
                    let quiet = world.messages_in_transit() == 0
                        && living.iter().all(|&p| p == one || !world.has_pending_update(p));
                    if !quiet {
                        return Some(Violation::NotQuiescent);
                    }
                }
                _ => return Some(Violation::NoStableLeader),
            }
        }
    }
    None
}
