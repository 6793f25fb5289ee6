//! Ω over links that lose messages: the one that relies on them errs; the one that sends nothing (its messages are a type without values)
//! does not, but without each of its rules.

mod common;

use mitra_consensus::AllRules;
use mitra_consensus::memory_only_omega::{MemoryOnlyOmega, Rules};
use mitra_consensus::omega::{Omega, Rules as Election};
use mitra_consensus_check::{
    Exhaustive, FaultLimits, RunLimits, Step, Violation, World, protocol_worlds, run_election,
};

const CHAOS: RunLimits = RunLimits { adversary_steps: 400, stable_steps: 10_000 };

fn sized<R: Rules, E: Election>(n: u8) -> World<MemoryOnlyOmega<R, E>> {
    protocol_worlds::memory_only_omega(
        n,
        FaultLimits { process_crashes: n - 1, disconnects: 4, ..FaultLimits::default() },
    )
}

/// One lost message is enough: who is not told that it was accused leads on, and who has dropped it does not look at it again.
#[test]
fn the_one_that_relies_on_links_errs_where_a_message_is_lost() {
    const SEED: u64 = 21;
    let limits = FaultLimits { message_losses: 1, ..FaultLimits::default() };
    let report = run_election(SEED, protocol_worlds::omega::<AllRules>(3, limits), CHAOS, Omega::leader);
    assert_eq!(report.steps.iter().filter(|step| matches!(step, Step::DropMessage(_))).count(), 1);
    assert_eq!(report.violation, Some(Violation::NoStableLeader));
    let silent = protocol_worlds::memory_only_omega::<AllRules, AllRules>(3, limits);
    assert_eq!(run_election(SEED, silent, CHAOS, MemoryOnlyOmega::leader).violation, None);
}

#[test]
fn all_the_living_come_to_name_one_of_them_and_the_leader_alone_writes_from_every_seed() {
    for n in 1..=5 {
        for seed in 0..400 {
            let report = run_election(seed, sized::<AllRules, AllRules>(n), CHAOS, MemoryOnlyOmega::leader);
            assert_eq!(report.violation, None, "n={n} seed {seed}: {:?}", report.steps);
        }
    }
}

fn elects_in_every_order(limits: FaultLimits, wakes: u64, least: usize) {
    let world = protocol_worlds::memory_only_omega::<AllRules, AllRules>(2, limits);
    let found = Exhaustive::election(world, wakes, MemoryOnlyOmega::leader).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > least, "{} states: less than before", found.states);
}

#[test]
fn two_processes_of_which_one_may_crash_elect_one_in_every_order() {
    elects_in_every_order(
        FaultLimits { process_crashes: 1, disconnects: 1, ..FaultLimits::default() },
        1,
        5_000,
    );
}

#[test]
fn two_processes_that_wake_twice_elect_one_in_every_order() {
    elects_in_every_order(FaultLimits::default(), 2, 50_000);
}

/// Some seed shows that a rule is missing, where with all rules all is well.
fn errs<R: Rules, E: Election>(world: impl Fn() -> World<MemoryOnlyOmega<R, E>>) {
    let wrong = |seed| run_election(seed, world(), CHAOS, MemoryOnlyOmega::leader).violation;
    let killed = (0..20_000).find_map(|seed| Some((seed, wrong(seed)?)));
    println!("{killed:?}");
    let Some((seed, Violation::NoStableLeader | Violation::NotQuiescent)) = killed else {
        panic!("{killed:?}")
    };
    assert_eq!(
        run_election(seed, sized::<AllRules, AllRules>(3), CHAOS, MemoryOnlyOmega::leader).violation,
        None
    );
}

fn telling<R: Rules>() -> World<MemoryOnlyOmega<R>> {
    sized(3)
}

fn electing<E: Election>() -> World<MemoryOnlyOmega<AllRules, E>> {
    sized(3)
}

mutants! { Rules, telling:
    without_reading_it_errs: READS_MESSAGES;
    with_what_was_heard_heard_again_it_errs: DELIVERS_ONCE;
    without_writing_again_it_errs: RETRIES_REFUSED_WRITES;
}

mutants! { Election, electing:
    with_counts_before_what_they_tell_of_it_errs: ANNOUNCES_AFTER_WRITE;
    with_old_reads_judged_it_errs: IGNORES_EARLIER_READS;
}
