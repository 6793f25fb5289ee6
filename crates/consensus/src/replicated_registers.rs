//! Reliable registers from memories that may crash (PODC 2019, section 3; agreement.md §1): m ≥ 2fM + 1 memories hold a copy each. To
//! write, write all and await a majority; to read, read all and await a majority.
//!
//! They are *regular*: who begins to read after a write has ended finds it; who reads meanwhile may find it or not, and the next
//! reader may not although this one did. A register has one writer, and is made of fields that are written once: to write one is to
//! write the register again, with all that it held. So of each field a reader finds one value in the copies, or none; a Byzantine
//! writer that gives the memories different ones may leave it finding two, and that counts as none.

use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;

use crate::outstanding_ops::OutstandingOps;
use crate::process::{Action, majority};
use crate::{AllRules, MemoryId, Op, OpId, Response, RuleSet};

/// What a register holds: fields that are written once.
pub trait WriteOnceFields: Clone + Eq + Hash + Debug + Default {
    /// Of each field the value that its copies hold, if they agree.
    fn merge(copies: &[Self]) -> Self;
}

/// The one value of a field in all its copies that have any; none if there are two.
pub fn unique_value<'a, T: Clone + Eq + 'a>(copies: impl IntoIterator<Item = &'a Option<T>>) -> Option<T> {
    let mut written = copies.into_iter().flatten();
    let first = written.next()?;
    written.all(|other| other == first).then(|| first.clone())
}

/// The rules that regularity rests on, for checkers to switch off.
pub trait Rules: RuleSet {
    /// A majority of the memories must have answered. Else one of them.
    const AWAITS_MAJORITY: bool = true;
    /// The answer to what was given up is not one to what is asked now.
    const DROPS_STALE: bool = true;
}

impl Rules for AllRules {}

/// A process's way to its registers: one call at a time. At most one operation is outstanding on each memory; so no two writes of a register are,
/// of which the older might land last.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReplicatedRegisters<C, R = AllRules> {
    outstanding: OutstandingOps<C>,
    /// What is to be done on each memory, in this order; nothing if no call is under way.
    steps: Vec<Op<C>>,
    /// Whether a refusal ends the call. Else it is of a broken connection, and the memory is asked again.
    may_be_refused: bool,
    progress: Vec<Progress<C>>,
    rules: PhantomData<R>,
}

/// How far a call has come on a memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Progress<C> {
    steps: usize,
    read: Vec<C>,
    /// The step has been refused, and is yet to be asked for again.
    refused: bool,
}

/// How a call ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CallOutcome<C> {
    /// A majority of the memories has done all of it. This is what was read there.
    Done(Vec<C>),
    /// A memory has refused some of what may be refused.
    Refused,
}

impl<C: WriteOnceFields, R: Rules> ReplicatedRegisters<C, R> {
    /// Registers in `memories` memories.
    pub fn new(memories: u8) -> ReplicatedRegisters<C, R> {
        ReplicatedRegisters {
            outstanding: OutstandingOps::new(memories),
            steps: Vec::new(),
            may_be_refused: false,
            progress: vec![Progress { steps: 0, read: Vec::new(), refused: false }; memories.into()],
            rules: PhantomData,
        }
    }

    /// Asks each memory for these operations, one after the other. What is still under way is given up. Nobody can take the rights that
    /// they need: who is refused all the same has lost its connection, with a write under way, and asks again at [`ReplicatedRegisters::wake`].
    pub fn call<M>(&mut self, steps: Vec<Op<C>>, out: &mut Vec<Action<C, M>>) {
        self.begin(steps, false, out);
    }

    /// The same, of operations that others can have refused: the first refusal ends the call.
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

    /// Asks again for what was refused. Goes with [`Action::Wake`], so that who is refused always does not spin.
    pub fn wake<M>(&mut self, out: &mut Vec<Action<C, M>>) {
        for (memory, progress) in (0..).map(MemoryId).zip(&mut self.progress) {
            if core::mem::take(&mut progress.refused)
                && let Some(step) = self.steps.get(progress.steps)
            {
                self.outstanding.invoke(memory, step.clone(), true, out);
            }
        }
    }

    /// Takes a memory's answer; says how the call has ended, if it has.
    pub fn answered<M>(
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
