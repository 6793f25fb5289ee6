//! Protected Memory Paxos (PODC 2019, section 5; agreement.md §2): n ≥ fP + 1 processes, m ≥ 2fM + 1 memories, crashes only; its first
//! leader decides in two delays.
//!
//! Each memory has one region, with a register (a [`Slot`]) for each process. Who leads takes the right to write for itself, on
//! each memory; so an acknowledged write says that nobody has taken it since, and no last read is needed. A later leader takes a
//! majority first and then reads what was written there.
//!
//! | phase on a memory | delays | |
//! |---|---|---|
//! | take the right | 2 | the first leader skips these three in its first attempt |
//! | write the ballot | 2 | |
//! | read all slots | 2 | adopt the value that was accepted last |
//! | write the value | 2 | a majority of acknowledgements decides |

use core::marker::PhantomData;

use crate::ports::Ports;
use crate::process::{ballot_above, majority};
use crate::{
    Action, Actions, ChangeRule, Input, MemoryId, Op, Process, ProcessId, ProcessSet, Region, Response,
    Rights, Value,
};

/// What a process has written about its attempts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slot<V> {
    /// The highest ballot it has begun.
    pub min: u64,
    /// The highest ballot in which it has proposed `value`; 0 for none.
    pub accepted: u64,
    /// What it has proposed.
    pub value: Option<V>,
}

impl<V> Default for Slot<V> {
    fn default() -> Slot<V> {
        Slot { min: 0, accepted: 0, value: None }
    }
}

/// The rules that safety rests on. Checkers switch them off one by one, to see that they notice.
pub trait Rules: Clone + Eq + core::hash::Hash + core::fmt::Debug {
    /// An attempt ends where a higher ballot is found.
    const CHECKS_MIN: bool = true;
    /// The next operation on a memory waits for the outstanding one.
    const ONE_AT_A_TIME: bool = true;
    /// A value that shows up after others were told of one ends the attempt; it is not adopted.
    const FIRM_ONCE_STARTED: bool = true;
    /// The value that was accepted in the highest ballot counts, not that of the highest ballot begun.
    const BY_ACCEPTED: bool = true;
    /// Beginning an attempt keeps what was accepted before, and who has decided does not begin one.
    const KEEPS_ACCEPTED: bool = true;
    /// The right to write is exclusive.
    const EXCLUSIVE: bool = true;
}

/// All rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sound;
impl Rules for Sound {}

/// A process of Protected Memory Paxos.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ProtectedMemoryPaxos<V, R = Sound> {
    me: ProcessId,
    processes: u8,
    memories: u8,
    input: V,
    leads: bool,
    /// Attempts begun, and the highest ballot seen anywhere.
    attempts: u64,
    seen: u64,
    attempt: Option<Attempt<V>>,
    ports: Ports<Slot<V>>,
    /// What each memory holds of mine.
    mine: Vec<Slot<V>>,
    decided: Option<V>,
    rules: PhantomData<R>,
}

/// One try to have a value accepted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Attempt<V> {
    ballot: u64,
    value: V,
    /// The ballot in which `value` was accepted before; 0 if it is my own.
    accepted: u64,
    /// A majority is ready: the value is settled, and being written.
    started: bool,
    /// How far it has come on each memory.
    phases: Vec<Phase>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Phase {
    Taking,
    Promising,
    Reading,
    Ready,
    Writing,
    Accepted,
}

/// What is said: the value that was decided.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Decided<V>(pub V);

impl<V: Value, R: Rules> ProtectedMemoryPaxos<V, R> {
    /// A process that wants `input` decided, among `processes` processes and `memories` memories.
    pub fn new(me: ProcessId, processes: u8, memories: u8, input: V) -> ProtectedMemoryPaxos<V, R> {
        ProtectedMemoryPaxos {
            me,
            processes,
            memories,
            input,
            leads: false,
            attempts: 0,
            seen: 0,
            attempt: None,
            ports: Ports::new(memories),
            mine: vec![Slot::default(); memories.into()],
            decided: None,
            rules: PhantomData,
        }
    }

    /// The regions of each memory: one, which the first process may write.
    pub fn regions(processes: u8) -> Vec<Region> {
        let mut rights = Rights::single_writer(processes, ProcessId(0));
        if !R::EXCLUSIVE {
            rights.write = ProcessSet::first(processes);
        }
        vec![Region { registers: processes, rights, rule: ChangeRule::TakeOver }]
    }

    fn begin(&mut self, out: &mut Actions<Self>) {
        let over = self.decided.is_some() && R::KEEPS_ACCEPTED;
        if !self.leads || over || self.attempt.is_some() {
            return;
        }
        let ballot = ballot_above(self.seen, self.me, self.processes);
        self.seen = ballot;
        // The first leader has the right to write already, and nobody's value can be there yet.
        let first = self.me == ProcessId(0) && self.attempts == 0;
        self.attempts += 1;
        let phase = if first { Phase::Ready } else { Phase::Taking };
        self.attempt = Some(Attempt {
            ballot,
            value: self.input.clone(),
            accepted: 0,
            started: first,
            phases: vec![phase; self.memories.into()],
        });
        for memory in (0..self.memories).map(MemoryId) {
            self.enter(memory, phase, out);
        }
    }

    /// The attempt comes to a phase on a memory, and asks it for what that takes.
    fn enter(&mut self, memory: MemoryId, phase: Phase, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        let at = usize::from(memory.0);
        attempt.phases[at] = phase;
        let ballot = attempt.ballot;
        let write = |cell| Op::Write { region: 0, register: self.me.0, cell };
        let op = match phase {
            Phase::Taking if R::EXCLUSIVE => {
                Op::Change { region: 0, rights: Rights::single_writer(self.processes, self.me) }
            }
            Phase::Taking => return self.enter(memory, Phase::Promising, out),
            Phase::Promising if R::KEEPS_ACCEPTED => write(Slot { min: ballot, ..self.mine[at].clone() }),
            Phase::Promising => write(Slot { min: ballot, ..Slot::default() }),
            Phase::Reading => Op::Read { region: 0 },
            Phase::Ready if attempt.started => return self.enter(memory, Phase::Writing, out),
            Phase::Ready => return self.start_if_ready(out),
            Phase::Writing => {
                write(Slot { min: ballot, accepted: ballot, value: Some(attempt.value.clone()) })
            }
            Phase::Accepted => return self.decide_if_accepted(out),
        };
        self.ports.ask(memory, op, R::ONE_AT_A_TIME, out);
    }

    /// With a majority ready, the value is settled and is written to all of them.
    fn start_if_ready(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        let ready = attempt.phases.iter().filter(|&&p| p == Phase::Ready).count();
        if ready < majority(self.memories.into()) {
            return;
        }
        attempt.started = true;
        let phases = attempt.phases.clone();
        for (at, _) in phases.iter().enumerate().filter(|&(_, &p)| p == Phase::Ready) {
            self.enter(MemoryId(at as u8), Phase::Writing, out);
        }
    }

    fn decide_if_accepted(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &self.attempt else { return };
        let accepted = attempt.phases.iter().filter(|&&p| p == Phase::Accepted).count();
        if accepted < majority(self.memories.into()) {
            return;
        }
        let value = attempt.value.clone();
        for to in (0..self.processes).map(ProcessId).filter(|&to| to != self.me) {
            out.push(Action::Send { to, message: Decided(value.clone()) });
        }
        self.attempt = None;
        self.ports.abandon();
        self.decide(value);
        if !R::KEEPS_ACCEPTED {
            self.begin(out);
        }
    }

    fn decide(&mut self, value: V) {
        self.decided.get_or_insert(value);
    }

    /// Gives the attempt up, and begins another.
    fn abort(&mut self, out: &mut Actions<Self>) {
        self.attempt = None;
        self.ports.abandon();
        self.begin(out);
    }

    fn answered(
        &mut self,
        memory: MemoryId,
        nth: usize,
        response: Response<Slot<V>>,
        out: &mut Actions<Self>,
    ) {
        let Some((op, wanted)) = self.ports.answered(memory, nth, out) else { return };
        // Also what an attempt wrote that was given up stands there.
        if let (Op::Write { cell, .. }, Response::Ack) = (op, &response) {
            self.mine[usize::from(memory.0)] = cell;
        }
        let Some(attempt) = self.attempt.as_ref().filter(|_| wanted) else { return };
        let phase = attempt.phases[usize::from(memory.0)];
        match (phase, response) {
            (Phase::Taking, Response::Ack) => self.enter(memory, Phase::Promising, out),
            (Phase::Promising, Response::Ack) => self.enter(memory, Phase::Reading, out),
            (Phase::Reading, Response::Cells(slots)) => self.scan(memory, &slots, out),
            (Phase::Writing, Response::Ack) => self.enter(memory, Phase::Accepted, out),
            // Somebody else has taken the right to write.
            _ => self.abort(out),
        }
    }

    /// What is in a memory's slots, read after the right to write them was taken.
    fn scan(&mut self, memory: MemoryId, slots: &[Slot<V>], out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        let highest = slots.iter().map(|slot| slot.min).max().unwrap_or(0);
        self.seen = self.seen.max(highest);
        if R::CHECKS_MIN && highest > attempt.ballot {
            return self.abort(out);
        }
        let last = slots.iter().max_by_key(|slot| if R::BY_ACCEPTED { slot.accepted } else { slot.min });
        if let Some(Slot { accepted, value: Some(value), .. }) = last
            && *accepted > attempt.accepted
        {
            if attempt.started && R::FIRM_ONCE_STARTED {
                return self.abort(out);
            }
            (attempt.accepted, attempt.value) = (*accepted, value.clone());
        }
        self.enter(memory, Phase::Ready, out);
    }
}

impl<V: Value, R: Rules> Process for ProtectedMemoryPaxos<V, R> {
    type Cell = Slot<V>;
    type Message = Decided<V>;
    type Value = V;

    fn handle(&mut self, input: Input<Slot<V>, Decided<V>>, out: &mut Actions<Self>) {
        match input {
            Input::Leader(p) => {
                self.leads = p == self.me;
                self.begin(out);
            }
            Input::Message { message: Decided(value), .. } => {
                self.decide(value);
                self.attempt = None;
                self.ports.abandon();
            }
            Input::Response { memory, nth, response } => self.answered(memory, nth, response, out),
            Input::Start | Input::Wake => {}
        }
    }

    fn decision(&self) -> Option<&V> {
        self.decided.as_ref()
    }

    fn attempts(&self) -> u64 {
        self.attempts
    }
}
