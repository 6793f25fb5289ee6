//! Aligned Paxos, with all its rules, and mutants without one of them.

use crate::common::explorations::{Reads, finds_nothing};
use crate::common::{VALUES, agrees_and_terminates, mutant_violates, mutant_violates_at};
use mitra_consensus::aligned_paxos::{AlignedPaxos, Rules};
use mitra_consensus::protected_memory_paxos::Rules as MemoryRules;
use mitra_consensus::{AllRules, MemoryId, ProcessId};
use mitra_model_check::protocol_worlds::aligned_paxos as sized;
use mitra_model_check::{
    Exhaustive, FaultLimits, RunLimits, Step, Violation, World, decision_delays, run_agreement,
};
use mitra_prng::seeds;

type Aligned<R, M> = AlignedPaxos<u8, R, M>;

fn correct(n: u8, m: u8, limits: FaultLimits) -> World<Aligned<AllRules, AllRules>> {
    sized(n, m, limits)
}

fn crashes(process_crashes: u8, memory_crashes: u8) -> FaultLimits {
    FaultLimits {
        leader_changes: 16,
        process_crashes,
        memory_crashes,
        disconnects: 4,
        ..FaultLimits::default()
    }
}

fn world<R: Rules>() -> World<Aligned<R, AllRules>> {
    sized(3, 2, crashes(1, 1))
}

/// Returns a world in which the memories alone are a majority of the agents.
fn memory_majority<M: MemoryRules>() -> World<Aligned<AllRules, M>> {
    sized(2, 5, crashes(1, 1))
}

#[test]
fn initial_leader_decides_in_two_delays_and_other_leader_as_in_underlying_protocol() {
    let delays = |n, m, leader| decision_delays(correct(n, m, FaultLimits::default()), ProcessId(leader), 20);
    assert_eq!(delays(3, 2, 0), Some((2, 3)));
    assert_eq!(delays(2, 3, 0), Some((2, 3)));
    assert_eq!(delays(3, 2, 1), Some((4, 5)), "the processes are a majority, as in Paxos");
    assert_eq!(delays(2, 3, 1), Some((8, 9)), "the processes are no majority, as in Protected Memory Paxos");
}

#[test]
fn two_processes_and_two_memories_agree_in_every_order_of_steps() {
    let limits = FaultLimits { leader_changes: 2, ..FaultLimits::default() };
    finds_nothing(
        "aligned_paxos::two_processes_and_two_memories_agree_in_every_order_of_steps",
        Reads::Consensus,
        || Exhaustive::agreement(correct(2, 2, limits), 1, vec![10, 11]).explore(),
    );
}

#[test]
fn tolerates_crashes_of_any_minority_of_agents() {
    for (n, m, fp, fm) in [
        (3, 2, 2, 0),
        (3, 2, 1, 1),
        (3, 2, 0, 2),
        (2, 3, 1, 1),
        (2, 3, 0, 2),
        (2, 2, 1, 0),
        (3, 4, 1, 2),
        (3, 4, 0, 3),
    ] {
        println!("n={n} m={m} fP={fp} fM={fm}");
        agrees_and_terminates(|| correct(n, m, crashes(fp, fm)), 2_000);
    }
}

/// All crashes precede all other steps, so a decision is impossible.
#[test]
fn no_process_decides_with_majority_crashed_initially() {
    for (n, m, fp, fm) in [(3, 2, 2, 1), (3, 2, 1, 2), (2, 3, 1, 2), (2, 3, 0, 3), (2, 2, 1, 1), (3, 4, 2, 2)]
    {
        for seed in seeds(500) {
            let mut world = correct(n, m, crashes(0, 0));
            // The crashed processes depend on the seed, so that the initial leader crashes in some
            // runs only.
            (0..fp).for_each(|p| world.apply(Step::CrashProcess(ProcessId((p + (seed % 7) as u8) % n))));
            (0..fm).for_each(|p| world.apply(Step::CrashMemory(MemoryId(p))));
            let report =
                run_agreement(seed, world, RunLimits { adversary_steps: 300, stable_steps: 1000 }, &VALUES);
            assert_eq!(report.violation, Some(Violation::Stuck), "n={n} m={m} fP={fp} fM={fm} seed {seed}");
        }
    }
}

/// The crashes occur at any step, so some processes decide before them. Their decisions must be
/// equal.
#[test]
fn no_process_disagrees_with_majority_crashed_later() {
    let (mut ended, mut stuck) = (0, 0);
    for seed in seeds(4_000) {
        let report = run_agreement(
            seed,
            correct(3, 2, crashes(2, 1)),
            RunLimits { adversary_steps: 300, stable_steps: 1000 },
            &VALUES,
        );
        match report.violation {
            None => ended += 1,
            Some(Violation::Stuck) => stuck += 1,
            Some(wrong) => panic!("seed {seed}: {wrong:?}: {:?}", report.steps),
        }
    }
    assert!(ended > 0 && stuck > 0, "{ended} ended, {stuck} stuck");
}

mutants! { Rules, world:
    mutant_with_broken_promises_violates_safety: KEEPS_PROMISES;
    mutant_with_majority_of_either_kind_violates_safety: COUNTS_AGENTS_TOGETHER;
    mutant_that_adopts_nothing_from_processes_violates_safety: ADOPTS_FROM_PROCESSES;
    mutant_that_adopts_nothing_from_memories_violates_safety: ADOPTS_FROM_MEMORIES;
    mutant_that_skips_phase_1_for_any_ballot_violates_safety: SKIPS_PHASE_1_FOR_LEAST_BALLOT_ONLY;
}

mutants! { MemoryRules, memory_majority:
    mutant_without_check_of_min_violates_safety: CHECKS_MIN at 19569;
    mutant_with_stale_writes_violates_safety: ONE_AT_A_TIME at 122683;
    mutant_with_late_adoption_violates_safety: ABORTS_ON_LATE_VALUE;
    mutant_that_adopts_highest_begun_ballot_violates_safety: ADOPTS_HIGHEST_ACCEPTED;
    mutant_that_clears_accepted_value_violates_safety: KEEPS_ACCEPTED;
    mutant_without_exclusive_writer_violates_safety: EXCLUSIVE_WRITER;
}
