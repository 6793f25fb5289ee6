//! Transactions: every order of steps in small worlds, the violations that are found if the
//! transactions' environment lacks a rule, and worlds from seeds.

use crate::common::explorations::{Reads, finds_nothing};
use mitra_model_check::RecordUse::{LockThenAppend, ReadThenAppend};
use mitra_model_check::transaction_worlds::WORLDS;
use mitra_model_check::{CATALOGUE, TransactionConfig};
use mitra_prng::seeds;

fn world(name: &str) -> TransactionConfig {
    WORLDS.iter().find(|(other, _)| *other == name).unwrap().1
}

#[track_caller]
fn holds(name: &str) {
    finds_nothing(&format!("transactions::{name}"), Reads::Transactions, || world(name).explore());
}

#[track_caller]
fn is_found(config: TransactionConfig) {
    let found = config.explore();
    let (property, steps) = found.counterexample.expect("a violation");
    println!("{property}, {} states: {steps:#?}", found.states);
}

#[test]
fn transactions_without_faults_hold() {
    holds("write-skew");
    holds("readers");
}

#[test]
fn transactions_whose_lives_end_hold() {
    holds("ends");
}

#[test]
fn transactions_of_several_lives_hold() {
    holds("lives");
}

#[test]
fn transactions_in_doubt_hold() {
    holds("doubts");
}

#[test]
fn transactions_in_doubt_whose_lives_end_hold() {
    holds("doubts-and-ends");
}

#[test]
fn transactions_with_dead_nodes_hold() {
    holds("deaths");
    holds("deaths-of-two");
}

#[test]
fn transactions_hold_from_every_seed() {
    let entry = CATALOGUE.iter().find(|entry| entry.name == "transactions").unwrap();
    let mut faults = 0;
    for seed in seeds(300) {
        let result = entry.run(seed);
        assert_eq!(result.violation, None, "seed {seed}");
        faults += result.faults;
    }
    assert!(faults as usize > 10 * seeds(300).count(), "only {faults} faults");
}

/// A life that is not fenced writes a record that another transaction has changed.
#[test]
fn recovery_without_fence_is_found() {
    const LOCKS: &[(u8, mitra_model_check::RecordUse)] = &[(0, LockThenAppend)];
    let config =
        TransactionConfig { recoverer_ends: 0, ends: 1, programs: &[&[LOCKS], &[LOCKS]], ..world("lives") };
    assert_eq!(config.explore().counterexample, None);
    is_found(TransactionConfig { fences: false, ..config });
}

/// Before the recovery of a coordinator's last life, the next life uses a slot whose entry is not
/// applied yet.
#[test]
fn next_life_before_the_recovery_is_found() {
    let config = TransactionConfig {
        ends: 1,
        programs: &[&[&[(0, ReadThenAppend)], &[(1, ReadThenAppend)]]],
        ..world("readers")
    };
    assert_eq!(config.explore().counterexample, None);
    is_found(TransactionConfig { recovers_first: false, ..config });
}

/// One READ returns the old version from before the commit of another transaction, and the free
/// lock word from after this commit.
#[test]
fn header_that_is_torn_is_found() {
    is_found(TransactionConfig { tears_headers: true, ..world("write-skew") });
}
