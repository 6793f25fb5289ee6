//! Compares what was asked for with what was seen.

use core::fmt;
use core::ops::AddAssign;

use super::plan::COUNTERS;
use super::{Asked, Ending, Kind, Layout, Op, Plan, Seen};

/// What became of the operations of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tally {
    /// Were posted.
    pub posted: u64,
    /// Succeeded, said the endpoint.
    pub success: u64,
    /// Were executed, but their value is lost, said the endpoint.
    pub executed: u64,
    /// Were not executed, said the endpoint.
    pub not_executed: u64,
    /// May have been executed, said the endpoint.
    pub unknown: u64,
    /// Have not ended.
    pub unfinished: u64,
    /// Should have had an effect, and had none.
    pub lost: u64,
    /// Had an effect more than they should.
    pub doubled: u64,
    /// Brought, left or returned something wrong.
    pub wrong_value: u64,
    /// Completed or were received before one posted earlier.
    pub out_of_order: u64,
}

impl Tally {
    /// Whether the endpoint kept its word about all of them.
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

/// What became of a plan.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Verdict {
    /// By kind, in the order of [`Kind::ALL`].
    pub kinds: [Tally; 7],
    /// Bytes that were written where nothing should be, at either end.
    pub strays: u64,
    /// What was wrong, in words; the first 20.
    pub problems: Vec<String>,
}

impl Verdict {
    /// Of one kind.
    pub fn of(&self, kind: Kind) -> &Tally {
        &self.kinds[kind as usize]
    }

    /// Of all kinds together.
    pub fn total(&self) -> Tally {
        self.kinds.iter().fold(Tally::default(), |mut sum, &t| {
            sum += t;
            sum
        })
    }

    /// Whether the endpoint kept its word about every operation, and nothing else was touched.
    pub fn is_exact(&self) -> bool {
        self.strays == 0 && self.kinds.iter().all(Tally::is_exact)
    }

    /// Whether moreover every operation succeeded.
    pub fn is_complete(&self) -> bool {
        let total = self.total();
        self.is_exact() && total.success == total.posted
    }

    fn problem(&mut self, text: impl FnOnce() -> String) {
        if self.problems.len() < 20 {
            self.problems.push(text());
        }
    }
}

impl AddAssign for Verdict {
    fn add_assign(&mut self, other: Verdict) {
        for (mine, theirs) in self.kinds.iter_mut().zip(other.kinds) {
            *mine += theirs;
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
        for (kind, t) in Kind::ALL.into_iter().zip(&self.kinds).filter(|(_, t)| t.posted > 0) {
            write!(f, "\n{:<14}", kind.name())?;
            let said = [t.posted, t.success, t.executed, t.not_executed, t.unknown, t.unfinished];
            let found = [t.lost, t.doubled, t.wrong_value, t.out_of_order];
            said.iter().chain(&found).try_for_each(|n| write!(f, "{n:>9}"))?;
        }
        if self.strays > 0 {
            write!(f, "\n{} stray bytes", self.strays)?;
        }
        self.problems.iter().try_for_each(|p| write!(f, "\n  {p}"))
    }
}

/// What became of a plan: `asked` is its requester's word, `seen` its responder's, after both swept.
pub fn judge(plan: &Plan, asked: &Asked, seen: &Seen) -> Verdict {
    let ops = plan.ops();
    let mut verdict = Verdict::default();
    let effects = count_effects(&ops, seen, &mut verdict);
    for (op, record) in ops.iter().zip(&asked.records) {
        let tally = &mut verdict.kinds[op.kind as usize];
        tally.posted += 1;
        match record.ending {
            Some(Ending::Success) => tally.success += 1,
            Some(Ending::Executed) => tally.executed += 1,
            Some(Ending::NotExecuted) => tally.not_executed += 1,
            Some(Ending::Unknown) => tally.unknown += 1,
            None => tally.unfinished += 1,
        }
        if record.wrong_content {
            tally.wrong_value += 1;
            verdict.problem(|| format!("{op:?} read something else"));
        }
        if op.kind == Kind::CompareSwap && record.value.is_some_and(|v| v != 0) {
            verdict.kinds[op.kind as usize].wrong_value += 1;
            verdict.problem(|| format!("{op:?} returned {:#x}, the word was 0", record.value.unwrap_or(0)));
        }
        if !matches!(op.kind, Kind::Read | Kind::FetchAdd) {
            let (least, most) = bounds(record.ending);
            compare(&mut verdict, op, record.ending, effects[op.seq], least, most);
        }
    }
    for op in ops.iter().skip(asked.records.len()) {
        compare(&mut verdict, op, None, effects[op.seq], 0, 0);
    }
    for &seq in &seen.partial {
        let ending = asked.records.get(seq).map(|r| r.ending);
        // A WRITE with immediate data may have been refused at its last packet.
        let may = matches!(ending, Some(Some(Ending::Unknown) | None)) || ops[seq].kind == Kind::WriteImm;
        if !may || ending.is_none() {
            verdict.kinds[ops[seq].kind as usize].wrong_value += 1;
            verdict.problem(|| format!("{:?} ended in {ending:?} and was partly executed", ops[seq]));
        }
    }
    judge_counters(&ops, asked, seen, &mut verdict);
    let named = |id: u64| ops.iter().find(|op| op.id == id);
    for &id in &asked.out_of_order {
        verdict.kinds[named(id).map_or(0, |op| op.kind as usize)].out_of_order += 1;
        verdict.problem(|| format!("completion {id:#x} out of order: {:?}", named(id)));
    }
    for &id in &asked.late_touches {
        verdict.strays += 1;
        verdict.problem(|| format!("local memory was touched after {:?} had ended", named(id)));
    }
    verdict
}

/// How many effects an operation that ended so may have.
fn bounds(ending: Option<Ending>) -> (u64, u64) {
    match ending {
        Some(Ending::Success | Ending::Executed) => (1, 1),
        Some(Ending::NotExecuted) => (0, 0),
        Some(Ending::Unknown) | None => (0, 1),
    }
}

fn compare(verdict: &mut Verdict, op: &Op, ending: Option<Ending>, effects: u64, least: u64, most: u64) {
    let tally = &mut verdict.kinds[op.kind as usize];
    if effects < least {
        tally.lost += 1;
        verdict.problem(|| format!("{op:?} ended in {ending:?} and had no effect"));
    } else if effects > most {
        tally.doubled += effects - most;
        verdict.problem(|| format!("{op:?} ended in {ending:?} and had {effects} effects"));
    }
}

/// How many effects each operation had.
fn count_effects(ops: &[Op], seen: &Seen, verdict: &mut Verdict) -> Vec<u64> {
    let mut effects = vec![0; ops.len()];
    for &(seq, value) in &seen.words {
        if value == ops[seq].id {
            effects[seq] += 1;
        } else {
            verdict.kinds[ops[seq].kind as usize].wrong_value += 1;
            verdict.problem(|| format!("the word of {:?} held {value:#x}", ops[seq]));
        }
    }
    for &(seq, whole) in &seen.blocks {
        effects[seq] += 1;
        if !whole {
            verdict.kinds[ops[seq].kind as usize].wrong_value += 1;
            verdict.problem(|| format!("{:?} had its last word and not the rest", ops[seq]));
        }
    }
    for &seq in &seen.overwritten {
        // Part of it came again after it was consumed.
        verdict.kinds[ops[seq].kind as usize].doubled += 1;
        verdict.problem(|| format!("{:?} was written again after it was consumed", ops[seq]));
    }
    let mut newest = None;
    for received in &seen.received {
        let Some(seq) = received.seq else {
            verdict.kinds[Kind::Send as usize].wrong_value += 1;
            verdict.problem(|| "something was received that is in no plan".to_owned());
            continue;
        };
        let kind = ops[seq].kind as usize;
        effects[seq] += 1;
        if !received.whole {
            verdict.kinds[kind].wrong_value += 1;
            verdict.problem(|| format!("{:?} was received with wrong content", ops[seq]));
        }
        if newest.is_some_and(|n| seq < n) {
            verdict.kinds[kind].out_of_order += 1;
            verdict.problem(|| format!("{:?} was received after {newest:?}", ops[seq]));
        }
        newest = newest.max(Some(seq));
    }
    verdict.strays += seen.strays as u64;
    if seen.strays > 0 {
        verdict.problem(|| format!("{} bytes changed that nobody writes", seen.strays));
    }
    effects
}

/// Counters show how many additions there were, not which: and what each returned must fit that.
fn judge_counters(ops: &[Op], asked: &Asked, seen: &Seen, verdict: &mut Verdict) {
    for number in 0..COUNTERS {
        let offset = Layout::counter(ops.len(), number);
        let (mut least, mut most) = (0, 0);
        let mut previous = None;
        for (op, record) in ops.iter().zip(&asked.records) {
            if op.kind != Kind::FetchAdd || op.offset != offset {
                continue;
            }
            // The only requester's additions return what those before it left.
            if let Some(value) = record.value {
                let fits = (least..=most).contains(&value) && previous.is_none_or(|p| value > p);
                previous = Some(value);
                if !fits || value >= seen.counters[number] {
                    verdict.kinds[Kind::FetchAdd as usize].wrong_value += 1;
                    verdict.problem(|| format!("{op:?} returned {value}, possible were {least} to {most}"));
                }
            }
            let (low, high) = bounds(record.ending);
            least += low;
            most += high;
        }
        let tally = &mut verdict.kinds[Kind::FetchAdd as usize];
        let found = seen.counters[number];
        if found < least {
            tally.lost += least - found;
        } else if found > most {
            tally.doubled += found - most;
        }
        if !(least..=most).contains(&found) {
            verdict.problem(|| format!("counter {number} is {found}, possible were {least} to {most}"));
        }
    }
}
