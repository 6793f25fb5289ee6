//! Protected Memory Paxos, with all its rules and without each of them.

mod common;

use common::{CRASHES, errs, holds};
use mitra_consensus::protected_memory_paxos::{ProtectedMemoryPaxos, Rules};
use mitra_consensus::{AllRules, ProcessId};
use mitra_consensus_check::{Exhaustive, FaultLimits, World, decision_delays, protocol_worlds};

fn world<R: Rules>() -> World<ProtectedMemoryPaxos<u8, R>> {
    protocol_worlds::protected_memory_paxos(3, 3, CRASHES)
}

#[test]
fn the_first_leader_decides_in_two_delays_and_another_in_eight() {
    let delays = |leader| {
        decision_delays(
            protocol_worlds::protected_memory_paxos::<AllRules>(3, 3, FaultLimits::default()),
            ProcessId(leader),
            20,
        )
    };
    assert_eq!(delays(0), Some((2, 3)));
    assert_eq!(delays(1), Some((8, 9)));
}

#[test]
fn two_processes_agree_in_every_order() {
    let limits = FaultLimits { leader_changes: 2, memory_crashes: 1, ..FaultLimits::default() };
    let start = protocol_worlds::protected_memory_paxos::<AllRules>(2, 3, limits);
    let found = Exhaustive::agreement(start, 1, vec![10, 11]).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 100_000, "{} states: less than before", found.states);
}

/// A write is refused although it was done, as where a link broke before its acknowledgement came.
#[test]
fn two_processes_agree_where_a_connection_breaks() {
    let limits = FaultLimits { leader_changes: 2, disconnects: 1, ..FaultLimits::default() };
    let start = protocol_worlds::protected_memory_paxos::<AllRules>(2, 3, limits);
    let found = Exhaustive::agreement(start, 1, vec![10, 11]).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 100_000, "{} states: less than before", found.states);
}

#[test]
fn it_agrees_and_ends_from_every_seed() {
    holds(world::<AllRules>, 4_000);
}

mutants! { Rules, world:
    without_the_check_of_the_minimum_it_errs: CHECKS_MIN;
    with_stale_writes_it_errs: ONE_AT_A_TIME;
    with_late_adoption_it_errs: ABORTS_ON_LATE_VALUE;
    by_the_highest_ballot_begun_it_errs: ADOPTS_HIGHEST_ACCEPTED;
    with_what_was_accepted_wiped_it_errs: KEEPS_ACCEPTED;
    without_permissions_it_errs: EXCLUSIVE_WRITER;
}
