//! The promise table of docs/promises.md, for queue pairs with a shared backup and a completion
//! log.

use mitra_failover::{CompletionLogConfig, Config, Outcome, UnresolvedError, WritePolicy};
use mitra_sim::workload::{FailureCase, FailureTarget, OpKind, Verdict};
use mitra_sim::{Failure, Testbed, seeds, seeds_of_cases};
use mitra_verbs::Access;

use super::run::{Outcome as Run, Setup, config, connect_backups, run};
use super::{random_time, setup};

fn with_log(log: CompletionLogConfig) -> Config {
    Config { completion_log: Some(log), ..config() }
}

fn logged(interval: u32) -> Config {
    with_log(CompletionLogConfig { interval, ..CompletionLogConfig::default() })
}

fn is_indeterminate(failure: &&mitra_failover::Completion) -> bool {
    failure.outcome == Outcome::Unresolved(UnresolvedError::Indeterminate)
}

pub fn run_case(seed: u64, case: FailureCase, config: Config, world: mitra_sim::Config) -> (Run, bool) {
    let setup = Setup { rails: 2, members: 1, ops: [80, 0], world, config };
    let observer = std::cell::Cell::new(None);
    let (out, testbed) = run(
        seed,
        setup,
        |plan| plan.only(&[case.kind]),
        |testbed, rng| {
            let nth = rng.between(1, 40) as u32;
            let rail = testbed.rail(0);
            observer.set(Some(case.arm(&mut testbed.world, rail, nth, None)));
        },
    );
    let reached = observer.get().is_some_and(|nic| testbed.world.stage_reached(nic));
    (out, reached)
}

#[test]
fn every_failure_case_keeps_the_promise_table() {
    let cases: Vec<_> = FailureCase::all().into_iter().filter(|c| !c.requires_early_ack()).collect();
    let (mut reached, mut undecided) = (0, 0);
    for seed in seeds_of_cases(cases.len(), 1) {
        let case = cases[(seed % cases.len() as u64) as usize];
        let interval = 1 + seed as u32 % 4;
        let mut config = logged(interval);
        let is_write = matches!(case.kind, OpKind::Write | OpKind::Block | OpKind::WriteImm);
        let loses_evidence = !matches!(
            case.target,
            FailureTarget::Link | FailureTarget::Requester | FailureTarget::RequesterHung
        );
        if seed % 3 == 0 {
            config.write_policy = WritePolicy::Repeatable;
        }
        let is_repeatable = is_write && config.write_policy == WritePolicy::Repeatable;
        let (out, was_reached) = run_case(seed, case, config, mitra_sim::Config::swarm(seed));
        reached += usize::from(was_reached);
        let label = case.to_string();
        if is_repeatable && loses_evidence {
            // The responder consumes the targets of WRITEs, so it may observe twice a WRITE that is
            // sent again.
            let total = out.verdicts[0][0].total();
            let others = (total.lost, total.wrong_value, total.out_of_order, out.verdicts[0][0].strays);
            let is_exact = total.doubled <= u64::from(interval) && others == (0, 0, 0, 0);
            assert!(is_exact, "seed {seed}, {label}: {}", out.verdicts[0][0]);
        } else {
            out.assert_exact(seed, &label);
        }
        assert_eq!(
            (out.close_reasons[0], out.contradictions[0]),
            ([None, None], [None, None]),
            "seed {seed}, {label}"
        );
        let failures = &out.failures[0][0];
        if !loses_evidence {
            assert!(out.verdicts[0].iter().all(Verdict::is_complete), "seed {seed}, {label}: {failures:?}");
            continue;
        }
        let indeterminate = failures.iter().filter(is_indeterminate).count();
        assert!(indeterminate <= interval as usize, "seed {seed}, {label}: {failures:?}");
        undecided += usize::from(indeterminate > 0);
        if matches!(case.kind, OpKind::Send | OpKind::Read) || is_repeatable {
            assert!(failures.is_empty(), "seed {seed}, {label}: {failures:?}");
        }
    }
    println!("{reached} of {} failures reached, {undecided} runs with undecided operations", cases.len());
    assert!(reached > cases.len() / 2 && undecided > 0, "{reached} {undecided}");
}

/// Several queue pairs post operations of every kind, and NICs of the responder die. For the log of
/// each queue pair and of the backup, at most one WRITE or atomic stays undecided.
#[test]
fn completion_log_decides_what_the_loss_of_a_nic_leaves_open() {
    let mut undecided = [0, 0];
    for seed in seeds(120) {
        for (i, config) in [config(), logged(1)].into_iter().enumerate() {
            let members = 1 + seed % 3;
            let setup = Setup { config, ..setup(seed, 3, members) };
            let (out, _) = run(
                seed,
                setup,
                |plan| plan,
                |testbed, rng| {
                    let nic = testbed.nics[1][0].id();
                    let at = random_time(rng, 400_000, 4);
                    let failure = *rng.pick(&[Failure::NicDead, Failure::NicHung]);
                    testbed.world.after(at, move |w| w.fail(nic, failure));
                },
            );
            out.assert_exact(seed, "responder's NIC");
            let count =
                |failures: &Vec<mitra_failover::Completion>| failures.iter().filter(is_indeterminate).count();
            let of_members: Vec<_> = out.failures.iter().map(|[a, _]| count(a)).collect();
            undecided[i] += of_members.iter().sum::<usize>();
            if i == 1 {
                // A member's own log, or the backup's log, may leave one operation undecided.
                assert!(of_members.iter().all(|n| *n <= 1), "seed {seed}: {of_members:?}");
            }
        }
    }
    println!("undecided without and with the log: {undecided:?}");
    assert!(undecided[1] * 2 < undecided[0] || seeds(120).count() < 120, "{undecided:?}");
}

/// A queue pair keeps a log only if its backup and its peer keep one, and if the peer grants the
/// right to WRITE to the peer's log.
#[test]
fn log_needs_that_of_the_backup_and_of_the_peer() {
    let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let plain = connect_backups(&testbed, config(), 1);
    let refused = plain[0].queue_pair(logged(1)).expect_err("the backup has no log");
    assert!(refused.to_string().contains("build the backup with completion_log"), "{refused}");
    let backups = connect_backups(&testbed, logged(1), 2);
    let mut with = backups[0].queue_pair(logged(1)).expect("the backup has a log");
    let without = backups[1].queue_pair(config()).expect("the NICs have the resources");
    let refused = with.connect(&without.local_info()).expect_err("the ends differ");
    assert!(refused.to_string().contains("one end keeps a completion log"), "{refused}");
    let small = with_log(CompletionLogConfig { entries: Some(8), ..CompletionLogConfig::default() });
    let small = backups[1].queue_pair(small).expect("the NICs have the resources");
    let refused = with.connect(&small.local_info()).expect_err("the log is too small");
    assert!(refused.to_string().contains("completion_log.entries"), "{refused}");
    // Without the right to WRITE, the ends connect, and the log has no entries of the peer's
    // operations.
    let read_only = Config { access: Access::LOCAL_WRITE | Access::REMOTE_READ, ..logged(1) };
    let read_only = backups[1].queue_pair(read_only).expect("the NICs have the resources");
    assert_eq!(with.connect(&read_only.local_info()), Ok(()));
}
