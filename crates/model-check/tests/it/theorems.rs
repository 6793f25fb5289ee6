//! The theorems about failover, and the recovery that avoids them.

use crate::common::explorations::{Reads, finds_nothing};
use mitra_model_check::{Atomic, CATALOGUE, Recovery, ResendSetup, ResendStep, ResendWorld, THEOREMS};

#[test]
fn each_theorem_is_shown_in_a_few_steps() {
    for theorem in THEOREMS {
        let shown = theorem.explore();
        let lengths: Vec<usize> = shown.histories.iter().map(Vec::len).collect();
        println!("{}: {} states, {lengths:?} steps", theorem.name, shown.states);
        let expected = if theorem.setup.recovery == Recovery::Observe { 2 } else { 1 };
        assert_eq!(lengths.len(), expected, "{}", theorem.name);
        assert!(lengths.iter().all(|length| (2..8).contains(length)), "{}: {lengths:?}", theorem.name);
    }
}

/// The recovery in each theorem's world lacks a rule of `fence-evidence-replay`. With all rules,
/// the properties hold.
#[test]
fn fence_evidence_and_replay_avoid_the_theorems() {
    let entry = CATALOGUE.iter().find(|entry| entry.name == "fence-evidence-replay").expect("an entry");
    finds_nothing("theorems::fence_evidence_and_replay_avoid_the_theorems", Reads::Failover, || {
        entry.explore()
    });
    let faults: u32 = (0..1000)
        .map(|seed| {
            let result = entry.run(seed);
            assert_eq!(result.violation, None, "seed {seed}");
            result.faults
        })
        .sum();
    assert!(faults > 500, "{faults} faults");
}

/// Explores a world without the model checker. Returns whether some run violates `holds`.
fn is_violated(setup: ResendSetup, holds: fn(&ResendWorld) -> bool) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    let mut open = vec![ResendWorld::new(setup)];
    while let Some(world) = open.pop() {
        if !holds(&world) {
            return true;
        }
        for step in world.steps() {
            let mut next = world;
            next.apply(step);
            if seen.insert(format!("{next:?}")) {
                open.push(next);
            }
        }
    }
    false
}

/// If no client resets the word, a repeated CMP_SWAP changes the word once. The operation is
/// executed twice all the same, and the second execution reports a failed comparison.
#[test]
fn repeated_compare_swap_without_a_reset_changes_the_word_once() {
    let setup = ResendSetup {
        operation: Atomic::CompareSwap,
        operations: 1,
        recovery: Recovery::Resend,
        failures: 1,
        resets: 0,
    };
    assert!(!is_violated(setup, ResendWorld::is_changed_at_most_once));
    assert!(is_violated(setup, ResendWorld::is_at_most_once));
    assert!(is_violated(setup, ResendWorld::is_exactly_once));
    assert!(is_violated(ResendSetup { resets: 1, ..setup }, ResendWorld::is_changed_at_most_once));
}

#[test]
fn a_step_is_a_sentence() {
    let steps = [ResendStep::Execute { rail: 1 }, ResendStep::ReadWord, ResendStep::Reset];
    for step in steps {
        let text = format!("{step:?}");
        assert!(text.starts_with(char::is_uppercase) && text.ends_with('.'), "{text}");
    }
}
