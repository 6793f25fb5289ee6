//! Robust Backup of Paxos among Byzantine processes, with all its rules and without each of them.

mod common;

use common::these;
use mitra_consensus::{AllRules, Process};
use mitra_consensus_check::byzantine_worlds::{self, ByzantineSet};
use mitra_consensus_check::{Exhaustive, FaultLimits, RunLimits, Violation, World, run_agreement};

const CHAOS: RunLimits = RunLimits { adversary_steps: 3_000, stable_steps: 60_000 };

fn limits(m: u8) -> FaultLimits {
    FaultLimits {
        leader_changes: 12,
        memory_crashes: u8::from(m > 1),
        disconnects: 3,
        ..FaultLimits::default()
    }
}

fn found<P: Process<Value = u8>>(seed: u64, world: World<P>, valid: &[u8]) -> Option<Violation> {
    run_agreement(seed, world, CHAOS, valid).violation
}

#[test]
fn correct_processes_decide_on_what_one_of_them_proposed() {
    for seed in 0..300 {
        let world =
            byzantine_worlds::robust_backup::<AllRules, AllRules>((3, 3), ByzantineSet::NONE, limits(3));
        assert_eq!(found(seed, world, &[10, 11, 12]), None, "seed {seed}");
    }
}

#[test]
fn they_agree_and_decide_whatever_others_do() {
    for seed in 0..100 {
        for (n, who) in [(3, &[0][..]), (3, &[2]), (5, &[0, 3])] {
            let valid: Vec<u8> = (0..n).flat_map(|p| [10 + p, 20 + p]).collect();
            let these = these(who, Some(seed));
            let two_faced = byzantine_worlds::robust_backup::<AllRules, AllRules>((n, 3), these, limits(3));
            assert_eq!(found(seed, two_faced, &valid), None, "two-faced, {n} {who:?} seed {seed}");
            let fables =
                byzantine_worlds::robust_backup_with_forged_histories::<AllRules>((n, 3), these, limits(3));
            assert_eq!(found(seed, fables, &valid), None, "with fables, {n} {who:?} seed {seed}");
        }
    }
}

#[test]
fn two_correct_processes_agree_in_every_order() {
    let limits = FaultLimits { leader_changes: 1, ..FaultLimits::default() };
    let found =
        Exhaustive::agreement(byzantine_worlds::small_robust_backup(2, limits), 1, vec![10, 11]).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 100_000, "{} states: less than before", found.states);
}

/// Some seed shows that a rule is missing, where with all rules all is well: they disagree, or are stuck.
fn errs(wrong: fn(u64) -> Option<Violation>) {
    let killed = (0..20_000).find_map(|seed| Some((seed, wrong(seed)?)));
    println!("{killed:?}");
    let (seed, _) = killed.expect("it errs");
    assert_eq!(histories::wrong::<AllRules>(seed).or(broadcasts::wrong::<AllRules>(seed)), None);
}

/// With one Byzantine process of three, over one memory.
fn wrong<P: Process<Value = u8>>(
    seed: u64,
    world: fn((u8, u8), ByzantineSet, FaultLimits) -> World<P>,
) -> Option<Violation> {
    let worlds = [0, 1].map(|p| world((3, 1), these(&[p], Some(seed)), limits(1)));
    worlds.into_iter().find_map(|world| found(seed, world, &[10, 11, 12, 20, 21]))
}

mod histories {
    use super::*;
    use mitra_consensus::robust_backup::Rules;

    pub(super) fn wrong<R: Rules>(seed: u64) -> Option<Violation> {
        super::wrong(seed, byzantine_worlds::robust_backup_with_forged_histories::<R>)
    }

    mutants! { Rules, wrong:
        where_processes_do_not_wait_for_what_others_have_heard_it_errs: WAITS_FOR_UNDELIVERED;
        where_processes_may_begin_anew_it_errs: BEGINS_ONCE;
    }
}

mod broadcasts {
    use super::*;
    use mitra_consensus::broadcast::Rules;

    pub(super) fn wrong<B: Rules>(seed: u64) -> Option<Violation> {
        super::wrong(seed, byzantine_worlds::robust_backup::<AllRules, B>)
    }

    mutants! { Rules, wrong:
        where_processes_equivocate_it_errs: AWAITS_OTHERS;
        with_one_level_it_is_stuck: TWO_LEVELS;
    }
}
