//! Queue pairs with a shared backup: every order of steps at a small size, and the violations that
//! are found if the driver lacks a rule.

use mitra_consensus_check::{
    SharedBackupLimits, SharedBackupRule, exhaustive_shared_backup, run_shared_backup_from_seed,
};

#[track_caller]
fn assert_holds(limits: SharedBackupLimits) {
    let exploration = exhaustive_shared_backup(limits, None).explore();
    assert_eq!(exploration.counterexample, None);
    assert!(exploration.states > 20_000, "{} states", exploration.states);
}

#[test]
fn operations_of_both_ends_survive_a_move() {
    assert_holds(SharedBackupLimits::ONE_MOVE);
}

/// The end with operations on the first queue pair is slow. The peer of the slow end may leave two
/// queue pairs before the slow end has fenced the first queue pair.
#[test]
fn operations_of_either_end_survive_two_moves() {
    for operations in [[2, 0], [0, 2]] {
        assert_holds(SharedBackupLimits { operations, ..SharedBackupLimits::TWO_MOVES });
    }
}

#[test]
fn both_ends_close_if_one_does() {
    assert_holds(SharedBackupLimits::CLOSES);
}

#[test]
fn random_moves_of_slow_ends_repeat_and_lose_nothing() {
    let mut faults = 0;
    for seed in 0..1000 {
        let result = run_shared_backup_from_seed(seed, None);
        assert_eq!(result.violation, None, "seed {seed}");
        faults += result.faults;
    }
    assert!(faults > 1_000, "{faults} faults");
}

#[test]
fn every_rule_of_the_driver_is_needed() {
    let rules = [
        SharedBackupRule::Fence,
        SharedBackupRule::EvidenceAfterFence,
        SharedBackupRule::PeerEvidence,
        SharedBackupRule::PeerConnected,
        SharedBackupRule::EmptyBackup,
        SharedBackupRule::OfferOfThisEpoch,
    ];
    for rule in rules {
        let found = exhaustive_shared_backup(SharedBackupLimits::ONE_MOVE, Some(rule)).explore();
        assert!(found.counterexample.is_some(), "{rule:?}: {} states", found.states);
    }
}
