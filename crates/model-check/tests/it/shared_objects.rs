//! The recoverable counter, the latch, the mutex and the mailbox with all their rules, and mutants
//! without one of them.

use crate::common::explorations::{Reads, finds_nothing};
use mitra_model_check::counter_scenario::{BrokenCounterRule, CounterWorldConfig};
use mitra_model_check::latch_scenario::{self, BrokenLatchRule, LatchWorldConfig};
use mitra_model_check::mailbox_scenario::{self, BrokenMailboxRule, MailboxWorldConfig};
use mitra_model_check::mutex_scenario::{self, BrokenMutexRule, MutexWorldConfig};
use mitra_model_check::object_world::{ObjectWorld, PathRules, Scenario};
use mitra_model_check::{CATALOGUE, CatalogueEntry};
use mitra_prng::seeds;

const UNFENCED: PathRules = PathRules { fence: false, ..PathRules::IBTA };

fn entry(name: &str) -> &'static CatalogueEntry {
    CATALOGUE.iter().find(|entry| entry.name == name).unwrap()
}

#[track_caller]
fn holds(name: &str) {
    finds_nothing(&format!("shared_objects::{name}"), Reads::Objects, || entry(name).explore());
}

/// Checks that the exploration of a mutant finds a world that violates its property.
#[track_caller]
fn is_found<S: Scenario>(mutant: ObjectWorld<S>) {
    let (property, steps) = mutant.explore().counterexample.expect("a violation");
    println!("{steps:#?}");
    assert_eq!(property, S::PROPERTY);
}

#[test]
fn explored_worlds_hold() {
    holds("recoverable-counter");
    holds("latch");
    holds("mutex");
    holds("mailbox");
}

#[test]
fn objects_hold_from_every_seed() {
    for name in ["recoverable-counter", "latch", "mutex", "mailbox"] {
        let mut faults = 0;
        for seed in seeds(400) {
            let result = entry(name).run(seed);
            assert_eq!(result.violation, None, "{name}, seed {seed}");
            faults += result.faults;
        }
        assert!(faults as usize > 2 * seeds(400).count(), "{name}: only {faults} paths failed");
    }
}

/// Two requesters. The path of one requester fails once.
fn counter(field_bits: u8, broken: Option<BrokenCounterRule>) -> CounterWorldConfig {
    let programs = match field_bits {
        1 => vec![vec![vec![1], vec![1], vec![1]], vec![vec![1]]],
        _ => vec![vec![vec![1, 1, 1]], vec![vec![1]]],
    };
    CounterWorldConfig { field_bits, programs, failures: vec![1, 0], rules: PathRules::IBTA, broken }
}

#[test]
fn counter_without_fence_is_found() {
    is_found(CounterWorldConfig { rules: UNFENCED, ..counter(1, None) }.world());
}

#[test]
fn counter_that_carries_into_the_next_field_is_found() {
    is_found(counter(1, Some(BrokenCounterRule::StepWithoutCarry)).world());
}

#[test]
fn counter_with_more_adds_under_way_than_its_field_decides_is_found() {
    is_found(counter(2, Some(BrokenCounterRule::BoundUndecided)).world());
}

#[test]
fn counter_that_repeats_adds_without_reading_the_field_is_found() {
    is_found(counter(1, Some(BrokenCounterRule::ReadField)).world());
}

fn latch(broken: BrokenLatchRule, config: LatchWorldConfig) -> LatchWorldConfig {
    LatchWorldConfig { broken: Some(broken), ..config }
}

#[test]
fn latch_that_counts_instead_of_setting_bits_is_found() {
    is_found(latch(BrokenLatchRule::SetBit, latch_scenario::fenced(2, 1)).world());
}

#[test]
fn latch_without_identity_is_found() {
    is_found(latch(BrokenLatchRule::CoupleIdentity, latch_scenario::unfenced(2, 2)).world());
}

#[test]
fn latch_that_is_reset_before_it_is_open_is_found() {
    is_found(latch(BrokenLatchRule::ResetWhenOpen, latch_scenario::fenced(2, 1)).world());
}

fn mutex(broken: BrokenMutexRule, config: MutexWorldConfig) -> MutexWorldConfig {
    MutexWorldConfig { broken: Some(broken), ..config }
}

#[test]
fn mutex_without_number_is_found() {
    is_found(mutex(BrokenMutexRule::NumberLocks, mutex_scenario::unfenced(2, 1)).world());
}

// Hazard: an unlock runs although its lock's outcome is unknown
#[test]
fn mutex_that_is_unlocked_after_a_lock_with_unknown_outcome_is_found() {
    is_found(mutex(BrokenMutexRule::UnlockKnownLocks, mutex_scenario::fenced(2, 1)).world());
}

#[test]
fn mutex_whose_lock_with_unknown_outcome_counts_as_refused_is_found() {
    is_found(mutex(BrokenMutexRule::RepeatUnknownLocks, mutex_scenario::fenced(2, 1)).world());
}

#[test]
fn mutex_whose_next_life_assumes_a_fresh_word_is_found() {
    let world = mutex_scenario::crashing(mutex_scenario::unfenced(2, 1));
    is_found(mutex(BrokenMutexRule::ReadWordFirst, world).world());
}

fn mailbox(broken: BrokenMailboxRule, messages: u64, failures: u8) -> MailboxWorldConfig {
    MailboxWorldConfig { broken: Some(broken), ..mailbox_scenario::world_of(messages, failures) }
}

#[test]
fn mailbox_without_fence_is_found() {
    is_found(MailboxWorldConfig { rules: UNFENCED, ..mailbox_scenario::world_of(3, 1) }.world());
}

#[test]
fn mailbox_whose_flag_has_no_number_is_found() {
    is_found(mailbox(BrokenMailboxRule::NumberFlags, 1, 1).world());
}

#[test]
fn mailbox_whose_flag_is_written_before_the_payload_is_found() {
    is_found(mailbox(BrokenMailboxRule::WriteFlagLast, 1, 0).world());
}

#[test]
fn mailbox_whose_writer_does_not_wait_for_the_reader_is_found() {
    is_found(mailbox(BrokenMailboxRule::AwaitConsumption, 2, 0).world());
}
