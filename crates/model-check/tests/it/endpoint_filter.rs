//! The endpoint filter in every order of steps, and mutants of it.

use crate::common::explorations::{Reads, finds_nothing};
use mitra_filter::{AllRules, Rules};
use mitra_model_check::{
    BitFilterLimits, Exploration, FilterLimits, SeedResult, exhaustive_bit_filter, exhaustive_filter,
    run_filter,
};
use mitra_prng::seeds;

use mitra_model_check::filter_worlds::{
    EVICTION, FILTER_RESTART, LARGE, ONE_BIT, ONE_ROW, SENDER_RESTART, TABLES, TWO_BITS, WINDOW,
};

fn explore_one_bit<R: Rules + Send + Sync + 'static>() -> Exploration {
    let [one, two] = [ONE_BIT, TWO_BITS].map(exhaustive_bit_filter::<R>);
    one.explore().and_then(|| two.explore())
}

#[track_caller]
fn holds(name: &str, limits: FilterLimits) {
    finds_nothing(&format!("endpoint_filter::{name}"), Reads::Filter, || {
        exhaustive_filter::<AllRules>(limits).explore()
    });
}

#[test]
fn two_senders_share_one_row_in_every_order_of_steps() {
    holds("one_row", ONE_ROW);
}

#[test]
fn window_and_used_up_sequence_are_right_in_every_order_of_steps() {
    holds("window", WINDOW);
}

#[test]
fn restart_of_a_sender_is_right_in_every_order_of_steps() {
    holds("sender_restart", SENDER_RESTART);
}

#[test]
fn restart_of_the_filter_is_right_in_every_order_of_steps() {
    holds("filter_restart", FILTER_RESTART);
}

#[test]
fn eviction_after_the_lease_is_right_in_every_order_of_steps() {
    holds("eviction", EVICTION);
}

#[test]
fn one_bit_is_right_in_every_order_of_steps() {
    finds_nothing("endpoint_filter::one_bit", Reads::Filter, explore_one_bit::<AllRules>);
}

#[test]
fn one_bit_is_wrong_without_order() {
    let limits = BitFilterLimits { ordered: false, ..ONE_BIT };
    let found = exhaustive_bit_filter::<AllRules>(limits).explore();
    let (property, steps) = found.counterexample.expect("a late copy has the bit of the next request");
    println!("{property}: {steps:?}");
}

#[test]
fn large_worlds_are_right_from_seeds() {
    let mut faults = 0;
    for seed in seeds(2_000) {
        let result = run_filter::<AllRules>(seed, LARGE, 400);
        assert_eq!(result.violation, None, "seed {seed}");
        faults += result.faults;
    }
    assert!(faults as usize > seeds(2_000).count() / 2, "only {faults} faults");
}

fn mutant_violates(run: fn(u64, FilterLimits, u64) -> SeedResult) {
    let worlds = TABLES.into_iter().chain([LARGE]);
    let found = (0..20_000).find_map(|seed| {
        worlds.clone().find_map(|limits| Some((limits, seed, run(seed, limits, 60).violation?)))
    });
    println!("{:?}", found.expect("a violation"));
}

mutants! { Rules, run_filter:
    mutant_that_accepts_requests_of_evicted_nodes: REFUSES_WITHOUT_GRANT;
    mutant_without_reply_cache: KEEPS_REPLIES;
    mutant_that_compares_with_less: RECOGNIZES_LAST;
    mutant_that_accepts_gaps: EXECUTES_IN_ORDER;
    mutant_that_grants_a_copy_of_an_arbitration_again: RECOGNIZES_OPEN;
    mutant_that_grants_an_earlier_attempt: IGNORES_EARLIER_ATTEMPTS;
    mutant_that_reuses_grant_numbers: NUMBERS_GRANTS;
    mutant_that_accepts_grants_of_an_earlier_incarnation: CHECKS_INCARNATION;
    mutant_that_evicts_used_rows: EVICTS_ONLY_UNUSED;
    mutant_that_releases_while_a_call_is_outstanding: RELEASES_ONLY_IDLE;
    mutant_that_takes_a_late_offer: MATCHES_OFFERS;
    mutant_that_repeats_after_a_lost_grant: REPORTS_UNKNOWN;
    mutant_that_confirms_too_much: CONFIRMS_RECEIVED;
    mutant_that_wraps_within_a_grant: ARBITRATES_AT_WRAP;
    mutant_that_takes_any_reply: MATCHES_REPLIES;
}

mod one_bit {
    use super::*;

    fn mutant_violates(explore: fn() -> Exploration) {
        let (property, steps) = explore().counterexample.expect("a counterexample");
        println!("{property}: {steps:#?}");
    }

    mutants! { Rules, explore_one_bit:
        mutant_with_two_outstanding: ONE_OUTSTANDING;
        mutant_that_compares_no_bit: COMPARES_BIT;
        mutant_that_keeps_the_bit_of_an_earlier_connection: RESETS_BIT;
        mutant_without_reply_cache: KEEPS_REPLIES;
    }
}

/// Each sender can have a row of its own.
#[test]
fn world_with_enough_rows_needs_no_reclaim() {
    holds("two_rows", FilterLimits { rows: 2, ..ONE_ROW });
}
