//! The results of all programs, and the check that the programs have the same results in a serial
//! order.

use std::collections::BTreeMap;
use std::sync::Arc;

use mitra_txn::{
    Abort, Event, Footprint, Layout, LockWord, Model, NotCommitted, Op, Outcome, RecordKey, Request,
    logged_attempt, serial_order,
};
use mitra_verbs::Buffer;

use super::program::{Output, Program};
use crate::seeded::Finding;
use crate::seeded::memory::read;

/// An attempt of a program that has begun to commit.
struct Attempt {
    program: Program,
    output: Output,
    begun: u64,
    /// Set when the attempt is logged or committed.
    footprint: Option<Footprint>,
    /// The time at which the caller learned of the commit. `u64::MAX` if the attempt took effect
    /// and the caller did not learn of the commit.
    told: Option<u64>,
}

#[derive(Default)]
pub(super) struct History {
    /// The virtual time, in nanoseconds.
    pub(super) now: u64,
    /// The attempts, by their lock words.
    attempts: BTreeMap<u64, Attempt>,
    /// The number of attempts that took effect without a report to their callers.
    pub(super) untold: u64,
    pub(super) aborts: u64,
    pub(super) findings: Vec<Finding>,
}

impl History {
    /// Records that a program begins to commit. Its first attempt began at `begun`.
    pub(super) fn commits(&mut self, lock: LockWord, program: &Program, output: &Output, begun: u64) {
        let (program, output) = (program.clone(), output.clone());
        let attempt = Attempt { program, output, begun, footprint: None, told: None };
        if self.attempts.insert(lock.bits(), attempt).is_some() {
            self.find("number", format!("two attempts have the lock word {lock:?}"));
        }
    }

    pub(super) fn has_no_effect(&mut self, lock: LockWord) {
        self.attempts.remove(&lock.bits());
    }

    pub(super) fn is_logged(&mut self, lock: LockWord, footprint: Footprint) {
        if let Some(attempt) = self.attempts.get_mut(&lock.bits()) {
            attempt.footprint = Some(footprint);
        }
    }

    /// Records the result that a caller received. `lock` is the last attempt that began to commit.
    pub(super) fn told(&mut self, lock: Option<LockWord>, result: Result<Footprint, NotCommitted>) {
        let now = self.now;
        let attempt = lock.and_then(|lock| self.attempts.get_mut(&lock.bits()));
        match (result, attempt) {
            (Ok(footprint), Some(attempt)) => {
                (attempt.footprint, attempt.told) = (Some(footprint), Some(now));
            }
            (Ok(_), None) => {
                self.find("number", "a transaction has committed that never began to".to_owned())
            }
            (Err(NotCommitted::Unknown), _) => {}
            (Err(NotCommitted::Aborted(why)), _) => {
                self.aborts += 1;
                let is_known = matches!(
                    why,
                    Abort::Exists(_)
                        | Abort::Missing(_)
                        | Abort::RolledBack
                        | Abort::TooManyBytes { .. }
                        | Abort::Full(_)
                        | Abort::LifeEnded
                );
                // The log may have an entry of an earlier attempt. The log has an entry of this
                // attempt only if the attempt is not decided.
                lock.into_iter().for_each(|lock| self.has_no_effect(lock));
                if !is_known {
                    self.find("refused", format!("a program was aborted for good: {why}"));
                }
            }
        }
    }

    /// Finds the attempts in the log of a coordinator that took effect without a report to their
    /// callers. By now, all lives of the coordinator are recovered.
    pub(super) fn read_log(&mut self, layout: &Layout, memories: &[Arc<Buffer>], coordinator: u16) {
        for slot in layout.log_slots(coordinator) {
            let attempt_at = |at: &mitra_txn::Location| {
                let memory = &memories[usize::from(at.node.0)];
                logged_attempt(&read(memory, at.at as usize, layout.slot_bytes() as usize))
                    .map(LockWord::bits)
            };
            let Some(lock) = slot.iter().filter_map(attempt_at).max() else { continue };
            match self.attempts.get_mut(&lock) {
                Some(attempt) if attempt.told.is_none() => {
                    attempt.told = Some(u64::MAX);
                    self.untold += 1;
                }
                Some(_) => {}
                None => self.find("aborted", format!("the aborted attempt {lock:#x} is in the log")),
            }
        }
    }

    /// Executes, in a serial order, the transactions that took effect. Returns the resulting
    /// records and the number of transactions.
    pub(super) fn replay(&mut self, records: &[(RecordKey, Vec<u8>)]) -> (Model, u64) {
        let mut model = Model::new();
        for (at, value) in records {
            model.load(*at, value.clone());
        }
        let mut found = Vec::new();
        let mut effective = Vec::new();
        let mut events = Vec::new();
        for (lock, attempt) in &self.attempts {
            let Some(told) = attempt.told else { continue };
            let Some(footprint) = attempt.footprint.clone() else {
                found.push(("aborted", format!("the attempt {lock:#x} is in the log and was not logged")));
                continue;
            };
            events.push(Event { footprint, begun: attempt.begun, told });
            effective.push((lock, attempt));
        }
        match serial_order(&events) {
            Err(violation) => {
                let name =
                    |event: usize| format!("{:#x} {:?}", effective[event].0, effective[event].1.program);
                let named: Vec<_> = match &violation {
                    mitra_txn::Violation::LostUpdate { first, second, .. } => {
                        vec![name(*first), name(*second)]
                    }
                    mitra_txn::Violation::Cycle(events) => events.iter().map(|&event| name(event)).collect(),
                };
                found.push(("serializable", format!("{violation}: {}", named.join("; "))));
            }
            Ok(order) => {
                for event in order {
                    let (lock, Attempt { program, output, .. }) = effective[event];
                    let replayed = model.run(async |tx| program.execute(tx).await);
                    if replayed.as_ref() != Ok(output) {
                        let text = format!(
                            "the attempt {lock:#x} has read {output:?}, and in the serial order {replayed:?}: {program:?}"
                        );
                        found.push(("replay", text));
                        break;
                    }
                }
            }
        }
        let has_failed = !found.is_empty();
        found.into_iter().for_each(|(checker, text)| self.find(checker, text));
        if has_failed {
            model = Model::new();
        }
        (model, events.len() as u64)
    }

    pub(super) fn find(&mut self, checker: &'static str, text: String) {
        self.findings.push(Finding::violation(checker, text));
    }
}

/// Executes requests directly in the memory of the nodes.
pub(super) fn execute(memories: &[Arc<Buffer>], requests: &[Request]) -> Vec<Outcome> {
    let execute = |request: &Request| {
        let (memory, at) = (&memories[usize::from(request.node.0)], request.at as usize);
        match &request.op {
            Op::Write(bytes) => {
                memory.write_at(at, bytes);
                Outcome::Executed(Vec::new())
            }
            Op::Read(len) => Outcome::Executed(read(memory, at, *len as usize)),
            &Op::CompareSwap { compare, swap } => {
                let before = memory.compare_exchange(at, compare, swap).unwrap_or_else(|found| found);
                Outcome::Executed(before.to_le_bytes().to_vec())
            }
        }
    };
    requests.iter().map(execute).collect()
}
