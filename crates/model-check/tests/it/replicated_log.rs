//! The replicated log, with all its rules, and mutants without one of them.

use std::iter;

use crate::common::explorations::{Reads, finds_nothing};
use mitra_consensus::log::Rules;
use mitra_consensus::{AllRules, Input, MemoryId, Process, ProcessId, ProcessSet};
use mitra_model_check::{
    FaultLimits, LogWorld, RunLimits, Step, TestedSystem, Violation, exhaustive_log, protocol_worlds,
    run_adversary,
};
use mitra_prng::seeds;

const RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 800, stable_steps: 20_000 };

fn world<R: Rules>() -> LogWorld<R> {
    let limits = FaultLimits {
        leader_changes: 16,
        process_crashes: 2,
        memory_crashes: 1,
        disconnects: 4,
        restarts: 3,
        message_losses: 0,
    };
    protocol_worlds::log(protocol_worlds::log_config(3, 3, 2), 6, limits)
}

#[test]
fn processes_apply_same_commands_and_commit_all_of_them_from_every_seed() {
    for seed in seeds(4_000) {
        let report = run_adversary(seed, world::<AllRules>(), RUN_LIMITS);
        assert_eq!(report.violation, None, "seed {seed}: {:?}", report.steps.len());
    }
}

/// Checks that some seed of the mutant violates a property, and that the same seed violates none
/// with all rules.
fn mutant_violates<R: Rules>(
    world: impl Fn() -> LogWorld<R>,
    run_limits: RunLimits,
    with_all_rules: impl Fn() -> LogWorld<AllRules>,
) {
    mutant_violates_at(0, world, run_limits, with_all_rules);
}

/// Does what [`mutant_violates`] does. The seed `known`, which showed the violation in the past,
/// runs first.
fn mutant_violates_at<R: Rules>(
    known: u64,
    world: impl Fn() -> LogWorld<R>,
    run_limits: RunLimits,
    with_all_rules: impl Fn() -> LogWorld<AllRules>,
) {
    let violation = |seed| match run_adversary(seed, world(), run_limits).violation {
        Some(Violation::Stuck) if run_limits.stable_steps == 0 => None,
        other => other,
    };
    let violation_seed = iter::once(known).chain(0..200_000).find_map(|seed| Some((seed, violation(seed)?)));
    println!("{violation_seed:?}");
    let (seed, _) = violation_seed.expect("a seed shows the violation");
    assert_eq!(
        run_adversary(
            seed,
            with_all_rules(),
            RunLimits { stable_steps: RUN_LIMITS.stable_steps, ..run_limits }
        )
        .violation,
        None
    );
}

/// Mutants that lose committed entries.
mod safety_mutants_without {
    use super::*;

    fn mutant_violates<R: Rules>(world: impl Fn() -> LogWorld<R>) {
        super::mutant_violates(world, RunLimits { stable_steps: 0, ..RUN_LIMITS }, super::world);
    }

    mutants! { Rules, world:
        check_of_ballot: CHECKS_BALLOT;
        wait_for_outstanding_operations: AWAITS_OUTSTANDING;
        use_of_highest_ballot: BY_BALLOT;
        scan_until_hole: SCANS_UNTIL_HOLE;
        majority: BY_MAJORITY;
        wait_for_recycling: AWAITS_RECYCLING;
        followers_that_read_majority: FOLLOWER_READS_MAJORITY;
    }
}

/// Mutants that lose committed entries if two processes submit many commands.
mod safety_mutants_with_many_commands_without {
    use super::*;

    fn world_with_many_commands<R: Rules>() -> LogWorld<R> {
        let limits = FaultLimits { leader_changes: 8, memory_crashes: 1, ..FaultLimits::default() };
        protocol_worlds::log(protocol_worlds::log_config(2, 3, 2), 40, limits)
    }

    fn mutant_violates<R: Rules>(world: impl Fn() -> LogWorld<R>) {
        super::mutant_violates(world, RunLimits { stable_steps: 0, ..RUN_LIMITS }, world_with_many_commands);
    }

    mutants! { Rules, world_with_many_commands:
        wait_for_previous_write_of_register: AWAITS_REGISTER;
    }
}

/// Mutants that lose committed entries if a process restarts often.
mod safety_mutants_with_restarts_without {
    use super::*;

    fn world_with_restarts<R: Rules>() -> LogWorld<R> {
        let limits = FaultLimits { leader_changes: 30, restarts: 20, ..FaultLimits::default() };
        protocol_worlds::log(protocol_worlds::log_config(1, 3, 2), 20, limits)
    }

    fn mutant_violates_at<R: Rules>(known: u64, world: impl Fn() -> LogWorld<R>) {
        super::mutant_violates_at(
            known,
            world,
            RunLimits { adversary_steps: 600, stable_steps: 0 },
            world_with_restarts,
        );
    }

    mutants! { Rules, world_with_restarts:
        new_ballot_after_restart: RESTARTS_ABOVE_OWN_BALLOT at 28_009;
    }
}

/// Mutants that lose a snapshot. The metadata in the chunks shows the loss, so that no process
/// installs a wrong snapshot. A process that needs the snapshot gets stuck.
mod liveness_mutants_without {
    use super::*;

    fn mutant_violates<R: Rules>(world: impl Fn() -> LogWorld<R>) {
        super::mutant_violates(world, RUN_LIMITS, super::world);
    }

    mutants! { Rules, world:
        wait_for_snapshot: AWAITS_SNAPSHOT;
        second_snapshot_area: ALTERNATES_SNAPSHOT_AREAS;
    }
}

#[test]
fn takeover_takes_eight_delays_and_each_entry_two() {
    let mut world =
        protocol_worlds::log::<AllRules>(protocol_worlds::log_config(2, 3, 2), 0, FaultLimits::default());
    let leader = ProcessId(1);
    world.begin_stable_period(leader);
    let delays = |world: &mut LogWorld<AllRules>, committed: usize| {
        (0..20).find(|&delay| {
            if delay > 0 {
                world.pass_delay();
            }
            world.history().len() >= committed
        })
    };
    // The leader takes the permission, reads the header, writes the ballot and reads the entries,
    // with two delays each.
    let is_leader =
        |world: &LogWorld<AllRules>| world.world().process(leader).is_some_and(|p| p.log().is_leader());
    let takeover_delays = (1..20).find(|_| {
        world.pass_delay();
        is_leader(&world)
    });
    assert_eq!(takeover_delays, Some(8));
    for entry in 1..=3 {
        world.apply(Step::Wake(leader));
        assert_eq!(delays(&mut world, entry), Some(2), "entry {entry}");
    }
}

/// Larger worlds were explored manually without a counterexample, before the world had restarts: a
/// window of 2 in a ring of 4 (1,618,956 states), 2 memories and 1 command (1,330,644 states), and
/// 1 command with a second attempt (5,882,605 states).
#[test]
fn two_processes_agree_in_every_order_of_steps() {
    let limits = FaultLimits { leader_changes: 2, ..FaultLimits::default() };
    let start = protocol_worlds::log::<AllRules>(protocol_worlds::log_config(2, 1, 1), 2, limits);
    finds_nothing("replicated_log::two_processes_agree_in_every_order_of_steps", Reads::Consensus, || {
        exhaustive_log(start, 1).explore()
    });
}

/// Runs a stable period, until the leader's commands are committed and all live processes have
/// applied them.
fn run_until_done(world: &mut LogWorld<AllRules>, leader: u8) {
    world.begin_stable_period(ProcessId(leader));
    for _ in 0..100 {
        world.pass_delay();
        world.apply(Step::Wake(ProcessId(leader)));
    }
    assert!(world.is_done(), "{world:?}");
}

#[test]
fn ineligible_process_does_not_lead_even_if_it_learns_that_from_snapshot() {
    let mut world =
        protocol_worlds::log::<AllRules>(protocol_worlds::log_config(3, 3, 2), 0, FaultLimits::default());
    run_until_done(&mut world, 0);
    let eligible = ProcessSet::only(ProcessId(1)).with(ProcessId(2));
    world.set_eligible_leaders(ProcessId(0), eligible);
    world.pass_delay();
    world.pass_delay();
    // Process 1 takes over and writes the ring of 4 entries twice. No other process makes a step.
    (0..3).for_each(|_| world.begin_stable_period(ProcessId(1)));
    let of_leader = |step: &Step| match *step {
        Step::Execute(p, _, 0) | Step::Respond(p, _, 0) | Step::Wake(p) => p == ProcessId(1),
        _ => false,
    };
    for step_number in 0..2_000 {
        let steps: Vec<Step> = world.steps().into_iter().filter(of_leader).collect();
        if let Some(&step) = steps.get(step_number % steps.len().max(1)) {
            world.apply(step);
        }
    }
    assert!(world.history().len() > 8, "{world:?}");
    run_until_done(&mut world, 1);
    let log =
        |world: &LogWorld<AllRules>, p| world.world().process(ProcessId(p)).expect("alive").log().clone();
    assert!((0..3).all(|p| log(&world, p).eligible_leaders() == eligible));
    assert!(log(&world, 1).is_leader() && !log(&world, 0).is_leader());
    let mut ineligible = log(&world, 0);
    ineligible.handle(Input::Leader(ProcessId(0)), &mut Vec::new());
    assert_eq!((ineligible.is_leader(), ineligible.attempts()), (false, 1));
}

#[test]
fn leader_continues_after_disconnect_in_every_order_of_steps() {
    let limits = FaultLimits { leader_changes: 1, disconnects: 1, ..FaultLimits::default() };
    for (m, window, commands) in [(1, 2, 4), (2, 1, 3)] {
        let start =
            protocol_worlds::log::<AllRules>(protocol_worlds::log_config(1, m, window), commands, limits);
        let name = format!("replicated_log::leader_continues_after_disconnect-{m}-{window}-{commands}");
        finds_nothing(&name, Reads::Consensus, || exhaustive_log(start, 2).explore());
    }
}

#[test]
fn leader_keeps_its_term_after_disconnect() {
    let limits = FaultLimits { disconnects: 1, ..FaultLimits::default() };
    let mut world = protocol_worlds::log::<AllRules>(protocol_worlds::log_config(2, 3, 2), 3, limits);
    let leader = ProcessId(0);
    world.apply(Step::Lead(leader));
    (0..8).for_each(|_| world.pass_delay());
    world.apply(Step::Wake(leader));
    (0..3).for_each(|m| _ = world.apply(Step::Execute(leader, MemoryId(m), 0)));
    world.apply(Step::Disconnect(leader, MemoryId(0)));
    run_until_done(&mut world, 0);
    let log = world.world().process(leader).expect("alive").log();
    assert!(log.is_leader());
    assert_eq!(log.attempts(), 2, "the leader begins one term and takes one memory again");
    // No command was submitted twice, because no outcome was unknown.
    assert_eq!(world.world().process(leader).map(|p| p.submitted()), Some(6));
}
