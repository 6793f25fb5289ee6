//! Ω, with all its rules, and mutants without one of them.

use std::iter;

use crate::common::explorations::{Reads, finds_nothing};
use mitra_consensus::AllRules;
use mitra_consensus::omega::{Omega, Rules};
use mitra_model_check::{
    Exhaustive, FaultLimits, RunLimits, Violation, World, protocol_worlds, run_election,
};
use mitra_prng::seeds;

fn world_of<R: Rules>(n: u8, process_crashes: u8) -> World<Omega<R>> {
    protocol_worlds::omega(n, FaultLimits { process_crashes, disconnects: 1, ..FaultLimits::default() })
}

const RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 400, stable_steps: 10_000 };

#[test]
fn live_processes_elect_one_leader_and_stop_sending_from_every_seed() {
    for n in 1..=5 {
        for seed in seeds(400) {
            let report = run_election(seed, world_of::<AllRules>(n, n - 1), RUN_LIMITS, Omega::leader);
            assert_eq!(report.violation, None, "n={n} seed {seed}: {:?}", report.steps);
        }
    }
}

#[test]
fn two_processes_elect_leader_in_every_order_of_steps() {
    finds_nothing("omega::two_processes_elect_leader_in_every_order_of_steps", Reads::Consensus, || {
        Exhaustive::election(world_of::<AllRules>(2, 1), 2, Omega::leader).explore()
    });
}

/// Checks that some seed of the mutant violates a property, and that the same seed violates none
/// with all rules.
fn mutant_violates<R: Rules>(world: impl Fn() -> World<Omega<R>>) {
    mutant_violates_at(0, world);
}

/// Does what [`mutant_violates`] does. The seed `known`, which showed the violation in the past,
/// runs first.
fn mutant_violates_at<R: Rules>(known: u64, world: impl Fn() -> World<Omega<R>>) {
    let violation = |seed| run_election(seed, world(), RUN_LIMITS, Omega::leader).violation;
    let violation_seed = iter::once(known).chain(0..20_000).find_map(|seed| Some((seed, violation(seed)?)));
    println!("{violation_seed:?}");
    let Some((seed, Violation::NoStableLeader | Violation::NotQuiescent)) = violation_seed else {
        panic!("{violation_seed:?}")
    };
    assert_eq!(run_election(seed, self::world::<AllRules>(), RUN_LIMITS, Omega::leader).violation, None);
}

fn world<R: Rules>() -> World<Omega<R>> {
    world_of(3, 2)
}

mutants! { Rules, world:
    mutant_without_accusations_fails: ACCUSES;
    mutant_without_accusation_counts_fails: COUNTS_ACCUSATIONS;
    mutant_without_growing_timeouts_fails: RAISES_TIMEOUT;
    mutant_without_turns_fails: TAKES_TURNS;
    mutant_that_announces_before_write_fails: ANNOUNCES_AFTER_WRITE;
    mutant_that_uses_earlier_reads_fails: IGNORES_EARLIER_READS at 1728;
}
