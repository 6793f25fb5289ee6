//! The checker accepts a correct run, and rejects the run after any single change.

use super::*;
use crate::cli::demo::protocol::ExecutionRecord;

const COUNT: usize = 200;
/// Operations below this index completed directly; those from here on were in flight at the failure,
const FIRST_IN_FLIGHT: usize = 80;
/// those below this index had been executed,
const EXECUTED: usize = 110;
/// and those from here on were not in flight.
const END_IN_FLIGHT: usize = 140;

struct PolicyRun {
    workload: Workload,
    posted: ClientReport,
    seen: ServerReport,
}

/// Returns a run with exactly-once execution: executed operations are recovered, READs and all others are replayed.
fn faithful() -> PolicyRun {
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
        let done = CompletionRecord { at: 0, outcome: OpOutcome::Success, resolution, value };
        posted.ops.push(OpRecord { posted: 0, completion: Some(done) });
    }
    PolicyRun { workload, posted, seen }
}

impl PolicyRun {
    fn check_round(&self) -> CheckResult {
        check_round(
            &self.workload,
            &self.posted,
            &self.seen,
            RoundFacts { victim: None, flushed_means_not_executed: true },
        )
    }

    fn counts(&self, kind: Kind) -> Counts {
        self.check_round().kinds[kind.index()]
    }

    /// Returns the first operation of a kind among those in flight.
    fn first(&self, kind: Kind) -> usize {
        self.workload.of_kind(kind, FIRST_IN_FLIGHT).unwrap()
    }

    fn entry(&mut self, n: usize) -> usize {
        let id = self.workload.id(n);
        self.seen.log.iter().position(|entry| entry.id == id).unwrap()
    }

    fn done(&mut self, n: usize) -> &mut CompletionRecord {
        self.posted.ops[n].completion.as_mut().unwrap()
    }

    fn corrupted(&self) -> u64 {
        self.check_round().kinds.iter().map(Counts::corrupted).sum()
    }
}

const TRACED: [Kind; 3] = [Kind::Write, Kind::Send, Kind::Cas];

#[test]
fn a_faithful_run_is_clean_and_the_sum_of_the_outcomes_is_what_was_posted() {
    let run = faithful();
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
fn an_execution_that_left_no_trace_is_lost() {
    for kind in TRACED {
        let mut run = faithful();
        let n = run.first(kind);
        let at = run.entry(n);
        run.seen.log.remove(at);
        assert_eq!((run.counts(kind).lost, run.corrupted()), (1, 1), "{kind:?}");
        assert!(run.check_round().ops[n].lost);
    }
}

#[test]
fn an_execution_seen_twice_is_doubled() {
    for kind in TRACED {
        let mut run = faithful();
        let n = run.first(kind);
        let at = run.entry(n);
        let again = ExecutionRecord { before: false, ..run.seen.log[at] };
        run.seen.log.push(again);
        assert_eq!((run.counts(kind).doubled, run.corrupted()), (1, 1), "{kind:?}");
        assert!(run.check_round().ops[n].doubled);
    }
}

#[test]
fn a_torn_body_and_a_word_that_nobody_posted_are_wrong() {
    for kind in TRACED {
        let mut run = faithful();
        let n = run.first(kind);
        let at = run.entry(n);
        run.seen.log[at].intact = false;
        assert_eq!((run.counts(kind).wrong_value, run.corrupted()), (1, 1), "{kind:?}");
        let mut run = faithful();
        run.seen.log.push(ExecutionRecord { kind, id: 77, intact: true, before: true, at: 0 });
        assert_eq!((run.counts(kind).wrong_value, run.corrupted()), (1, 1), "{kind:?}");
    }
}

#[test]
fn messages_that_overtake_each_other_are_wrong() {
    let mut run = faithful();
    let n = run.first(Kind::Send);
    let next = run.workload.of_kind(Kind::Send, n + 1).unwrap();
    let (a, b) = (run.entry(n), run.entry(next));
    run.seen.log.swap(a, b);
    assert_eq!((run.counts(Kind::Send).wrong_value, run.corrupted()), (1, 1));
}

#[test]
fn a_wrong_old_value_and_a_wrong_read_are_wrong() {
    for kind in [Kind::Cas, Kind::Read] {
        let mut run = faithful();
        let n = run.first(kind);
        run.done(n).value = 5;
        assert_eq!((run.counts(kind).wrong_value, run.corrupted()), (1, 1), "{kind:?}");
    }
}

#[test]
fn the_counter_tells_lost_and_doubled_additions() {
    let mut run = faithful();
    run.seen.counter -= 2;
    assert_eq!((run.counts(Kind::Faa).lost, run.corrupted()), (2, 2));
    let mut run = faithful();
    run.seen.counter += 3;
    assert_eq!((run.counts(Kind::Faa).doubled, run.corrupted()), (3, 3));
}

#[test]
fn an_old_value_returned_twice_or_out_of_range_is_wrong() {
    let mut run = faithful();
    let n = run.first(Kind::Faa);
    run.done(n).value -= 1;
    assert_eq!((run.counts(Kind::Faa).wrong_value, run.corrupted()), (1, 1));
    let last = (0..COUNT).rev().find(|&n| run.workload.ops[n].kind == Kind::Faa).unwrap();
    let mut run = faithful();
    run.done(last).value += 1;
    assert_eq!((run.counts(Kind::Faa).wrong_value, run.corrupted()), (1, 1));
}

/// Under `blanket`, everything in flight is replayed.
#[test]
fn resending_all_doubles_what_had_been_executed_and_spoils_the_values_behind() {
    let mut run = faithful();
    let mut extra = 0;
    for n in FIRST_IN_FLIGHT..COUNT {
        let kind = run.workload.ops[n].kind;
        if n < END_IN_FLIGHT {
            run.done(n).resolution = Resolution::Replayed;
        }
        if n < EXECUTED && TRACED.contains(&kind) {
            let at = run.entry(n);
            let again = ExecutionRecord { before: false, ..run.seen.log[at] };
            run.seen.log.push(again);
        }
        extra += u64::from(n < EXECUTED && kind == Kind::Faa);
    }
    for n in (FIRST_IN_FLIGHT..COUNT).filter(|&n| faithful().workload.ops[n].kind == Kind::Faa) {
        run.done(n).value += extra;
    }
    run.seen.counter += extra;
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
fn named_errors_are_counted_apart_and_allow_what_they_say() {
    for (outcome, least, most) in [
        (OpOutcome::Indeterminate, 0, 1),
        (OpOutcome::ValueLost, 1, 1),
        (OpOutcome::ExecutedBehindError, 1, 1),
        (OpOutcome::Undecided, 0, 1),
        (OpOutcome::Flushed, 0, 0),
    ] {
        for times in 0..=2_u64 {
            let mut run = faithful();
            let n = run.first(Kind::Write);
            run.done(n).outcome = outcome;
            let at = run.entry(n);
            let entry = run.seen.log.remove(at);
            for _ in 0..times {
                run.seen.log.push(entry);
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
fn an_operation_without_completion_is_an_error() {
    let mut run = faithful();
    let n = run.first(Kind::Read);
    run.posted.ops[n].completion = None;
    let counts = run.counts(Kind::Read);
    assert_eq!((counts.errors, counts.corrupted()), (1, 0));
}

#[test]
fn the_victim_and_the_reads_before_it_had_been_executed() {
    let run = faithful();
    let n = run.workload.of_kind(Kind::Read, EXECUTED).unwrap();
    assert!(n < END_IN_FLIGHT);
    assert!(!run.check_round().executed_before[n]);
    let facts = RoundFacts { victim: Some(n), flushed_means_not_executed: true };
    let check = check_round(&run.workload, &run.posted, &run.seen, facts);
    assert!(check.executed_before[n]);
    assert_eq!(check.kinds.iter().map(Counts::corrupted).sum::<u64>(), 0);
}
