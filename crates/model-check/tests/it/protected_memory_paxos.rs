//! Protected Memory Paxos, with all its rules, and mutants without one of them.

use crate::common::explorations::{Reads, finds_nothing};
use crate::common::{CRASHES, agrees_and_terminates, mutant_violates, mutant_violates_at};
use mitra_consensus::protected_memory_paxos::{ProtectedMemoryPaxos, Rules};
use mitra_consensus::{AllRules, ProcessId};
use mitra_model_check::{Exhaustive, FaultLimits, World, decision_delays, protocol_worlds};

fn world<R: Rules>() -> World<ProtectedMemoryPaxos<u8, R>> {
    protocol_worlds::protected_memory_paxos(3, 3, CRASHES)
}

#[test]
fn initial_leader_decides_in_two_delays_and_other_leader_in_eight() {
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
fn two_processes_agree_in_every_order_of_steps() {
    let limits = FaultLimits { leader_changes: 2, memory_crashes: 1, ..FaultLimits::default() };
    let start = protocol_worlds::protected_memory_paxos::<AllRules>(2, 3, limits);
    finds_nothing(
        "protected_memory_paxos::two_processes_agree_in_every_order_of_steps",
        Reads::Consensus,
        || Exhaustive::agreement(start, 1, vec![10, 11]).explore(),
    );
}

/// A write that was executed gets a nak, as after a link failure that loses the acknowledgement.
#[test]
fn two_processes_agree_after_disconnect() {
    let limits = FaultLimits { leader_changes: 2, disconnects: 1, ..FaultLimits::default() };
    let start = protocol_worlds::protected_memory_paxos::<AllRules>(2, 3, limits);
    finds_nothing("protected_memory_paxos::two_processes_agree_after_disconnect", Reads::Consensus, || {
        Exhaustive::agreement(start, 1, vec![10, 11]).explore()
    });
}

#[test]
fn agrees_and_terminates_from_every_seed() {
    agrees_and_terminates(world::<AllRules>, 4_000);
}

mutants! { Rules, world:
    mutant_without_check_of_min_violates_safety: CHECKS_MIN;
    mutant_with_stale_writes_violates_safety: ONE_AT_A_TIME at 33521;
    mutant_with_late_adoption_violates_safety: ABORTS_ON_LATE_VALUE;
    mutant_that_adopts_highest_begun_ballot_violates_safety: ADOPTS_HIGHEST_ACCEPTED;
    mutant_that_clears_accepted_value_violates_safety: KEEPS_ACCEPTED;
    mutant_without_exclusive_writer_violates_safety: EXCLUSIVE_WRITER;
}
