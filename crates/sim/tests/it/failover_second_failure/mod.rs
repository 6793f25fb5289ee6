//! A second failure at each control message of a recovery.
//!
//! For each scenario, a first run without a second failure counts the control messages of the
//! recovery. Then the scenario is run again for each message, each moment of the message and each
//! kind of second failure. The test drives both ends' programs, so a run with a second failure at
//! the n-th message is the same as the first run up to that message.

mod endpoint;
mod run;
mod scenario;
mod windows;

use std::collections::BTreeMap;

use mitra_failover::{CloseReason, Policy};
use mitra_sim::workload::{OpKind, Verdict};
use mitra_sim::{reproduce_command, seeds};

use run::{Report, Run};
use scenario::{Scenario, Second, Strike, Variant};

/// The number of scenarios of a policy and a variant. `MITRA_SEEDS=60` runs all scenarios.
const SCENARIOS: u64 = 6;

/// Returns whether the verdict is exact, apart from lost messages. No program takes the messages
/// that a dead process has received.
fn is_true_without_receiver(verdict: &Verdict) -> bool {
    verdict.strays == 0
        && OpKind::ALL.into_iter().all(|kind| {
            let tally = verdict.of(kind);
            (tally.doubled, tally.out_of_order) == (0, 0)
                && (kind.is_received() || (tally.lost, tally.wrong_value) == (0, 0))
        })
}

/// Returns an error if the run has broken a promise.
fn check(scenario: &Scenario, second: Option<Second>, report: &Report) -> Result<(), String> {
    let reasons = report.close_reasons;
    if !report.ended {
        return Err(format!("an operation does not end, {reasons:?}\n{}", report.state));
    }
    let dead = match second {
        Some(Second::ProcessDies(end)) => Some(end),
        _ => None,
    };
    if !report.window_errors.is_empty() {
        return Err(format!("{:?}, {reasons:?}\n{}", report.window_errors, report.state));
    }
    for h in 0..2 {
        let verdict = &report.verdicts[h];
        // A policy other than `Exact` promises only that work continues in order.
        let is_true = match (dead, scenario.policy) {
            (None, Policy::Exact) => verdict.is_exact(),
            (Some(_), Policy::Exact) => is_true_without_receiver(verdict),
            _ => true,
        };
        if !is_true || !report.completions_in_order[h] {
            return Err(format!("end {h} was told what is not true, {reasons:?}\n{verdict}"));
        }
    }
    if let Some(dead) = dead {
        let survivor = 1 - dead;
        let allowed = [CloseReason::PeerUnreachable, CloseReason::NoRail, CloseReason::FailedDuringRecovery];
        return match reasons[survivor] {
            Some(reason) if allowed.contains(&reason) => Ok(()),
            other => Err(format!("the survivor of a dead process ended with {other:?}")),
        };
    }
    if report.has_good_rail {
        if reasons != [None; 2] || report.refused {
            return Err(format!("ended with a good rail, {reasons:?}\n{}", report.state));
        }
        let loses_no_evidence = scenario.policy == Policy::Exact && !report.nic_died;
        if loses_no_evidence && !report.verdicts.iter().all(|verdict| verdict.is_complete()) {
            return Err(format!("an operation failed\n{}\n{}", report.verdicts[0], report.verdicts[1]));
        }
        return Ok(());
    }
    let lacks_rail = |reason| {
        matches!(
            reason,
            CloseReason::NoRail
                | CloseReason::PeerUnreachable
                | CloseReason::FailedDuringRecovery
                | CloseReason::PeerClosed
        )
    };
    // An end whose work is done need not notice that the rails have failed.
    match reasons.into_iter().flatten().all(lacks_rail) {
        true => Ok(()),
        false => Err(format!("without a rail, the ends closed for {reasons:?}")),
    }
}

/// Runs the scenarios of a policy and a variant with all second failures.
fn strike_everywhere(policy: Policy, variant: Variant) {
    let mut endings = BTreeMap::<String, u64>::new();
    let mut wrong = Vec::new();
    let (mut runs, mut invalidated_keys, mut refused_stale_keys) = (0, 0, 0);
    for seed in seeds(SCENARIOS) {
        let scenario = Scenario::of(seed, policy, variant);
        let (messages, report) = Run::new(&scenario, None).run();
        if let Err(error) = check(&scenario, None, &report) {
            panic!("{scenario:?}: {error}\n{}", reproduce_command(seed));
        }
        assert!(messages.len() >= 9, "{scenario:?}: the recovery has only the messages {messages:?}");
        for message in &messages {
            for second in Second::all(&scenario, message) {
                let strike = Strike { point: message.point, second };
                let (_, report) = Run::new(&scenario, Some(strike)).run();
                runs += 1;
                invalidated_keys += report.invalidated_keys;
                refused_stale_keys += usize::from(report.refused_stale_key);
                let reasons = report.close_reasons;
                *endings.entry(format!("{second:?}: {reasons:?}")).or_default() += 1;
                if !report.has_struck {
                    wrong.push(format!("{scenario:?}, {strike:?}: the message was not sent again"));
                }
                if let Err(error) = check(&scenario, Some(second), &report) {
                    wrong.push(format!(
                        "{scenario:?}, {second:?} at {message:?}: {error}\n{}",
                        reproduce_command(seed)
                    ));
                }
            }
        }
    }
    println!("{runs} runs, {} wrong, {endings:#?}", wrong.len());
    if variant == Variant::Windows && seeds(SCENARIOS).count() > 1 {
        println!("{invalidated_keys} keys were invalidated, and {refused_stale_keys} used afterwards");
        assert!(invalidated_keys > runs && refused_stale_keys > runs / 4, "the windows were hardly used");
    }
    assert!(wrong.is_empty(), "{} of {runs} runs are wrong, the first ones:\n{}", wrong.len(), {
        wrong.truncate(5);
        wrong.join("\n")
    });
}

// Hazard: a failure during the recovery
#[test]
fn exact_survives_a_second_failure_at_every_message() {
    strike_everywhere(Policy::Exact, Variant::Plain);
}

#[test]
fn transparent_survives_a_second_failure_at_every_message() {
    strike_everywhere(Policy::Transparent, Variant::Plain);
}

// Hazard: a failure during the recovery
#[test]
fn durable_operations_survive_a_second_failure_at_every_message() {
    strike_everywhere(Policy::Exact, Variant::Durable);
}

// Hazard: a failure during the recovery
#[test]
fn windows_survive_a_second_failure_at_every_message() {
    strike_everywhere(Policy::Exact, Variant::Windows);
}
