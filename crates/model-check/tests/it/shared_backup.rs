//! Queue pairs with a shared backup: every order of steps at a small size, and the violations that
//! are found if the driver lacks a rule.

use crate::common::explorations::{Reads, finds_nothing};
use mitra_model_check::{
    SharedBackupLimits, SharedBackupRule, exhaustive_shared_backup, run_shared_backup_from_seed,
};
use mitra_prng::seeds;

#[track_caller]
fn assert_holds(name: &str, limits: SharedBackupLimits) {
    finds_nothing(&format!("shared_backup::{name}"), Reads::Failover, || {
        exhaustive_shared_backup(limits, None).explore()
    });
}

#[test]
fn operations_of_both_ends_survive_a_move() {
    assert_holds("one_move", SharedBackupLimits::ONE_MOVE);
}

/// The end with operations on the first queue pair is slow. The peer of the slow end may leave two
/// queue pairs before the slow end has fenced the first queue pair.
#[test]
fn operations_of_either_end_survive_two_moves() {
    for operations in [[2, 0], [0, 2]] {
        let name = format!("two_moves_{}_{}", operations[0], operations[1]);
        assert_holds(&name, SharedBackupLimits { operations, ..SharedBackupLimits::TWO_MOVES });
    }
}

#[test]
fn both_ends_close_if_one_does() {
    assert_holds("closes", SharedBackupLimits::CLOSES);
}

#[test]
fn random_moves_of_slow_ends_repeat_and_lose_nothing() {
    let mut faults = 0;
    for seed in seeds(1000) {
        let result = run_shared_backup_from_seed(seed, None);
        assert_eq!(result.violation, None, "seed {seed}");
        faults += result.faults;
    }
    assert!(faults as usize > seeds(1000).count(), "{faults} faults");
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
