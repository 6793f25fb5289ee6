//! The detector of silent rails: every order of steps at a small size, and runs from seeds.

use mitra_model_check::{CATALOGUE, QuestionLimits, exhaustive_questions};
use mitra_prng::seeds;

use crate::common::explorations::{Reads, finds_nothing};

/// A round trip takes at most three ticks, so that the timeout of four ticks ends after the answers
/// to all questions that the other rail has answered.
#[test]
fn three_losses_on_rails_that_work() {
    finds_nothing("rail_questions::three_losses_on_rails_that_work", Reads::Failover, || {
        exhaustive_questions(QuestionLimits::LOSSES, 17).explore()
    });
}

#[test]
fn one_direction_that_fails_and_a_peer_that_closes() {
    finds_nothing("rail_questions::one_direction_that_fails_and_a_peer_that_closes", Reads::Failover, || {
        exhaustive_questions(QuestionLimits::ONE_BREAK, 15).explore()
    });
}

#[test]
fn peer_that_is_suspended() {
    finds_nothing("rail_questions::peer_that_is_suspended", Reads::Failover, || {
        exhaustive_questions(QuestionLimits::ONE_ABSENCE, 15).explore()
    });
}

#[test]
fn end_that_is_suspended() {
    finds_nothing("rail_questions::end_that_is_suspended", Reads::Failover, || {
        exhaustive_questions(QuestionLimits::ONE_SUSPENSION, 6).explore()
    });
}

#[test]
fn random_losses_and_suspensions_condemn_no_rail_that_works() {
    let entry = CATALOGUE.iter().find(|entry| entry.name == "rail-questions").expect("an entry");
    for seed in seeds(300) {
        let result = entry.run(seed);
        assert_eq!(result.violation, None, "seed {seed}");
    }
}
