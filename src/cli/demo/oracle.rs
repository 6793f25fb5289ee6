//! The judge: compares what the client was told with what the server's processor saw. It shares no state with the vQP
//! and believes neither end's: only memory, received messages, and values that came back.

#[cfg(test)]
mod tests;

use serde::Serialize;

use super::protocol::{Done, Ending, Posted, Record, Seen, Way};
use super::workload::{Kind, Workload};

/// The counts of one kind, or of all. `posted` = `completed` + `indeterminate` + `value_lost` + `errors`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Counts {
    pub(super) posted: u64,
    /// Reported as executed, with the value.
    pub(super) completed: u64,
    /// In flight when the rail failed: not completed by it.
    pub(super) in_flight: u64,
    /// Of those, executed before the server closed the old rail, by its own record.
    pub(super) executed_before_failure: u64,
    /// Completed by being sent again.
    pub(super) replayed: u64,
    /// Completed from evidence.
    pub(super) recovered: u64,
    /// Named error: nothing tells.
    pub(super) indeterminate: u64,
    /// Named error: executed, but the value is lost.
    pub(super) value_lost: u64,
    /// Every other end: flushed, failed, undecided, none.
    pub(super) errors: u64,
    /// Reported as executed, and was not.
    pub(super) lost: u64,
    /// Executions beyond the first.
    pub(super) doubled: u64,
    /// Returned or left something wrong, or said something untrue.
    pub(super) wrong_value: u64,
}

impl Counts {
    /// Corruptions of every sort.
    pub(super) fn corrupted(&self) -> u64 {
        self.lost + self.doubled + self.wrong_value
    }

    /// Operations that did not complete.
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

/// What is wrong with one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Faults {
    pub(super) lost: bool,
    pub(super) doubled: bool,
    pub(super) wrong: bool,
}

/// A judged round.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Judgement {
    pub(super) kinds: [Counts; 5],
    /// By operation.
    pub(super) ops: Vec<Faults>,
    /// By operation: whether it was in flight when the rail failed, and had been executed.
    pub(super) executed_before: Vec<bool>,
}

/// What is known of the round besides the two reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The operation that the fault struck at: it, and so all before it, had been executed.
    pub(super) victim: Option<usize>,
    /// Whether "flushed" claims that an operation was not executed. (A queue pair without evidence does not claim that.)
    pub(super) flushed_is_a_word: bool,
}

/// How often an operation may have been executed, by what the client was told.
fn claim(done: Option<Done>, known: Known) -> (u64, u64) {
    match done.map(|done| done.ending) {
        Some(Ending::Success | Ending::ValueLost | Ending::ExecutedBehindError) => (1, 1),
        Some(Ending::Flushed) if known.flushed_is_a_word => (0, 0),
        Some(Ending::Indeterminate | Ending::Undecided | Ending::Flushed | Ending::Failed) | None => (0, 1),
    }
}

fn succeeded(record: &Record) -> Option<Done> {
    record.done.filter(|done| done.ending == Ending::Success)
}

/// Judges a round.
pub(super) fn judge(workload: &Workload, posted: &Posted, seen: &Seen, known: Known) -> Judgement {
    let count = posted.ops.len();
    let mut judgement = Judgement {
        kinds: [Counts::default(); 5],
        ops: vec![Faults::default(); count],
        executed_before: vec![false; count],
    };
    let mut executions = vec![0_u64; count];
    let mut before = vec![false; count];
    read_log(workload, seen, &mut judgement, &mut executions, &mut before);
    let faa: Vec<usize> = (0..count).filter(|&n| workload.ops[n].kind == Kind::Faa).collect();
    for &n in faa.iter().take(seen.counter_before.unwrap_or(0) as usize) {
        before[n] = true; // in posting order, so the first so many
    }
    if let Some(victim) = known.victim {
        before[victim] = true;
    }
    // A READ leaves no trace: it was executed if something behind it was.
    let prefix = before.iter().rposition(|&b| b).map_or(0, |last| last + 1);
    for (n, record) in posted.ops.iter().enumerate() {
        let kind = workload.ops[n].kind;
        if kind == Kind::Read {
            before[n] = n < prefix;
        }
        let counts = &mut judgement.kinds[kind.index()];
        count_ending(record, counts);
        let direct = succeeded(record).is_some_and(|done| done.way == Way::Direct);
        if !direct && before[n] {
            counts.executed_before_failure += 1;
            judgement.executed_before[n] = true;
        }
        if matches!(kind, Kind::Write | Kind::Send | Kind::Cas) {
            let (least, most) = claim(record.done, known);
            if executions[n] < least {
                counts.lost += 1;
                judgement.ops[n].lost = true;
            } else if executions[n] > most.max(1) {
                counts.doubled += executions[n] - 1;
                judgement.ops[n].doubled = true;
            } else if executions[n] > most {
                judgement.ops[n].wrong = true;
            }
        }
        if matches!(kind, Kind::Cas | Kind::Read) {
            judgement.ops[n].wrong |= succeeded(record).is_some_and(|done| done.value != 0);
        }
    }
    judge_counter(&faa, posted, seen, known, &mut judgement);
    for (n, faults) in judgement.ops.iter().enumerate() {
        judgement.kinds[workload.ops[n].kind.index()].wrong_value += u64::from(faults.wrong);
    }
    judgement
}

/// Counts executions of what leaves a trace, and looks at what the traces are like.
fn read_log(
    workload: &Workload,
    seen: &Seen,
    judgement: &mut Judgement,
    executions: &mut [u64],
    before: &mut [bool],
) {
    let mut last_send = None;
    for entry in &seen.log {
        let found = workload.find(entry.id).filter(|&n| workload.ops[n].kind == entry.kind);
        let Some(n) = found.filter(|&n| n < executions.len()) else {
            // A word that nobody posted.
            judgement.kinds[entry.kind.index()].wrong_value += 1;
            continue;
        };
        executions[n] += 1;
        before[n] |= entry.before;
        judgement.ops[n].wrong |= !entry.whole;
        if entry.kind == Kind::Send && executions[n] == 1 {
            // RC receives in posting order; a second copy is counted as such.
            judgement.ops[n].wrong |= last_send.is_some_and(|last| n < last);
            last_send = last_send.max(Some(n));
        }
    }
}

fn count_ending(record: &Record, counts: &mut Counts) {
    counts.posted += 1;
    match record.done {
        Some(Done { ending: Ending::Success, way, .. }) => {
            counts.completed += 1;
            counts.in_flight += u64::from(way != Way::Direct);
            counts.recovered += u64::from(way == Way::Recovered);
            counts.replayed += u64::from(way == Way::Replayed);
            return;
        }
        Some(Done { ending: Ending::Indeterminate, .. }) => counts.indeterminate += 1,
        Some(Done { ending: Ending::ValueLost, .. }) => counts.value_lost += 1,
        _ => counts.errors += 1,
    }
    counts.in_flight += 1;
}

/// The fetch-and-adds leave one trace together: the counter. Their old values must tell them apart.
fn judge_counter(faa: &[usize], posted: &Posted, seen: &Seen, known: Known, judgement: &mut Judgement) {
    let (mut least, mut most) = (0, 0);
    for &n in faa {
        let (l, m) = claim(posted.ops[n].done, known);
        (least, most) = (least + l, most + m);
    }
    let counts = &mut judgement.kinds[Kind::Faa.index()];
    counts.lost += least.saturating_sub(seen.counter);
    counts.doubled += seen.counter.saturating_sub(most);
    // One client's, in order: each value above the one before, and all below the number of additions.
    let mut next = 0;
    for &n in faa {
        let Some(done) = succeeded(&posted.ops[n]) else { continue };
        judgement.ops[n].wrong = done.value < next || done.value >= most;
        next = next.max(done.value.saturating_add(1));
        // Executed on the old rail, and sent again all the same.
        let again = judgement.executed_before[n] && done.way == Way::Replayed;
        judgement.ops[n].doubled = again && counts.doubled > 0;
    }
}
