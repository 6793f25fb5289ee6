//! Fast & Robust among Byzantine processes, with all its rules and without each of them.

mod common;

use common::these;
use mitra_consensus::{AllRules, Process, cheap_quorum, preferential_paxos};
use mitra_consensus_check::byzantine_worlds::{self, ByzantineSet, TURNS};
use mitra_consensus_check::{Exhaustive, FaultLimits, RunLimits, Violation, World, run_agreement};

const CHAOS: RunLimits = RunLimits { adversary_steps: 2_000, stable_steps: 60_000 };

fn limits(m: u8) -> FaultLimits {
    FaultLimits {
        leader_changes: 6,
        memory_crashes: u8::from(m > 1),
        disconnects: 3,
        ..FaultLimits::default()
    }
}

fn found<P: Process<Value = u8>>(seed: u64, world: World<P>, valid: &[u8]) -> Option<Violation> {
    run_agreement(seed, world, CHAOS, valid).violation
}

/// With much patience and with little.
fn patience(seed: u64) -> (u8, u16) {
    ([0, 2, 20][seed as usize % 3], TURNS)
}

#[test]
fn correct_processes_decide_on_what_one_of_them_proposed() {
    for seed in 0..100 {
        let world = byzantine_worlds::fast_and_robust::<AllRules, AllRules>(
            (3, 3),
            patience(seed),
            ByzantineSet::NONE,
            limits(3),
        );
        assert_eq!(found(seed, world, &[10, 11, 12]), None, "seed {seed}");
    }
}

#[test]
fn the_leader_decides_in_two_delays() {
    let mut world = byzantine_worlds::fast_and_robust::<AllRules, AllRules>(
        (3, 3),
        (20, TURNS),
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
fn two_processes_agree_in_every_order() {
    let found = Exhaustive::agreement(byzantine_worlds::small_fast_and_robust(), 1, vec![10, 11]).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 100_000, "{} states: less than before", found.states);
}

#[test]
fn they_agree_and_decide_whatever_others_do() {
    for seed in 0..50 {
        for (n, who) in [(3, &[0][..]), (3, &[2]), (5, &[0, 3])] {
            let valid: Vec<u8> = (0..n).flat_map(|p| [10 + p, 20 + p]).collect();
            let (patience, these) = (patience(seed), these(who, Some(seed)));
            let two_faced =
                byzantine_worlds::fast_and_robust::<AllRules, AllRules>((n, 3), patience, these, limits(3));
            assert_eq!(found(seed, two_faced, &valid), None, "two-faced, {n} {who:?} seed {seed}");
            let claims = byzantine_worlds::fast_and_robust_with_forged_proofs::<AllRules, AllRules>(
                (n, 3),
                patience.0,
                these,
                limits(3),
            );
            assert_eq!(found(seed, claims, &valid), None, "with claims, {n} {who:?} seed {seed}");
        }
    }
}

/// Some seed shows that a rule is missing, where with all rules all is well: they disagree, or are stuck.
fn errs(wrong: fn(u64) -> Option<Violation>) {
    let killed = (0..20_000).find_map(|seed| Some((seed, wrong(seed)?)));
    println!("{killed:?}");
    assert_eq!(self::wrong::<AllRules, AllRules>(killed.expect("it errs").0), None);
}

/// Without traitors, and with one that claims in the backup what is not so, the leader or another.
fn wrong<R: cheap_quorum::Rules, P: preferential_paxos::Rules>(seed: u64) -> Option<Violation> {
    let valid = [10, 11, 12, 20, 21, 22];
    let patience = (seed % 16) as u8;
    let chaos = RunLimits { adversary_steps: 900, stable_steps: 20_000 };
    let honest =
        byzantine_worlds::fast_and_robust::<R, P>((3, 1), (patience, TURNS), ByzantineSet::NONE, limits(1));
    let claims = |who| {
        byzantine_worlds::fast_and_robust_with_forged_proofs::<R, P>(
            (3, 1),
            patience,
            these(&[who], None),
            limits(1),
        )
    };
    let wrong = [0, 2].into_iter().find_map(|who| run_agreement(seed, claims(who), chaos, &valid).violation);
    wrong.or_else(|| run_agreement(seed, honest, chaos, &valid).violation)
}

mod quorum {
    use super::*;
    use mitra_consensus::cheap_quorum::Rules;

    fn world<R: Rules>(seed: u64) -> Option<Violation> {
        wrong::<R, AllRules>(seed)
    }

    mutants! { Rules, world:
        where_the_leader_may_go_on_writing_it_errs: REVOKES;
        where_who_has_decided_does_not_join_it_is_stuck: DECIDERS_JOIN;
        where_one_proof_is_enough_it_errs: AWAITS_PROOFS;
    }
}

mod preference {
    use super::*;
    use mitra_consensus::preferential_paxos::Rules;

    fn world<P: Rules>(seed: u64) -> Option<Violation> {
        wrong::<AllRules, P>(seed)
    }

    mutants! { Rules, world:
        where_evidence_is_believed_it_errs: VERIFIES;
        where_processes_prefer_their_own_value_it_errs: PROPOSES_BEST_CLAIM;
    }
}
