//! Disk Paxos (Gafni and Lamport, 2003): n ≥ fP + 1 processes and m ≥ 2fM + 1 memories, of which up
//! to fP and fM may crash.
//!
//! This is the baseline with static permissions. After each write, a process reads all slots to
//! detect a higher ballot. A decision takes eight delays, or four in the first ballot of process 0,
//! which skips phase 1.

use core::marker::PhantomData;

use crate::outstanding_ops::{AnsweredOp, OutstandingOps};
use crate::process::{ballot_above, majority, send_others};
use crate::protected_memory_paxos::{Decided, Slot};
use crate::{
    Actions, AllRules, Input, LegalChange, MemoryId, Op, OpId, Permissions, Process, ProcessId, ProcessSet,
    Region, RegisterKind, Response, RuleSet, Value,
};
use mitra_mutants::Mutant;

/// The rules that safety rests on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// After it has written its value, a process reads all slots and detects whether a higher
    /// ballot has begun.
    const READS_AFTER_WRITE: bool = true;
    /// A process adopts the accepted value of the highest ballot that it has read.
    const ADOPTS: bool = true;
    /// At most one operation is outstanding at each memory.
    const ONE_AT_A_TIME: bool = true;
}

impl Rules for AllRules {}

/// A process of Disk Paxos.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DiskPaxos<V, R = AllRules> {
    me: ProcessId,
    processes: u8,
    memories: u8,
    input: V,
    is_leader: bool,
    attempts: u64,
    highest_ballot: u64,
    attempt: Option<Attempt<V>>,
    outstanding: OutstandingOps<Slot<V>>,
    /// The slot that this process last began to write to every memory (the paper's `dblock`).
    own_slot: Slot<V>,
    decided: Option<V>,
    rules: PhantomData<R>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Attempt<V> {
    ballot: u64,
    /// In phase 1: the highest ballot in which a value is known to be accepted, and that value. In
    /// phase 2: this attempt's ballot and value.
    last: Option<(u64, V)>,
    /// Whether the attempt is in phase 2.
    proposing: bool,
    /// The progress of the current phase at each memory.
    steps: Vec<Step>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    Writing,
    Reading,
    Done,
}

impl<V: Value, R: Rules> DiskPaxos<V, R> {
    /// Creates a process that proposes `input`, among `processes` processes and `memories`
    /// memories.
    pub fn new(me: ProcessId, processes: u8, memories: u8, input: V) -> DiskPaxos<V, R> {
        DiskPaxos {
            me,
            processes,
            memories,
            input,
            is_leader: false,
            attempts: 0,
            highest_ballot: 0,
            attempt: None,
            outstanding: OutstandingOps::new(memories),
            own_slot: Slot::default(),
            decided: None,
            rules: PhantomData,
        }
    }

    /// Returns the regions of each memory: one region with a register per process. All processes
    /// may write all registers, but each process writes only its own.
    pub fn regions(processes: u8) -> Vec<Region> {
        let all = ProcessSet::first(processes);
        let permissions = Permissions { read: all, write: all };
        vec![Region {
            registers: processes.into(),
            permissions,
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        }]
    }

    fn begin(&mut self, out: &mut Actions<Self>) {
        if !self.is_leader || self.decided.is_some() || self.attempt.is_some() {
            return;
        }
        // The lowest ballot of all needs no phase 1, because no value can have been accepted in a
        // lower ballot.
        let is_lowest = self.me == ProcessId(0) && self.highest_ballot == 0;
        let ballot = ballot_above(self.highest_ballot, self.me, self.processes);
        self.highest_ballot = ballot;
        self.attempts += 1;
        self.own_slot.min = ballot;
        let last = self.own_slot.value.clone().map(|value| (self.own_slot.accepted, value));
        self.attempt = Some(Attempt { ballot, last, proposing: false, steps: Vec::new() });
        match is_lowest {
            true => self.propose(out),
            false => self.write(out),
        }
    }

    /// Begins phase 2 with the adopted value if there is one, and with the process's input
    /// otherwise.
    fn propose(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        let adopted = attempt.last.take().filter(|_| R::ADOPTS).map(|(_, value)| value);
        let value = adopted.unwrap_or_else(|| self.input.clone());
        attempt.proposing = true;
        attempt.last = Some((attempt.ballot, value.clone()));
        self.own_slot = Slot { min: attempt.ballot, accepted: attempt.ballot, value: Some(value) };
        self.write(out);
    }

    /// Begins a phase: invokes a write of this process's slot at every memory.
    fn write(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.steps = vec![Step::Writing; self.memories.into()];
        // Phase 2 does not need the remaining responses of phase 1.
        self.outstanding.abandon();
        for memory in (0..self.memories).map(MemoryId) {
            self.write_to(memory, out);
        }
    }

    fn write_to(&mut self, memory: MemoryId, out: &mut Actions<Self>) {
        let op = Op::Write { region: 0, register: self.me.0.into(), cell: self.own_slot.clone() };
        self.outstanding.invoke(memory, op, R::ONE_AT_A_TIME, out);
    }

    fn on_response(
        &mut self,
        memory: MemoryId,
        id: OpId,
        response: Response<Slot<V>>,
        out: &mut Actions<Self>,
    ) {
        let Some(AnsweredOp { abandoned: false, .. }) = self.outstanding.complete(memory, id, out) else {
            return;
        };
        let Some(attempt) = &mut self.attempt else { return };
        let step = &mut attempt.steps[usize::from(memory.0)];
        match (*step, response) {
            (Step::Writing, Response::Ack)
                if attempt.proposing && (!R::READS_AFTER_WRITE || Mutant::SlotsNotReadAgain.is_on()) =>
            {
                *step = Step::Done
            }
            (Step::Writing, Response::Ack) => {
                *step = Step::Reading;
                self.outstanding.invoke(
                    memory,
                    Op::Read { region: 0, first: 0, count: self.processes.into() },
                    R::ONE_AT_A_TIME,
                    out,
                );
            }
            (Step::Reading, Response::Cells(slots)) => {
                *step = Step::Done;
                let highest = slots.iter().map(|slot| slot.min).max().unwrap_or(0);
                self.highest_ballot = self.highest_ballot.max(highest);
                if highest > attempt.ballot {
                    self.attempt = None;
                    self.outstanding.abandon();
                    return self.begin(out);
                }
                let found = slots.into_iter().filter_map(|slot| Some((slot.accepted, slot.value?)));
                if !attempt.proposing {
                    attempt.last =
                        attempt.last.take().into_iter().chain(found).max_by_key(|(ballot, _)| *ballot);
                }
            }
            // Every process may write, so a NAK means that the connection broke. The outcome of the
            // write is unknown, so the process repeats the write.
            (Step::Writing, Response::Nak) => return self.write_to(memory, out),
            _ => return,
        }
        self.end_phase(out);
    }

    /// Ends the phase if a majority of the memories has completed it.
    fn end_phase(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &self.attempt else { return };
        if attempt.steps.iter().filter(|&&step| step == Step::Done).count() < majority(self.memories.into()) {
            return;
        }
        if !attempt.proposing {
            return self.propose(out);
        }
        if let Some((_, value)) = self.attempt.take().and_then(|attempt| attempt.last) {
            send_others(self.me, self.processes, &Decided(value.clone()), out);
            self.outstanding.abandon();
            self.decided.get_or_insert(value);
        }
    }
}

impl<V: Value, R: Rules> Process for DiskPaxos<V, R> {
    type Cell = Slot<V>;
    type Message = Decided<V>;
    type Value = V;

    fn handle(&mut self, input: Input<Slot<V>, Decided<V>>, out: &mut Actions<Self>) {
        match input {
            Input::Leader(p) => {
                self.is_leader = p == self.me;
                self.begin(out);
            }
            Input::Message { message: Decided(value), .. } => {
                self.decided.get_or_insert(value);
                self.attempt = None;
                self.outstanding.abandon();
            }
            Input::Response { memory, id, response } => self.on_response(memory, id, response, out),
            Input::Start | Input::Wake | Input::Coin(_) => {}
        }
    }

    fn decision(&self) -> Option<&V> {
        self.decided.as_ref()
    }

    fn attempts(&self) -> u64 {
        self.attempts
    }
}
