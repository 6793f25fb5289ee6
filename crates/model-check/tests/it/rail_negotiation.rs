//! The rail negotiation of virtual queue pairs: every order of steps at a small size, and the
//! violations that are found if the driver lacks a rule.

use crate::common::explorations::{Reads, finds_nothing};
use mitra_model_check::{RailFaultLimits, RailRule, exhaustive_rails, run_rails_from_seed};
use mitra_prng::seeds;

#[test]
fn one_failure_of_any_kind_with_timers_naps_and_crashes() {
    finds_nothing(
        "rail_negotiation::one_failure_of_any_kind_with_timers_naps_and_crashes",
        Reads::Failover,
        || exhaustive_rails(RailFaultLimits::ONE_FAILURE, 4, None).explore(),
    );
}

/// An end that closes during a move does not know which rail its peer uses. The peer nevertheless
/// finds out which of its own operations were executed.
#[test]
fn application_that_closes_during_a_move() {
    finds_nothing("rail_negotiation::application_that_closes_during_a_move", Reads::Failover, || {
        exhaustive_rails(RailFaultLimits::ONE_CLOSE, 3, None).explore()
    });
}

/// An end that waits for the peer's Resume may decline the peer's next proposal. The end then must
/// keep waiting, and ask again. In seed 86531 of the simulator's failover workload, an end took the
/// proposal as proof that its move was over, and waited forever.
#[test]
fn last_rail_that_fails_twice() {
    finds_nothing("rail_negotiation::last_rail_that_fails_twice", Reads::Failover, || {
        exhaustive_rails(RailFaultLimits::LAST_RAIL, 3, None).explore()
    });
}

/// An end whose process still uses the old home rail sends no evidence and decides nothing until
/// the others have fenced their queue pairs there.
#[test]
fn move_that_waits_for_the_old_home() {
    finds_nothing("rail_negotiation::move_that_waits_for_the_old_home", Reads::Failover, || {
        exhaustive_rails(RailFaultLimits::HELD_HOME, 3, None).explore()
    });
}

/// The decision of a move comes once. An end that could not take it then, and never takes it later,
/// waits for good.
#[test]
fn step_that_is_not_repeated_is_found() {
    let found = exhaustive_rails(RailFaultLimits::HELD_HOME, 3, Some(RailRule::StepRepeated)).explore();
    assert!(found.counterexample.is_some());
}

#[test]
fn random_failures_never_separate_the_ends_or_stop_them() {
    let mut faults = 0;
    // In the last but one seed, a link recovers at an end that has closed while it waited for a
    // rail. In the last seed, a rail that was refused is the only rail that both ends can use.
    for seed in seeds(3000).chain([1_000_250, 126_317_555_870]) {
        let result = run_rails_from_seed(seed, None);
        assert_eq!(result.violation, None, "seed {seed}");
        faults += result.faults;
    }
    assert!(faults as usize > 3 * seeds(3000).count(), "{faults} faults");
}

/// An end that reads its evidence anew for each message gives the peer different evidence.
#[test]
fn evidence_that_changes_is_found() {
    let limits = RailFaultLimits { timers: 3, ..RailFaultLimits::ONE_FAILURE };
    let found = exhaustive_rails(limits, 4, Some(RailRule::OneEvidence)).explore();
    assert!(found.counterexample.is_some());
}

/// A late message about the queue pair of an earlier ballot must not connect the queue pair of a
/// later ballot.
#[test]
fn queue_pairs_of_different_ballots_are_found() {
    let violation = |seed| run_rails_from_seed(seed, Some(RailRule::SameBallot)).violation;
    let found = seeds(3000).filter(|&seed| violation(seed).is_some()).count();
    let least = seeds(3000).count() / 300;
    assert!(found > least, "{found} of {} seeds find it", seeds(3000).count());
}
