//! Fast & Robust among Byzantine processes, with all its rules, and mutants without one of them.

use std::iter;

use crate::common::byzantine_set;
use crate::common::explorations::{Reads, finds_nothing};
use mitra_consensus::{AllRules, Process, cheap_quorum, preferential_paxos};
use mitra_model_check::byzantine_worlds::{self, BROADCAST_ROOM, ByzantineSet};
use mitra_model_check::{Exhaustive, FaultLimits, RunLimits, Violation, World, run_agreement};
use mitra_prng::seeds;

const RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 2_000, stable_steps: 60_000 };

fn limits(m: u8) -> FaultLimits {
    FaultLimits {
        leader_changes: 6,
        memory_crashes: u8::from(m > 1),
        disconnects: 3,
        ..FaultLimits::default()
    }
}

fn violation<P: Process<Value = u8>>(seed: u64, world: World<P>, valid: &[u8]) -> Option<Violation> {
    run_agreement(seed, world, RUN_LIMITS, valid).violation
}

/// Returns the number of polls before a panic, by seed, and the room for broadcasts.
fn polls_and_room(seed: u64) -> (u8, u16) {
    ([0, 2, 20][seed as usize % 3], BROADCAST_ROOM)
}

#[test]
fn correct_processes_decide_one_of_their_proposals() {
    for seed in seeds(100) {
        let world = byzantine_worlds::fast_and_robust::<AllRules, AllRules>(
            (3, 3),
            polls_and_room(seed),
            ByzantineSet::NONE,
            limits(3),
        );
        assert_eq!(violation(seed, world, &[10, 11, 12]), None, "seed {seed}");
    }
}

#[test]
fn leader_decides_in_two_delays() {
    let mut world = byzantine_worlds::fast_and_robust::<AllRules, AllRules>(
        (3, 3),
        (20, BROADCAST_ROOM),
        ByzantineSet::NONE,
        FaultLimits::default(),
    );
    let decided = |world: &World<_>| world.decisions().iter().map(Option::is_some).collect::<Vec<_>>();
    world.pass_delay();
    assert_eq!(decided(&world), [false, false, false]);
    world.pass_delay();
    assert_eq!(decided(&world), [true, false, false]);
}

#[test]
fn two_processes_agree_in_every_order_of_steps() {
    finds_nothing("fast_and_robust::two_processes_agree_in_every_order_of_steps", Reads::Consensus, || {
        Exhaustive::agreement(byzantine_worlds::small_fast_and_robust(), 1, vec![10, 11]).explore()
    });
}

#[test]
fn correct_processes_agree_and_decide_despite_byzantine_ones() {
    for seed in seeds(50) {
        for (n, byzantine) in [(3, &[0][..]), (3, &[2]), (5, &[0, 3])] {
            let valid: Vec<u8> = (0..n).flat_map(|p| [10 + p, 20 + p]).collect();
            let (polls_and_room, set) = (polls_and_room(seed), byzantine_set(byzantine, Some(seed)));
            let equivocating = byzantine_worlds::fast_and_robust::<AllRules, AllRules>(
                (n, 3),
                polls_and_room,
                set,
                limits(3),
            );
            assert_eq!(
                violation(seed, equivocating, &valid),
                None,
                "equivocation, n={n} {byzantine:?} seed {seed}"
            );
            let forged_proof = byzantine_worlds::fast_and_robust_with_forged_proofs::<AllRules, AllRules>(
                (n, 3),
                polls_and_room.0,
                set,
                limits(3),
            );
            assert_eq!(
                violation(seed, forged_proof, &valid),
                None,
                "forged proof, n={n} {byzantine:?} seed {seed}"
            );
        }
    }
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
    assert_eq!(
        self::find_violation::<AllRules, AllRules>(violation_seed.expect("a seed shows the violation").0),
        None
    );
}

/// Returns the first violation of a seed in three worlds: the leader forges a unanimity proof, a
/// follower forges one, and no process is Byzantine.
fn find_violation<R: cheap_quorum::Rules, P: preferential_paxos::Rules>(seed: u64) -> Option<Violation> {
    let valid = [10, 11, 12, 20, 21, 22];
    let max_polls = (seed % 16) as u8;
    let run_limits = RunLimits { adversary_steps: 900, stable_steps: 20_000 };
    let all_correct = byzantine_worlds::fast_and_robust::<R, P>(
        (3, 1),
        (max_polls, BROADCAST_ROOM),
        ByzantineSet::NONE,
        limits(1),
    );
    let forged_proof = |byzantine| {
        byzantine_worlds::fast_and_robust_with_forged_proofs::<R, P>(
            (3, 1),
            max_polls,
            byzantine_set(&[byzantine], None),
            limits(1),
        )
    };
    let violation = [0, 2]
        .into_iter()
        .find_map(|byzantine| run_agreement(seed, forged_proof(byzantine), run_limits, &valid).violation);
    violation.or_else(|| run_agreement(seed, all_correct, run_limits, &valid).violation)
}

mod cheap_quorum_mutants {
    use super::*;
    use mitra_consensus::cheap_quorum::Rules;

    fn world<R: Rules>(seed: u64) -> Option<Violation> {
        find_violation::<R, AllRules>(seed)
    }

    mutants! { Rules, world:
        mutant_without_revocation_violates_a_property: REVOKES;
        mutant_whose_deciders_do_not_join_gets_stuck: DECIDERS_JOIN;
        mutant_that_awaits_one_proof_violates_a_property: AWAITS_PROOFS at 931;
    }
}

mod preferential_paxos_mutants {
    use super::*;
    use mitra_consensus::preferential_paxos::Rules;

    fn world<P: Rules>(seed: u64) -> Option<Violation> {
        find_violation::<AllRules, P>(seed)
    }

    mutants! { Rules, world:
        mutant_without_signature_verification_violates_a_property: VERIFIES;
        mutant_that_proposes_own_claim_violates_a_property: PROPOSES_BEST_CLAIM;
    }
}
