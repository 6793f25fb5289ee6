//! Fast Paxos, with all its rules, and mutants without one of them.

use crate::common::explorations::{Reads, finds_nothing};
use crate::common::{agrees_and_terminates, mutant_violates};
use mitra_consensus::fast_paxos::{FastPaxos, Rules};
use mitra_consensus::{AllRules, ProcessId};
use mitra_model_check::{Exhaustive, FaultLimits, World, decision_delays, protocol_worlds};

fn world_of<R: Rules>(
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

fn world_of_four<R: Rules>() -> World<FastPaxos<u8, R>> {
    world_of((4, 1, 1), &[0, 1], 16, 1)
}

/// Returns a world in which a classic quorum is smaller than a fast quorum.
fn world_of_five<R: Rules>() -> World<FastPaxos<u8, R>> {
    world_of((5, 2, 1), &[1, 2], 16, 2)
}

#[test]
fn decides_in_two_delays_without_collision_and_two_delays_after_collision_is_known() {
    let delays = |size, proposers, leader| {
        decision_delays(world_of::<AllRules>(size, proposers, 0, 0), ProcessId(leader), 20)
    };
    for size in [(3, 1, 0), (4, 1, 1), (5, 2, 1), (7, 2, 2)] {
        assert_eq!(
            delays(size, &[1], 0),
            Some((2, 2)),
            "any process may propose, and all learn the decision"
        );
        assert_eq!(delays(size, &[0], 1), Some((2, 2)));
    }
    assert_eq!(
        delays((4, 1, 1), &[1, 2], 0),
        Some((2, 2)),
        "three of four acceptors received the same proposal first"
    );
    // The proposers vote for their own proposals, so the collision is known after one delay instead
    // of two.
    for size in [(3, 1, 0), (4, 1, 1)] {
        assert_eq!(delays(size, &[0, 1, 2], 0), Some((3, 4)), "a vote is a promise to the next ballot");
        assert_eq!(delays(size, &[0, 1, 2], 1), Some((5, 6)), "a vote is no promise to a later ballot");
    }
}

#[test]
fn fast_ballot_tolerates_e_crashes() {
    use mitra_model_check::Step;
    for (size, fast) in [((4, 1, 1), 2), ((7, 2, 2), 2), ((5, 2, 1), 2)] {
        let mut world = world_of::<AllRules>(size, &[0], 0, 0);
        (0..size.2).for_each(|p| world.apply(Step::CrashProcess(ProcessId(1 + p))));
        assert_eq!(decision_delays(world.clone(), ProcessId(0), 20), Some((fast, fast)), "{size:?}");
        world.apply(Step::CrashProcess(ProcessId(1 + size.2)));
        assert_eq!(
            decision_delays(world, ProcessId(0), 20),
            None,
            "{size:?}: with one more crash, a decision needs a timeout"
        );
    }
}

#[test]
fn three_processes_agree_in_every_order_of_steps() {
    finds_nothing("fast_paxos::three_processes_agree_in_every_order_of_steps", Reads::Consensus, || {
        Exhaustive::agreement(world_of::<AllRules>((3, 1, 0), &[1, 2], 1, 0), 1, vec![11, 12]).explore()
    });
}

#[test]
fn four_processes_agree_in_every_order_of_steps() {
    finds_nothing("fast_paxos::four_processes_agree_in_every_order_of_steps", Reads::Consensus, || {
        Exhaustive::agreement(world_of::<AllRules>((4, 1, 1), &[0, 1], 0, 0), 1, vec![10, 11]).explore()
    });
}

#[test]
fn agrees_and_terminates_from_every_seed() {
    agrees_and_terminates(world_of_four::<AllRules>, 5_000);
    agrees_and_terminates(world_of_five::<AllRules>, 5_000);
    agrees_and_terminates(|| world_of::<AllRules>((3, 1, 0), &[0, 1, 2], 16, 1), 5_000);
    agrees_and_terminates(|| world_of::<AllRules>((4, 1, 1), &[2], 16, 1), 5_000);
}

mutants! { Rules, world_of_five:
    mutant_with_majority_as_fast_quorum_violates_safety: FAST_QUORUM;
    mutant_with_two_votes_per_acceptor_violates_safety: VOTES_ONCE;
    mutant_with_broken_promises_violates_safety: KEEPS_PROMISES;
    mutant_without_adoption_violates_safety: ADOPTS;
    mutant_that_adopts_any_voted_value_violates_safety: BY_VOTES;
    mutant_that_uses_reports_of_all_ballots_violates_safety: BY_BALLOT;
}

mutants! { Rules, world_of_four:
    mutant_with_half_as_fast_quorum_violates_safety: FAST_QUORUM;
    mutant_with_votes_as_promises_to_any_ballot_violates_safety: NEXT_BALLOT_ONLY;
}
