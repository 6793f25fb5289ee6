//! Ω where links lose messages. The variant with messages fails. The variant over memories alone
//! sends no messages (its message type has no values) and elects a leader. Mutants of this variant
//! without one of its rules do not elect a leader.

use std::iter;

use crate::common::explorations::{Reads, finds_nothing};
use mitra_consensus::AllRules;
use mitra_consensus::memory_only_omega::{MemoryOnlyOmega, Rules};
use mitra_consensus::omega::{Omega, Rules as OmegaRules};
use mitra_model_check::{
    Exhaustive, FaultLimits, RunLimits, Step, Violation, World, protocol_worlds, run_election,
};
use mitra_prng::seeds;

const RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 400, stable_steps: 10_000 };

fn world_of<R: Rules, E: OmegaRules>(n: u8) -> World<MemoryOnlyOmega<R, E>> {
    protocol_worlds::memory_only_omega(
        n,
        FaultLimits { process_crashes: n - 1, disconnects: 4, ..FaultLimits::default() },
    )
}

/// The property fails after a single lost message. A process that does not receive an accusation
/// continues to lead, but the accuser never again considers the process as a leader.
#[test]
fn omega_with_messages_fails_after_lost_message() {
    const SEED: u64 = 21;
    let limits = FaultLimits { message_losses: 1, ..FaultLimits::default() };
    let report = run_election(SEED, protocol_worlds::omega::<AllRules>(3, limits), RUN_LIMITS, Omega::leader);
    assert_eq!(report.steps.iter().filter(|step| matches!(step, Step::DropMessage(_))).count(), 1);
    assert_eq!(report.violation, Some(Violation::NoStableLeader));
    let silent = protocol_worlds::memory_only_omega::<AllRules, AllRules>(3, limits);
    assert_eq!(run_election(SEED, silent, RUN_LIMITS, MemoryOnlyOmega::leader).violation, None);
}

#[test]
fn live_processes_elect_one_leader_and_only_it_writes_from_every_seed() {
    for n in 1..=5 {
        for seed in seeds(400) {
            let report =
                run_election(seed, world_of::<AllRules, AllRules>(n), RUN_LIMITS, MemoryOnlyOmega::leader);
            assert_eq!(report.violation, None, "n={n} seed {seed}: {:?}", report.steps);
        }
    }
}

fn elects_in_every_order_of_steps(name: &str, limits: FaultLimits, max_wakes: u64) {
    let world = protocol_worlds::memory_only_omega::<AllRules, AllRules>(2, limits);
    finds_nothing(&format!("memory_only_omega::{name}"), Reads::Consensus, || {
        Exhaustive::election(world, max_wakes, MemoryOnlyOmega::leader).explore()
    });
}

#[test]
fn two_processes_of_which_one_may_crash_elect_leader_in_every_order_of_steps() {
    elects_in_every_order_of_steps(
        "one_may_crash",
        FaultLimits { process_crashes: 1, disconnects: 1, ..FaultLimits::default() },
        1,
    );
}

#[test]
fn two_processes_that_wake_twice_elect_leader_in_every_order_of_steps() {
    elects_in_every_order_of_steps("two_wakes", FaultLimits::default(), 2);
}

/// Checks that some seed of the mutant violates a property, and that the same seed violates none
/// with all rules.
fn mutant_violates<R: Rules, E: OmegaRules>(world: impl Fn() -> World<MemoryOnlyOmega<R, E>>) {
    mutant_violates_at(0, world);
}

/// Does what [`mutant_violates`] does. The seed `known`, which showed the violation in the past,
/// runs first.
fn mutant_violates_at<R: Rules, E: OmegaRules>(known: u64, world: impl Fn() -> World<MemoryOnlyOmega<R, E>>) {
    let violation = |seed| run_election(seed, world(), RUN_LIMITS, MemoryOnlyOmega::leader).violation;
    let violation_seed = iter::once(known).chain(0..20_000).find_map(|seed| Some((seed, violation(seed)?)));
    println!("{violation_seed:?}");
    let Some((seed, Violation::NoStableLeader | Violation::NotQuiescent)) = violation_seed else {
        panic!("{violation_seed:?}")
    };
    assert_eq!(
        run_election(seed, world_of::<AllRules, AllRules>(3), RUN_LIMITS, MemoryOnlyOmega::leader).violation,
        None
    );
}

fn world_for_messaging<R: Rules>() -> World<MemoryOnlyOmega<R>> {
    world_of(3)
}

fn world_for_election<E: OmegaRules>() -> World<MemoryOnlyOmega<AllRules, E>> {
    world_of(3)
}

mutants! { Rules, world_for_messaging:
    mutant_without_reading_fails: READS_MESSAGES;
    mutant_with_repeated_delivery_fails: DELIVERS_ONCE;
    mutant_without_write_retries_fails: RETRIES_REFUSED_WRITES at 1206;
}

mutants! { OmegaRules, world_for_election:
    mutant_that_announces_before_write_fails: ANNOUNCES_AFTER_WRITE;
    mutant_that_uses_earlier_reads_fails: IGNORES_EARLIER_READS at 2150;
}
