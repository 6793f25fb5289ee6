//! Protected Memory Paxos, with all its rules and without each of them.

use mitra_agreement::ProcessId;
use mitra_agreement::protected_memory_paxos::{ProtectedMemoryPaxos, Rules, Sound};
use mitra_model::{Chaos, Limits, Violation, World, delays, explore, run};

fn world<R: Rules>(n: u8, m: u8, limits: Limits) -> World<ProtectedMemoryPaxos<u8, R>> {
    let processes = (0..n).map(|p| ProtectedMemoryPaxos::new(ProcessId(p), n, m, 10 + p)).collect();
    World::new(processes, m, &ProtectedMemoryPaxos::<u8, R>::regions(n), limits)
}

const CRASHES: Limits = Limits { namings: 16, process_crashes: 2, memory_crashes: 1 };

#[test]
fn the_first_leader_decides_in_two_delays_and_another_in_eight() {
    let cold = |leader| delays(world::<Sound>(3, 3, Limits::default()), ProcessId(leader), 20);
    assert_eq!(cold(0), Some((2, 3)));
    assert_eq!(cold(1), Some((8, 9)));
}

#[test]
fn two_processes_agree_in_every_order() {
    let namings = Limits { namings: 2, memory_crashes: 1, ..Limits::default() };
    let found = explore(world::<Sound>(2, 3, namings), 1, vec![10, 11]);
    println!("{} states", found.states);
    assert_eq!(found.counterexample, None);
}

#[test]
fn it_agrees_and_ends_from_every_seed() {
    for seed in 0..20_000 {
        let report = run(seed, world::<Sound>(3, 3, CRASHES), Chaos { steps: 200, calm: 2000 }, &[10, 11, 12]);
        assert_eq!(report.violation, None, "seed {seed}: {:?}", report.steps);
    }
}

/// The first seed that shows that a rule is missing.
fn killed<R: Rules>() -> Option<u64> {
    (0..400_000).find(|&seed| {
        let report = run(seed, world::<R>(3, 3, CRASHES), Chaos { steps: 300, calm: 0 }, &[10, 11, 12]);
        matches!(report.violation, Some(Violation::Disagreement | Violation::Invalid))
    })
}

macro_rules! mutants {
    ($($name:ident: $rule:ident;)*) => {$(
        #[test]
        fn $name() {
            #[derive(Clone, PartialEq, Eq, Hash, Debug)]
            struct Mutant;
            impl Rules for Mutant {
                const $rule: bool = false;
            }
            let killed = killed::<Mutant>();
            println!("{killed:?}");
            assert!(killed.is_some());
        }
    )*};
}

mutants! {
    without_the_check_of_the_minimum_it_errs: CHECKS_MIN;
    with_stale_writes_it_errs: ONE_AT_A_TIME;
    with_late_adoption_it_errs: FIRM_ONCE_STARTED;
    by_the_highest_ballot_begun_it_errs: BY_ACCEPTED;
    with_what_was_accepted_wiped_it_errs: KEEPS_ACCEPTED;
    without_permissions_it_errs: EXCLUSIVE;
}
