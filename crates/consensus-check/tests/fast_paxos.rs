//! Fast Paxos, with all its rules and without each of them.

mod common;

use common::{errs, holds};
use mitra_consensus::fast_paxos::{FastPaxos, Rules};
use mitra_consensus::{AllRules, ProcessId};
use mitra_consensus_check::{Exhaustive, FaultLimits, World, decision_delays, protocol_worlds};

/// Of `n` processes, those of `proposers` propose their own value each.
fn sized<R: Rules>(
    size: (u8, u8, u8),
    proposers: &[u8],
    leader_changes: u8,
    process_crashes: u8,
) -> World<FastPaxos<u8, R>> {
    protocol_worlds::fast_paxos(
        size,
        proposers,
        FaultLimits { leader_changes, process_crashes, ..FaultLimits::default() },
    )
}

fn four<R: Rules>() -> World<FastPaxos<u8, R>> {
    sized((4, 1, 1), &[0, 1], 16, 1)
}

/// Where an ordinary quorum is less than a fast one.
fn five<R: Rules>() -> World<FastPaxos<u8, R>> {
    sized((5, 2, 1), &[1, 2], 16, 2)
}

#[test]
fn without_a_collision_it_takes_two_delays_and_with_one_two_more_than_it_took_to_show() {
    let delays = |size, proposers, leader| {
        decision_delays(sized::<AllRules>(size, proposers, 0, 0), ProcessId(leader), 20)
    };
    for size in [(3, 1, 0), (4, 1, 1), (5, 2, 1), (7, 2, 2)] {
        assert_eq!(delays(size, &[1], 0), Some((2, 2)), "whoever proposes, and everybody learns it");
        assert_eq!(delays(size, &[0], 1), Some((2, 2)));
    }
    assert_eq!(delays((4, 1, 1), &[1, 2], 0), Some((2, 2)), "three of four heard the same first");
    // Here the proposers have voted for themselves at once, so that it shows after one delay instead of two.
    for size in [(3, 1, 0), (4, 1, 1)] {
        assert_eq!(delays(size, &[0, 1, 2], 0), Some((3, 4)), "votes are promises to the next ballot");
        assert_eq!(delays(size, &[0, 1, 2], 1), Some((5, 6)), "but not to another");
    }
}

#[test]
fn a_fast_ballot_survives_as_many_crashes_as_it_says() {
    use mitra_consensus_check::Step;
    for (size, fast) in [((4, 1, 1), 2), ((7, 2, 2), 2), ((5, 2, 1), 2)] {
        let mut world = sized::<AllRules>(size, &[0], 0, 0);
        (0..size.2).for_each(|p| world.apply(Step::CrashProcess(ProcessId(1 + p))));
        assert_eq!(decision_delays(world.clone(), ProcessId(0), 20), Some((fast, fast)), "{size:?}");
        world.apply(Step::CrashProcess(ProcessId(1 + size.2)));
        assert_eq!(
            decision_delays(world, ProcessId(0), 20),
            None,
            "{size:?}: one crash more, and it takes a time-out"
        );
    }
}

#[test]
fn three_processes_agree_in_every_order() {
    let found = Exhaustive::agreement(sized::<AllRules>((3, 1, 0), &[1, 2], 1, 0), 1, vec![11, 12]).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 100_000, "{} states: less than before", found.states);
}

#[test]
fn four_processes_agree_in_every_order() {
    let found = Exhaustive::agreement(sized::<AllRules>((4, 1, 1), &[0, 1], 0, 0), 1, vec![10, 11]).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 100_000, "{} states: less than before", found.states);
}

#[test]
fn it_agrees_and_ends_from_every_seed() {
    holds(four::<AllRules>, 5_000);
    holds(five::<AllRules>, 5_000);
    holds(|| sized::<AllRules>((3, 1, 0), &[0, 1, 2], 16, 1), 5_000);
    holds(|| sized::<AllRules>((4, 1, 1), &[2], 16, 1), 5_000);
}

mutants! { Rules, five:
    with_a_majority_for_a_fast_quorum_it_errs: FAST_QUORUM;
    with_two_votes_each_it_errs: VOTES_ONCE;
    with_broken_promises_it_errs: KEEPS_PROMISES;
    without_adoption_it_errs: ADOPTS;
    with_any_value_that_was_voted_for_it_errs: BY_VOTES;
    with_reports_of_all_ballots_it_errs: BY_BALLOT;
}

mutants! { Rules, four:
    with_half_for_a_fast_quorum_it_errs: FAST_QUORUM;
    with_votes_for_promises_to_any_ballot_it_errs: NEXT_BALLOT_ONLY;
}
