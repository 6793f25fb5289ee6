//! Recoverable and indirect cells with all their rules, and mutants without one of them.

use crate::common::explorations::{Reads, finds_nothing};
use mitra_model_check::CATALOGUE;
use mitra_model_check::cell_scenario::{BrokenCellRule, CellCall, CellKind, CellWorldConfig};
use mitra_model_check::cell_worlds::{add, config, three_clients, two_owners, two_words};
use mitra_model_check::object_world::PathRules;
use mitra_objects::Publication;
use mitra_prng::seeds;

const PROPERTY: &str = "exactly once, with its result";
const KINDS: [CellKind; 2] = [CellKind::Recoverable, CellKind::Indirect];
/// NICs whose atomics are atomic with respect to WRITEs, too.
const WRITE_ATOMICITY: PathRules = PathRules { fence: true, write_atomicity: true };

/// Explores a world of each kind, with each publication on the NICs for which it is right.
fn holds(name: &str, world: fn(CellKind) -> CellWorldConfig) {
    for kind in KINDS {
        for (publication, rules) in
            [(Publication::CompareSwap, PathRules::IBTA), (Publication::Write, WRITE_ATOMICITY)]
        {
            let config = CellWorldConfig { publication, rules, ..world(kind) };
            let name = format!("recoverable_cells::{name}-{kind:?}-{publication:?}");
            finds_nothing(&name, Reads::Objects, || config.world().explore());
        }
    }
}

#[test]
fn changes_of_two_owners_that_fail_over_happen_exactly_once() {
    holds("two_owners", two_owners);
    holds("two_owners_that_fail_twice", |kind| config(kind, &[&[add(0, 1)], &[add(0, 10)]], &[2, 2]));
}

#[test]
fn changes_of_three_clients_that_fail_in_mid_help_happen_exactly_once() {
    holds("three_clients", three_clients);
}

#[test]
fn changes_of_two_words_happen_exactly_once() {
    holds("two_words", two_words);
}

#[test]
fn reads_return_values_that_the_cell_had() {
    holds("read", |kind| config(kind, &[&[add(0, 1), add(0, 1), add(0, 1)], &[(0, None)]], &[0, 1]));
}

#[test]
fn cells_hold_from_every_seed() {
    for name in ["recoverable-cell", "indirect-cell"] {
        let entry = CATALOGUE.iter().find(|entry| entry.name == name).unwrap();
        let mut faults = 0;
        for seed in seeds(400) {
            let result = entry.run(seed);
            assert_eq!(result.violation, None, "{name}, seed {seed}");
            faults += result.faults;
        }
        assert!(faults as usize > 2 * seeds(400).count(), "{name}: only {faults} paths failed");
    }
}

/// A mutant without this rule, on NICs with these rules.
struct Mutant {
    broken: Option<BrokenCellRule>,
    publication: Publication,
    rules: PathRules,
}

impl Mutant {
    /// A mutant without a rule of the cell. The publication is right for the NICs, so only the
    /// missing rule can violate the property.
    fn without(rule: BrokenCellRule) -> Mutant {
        Mutant { broken: Some(rule), publication: Publication::Write, rules: WRITE_ATOMICITY }
    }

    /// Explores the mutant of each kind of cell. Each mutant must violate the property.
    fn is_found(&self, programs: &[&[CellCall]], failures: &[u8]) {
        for kind in KINDS {
            let config = CellWorldConfig {
                broken: self.broken,
                publication: self.publication,
                rules: self.rules,
                ..config(kind, programs, failures)
            };
            let violated = config.world().explore().counterexample.map(|(property, _)| property);
            assert_eq!(violated, Some(PROPERTY), "{kind:?}");
        }
    }
}

/// One operation of each of two owners.
const ONE_EACH: &[&[CellCall]] =
    &[&[(0, Some(mitra_objects::Change::FetchAdd(1)))], &[(0, Some(mitra_objects::Change::FetchAdd(10)))]];

#[test]
fn mutant_without_fence_is_found() {
    let rules = PathRules { fence: false, ..WRITE_ATOMICITY };
    Mutant { broken: None, publication: Publication::Write, rules }.is_found(ONE_EACH, &[1, 1]);
}

#[test]
fn mutant_that_writes_the_announcement_of_another_owner_is_found() {
    // The third client overwrites the first client's second change, before the second client's
    // WRITE for the first change is executed.
    let programs: &[&[CellCall]] = &[&[add(0, 1), add(0, 2)], &[add(0, 10)], &[add(0, 100)]];
    Mutant::without(BrokenCellRule::HelpByCompareSwap).is_found(programs, &[1, 0, 0]);
}

#[test]
fn mutant_that_does_not_help_is_found() {
    Mutant::without(BrokenCellRule::Help).is_found(ONE_EACH, &[1, 0]);
}

#[test]
fn mutant_that_reads_the_announcement_before_the_word_is_found() {
    Mutant::without(BrokenCellRule::WordBeforeAnnouncement).is_found(ONE_EACH, &[1, 0]);
}

#[test]
fn mutant_that_publishes_behind_the_change_is_found() {
    Mutant::without(BrokenCellRule::PublishFirst).is_found(ONE_EACH, &[1, 0]);
}

#[test]
fn mutant_that_uses_sequence_numbers_again_is_found() {
    let programs: &[&[CellCall]] = &[&[add(0, 1), add(0, 2)], &[add(0, 10)]];
    Mutant::without(BrokenCellRule::NoReuseOfSequences).is_found(programs, &[1, 0]);
}

#[test]
fn publication_by_write_is_found_where_atomics_are_not_atomic_against_writes() {
    let programs: &[&[CellCall]] = &[&[add(0, 1), add(0, 2)], &[add(0, 10)]];
    Mutant { broken: None, publication: Publication::Write, rules: PathRules::IBTA }
        .is_found(programs, &[1, 0]);
}

#[test]
fn publication_by_one_compare_swap_is_found() {
    let programs: &[&[CellCall]] = &[&[add(0, 1), add(0, 2)], &[add(0, 10)]];
    let broken = Some(BrokenCellRule::BothPublications);
    Mutant { broken, publication: Publication::CompareSwap, rules: PathRules::IBTA }
        .is_found(programs, &[1, 0]);
}
