//! Runs of a leader election: a period with faults, then a stable period. In the stable period, the
//! live processes must elect one of them, never change the leader again, and send no messages.

use mitra_consensus::{Process, ProcessId};

use crate::seeded_run::{AgreementSystem, StepRng, run_adversary_period};
use crate::{RunLimits, RunReport, Step, Violation, World};

/// Runs a world from a seed. `leader` returns the leader that a process names.
///
/// In the stable period, each process repeatedly wakes in several successive rounds and then
/// pauses. At most one process instead wakes more and more rarely, so that it cannot be the leader.
/// The second half of the [`RunLimits::stable_steps`] rounds is checked.
pub fn run_election<P: Process>(
    seed: u64,
    world: World<P>,
    limits: RunLimits,
    leader: impl Fn(&P) -> ProcessId,
) -> RunReport {
    let mut rng = StepRng::new(seed);
    let mut system = AgreementSystem { world, valid: &[], undecided_violation: |_: &World<P>| None };
    let mut report = run_adversary_period(&mut rng, &mut system, limits.adversary_steps);
    let live = system.world.live_processes();
    let mut schedules: Vec<WakeSchedule> = live.iter().map(|_| WakeSchedule::new(&mut rng)).collect();
    if live.len() > 1 && rng.below(2) == 0 {
        schedules[rng.below(live.len() as u64) as usize] = WakeSchedule::Slower(20);
    }
    report.violation = stable_period_violation(system.world, limits.stable_steps, leader, |index, wakes| {
        schedules[index].pause(wakes)
    });
    report
}

/// The rounds in which a process wakes. The rounds are fixed in advance. If each round were chosen
/// at random, a pause longer than all earlier pauses could come at any time, and no timeout would
/// be long enough.
enum WakeSchedule {
    /// Wakes in this number of successive rounds, then waits for this number of rounds.
    Bursts(u64, u64),
    /// Each pause is longer than the last pause by this number of rounds. The pauses grow faster
    /// than the timeouts of the other processes.
    Slower(u64),
}

impl WakeSchedule {
    fn new(rng: &mut StepRng) -> WakeSchedule {
        WakeSchedule::Bursts(1 + rng.below(8), 1 + rng.below(8))
    }

    /// Returns the number of rounds until the next wake-up, after `wakes` wake-ups.
    fn pause(&self, wakes: u64) -> u64 {
        match *self {
            WakeSchedule::Bursts(burst, pause) if wakes.is_multiple_of(burst) => pause,
            WakeSchedule::Bursts(..) => 1,
            WakeSchedule::Slower(by) => by * (5 + wakes),
        }
    }
}

/// Runs a stable period of `rounds` rounds, and returns the violation in its second half. `pause`
/// returns the number of rounds until a process wakes next. Its arguments are the index of the
/// process among the live processes, and the number of wake-ups of the process so far.
pub(crate) fn stable_period_violation<P: Process>(
    mut world: World<P>,
    rounds: u32,
    leader: impl Fn(&P) -> ProcessId,
    pause: impl Fn(usize, u64) -> u64,
) -> Option<Violation> {
    let live = world.live_processes();
    if live.is_empty() {
        return None;
    }
    let mut wake_states = vec![(0, 0); live.len()];
    let leaders = |world: &World<P>| {
        let mut leaders: Vec<ProcessId> =
            live.iter().filter_map(|&p| world.process(p).map(&leader)).collect();
        leaders.dedup();
        leaders
    };
    let mut elected = Vec::new();
    for round in 0..rounds {
        world.pass_delay();
        for (index, (&p, (wakes, next))) in live.iter().zip(&mut wake_states).enumerate() {
            if *next <= round.into() {
                *wakes += 1;
                *next = u64::from(round) + pause(index, *wakes);
                world.apply(Step::Wake(p));
            }
        }
        if round == rounds / 2 {
            elected = leaders(&world);
        }
        if round >= rounds / 2 {
            match leaders(&world)[..] {
                [leader] if elected == [leader] && live.contains(&leader) => {
                    let is_quiescent = world.messages_in_transit() == 0
                        && live.iter().all(|&p| p == leader || !world.has_pending_update(p));
                    if !is_quiescent {
                        return Some(Violation::NotQuiescent);
                    }
                }
                _ => return Some(Violation::NoStableLeader),
            }
        }
    }
    None
}
