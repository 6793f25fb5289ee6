//! Aligned Paxos, with all its rules and without each of them.

mod common;

use common::{VALUES, errs, holds};
use mitra_consensus::aligned_paxos::{AlignedPaxos, Rules};
use mitra_consensus::protected_memory_paxos::Rules as MemoryRules;
use mitra_consensus::{AllRules, MemoryId, ProcessId};
use mitra_consensus_check::protocol_worlds::aligned_paxos as sized;
use mitra_consensus_check::{
    Exhaustive, FaultLimits, RunLimits, Step, Violation, World, decision_delays, run_agreement,
};

type Aligned<R, M> = AlignedPaxos<u8, R, M>;

fn sound(n: u8, m: u8, limits: FaultLimits) -> World<Aligned<AllRules, AllRules>> {
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

/// Where memories are most of the agents, so that theirs is the majority that counts.
fn memories<M: MemoryRules>() -> World<Aligned<AllRules, M>> {
    sized(2, 5, crashes(1, 1))
}

#[test]
fn the_first_leader_decides_in_two_delays_and_another_as_either_parent() {
    let delays = |n, m, leader| decision_delays(sound(n, m, FaultLimits::default()), ProcessId(leader), 20);
    assert_eq!(delays(3, 2, 0), Some((2, 3)));
    assert_eq!(delays(2, 3, 0), Some((2, 3)));
    assert_eq!(delays(3, 2, 1), Some((4, 5)), "the processes are a majority, as in Paxos");
    assert_eq!(delays(2, 3, 1), Some((8, 9)), "they are not, as in Protected Memory Paxos");
}

#[test]
fn two_processes_and_two_memories_agree_in_every_order() {
    let limits = FaultLimits { leader_changes: 2, ..FaultLimits::default() };
    let found = Exhaustive::agreement(sound(2, 2, limits), 1, vec![10, 11]).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 100_000, "{} states: less than before", found.states);
}

#[test]
fn any_mix_of_crashes_below_half_of_all_agents_is_survived() {
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
        holds(|| sound(n, m, crashes(fp, fm)), 2_000);
    }
}

/// The crashes come before all else, so nobody may decide, and nobody does.
#[test]
fn with_one_crash_more_nobody_decides() {
    for (n, m, fp, fm) in [(3, 2, 2, 1), (3, 2, 1, 2), (2, 3, 1, 2), (2, 3, 0, 3), (2, 2, 1, 1), (3, 4, 2, 2)]
    {
        for seed in 0..500 {
            let mut world = sound(n, m, crashes(0, 0));
            // Not always the same, so that the first leader is among the living as well as not.
            (0..fp).for_each(|p| world.apply(Step::CrashProcess(ProcessId((p + (seed % 7) as u8) % n))));
            (0..fm).for_each(|p| world.apply(Step::CrashMemory(MemoryId(p))));
            let report =
                run_agreement(seed, world, RunLimits { adversary_steps: 300, stable_steps: 1000 }, &VALUES);
            assert_eq!(report.violation, Some(Violation::Stuck), "n={n} m={m} fP={fp} fM={fm} seed {seed}");
        }
    }
}

/// They come whenever they like: then some decide, and never differently.
#[test]
fn with_one_crash_more_nobody_disagrees() {
    let (mut ended, mut stuck) = (0, 0);
    for seed in 0..4_000 {
        let report = run_agreement(
            seed,
            sound(3, 2, crashes(2, 1)),
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
    with_broken_promises_it_errs: KEEPS_PROMISES;
    with_a_majority_of_either_kind_it_errs: COUNTS_AGENTS_TOGETHER;
    deaf_to_processes_it_errs: ADOPTS_FROM_PROCESSES;
    blind_to_memories_it_errs: ADOPTS_FROM_MEMORIES;
    with_phase_1_skipped_too_often_it_errs: SKIPS_PHASE_1_FOR_LEAST_BALLOT_ONLY;
}

mutants! { MemoryRules, memories:
    without_the_check_of_the_minimum_it_errs: CHECKS_MIN;
    with_stale_writes_it_errs: ONE_AT_A_TIME;
    with_late_adoption_it_errs: ABORTS_ON_LATE_VALUE;
    by_the_highest_ballot_begun_it_errs: ADOPTS_HIGHEST_ACCEPTED;
    with_what_was_accepted_wiped_it_errs: KEEPS_ACCEPTED;
    without_permissions_it_errs: EXCLUSIVE_WRITER;
}
