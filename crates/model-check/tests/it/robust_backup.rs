//! Robust Backup of Paxos among Byzantine processes, with all its rules, and mutants without one of
//! them.

use std::iter;

use crate::common::byzantine_set;
use crate::common::explorations::{Reads, finds_nothing};
use mitra_consensus::{AllRules, Process};
use mitra_model_check::byzantine_worlds::{self, ByzantineSet};
use mitra_model_check::{Exhaustive, FaultLimits, RunLimits, Violation, World, run_agreement};
use mitra_prng::seeds;

const RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 3_000, stable_steps: 60_000 };

fn limits(m: u8) -> FaultLimits {
    FaultLimits {
        leader_changes: 12,
        memory_crashes: u8::from(m > 1),
        disconnects: 3,
        ..FaultLimits::default()
    }
}

fn violation<P: Process<Value = u8>>(seed: u64, world: World<P>, valid: &[u8]) -> Option<Violation> {
    run_agreement(seed, world, RUN_LIMITS, valid).violation
}

#[test]
fn correct_processes_decide_one_of_their_proposals() {
    for seed in seeds(300) {
        let world =
            byzantine_worlds::robust_backup::<AllRules, AllRules>((3, 3), ByzantineSet::NONE, limits(3));
        assert_eq!(violation(seed, world, &[10, 11, 12]), None, "seed {seed}");
    }
}

#[test]
fn correct_processes_agree_and_decide_despite_byzantine_ones() {
    for seed in seeds(100) {
        for (n, byzantine) in [(3, &[0][..]), (3, &[2]), (5, &[0, 3])] {
            let valid: Vec<u8> = (0..n).flat_map(|p| [10 + p, 20 + p]).collect();
            let set = byzantine_set(byzantine, Some(seed));
            let equivocating = byzantine_worlds::robust_backup::<AllRules, AllRules>((n, 3), set, limits(3));
            assert_eq!(
                violation(seed, equivocating, &valid),
                None,
                "equivocation, n={n} {byzantine:?} seed {seed}"
            );
            let forged_history =
                byzantine_worlds::robust_backup_with_forged_histories::<AllRules>((n, 3), set, limits(3));
            assert_eq!(
                violation(seed, forged_history, &valid),
                None,
                "forged history, n={n} {byzantine:?} seed {seed}"
            );
        }
    }
}

#[test]
fn two_correct_processes_agree_in_every_order_of_steps() {
    let limits = FaultLimits { leader_changes: 1, ..FaultLimits::default() };
    finds_nothing(
        "robust_backup::two_correct_processes_agree_in_every_order_of_steps",
        Reads::Consensus,
        || Exhaustive::agreement(byzantine_worlds::small_robust_backup(2, limits), 1, vec![10, 11]).explore(),
    );
}

/// Checks that, from some seed, the processes of the mutant disagree or get stuck, and that neither
/// happens from this seed with all rules.
fn mutant_violates(find_violation: fn(u64) -> Option<Violation>) {
    mutant_violates_at(0, find_violation);
}

/// Does what [`mutant_violates`] does. The seed `known`, which showed the violation in the past,
/// runs first.
fn mutant_violates_at(known: u64, find_violation: fn(u64) -> Option<Violation>) {
    let violation_seed =
        iter::once(known).chain(0..20_000).find_map(|seed| Some((seed, find_violation(seed)?)));
    println!("{violation_seed:?}");
    let (seed, _) = violation_seed.expect("a seed shows the violation");
    assert_eq!(
        history_mutants::find_violation::<AllRules>(seed)
            .or(broadcast_mutants::find_violation::<AllRules>(seed)),
        None
    );
}

/// Returns the violation of a seed, with one Byzantine process of three and one memory.
fn find_violation<P: Process<Value = u8>>(
    seed: u64,
    world: fn((u8, u8), ByzantineSet, FaultLimits) -> World<P>,
) -> Option<Violation> {
    let worlds = [0, 1].map(|p| world((3, 1), byzantine_set(&[p], Some(seed)), limits(1)));
    worlds.into_iter().find_map(|world| violation(seed, world, &[10, 11, 12, 20, 21]))
}

mod history_mutants {
    use super::*;
    use mitra_consensus::robust_backup::Rules;

    pub(super) fn find_violation<R: Rules>(seed: u64) -> Option<Violation> {
        super::find_violation(seed, byzantine_worlds::robust_backup_with_forged_histories::<R>)
    }

    mutants! { Rules, find_violation:
        mutant_that_does_not_wait_for_undelivered_messages_violates_a_property: WAITS_FOR_UNDELIVERED;
        mutant_that_permits_second_start_violates_a_property: BEGINS_ONCE at 1355;
    }
}

mod broadcast_mutants {
    use super::*;
    use mitra_consensus::broadcast::Rules;

    pub(super) fn find_violation<B: Rules>(seed: u64) -> Option<Violation> {
        super::find_violation(seed, byzantine_worlds::robust_backup::<AllRules, B>)
    }

    mutants! { Rules, find_violation:
        mutant_that_permits_equivocation_violates_a_property: AWAITS_OTHERS;
        mutant_with_one_broadcast_level_gets_stuck: TWO_LEVELS;
    }
}
