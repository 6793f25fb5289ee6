//! Protected Memory Paxos, with all its rules and without each of them.

mod common;

use common::{CRASHES, errs, holds};
use mitra_agreement::ProcessId;
use mitra_agreement::protected_memory_paxos::{ProtectedMemoryPaxos, Rules, Sound};
use mitra_model::{Limits, World, delays, explore};

fn sized<R: Rules>(n: u8, m: u8, limits: Limits) -> World<ProtectedMemoryPaxos<u8, R>> {
    let processes = (0..n).map(|p| ProtectedMemoryPaxos::new(ProcessId(p), n, m, 10 + p)).collect();
    World::new(processes, m, &ProtectedMemoryPaxos::<u8, R>::regions(n), limits)
}

fn world<R: Rules>() -> World<ProtectedMemoryPaxos<u8, R>> {
    sized(3, 3, CRASHES)
}

#[test]
fn the_first_leader_decides_in_two_delays_and_another_in_eight() {
    let delays = |leader| delays(sized::<Sound>(3, 3, Limits::default()), ProcessId(leader), 20);
    assert_eq!(delays(0), Some((2, 3)));
    assert_eq!(delays(1), Some((8, 9)));
}

#[test]
fn two_processes_agree_in_every_order() {
    let limits = Limits { namings: 2, memory_crashes: 1, ..Limits::default() };
    let found = explore(sized::<Sound>(2, 3, limits), 1, vec![10, 11]);
    assert_eq!(found.counterexample, None);
    assert!(found.states > 100_000, "{} states: less than before", found.states);
}

#[test]
fn it_agrees_and_ends_from_every_seed() {
    holds(world::<Sound>, 10_000);
}

mutants! { Rules, world:
    without_the_check_of_the_minimum_it_errs: CHECKS_MIN;
    with_stale_writes_it_errs: ONE_AT_A_TIME;
    with_late_adoption_it_errs: FIRM_ONCE_STARTED;
    by_the_highest_ballot_begun_it_errs: BY_ACCEPTED;
    with_what_was_accepted_wiped_it_errs: KEEPS_ACCEPTED;
    without_permissions_it_errs: EXCLUSIVE;
}
