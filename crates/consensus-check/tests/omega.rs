//! Ω, with all its rules and without each of them.

mod common;

use mitra_consensus::AllRules;
use mitra_consensus::omega::{Omega, Rules};
use mitra_consensus_check::{
    Exhaustive, FaultLimits, RunLimits, Violation, World, protocol_worlds, run_election,
};

fn sized<R: Rules>(n: u8, process_crashes: u8) -> World<Omega<R>> {
    protocol_worlds::omega(n, FaultLimits { process_crashes, disconnects: 1, ..FaultLimits::default() })
}

const CHAOS: RunLimits = RunLimits { adversary_steps: 400, stable_steps: 10_000 };

#[test]
fn all_the_living_come_to_name_one_of_them_and_fall_silent_from_every_seed() {
    for n in 1..=5 {
        for seed in 0..400 {
            let report = run_election(seed, sized::<AllRules>(n, n - 1), CHAOS, Omega::leader);
            assert_eq!(report.violation, None, "n={n} seed {seed}: {:?}", report.steps);
        }
    }
}

#[test]
fn two_processes_elect_one_in_every_order() {
    let found = Exhaustive::election(sized::<AllRules>(2, 1), 2, Omega::leader).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 10_000, "{} states: less than before", found.states);
}

/// Some seed shows that a rule is missing, where with all rules all is well.
fn errs<R: Rules>(world: impl Fn() -> World<Omega<R>>) {
    let wrong = |seed| run_election(seed, world(), CHAOS, Omega::leader).violation;
    let killed = (0..20_000).find_map(|seed| Some((seed, wrong(seed)?)));
    println!("{killed:?}");
    let Some((seed, Violation::NoStableLeader | Violation::NotQuiescent)) = killed else {
        panic!("{killed:?}")
    };
    assert_eq!(run_election(seed, self::world::<AllRules>(), CHAOS, Omega::leader).violation, None);
}

fn world<R: Rules>() -> World<Omega<R>> {
    sized(3, 2)
}

mutants! { Rules, world:
    without_accusations_it_errs: ACCUSES;
    without_badness_it_errs: RAISES_BADNESS;
    without_longer_time_outs_it_errs: RAISES_TIMEOUT;
    without_turns_it_errs: TAKES_TURNS;
    with_contenders_not_yet_active_it_errs: ANNOUNCES_AFTER_WRITE;
    with_old_reads_judged_it_errs: IGNORES_EARLIER_READS;
}
