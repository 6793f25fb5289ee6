//! The replicated log, with all its rules and without each of them.

mod common;

use mitra_agreement::Sound;
use mitra_agreement::log::Rules;
use mitra_model::{Chaos, Limits, LogWorld, Violation, play, worlds};

const CHAOS: Chaos = Chaos { steps: 800, calm: 20_000 };

fn world<R: Rules>() -> LogWorld<R> {
    let limits = Limits { namings: 16, process_crashes: 2, memory_crashes: 1, breaks: 4 };
    worlds::log(worlds::log_config(3, 3, 2), 6, limits)
}

#[test]
fn all_apply_the_same_commands_and_all_that_is_submitted_is_committed_from_every_seed() {
    for seed in 0..4_000 {
        let report = play(seed, world::<Sound>(), CHAOS);
        assert_eq!(report.violation, None, "seed {seed}: {:?}", report.steps.len());
    }
}

/// Some seed shows that a rule is missing, where with all rules all is well.
fn errs<R: Rules>(world: impl Fn() -> LogWorld<R>, chaos: Chaos, sound: impl Fn() -> LogWorld<Sound>) {
    let wrong = |seed| match play(seed, world(), chaos).violation {
        Some(Violation::Stuck) if chaos.calm == 0 => None,
        other => other,
    };
    let killed = (0..100_000).find_map(|seed| Some((seed, wrong(seed)?)));
    println!("{killed:?}");
    let (seed, _) = killed.expect("a seed that shows it");
    assert_eq!(play(seed, sound(), CHAOS).violation, None);
}

/// The rules without which something that was committed is lost.
mod unsafe_without {
    use super::*;

    fn errs<R: Rules>(world: impl Fn() -> LogWorld<R>) {
        super::errs(world, Chaos { calm: 0, ..CHAOS }, super::world);
    }

    mutants! { Rules, world:
        the_check_of_the_ballot: CHECKS_BALLOT;
        waiting_for_what_is_outstanding: AWAITS_OUTSTANDING;
        the_highest_ballot: BY_BALLOT;
        reading_on: SCANS_ON;
        a_majority: BY_MAJORITY;
        waiting_for_registers_to_be_recycled: AWAITS_RECYCLING;
        followers_that_read_a_majority: READS_MAJORITY;
    }
}

/// The same, where two processes with more to say show it sooner.
mod unsafe_with_much_to_say_without {
    use super::*;

    fn talkative<R: Rules>() -> LogWorld<R> {
        let limits = Limits { namings: 16, process_crashes: 1, memory_crashes: 1, breaks: 4 };
        worlds::log(worlds::log_config(2, 3, 2), 20, limits)
    }

    fn errs<R: Rules>(world: impl Fn() -> LogWorld<R>) {
        super::errs(world, Chaos { calm: 0, ..CHAOS }, talkative);
    }

    mutants! { Rules, talkative:
        one_write_at_a_time_to_a_register: AWAITS_REGISTER;
    }
}

/// The rules without which a snapshot is lost: the chunks' stamps show that, so nobody installs what is wrong, but nobody who needs
/// it goes on either.
mod stuck_without {
    use super::*;

    fn errs<R: Rules>(world: impl Fn() -> LogWorld<R>) {
        super::errs(world, CHAOS, super::world);
    }

    mutants! { Rules, world:
        waiting_for_the_snapshot: AWAITS_SNAPSHOT;
        a_second_area: ALTERNATES;
    }
}
