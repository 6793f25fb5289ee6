//! The verdict: compares the outcomes that were reported to the requester with the effects that the
//! responder observed.

use core::fmt;
use core::ops::AddAssign;

use super::plan::COUNTERS;
use super::{MemoryLayout, Op, OpKind, Plan, ReportedOutcome, RequesterLog, ResponderLog};

/// The results of the operations of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tally {
    /// The number of posted operations.
    pub posted: u64,
    /// The number of operations with the reported outcome [`ReportedOutcome::Success`].
    pub success: u64,
    /// The number of operations with the reported outcome [`ReportedOutcome::Executed`].
    pub executed: u64,
    /// The number of operations with the reported outcome [`ReportedOutcome::NotExecuted`].
    pub not_executed: u64,
    /// The number of operations with the reported outcome [`ReportedOutcome::Unknown`].
    pub unknown: u64,
    /// The number of operations without a reported outcome.
    pub unfinished: u64,
    /// The number of operations that were reported as executed and had no effect.
    pub lost: u64,
    /// The number of effects in excess of those that the reported outcomes allow.
    pub doubled: u64,
    /// The number of wrong values or contents that operations returned or left in memory.
    pub wrong_value: u64,
    /// The number of operations that completed out of posting order, plus the number of messages
    /// that were received out of posting order.
    pub out_of_order: u64,
}

impl Tally {
    /// Returns whether every reported outcome of this kind is true.
    pub fn is_exact(&self) -> bool {
        (self.lost, self.doubled, self.wrong_value, self.out_of_order) == (0, 0, 0, 0)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.posted += other.posted;
        self.success += other.success;
        self.executed += other.executed;
        self.not_executed += other.not_executed;
        self.unknown += other.unknown;
        self.unfinished += other.unfinished;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.wrong_value += other.wrong_value;
        self.out_of_order += other.out_of_order;
    }
}

/// The results of all operations of a plan.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Verdict {
    /// The tallies by kind, in the order of [`OpKind::ALL`].
    pub kinds: [Tally; 7],
    /// The number of forbidden changes of memory at either end.
    pub strays: u64,
    /// Descriptions of the first 20 problems.
    pub problems: Vec<String>,
}

impl Verdict {
    /// Returns the tally of one kind.
    pub fn of(&self, kind: OpKind) -> &Tally {
        &self.kinds[kind as usize]
    }

    /// Returns the sum of the tallies of all kinds.
    pub fn total(&self) -> Tally {
        self.kinds.iter().fold(Tally::default(), |mut sum, &t| {
            sum += t;
            sum
        })
    }

    /// Returns whether every reported outcome is true and no memory changed that must not change.
    pub fn is_exact(&self) -> bool {
        self.strays == 0 && self.kinds.iter().all(Tally::is_exact)
    }

    /// Returns whether the verdict is exact and every posted operation succeeded.
    pub fn is_complete(&self) -> bool {
        let total = self.total();
        self.is_exact() && total.success == total.posted
    }

    fn wrong(&mut self, kind: OpKind, text: impl FnOnce() -> String) {
        self.kinds[kind as usize].wrong_value += 1;
        self.problem(text);
    }

    fn problem(&mut self, text: impl FnOnce() -> String) {
        if self.problems.len() < 20 {
            self.problems.push(text());
        }
    }
}

impl AddAssign for Verdict {
    fn add_assign(&mut self, other: Verdict) {
        for (total, other) in self.kinds.iter_mut().zip(other.kinds) {
            *total += other;
        }
        self.strays += other.strays;
        for problem in other.problems {
            self.problem(|| problem);
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns =
            ["posted", "success", "executed", "not", "unknown", "open", "lost", "doubled", "wrong", "order"];
        write!(f, "{:<14}", "")?;
        columns.iter().try_for_each(|c| write!(f, "{c:>9}"))?;
        for (kind, t) in OpKind::ALL.into_iter().zip(&self.kinds).filter(|(_, t)| t.posted > 0) {
            write!(f, "\n{:<14}", kind.name())?;
            let reported = [t.posted, t.success, t.executed, t.not_executed, t.unknown, t.unfinished];
            let found = [t.lost, t.doubled, t.wrong_value, t.out_of_order];
            reported.iter().chain(&found).try_for_each(|n| write!(f, "{n:>9}"))?;
        }
        if self.strays > 0 {
            write!(f, "\n{} stray bytes", self.strays)?;
        }
        self.problems.iter().try_for_each(|p| write!(f, "\n  {p}"))
    }
}

/// Compares the logs of a plan's requester and responder. Call
/// [`WorkloadPeer::sweep`](super::WorkloadPeer::sweep) on both ends first.
pub fn verify(plan: &Plan, requester_log: &RequesterLog, responder_log: &ResponderLog) -> Verdict {
    let ops = plan.ops();
    let mut verdict = Verdict::default();
    let effects = count_effects(&ops, responder_log, &mut verdict);
    for (op, record) in ops.iter().zip(&requester_log.records) {
        let tally = &mut verdict.kinds[op.kind as usize];
        tally.posted += 1;
        match record.outcome {
            Some(ReportedOutcome::Success) => tally.success += 1,
            Some(ReportedOutcome::Executed) => tally.executed += 1,
            Some(ReportedOutcome::NotExecuted) => tally.not_executed += 1,
            Some(ReportedOutcome::Unknown) => tally.unknown += 1,
            None => tally.unfinished += 1,
        }
        if record.wrong_content {
            verdict.wrong(op.kind, || format!("{op:?} read wrong content"));
        }
        if op.kind == OpKind::CompareSwap
            && let Some(value) = record.value.filter(|&value| value != 0)
        {
            verdict.wrong(op.kind, || format!("{op:?} returned {value:#x}, the word was 0"));
        }
        if op.has_effect() && op.kind != OpKind::FetchAdd {
            compare(&mut verdict, op, record.outcome, effects[op.seq], bounds(record.outcome));
        }
    }
    for op in ops.iter().skip(requester_log.records.len()) {
        compare(&mut verdict, op, None, effects[op.seq], (0, 0));
    }
    for &seq in &responder_log.partial {
        let outcome = requester_log.records.get(seq).map(|r| r.outcome);
        if !matches!(outcome, Some(Some(ReportedOutcome::Unknown) | None)) {
            let op = ops[seq];
            verdict.wrong(op.kind, || format!("{op:?} ended in {outcome:?} and was partly executed"));
        }
    }
    verify_counters(&ops, requester_log, responder_log, &mut verdict);
    let op_of = |id: u64| ops.iter().find(|op| op.id == id);
    for &id in &requester_log.out_of_order {
        verdict.kinds[op_of(id).map_or(0, |op| op.kind as usize)].out_of_order += 1;
        verdict.problem(|| format!("completion {id:#x} out of order: {:?}", op_of(id)));
    }
    for &id in &requester_log.late_changes {
        verdict.strays += 1;
        verdict.problem(|| format!("local memory was touched after {:?} had ended", op_of(id)));
    }
    verdict
}

/// Returns the smallest and the largest number of effects that an outcome allows.
fn bounds(outcome: Option<ReportedOutcome>) -> (u64, u64) {
    match outcome {
        Some(ReportedOutcome::Success | ReportedOutcome::Executed) => (1, 1),
        Some(ReportedOutcome::NotExecuted) => (0, 0),
        Some(ReportedOutcome::Unknown) | None => (0, 1),
    }
}

fn compare(
    verdict: &mut Verdict,
    op: &Op,
    outcome: Option<ReportedOutcome>,
    effects: u64,
    (min, max): (u64, u64),
) {
    let tally = &mut verdict.kinds[op.kind as usize];
    if effects < min {
        tally.lost += 1;
        verdict.problem(|| format!("{op:?} ended in {outcome:?} and had no effect"));
    } else if effects > max {
        tally.doubled += effects - max;
        verdict.problem(|| format!("{op:?} ended in {outcome:?} and had {effects} effects"));
    }
}

fn count_effects(ops: &[Op], responder_log: &ResponderLog, verdict: &mut Verdict) -> Vec<u64> {
    let mut effects = vec![0; ops.len()];
    for &(seq, value) in &responder_log.words {
        if value == ops[seq].id {
            effects[seq] += 1;
        } else {
            verdict.wrong(ops[seq].kind, || format!("the word of {:?} held {value:#x}", ops[seq]));
        }
    }
    for &(seq, whole) in &responder_log.blocks {
        effects[seq] += 1;
        if !whole {
            verdict.wrong(ops[seq].kind, || format!("{:?} had its last word and not the rest", ops[seq]));
        }
    }
    for &seq in &responder_log.overwritten {
        verdict.kinds[ops[seq].kind as usize].doubled += 1;
        verdict.problem(|| format!("{:?} was written again after it was consumed", ops[seq]));
    }
    let mut newest = None;
    for received in &responder_log.received {
        let Some(seq) = received.seq else {
            verdict.wrong(OpKind::Send, || "a message was received that is not in the plan".to_owned());
            continue;
        };
        let kind = ops[seq].kind;
        effects[seq] += 1;
        if !received.intact {
            verdict.wrong(kind, || format!("{:?} was received with wrong content", ops[seq]));
        }
        if newest.is_some_and(|n| seq < n) {
            verdict.kinds[kind as usize].out_of_order += 1;
            verdict.problem(|| format!("{:?} was received after {newest:?}", ops[seq]));
        }
        newest = newest.max(Some(seq));
    }
    verdict.strays += responder_log.strays as u64;
    if responder_log.strays > 0 {
        verdict.problem(|| format!("{} bytes changed that no operation writes", responder_log.strays));
    }
    effects
}

/// Checks the counters and the values that fetch-and-adds returned. A counter shows only the number
/// of executed additions. So a returned value must be in a range: from the fewest to the most
/// additions that may have been executed before.
fn verify_counters(
    ops: &[Op],
    requester_log: &RequesterLog,
    responder_log: &ResponderLog,
    verdict: &mut Verdict,
) {
    for number in 0..COUNTERS {
        let offset = MemoryLayout::counter(ops.len(), number);
        let (mut min, mut max) = (0, 0);
        let mut previous = None;
        for (op, record) in ops.iter().zip(&requester_log.records) {
            if op.offset != offset {
                continue;
            }
            if op.reads_counter(ops.len()) {
                // The additions behind the READ are fenced, so the READ does not see them.
                if let Some(value) = record.value.filter(|value| !(min..=max).contains(value)) {
                    verdict.wrong(op.kind, || format!("{op:?} read {value}, possible were {min} to {max}"));
                }
                continue;
            }
            if op.kind != OpKind::FetchAdd {
                continue;
            }
            // Only one requester increments the counter, so an addition returns the number of
            // executed earlier additions.
            if let Some(value) = record.value {
                let fits = (min..=max).contains(&value) && previous.is_none_or(|p| value > p);
                previous = Some(value);
                if !fits || value >= responder_log.counters[number] {
                    verdict
                        .wrong(op.kind, || format!("{op:?} returned {value}, possible were {min} to {max}"));
                }
            }
            let (low, high) = bounds(record.outcome);
            min += low;
            max += high;
        }
        let tally = &mut verdict.kinds[OpKind::FetchAdd as usize];
        let found = responder_log.counters[number];
        if found < min {
            tally.lost += min - found;
        } else if found > max {
            tally.doubled += found - max;
        }
        if !(min..=max).contains(&found) {
            verdict.problem(|| format!("counter {number} is {found}, possible were {min} to {max}"));
        }
    }
}
