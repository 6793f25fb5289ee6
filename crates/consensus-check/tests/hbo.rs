//! HBO on small graphs, with all its rules and without each of them.

mod common;

use common::violation;
use mitra_consensus::hbo::{Hbo, Rules};
use mitra_consensus::{AllRules, ProcessSet};
use mitra_consensus_check::protocol_worlds::{graph, hbo};
use mitra_consensus_check::{Exhaustive, FaultLimits, Violation, World};

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
fn two_neighbours_agree_in_every_order() {
    let start = hbo::<AllRules>(&graph(2, &[(0, 1)]), crashes(1));
    let found = Exhaustive::agreement(start, 1, vec![false, true]).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 1_000, "{} states: less than before", found.states);
}

/// As many crashes as the table of agreement.md §7 says HBO itself survives.
#[test]
fn it_agrees_and_ends_with_as_many_crashes_as_the_graph_tolerates() {
    for (name, neighbours, f) in [
        ("no edges", graph(5, &[]), 2),
        ("K4", complete(4), 3),
        ("ring 6", ring(6), 4),
        ("star 6", star(6), 3),
    ] {
        for seed in 0..300 {
            let found = violation(seed, hbo::<AllRules>(&neighbours, crashes(f)), 20_000, &[false, true]);
            assert_eq!(found, None, "{name}, seed {seed}");
        }
    }
}

/// With one crash more, some runs get stuck; none disagrees.
#[test]
fn with_one_crash_more_it_gets_stuck_and_still_agrees() {
    for (name, neighbours, f) in
        [("no edges", graph(5, &[]), 3), ("ring 6", ring(6), 5), ("star 6", star(6), 4)]
    {
        let all = (0..300)
            .map(|seed| violation(seed, hbo::<AllRules>(&neighbours, crashes(f)), 3_000, &[false, true]));
        let (stuck, rest): (Vec<_>, Vec<_>) = all.partition(|found| *found == Some(Violation::Stuck));
        assert!(!stuck.is_empty(), "{name}: it tolerates {f}");
        assert!(rest.iter().all(Option::is_none), "{name}: {rest:?}");
    }
}

fn world<R: Rules>() -> World<Hbo<R>> {
    hbo(&ring(5), crashes(1))
}

fn errs<R: Rules>(world: impl Fn() -> World<Hbo<R>>) {
    let killed = (0..200_000)
        .find(|&seed| matches!(violation(seed, world(), 500, &[false, true]), Some(Violation::Disagreement)));
    println!("seed {killed:?}");
    assert!(killed.is_some());
}

mutants! { Rules, world:
    where_neighbours_do_not_settle_a_vote_it_errs: AGREES_ON_VOTES;
    without_a_majority_it_errs: BY_MAJORITY;
    where_a_proposed_value_is_not_taken_over_it_errs: ADOPTS;
}
