//! The checker accepts a correct run, and rejects the run after any single change.

use mitra_failover::CloseReason;
use mitra_failover::UnresolvedError::Undecided;

use super::*;
use crate::cli::demo::protocol::ExecutionRecord;

const COUNT: usize = 200;
/// The index of the first operation that was in flight at the failure. Earlier operations completed
/// directly.
const FIRST_IN_FLIGHT: usize = 80;
/// The number of operations that were executed before the failure, counted from operation 0.
const EXECUTED: usize = 110;
/// The index after the last operation that was in flight. Later operations completed directly, on
/// the new rail.
const END_IN_FLIGHT: usize = 140;

struct CheckedRun {
    workload: Workload,
    client: ClientReport,
    server: ServerReport,
}

/// Returns a run with exactly-once execution: executed operations are recovered, READs and all
/// others are replayed.
fn correct_run() -> CheckedRun {
    let workload = Workload::new(11, COUNT);
    let (mut posted, mut seen) = (ClientReport::default(), ServerReport::default());
    for n in 0..COUNT {
        let kind = workload.ops[n].kind;
        let resolution = match n {
            FIRST_IN_FLIGHT..EXECUTED if kind != Kind::Read => Resolution::Recovered,
            FIRST_IN_FLIGHT..END_IN_FLIGHT => Resolution::Replayed,
            _ => Resolution::Direct,
        };
        let value = if kind == Kind::Faa { seen.counter } else { 0 };
        seen.counter += u64::from(kind == Kind::Faa);
        if n == EXECUTED {
            seen.counter_before = Some(seen.counter - u64::from(kind == Kind::Faa));
        }
        if matches!(kind, Kind::Write | Kind::Send | Kind::Cas) {
            let (id, before) = (workload.id(n), n < EXECUTED);
            seen.log.push(ExecutionRecord { kind, id, intact: true, before, at: 0 });
        }
        let done = CompletionRecord { at: 0, outcome: Outcome::Success, resolution, value };
        posted.ops.push(OpRecord { posted: 0, completion: Some(done) });
    }
    CheckedRun { workload, client: posted, server: seen }
}

impl CheckedRun {
    fn check_round(&self) -> CheckResult {
        check_round(
            &self.workload,
            &self.client,
            &self.server,
            RoundFacts { victim: None, flushed_means_not_executed: true },
        )
    }

    fn counts(&self, kind: Kind) -> Counts {
        self.check_round().kinds[kind.index()]
    }

    /// Returns the first operation of this kind that was in flight at the failure.
    fn first(&self, kind: Kind) -> usize {
        self.workload.of_kind(kind, FIRST_IN_FLIGHT).unwrap()
    }

    fn entry(&mut self, n: usize) -> usize {
        let id = self.workload.id(n);
        self.server.log.iter().position(|entry| entry.id == id).unwrap()
    }

    fn completion(&mut self, n: usize) -> &mut CompletionRecord {
        self.client.ops[n].completion.as_mut().unwrap()
    }

    fn corrupted(&self) -> u64 {
        self.check_round().kinds.iter().map(Counts::corrupted).sum()
    }
}

const KINDS_WITH_TRACE: [Kind; 3] = [Kind::Write, Kind::Send, Kind::Cas];

#[test]
fn correct_run_has_no_violations_and_outcomes_add_up() {
    let run = correct_run();
    let check = run.check_round();
    let mut executed = 0;
    for counts in check.kinds {
        assert_eq!(counts.corrupted(), 0);
        assert_eq!(counts.posted, counts.completed + counts.not_completed());
        assert_eq!(counts.in_flight, counts.recovered + counts.replayed);
        executed += counts.executed_before_failure;
    }
    let trailing_reads = (0..EXECUTED).rev().take_while(|&n| run.workload.ops[n].kind == Kind::Read).count();
    assert_eq!(executed as usize, EXECUTED - FIRST_IN_FLIGHT - trailing_reads);
    assert_eq!(check.kinds.iter().map(|c| c.posted).sum::<u64>(), COUNT as u64);
    assert!(check.ops.iter().all(|faults| *faults == Violations::default()));
}

#[test]
fn missing_execution_is_lost() {
    for kind in KINDS_WITH_TRACE {
        let mut run = correct_run();
        let n = run.first(kind);
        let at = run.entry(n);
        run.server.log.remove(at);
        assert_eq!((run.counts(kind).lost, run.corrupted()), (1, 1), "{kind:?}");
        assert!(run.check_round().ops[n].lost);
    }
}

#[test]
fn repeated_execution_is_doubled() {
    for kind in KINDS_WITH_TRACE {
        let mut run = correct_run();
        let n = run.first(kind);
        let at = run.entry(n);
        let again = ExecutionRecord { before: false, ..run.server.log[at] };
        run.server.log.push(again);
        assert_eq!((run.counts(kind).doubled, run.corrupted()), (1, 1), "{kind:?}");
        assert!(run.check_round().ops[n].doubled);
    }
}

#[test]
fn torn_payload_and_unknown_word_are_wrong() {
    for kind in KINDS_WITH_TRACE {
        let mut run = correct_run();
        let n = run.first(kind);
        let at = run.entry(n);
        run.server.log[at].intact = false;
        assert_eq!((run.counts(kind).wrong_value, run.corrupted()), (1, 1), "{kind:?}");
        let mut run = correct_run();
        run.server.log.push(ExecutionRecord { kind, id: 77, intact: true, before: true, at: 0 });
        assert_eq!((run.counts(kind).wrong_value, run.corrupted()), (1, 1), "{kind:?}");
    }
}

#[test]
fn out_of_order_messages_are_wrong() {
    let mut run = correct_run();
    let n = run.first(Kind::Send);
    let next = run.workload.of_kind(Kind::Send, n + 1).unwrap();
    let (a, b) = (run.entry(n), run.entry(next));
    run.server.log.swap(a, b);
    assert_eq!((run.counts(Kind::Send).wrong_value, run.corrupted()), (1, 1));
}

#[test]
fn wrong_old_value_and_wrong_read_are_wrong() {
    for kind in [Kind::Cas, Kind::Read] {
        let mut run = correct_run();
        let n = run.first(kind);
        run.completion(n).value = 5;
        assert_eq!((run.counts(kind).wrong_value, run.corrupted()), (1, 1), "{kind:?}");
    }
}

#[test]
fn counter_shows_lost_and_doubled_faas() {
    let mut run = correct_run();
    run.server.counter -= 2;
    assert_eq!((run.counts(Kind::Faa).lost, run.corrupted()), (2, 2));
    let mut run = correct_run();
    run.server.counter += 3;
    assert_eq!((run.counts(Kind::Faa).doubled, run.corrupted()), (3, 3));
}

#[test]
fn repeated_or_out_of_range_old_value_is_wrong() {
    let mut run = correct_run();
    let n = run.first(Kind::Faa);
    run.completion(n).value -= 1;
    assert_eq!((run.counts(Kind::Faa).wrong_value, run.corrupted()), (1, 1));
    let last = (0..COUNT).rev().find(|&n| run.workload.ops[n].kind == Kind::Faa).unwrap();
    let mut run = correct_run();
    run.completion(last).value += 1;
    assert_eq!((run.counts(Kind::Faa).wrong_value, run.corrupted()), (1, 1));
}

/// Under `blanket`, everything in flight is replayed.
#[test]
fn blanket_replay_doubles_executed_operations_and_corrupts_later_values() {
    let mut run = correct_run();
    let mut extra = 0;
    for n in FIRST_IN_FLIGHT..COUNT {
        let kind = run.workload.ops[n].kind;
        if n < END_IN_FLIGHT {
            run.completion(n).resolution = Resolution::Replayed;
        }
        if n < EXECUTED && KINDS_WITH_TRACE.contains(&kind) {
            let at = run.entry(n);
            let again = ExecutionRecord { before: false, ..run.server.log[at] };
            run.server.log.push(again);
        }
        extra += u64::from(n < EXECUTED && kind == Kind::Faa);
    }
    for n in (FIRST_IN_FLIGHT..COUNT).filter(|&n| correct_run().workload.ops[n].kind == Kind::Faa) {
        run.completion(n).value += extra;
    }
    run.server.counter += extra;
    let check = run.check_round();
    assert!(extra > 0);
    for counts in check.kinds {
        assert_eq!(counts.lost, 0);
    }
    let faa = check.kinds[Kind::Faa.index()];
    assert_eq!((faa.doubled, faa.wrong_value), (extra, extra));
    for (n, faults) in check.ops.iter().enumerate() {
        let doubled = (FIRST_IN_FLIGHT..EXECUTED).contains(&n) && run.workload.ops[n].kind != Kind::Read;
        assert_eq!(faults.doubled, doubled, "operation {n}");
    }
}

#[test]
fn named_errors_are_counted_separately_and_allow_zero_or_one_execution() {
    for (outcome, least, most) in [
        (Outcome::Unresolved(Indeterminate), 0, 1),
        (Outcome::Unresolved(ValueLost), 1, 1),
        (Outcome::Unresolved(ExecutedBehindError), 1, 1),
        (Outcome::Unresolved(Undecided(CloseReason::ALL[0])), 0, 1),
        (Outcome::Failed(WcStatus::Flushed), 0, 0),
    ] {
        for times in 0..=2_u64 {
            let mut run = correct_run();
            let n = run.first(Kind::Write);
            run.completion(n).outcome = outcome;
            let at = run.entry(n);
            let entry = run.server.log.remove(at);
            for _ in 0..times {
                run.server.log.push(entry);
            }
            let counts = run.counts(Kind::Write);
            assert_eq!(counts.posted, counts.completed + counts.not_completed());
            assert_eq!(counts.not_completed(), 1);
            let clean = (least..=most).contains(&times);
            assert_eq!(counts.corrupted() == 0, clean, "{outcome:?} executed {times} times: {counts:?}");
        }
    }
}

#[test]
fn operation_without_completion_is_an_error() {
    let mut run = correct_run();
    let n = run.first(Kind::Read);
    run.client.ops[n].completion = None;
    let counts = run.counts(Kind::Read);
    assert_eq!((counts.errors, counts.corrupted()), (1, 0));
}

#[test]
fn victim_and_earlier_reads_count_as_executed() {
    let run = correct_run();
    let n = run.workload.of_kind(Kind::Read, EXECUTED).unwrap();
    assert!(n < END_IN_FLIGHT);
    assert!(!run.check_round().executed_before[n]);
    let facts = RoundFacts { victim: Some(n), flushed_means_not_executed: true };
    let check = check_round(&run.workload, &run.client, &run.server, facts);
    assert!(check.executed_before[n]);
    assert_eq!(check.kinds.iter().map(Counts::corrupted).sum::<u64>(), 0);
}
