//! HBO on small graphs, with all its rules, and mutants without one of them.

use std::iter;

use crate::common::explorations::{Reads, finds_nothing};
use crate::common::violation;
use mitra_consensus::hbo::{Hbo, Rules};
use mitra_consensus::{AllRules, ProcessSet};
use mitra_model_check::protocol_worlds::{graph, hbo};
use mitra_model_check::{Exhaustive, FaultLimits, Violation, World};
use mitra_prng::seeds;

fn ring(n: u8) -> Vec<ProcessSet> {
    graph(n, &(0..n).map(|p| (p, (p + 1) % n)).collect::<Vec<_>>())
}

fn star(n: u8) -> Vec<ProcessSet> {
    graph(n, &(1..n).map(|p| (0, p)).collect::<Vec<_>>())
}

fn complete(n: u8) -> Vec<ProcessSet> {
    graph(n, &(0..n).flat_map(|u| (0..u).map(move |v| (u, v))).collect::<Vec<_>>())
}

fn crashes(process_crashes: u8) -> FaultLimits {
    FaultLimits { process_crashes, ..FaultLimits::default() }
}

#[test]
fn two_neighbours_agree_in_every_order_of_steps() {
    let start = hbo::<AllRules>(&graph(2, &[(0, 1)]), crashes(1));
    finds_nothing("hbo::two_neighbours_agree_in_every_order_of_steps", Reads::Consensus, || {
        Exhaustive::agreement(start, 1, vec![false, true]).explore()
    });
}

/// With this seed, votes for a round arrive while a process of star 6 waits for its coin. When it
/// counted them, it left the round twice, and the others waited for its votes in the round between.
const LATE_VOTES: u64 = 1_494_390_818;

/// The graphs and numbers of crashes of the table in agreement.md, section 7.
#[test]
fn agrees_and_terminates_with_crashes_that_graph_tolerates() {
    for (name, neighbours, f) in [
        ("no edges", graph(5, &[]), 2),
        ("K4", complete(4), 3),
        ("ring 6", ring(6), 4),
        ("star 6", star(6), 3),
    ] {
        for seed in iter::once(LATE_VOTES).chain(seeds(300)) {
            let result = violation(seed, hbo::<AllRules>(&neighbours, crashes(f)), 20_000, &[false, true]);
            assert_eq!(result, None, "{name}, seed {seed}");
        }
    }
}

/// With one more crash than tolerated, some runs get stuck. No run violates agreement.
#[test]
fn gets_stuck_and_agrees_with_one_more_crash() {
    for (name, neighbours, f) in
        [("no edges", graph(5, &[]), 3), ("ring 6", ring(6), 5), ("star 6", star(6), 4)]
    {
        let all = (0..300)
            .map(|seed| violation(seed, hbo::<AllRules>(&neighbours, crashes(f)), 3_000, &[false, true]));
        let (stuck, others): (Vec<_>, Vec<_>) = all.partition(|result| *result == Some(Violation::Stuck));
        assert!(!stuck.is_empty(), "{name}: every run terminates with {f} crashes");
        assert!(others.iter().all(Option::is_none), "{name}: {others:?}");
    }
}

fn world<R: Rules>() -> World<Hbo<R>> {
    hbo(&ring(5), crashes(1))
}

fn mutant_violates<R: Rules>(world: impl Fn() -> World<Hbo<R>>) {
    let violation_seed = (0..200_000)
        .find(|&seed| matches!(violation(seed, world(), 500, &[false, true]), Some(Violation::Disagreement)));
    println!("seed {violation_seed:?}");
    assert!(violation_seed.is_some());
}

mutants! { Rules, world:
    mutant_without_agreement_on_votes_violates_agreement: AGREES_ON_VOTES;
    mutant_without_majority_violates_agreement: BY_MAJORITY;
    mutant_without_adoption_violates_agreement: ADOPTS;
}
