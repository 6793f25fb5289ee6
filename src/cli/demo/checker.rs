//! The exactly-once checker: compares the outcomes that the vQP reported to the client with the
//! executions that the server's processor observed. The checker uses only memory contents, received
//! messages and returned values, and no state of the vQP.

#[cfg(test)]
mod tests;

use mitra_failover::UnresolvedError::{ExecutedBehindError, Indeterminate, ValueLost};
use mitra_failover::{Outcome, Resolution};
use mitra_verbs::WcStatus;
use serde::Serialize;

use super::protocol::{ClientReport, CompletionRecord, OpRecord, ServerReport};
use super::workload::{Kind, Workload};

/// The counts of one kind or of all kinds. `posted` = `completed` + `indeterminate` +
/// `value_lost` + `errors`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Counts {
    pub(super) posted: u64,
    pub(super) completed: u64,
    /// In flight when the rail failed: not completed on the old rail.
    pub(super) in_flight: u64,
    /// In flight, and executed before the server closed the old rail, by the server's own record.
    pub(super) executed_before_failure: u64,
    /// Completed by replay.
    pub(super) replayed: u64,
    /// Completed from evidence.
    pub(super) recovered: u64,
    /// Named error: no evidence tells whether the operation was executed.
    pub(super) indeterminate: u64,
    /// Named error: executed, but the returned value is lost.
    pub(super) value_lost: u64,
    /// Every other outcome: flushed, failed, undecided, or no completion.
    pub(super) errors: u64,
    /// Reported as executed, but never executed.
    pub(super) lost: u64,
    /// Executions beyond the first.
    pub(super) doubled: u64,
    /// Wrong data or a wrong returned value, or a report that contradicts the memory.
    pub(super) wrong_value: u64,
}

impl Counts {
    pub(super) fn corrupted(&self) -> u64 {
        self.lost + self.doubled + self.wrong_value
    }

    pub(super) fn not_completed(&self) -> u64 {
        self.indeterminate + self.value_lost + self.errors
    }
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.posted += other.posted;
        self.completed += other.completed;
        self.in_flight += other.in_flight;
        self.executed_before_failure += other.executed_before_failure;
        self.replayed += other.replayed;
        self.recovered += other.recovered;
        self.indeterminate += other.indeterminate;
        self.value_lost += other.value_lost;
        self.errors += other.errors;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.wrong_value += other.wrong_value;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Violations {
    pub(super) lost: bool,
    pub(super) doubled: bool,
    pub(super) wrong: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct CheckResult {
    pub(super) kinds: [Counts; 5],
    pub(super) ops: Vec<Violations>,
    /// For each operation, whether it was in flight when the rail failed and had been executed.
    pub(super) executed_before: Vec<bool>,
}

/// Facts about a round that the two reports do not contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundFacts {
    /// The operation that the fault was aimed at. That operation and all earlier ones had been
    /// executed.
    pub(super) victim: Option<usize>,
    /// Whether the outcome "flushed" claims that an operation was not executed. A queue pair
    /// without evidence does not claim that.
    pub(super) flushed_means_not_executed: bool,
}

/// Returns how often an operation may have been executed (minimum, maximum), given its reported
/// outcome.
fn allowed_executions(completion: Option<CompletionRecord>, facts: RoundFacts) -> (u64, u64) {
    match completion.map(|completion| completion.outcome) {
        Some(Outcome::Success | Outcome::Unresolved(ValueLost | ExecutedBehindError)) => (1, 1),
        Some(Outcome::Failed(WcStatus::Flushed)) if facts.flushed_means_not_executed => (0, 0),
        Some(Outcome::Unresolved(_) | Outcome::Failed(_)) | None => (0, 1),
    }
}

fn succeeded(record: &OpRecord) -> Option<CompletionRecord> {
    record.completion.filter(|done| done.outcome == Outcome::Success)
}

pub(super) fn check_round(
    workload: &Workload,
    client: &ClientReport,
    server: &ServerReport,
    facts: RoundFacts,
) -> CheckResult {
    let count = client.ops.len();
    let mut check = CheckResult {
        kinds: [Counts::default(); 5],
        ops: vec![Violations::default(); count],
        executed_before: vec![false; count],
    };
    let mut executions = vec![0_u64; count];
    let mut before = vec![false; count];
    read_log(workload, server, &mut check, &mut executions, &mut before);
    let faa: Vec<usize> = (0..count).filter(|&n| workload.ops[n].kind == Kind::Faa).collect();
    for &n in faa.iter().take(server.counter_before.unwrap_or(0) as usize) {
        before[n] = true; // FAAs execute in posting order, so a counter of k means that the first k FAAs were executed
    }
    if let Some(victim) = facts.victim {
        before[victim] = true;
    }
    // A READ leaves no trace. It was executed if a later operation was.
    let prefix = before.iter().rposition(|&b| b).map_or(0, |last| last + 1);
    for (n, record) in client.ops.iter().enumerate() {
        let kind = workload.ops[n].kind;
        if kind == Kind::Read {
            before[n] = n < prefix;
        }
        let counts = &mut check.kinds[kind.index()];
        count_outcome(record, counts);
        let direct = succeeded(record).is_some_and(|done| done.resolution == Resolution::Direct);
        if !direct && before[n] {
            counts.executed_before_failure += 1;
            check.executed_before[n] = true;
        }
        if matches!(kind, Kind::Write | Kind::Send | Kind::Cas) {
            let (min, max) = allowed_executions(record.completion, facts);
            if executions[n] < min {
                counts.lost += 1;
                check.ops[n].lost = true;
            } else if executions[n] > max.max(1) {
                counts.doubled += executions[n] - 1;
                check.ops[n].doubled = true;
            } else if executions[n] > max {
                check.ops[n].wrong = true;
            }
        }
        if matches!(kind, Kind::Cas | Kind::Read) {
            check.ops[n].wrong |= succeeded(record).is_some_and(|done| done.value != 0);
        }
    }
    check_counter(&faa, client, server, facts, &mut check);
    for (n, violations) in check.ops.iter().enumerate() {
        check.kinds[workload.ops[n].kind.index()].wrong_value += u64::from(violations.wrong);
    }
    check
}

/// Counts the executions of operations that leave a trace, and checks the traces.
fn read_log(
    workload: &Workload,
    server: &ServerReport,
    check: &mut CheckResult,
    executions: &mut [u64],
    before: &mut [bool],
) {
    let mut last_send = None;
    for entry in &server.log {
        let found = workload.find(entry.id).filter(|&n| workload.ops[n].kind == entry.kind);
        let Some(n) = found.filter(|&n| n < executions.len()) else {
            // No posted operation leaves this word.
            check.kinds[entry.kind.index()].wrong_value += 1;
            continue;
        };
        executions[n] += 1;
        before[n] |= entry.before;
        check.ops[n].wrong |= !entry.intact;
        if entry.kind == Kind::Send && executions[n] == 1 {
            // RC receives in posting order. A second copy counts as doubled, not as out of order.
            check.ops[n].wrong |= last_send.is_some_and(|last| n < last);
            last_send = last_send.max(Some(n));
        }
    }
}

fn count_outcome(record: &OpRecord, counts: &mut Counts) {
    counts.posted += 1;
    match record.completion {
        Some(CompletionRecord { outcome: Outcome::Success, resolution, .. }) => {
            counts.completed += 1;
            counts.in_flight += u64::from(resolution != Resolution::Direct);
            counts.recovered += u64::from(resolution == Resolution::Recovered);
            counts.replayed += u64::from(resolution == Resolution::Replayed);
            return;
        }
        Some(CompletionRecord { outcome: Outcome::Unresolved(Indeterminate), .. }) => {
            counts.indeterminate += 1;
        }
        Some(CompletionRecord { outcome: Outcome::Unresolved(ValueLost), .. }) => counts.value_lost += 1,
        _ => counts.errors += 1,
    }
    counts.in_flight += 1;
}

/// Checks the FAAs, which leave one common trace: the counter. Their old values must be distinct.
fn check_counter(
    faa: &[usize],
    client: &ClientReport,
    server: &ServerReport,
    facts: RoundFacts,
    check: &mut CheckResult,
) {
    let (mut min, mut max) = (0, 0);
    for &n in faa {
        let (l, m) = allowed_executions(client.ops[n].completion, facts);
        (min, max) = (min + l, max + m);
    }
    let counts = &mut check.kinds[Kind::Faa.index()];
    counts.lost += min.saturating_sub(server.counter);
    counts.doubled += server.counter.saturating_sub(max);
    // One client posts in order, so each old value exceeds the previous one, and all are below the
    // number of additions.
    let mut next = 0;
    for &n in faa {
        let Some(done) = succeeded(&client.ops[n]) else { continue };
        check.ops[n].wrong = done.value < next || done.value >= max;
        next = next.max(done.value.saturating_add(1));
        // The old rail executed this FAA, and the vQP replayed it nevertheless.
        let executed_twice = check.executed_before[n] && done.resolution == Resolution::Replayed;
        check.ops[n].doubled = executed_twice && counts.doubled > 0;
    }
}
