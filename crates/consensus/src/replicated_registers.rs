//! Reliable registers replicated over memories that may crash (IRA, section 3). Each of m ≥ 2fM + 1
//! memories holds a copy of each register. Each read and each write is invoked at all memories and
//! awaits the responses of a majority.
//!
//! The registers are *regular*. A read that begins after a write has ended returns that write. A
//! read that overlaps a write may return that write or not. A later read may miss a write that an
//! earlier read returned, if both reads overlap the write.
//!
//! A register has one writer, and consists of write-once fields. To write a field, the writer
//! rewrites the register with all fields written before. A reader therefore finds at most one value
//! of each field in the copies, unless a Byzantine writer gave the memories different values. A
//! field with different values is treated as unwritten.

use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;

use crate::outstanding_ops::OutstandingOps;
use crate::process::{Action, majority};
use crate::{AllRules, MemoryId, Op, OpId, Response, RuleSet};

/// The content of a register: write-once fields.
pub trait WriteOnceFields: Clone + Eq + Hash + Debug + Default {
    /// Merges the copies of a register. Each field of the result has the value of [`unique_value`].
    fn merge(copies: &[Self]) -> Self;
}

/// Returns the value of a field if all copies in which it is written agree, and `None` otherwise.
pub fn unique_value<'a, T: Clone + Eq + 'a>(copies: impl IntoIterator<Item = &'a Option<T>>) -> Option<T> {
    let mut written = copies.into_iter().flatten();
    let first = written.next()?;
    written.all(|other| other == first).then(|| first.clone())
}

/// The rules that regularity depends on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// A call awaits a majority of the memories. Without the rule, it awaits one memory.
    const AWAITS_MAJORITY: bool = true;
    /// Responses to operations of an abandoned call are dropped.
    const DROPS_STALE: bool = true;
}

impl Rules for AllRules {}

/// A process's client of replicated registers. The client executes one call at a time. At most one
/// operation is outstanding at each memory, so an older write of a register never takes effect
/// after a newer write.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReplicatedRegisters<C, R = AllRules> {
    outstanding: OutstandingOps<C>,
    /// The operations of the current call, which each memory executes in this order. Empty if no
    /// call is in progress.
    steps: Vec<Op<C>>,
    /// Whether a NAK ends the call. Otherwise, a NAK means a broken connection, and the operation
    /// is retried.
    may_be_refused: bool,
    progress: Vec<Progress<C>>,
    rules: PhantomData<R>,
}

/// The progress of a call at one memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Progress<C> {
    /// The number of steps that the memory has executed.
    steps: usize,
    /// The content that these steps have read.
    read: Vec<C>,
    /// Whether the memory has refused the current step, and the process has not retried the step
    /// yet.
    refused: bool,
}

/// The outcome of a call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CallOutcome<C> {
    /// A majority of the memories has executed all steps. Contains the merged content that the
    /// steps read.
    Done(Vec<C>),
    /// A memory has refused a step of a refusable call.
    Refused,
}

impl<C: WriteOnceFields, R: Rules> ReplicatedRegisters<C, R> {
    /// Creates a client of registers with a copy in each of `memories` memories.
    pub fn new(memories: u8) -> ReplicatedRegisters<C, R> {
        ReplicatedRegisters {
            outstanding: OutstandingOps::new(memories),
            steps: Vec::new(),
            may_be_refused: false,
            progress: vec![Progress { steps: 0, read: Vec::new(), refused: false }; memories.into()],
            rules: PhantomData,
        }
    }

    /// Abandons the previous call, and begins to invoke these operations at each memory, one after
    /// another.
    ///
    /// No other process can take the permissions that the operations need. A NAK therefore means
    /// that the connection broke with a write outstanding. [`ReplicatedRegisters::on_wake`] retries
    /// the operation.
    pub fn call<M>(&mut self, steps: Vec<Op<C>>, out: &mut Vec<Action<C, M>>) {
        self.begin(steps, false, out);
    }

    /// Like [`ReplicatedRegisters::call`], for operations whose permission another process can
    /// take. The first NAK ends the call.
    pub fn call_refusable<M>(&mut self, steps: Vec<Op<C>>, out: &mut Vec<Action<C, M>>) {
        self.begin(steps, true, out);
    }

    fn begin<M>(&mut self, steps: Vec<Op<C>>, may_be_refused: bool, out: &mut Vec<Action<C, M>>) {
        self.end();
        (self.steps, self.may_be_refused) = (steps, may_be_refused);
        let Some(first) = self.steps.first() else { return };
        for memory in (0..self.progress.len() as u8).map(MemoryId) {
            self.outstanding.invoke(memory, first.clone(), true, out);
        }
    }

    /// Retries the operations that memories refused. [`ReplicatedRegisters::on_response`] requests
    /// [`Action::Wake`] for each refused operation, so that a delay precedes the retry.
    pub fn on_wake<M>(&mut self, out: &mut Vec<Action<C, M>>) {
        for (memory, progress) in (0..).map(MemoryId).zip(&mut self.progress) {
            if core::mem::take(&mut progress.refused)
                && let Some(step) = self.steps.get(progress.steps)
            {
                self.outstanding.invoke(memory, step.clone(), true, out);
            }
        }
    }

    /// Handles a memory's response. Returns the outcome if the response ends the call.
    pub fn on_response<M>(
        &mut self,
        memory: MemoryId,
        id: OpId,
        response: Response<C>,
        out: &mut Vec<Action<C, M>>,
    ) -> Option<CallOutcome<C>> {
        let answered = self.outstanding.complete(memory, id, out)?;
        if self.steps.is_empty() || answered.abandoned && R::DROPS_STALE {
            return None;
        }
        let progress = &mut self.progress[usize::from(memory.0)];
        match response {
            Response::Nak if self.may_be_refused => {
                self.end();
                return Some(CallOutcome::Refused);
            }
            Response::Nak => {
                progress.refused = true;
                out.push(Action::Wake);
                return None;
            }
            Response::Cells(cells) => progress.read.extend(cells),
            Response::Ack => {}
        }
        progress.steps += 1;
        if let Some(next) = self.steps.get(progress.steps) {
            self.outstanding.invoke(memory, next.clone(), true, out);
            return None;
        }
        let enough = if R::AWAITS_MAJORITY { majority(self.progress.len()) } else { 1 };
        let done = self.progress.iter().filter(|progress| progress.steps >= self.steps.len());
        let copies: Vec<&[C]> = done.map(|progress| &progress.read[..]).collect();
        if copies.len() < enough {
            return None;
        }
        let registers = copies.iter().map(|copy| copy.len()).min().unwrap_or(0);
        let merge = |at: usize| C::merge(&copies.iter().map(|copy| copy[at].clone()).collect::<Vec<_>>());
        let read = (0..registers).map(merge).collect();
        self.end();
        Some(CallOutcome::Done(read))
    }

    fn end(&mut self) {
        self.outstanding.abandon();
        self.steps.clear();
        for progress in &mut self.progress {
            (progress.steps, progress.refused) = (0, false);
            progress.read.clear();
        }
    }
}
