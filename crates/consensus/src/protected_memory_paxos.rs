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

use serde::{Deserialize, Serialize};

use crate::memory_acceptor::{Answer, MemoryAcceptors};
use crate::process::{ballot_above, majority, send_others};
use crate::{
    Actions, AllRules, Input, LegalChange, Permissions, Process, ProcessId, ProcessSet, Region, RegisterKind,
    RuleSet, Value,
};

/// What a process has written about its attempts.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
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
pub trait Rules: RuleSet {
    /// An attempt ends where a higher ballot is found.
    const CHECKS_MIN: bool = true;
    /// The next operation on a memory waits for the outstanding one.
    const ONE_AT_A_TIME: bool = true;
    /// A value that shows up after others were told of one ends the attempt; it is not adopted.
    const ABORTS_ON_LATE_VALUE: bool = true;
    /// The value that was accepted in the highest ballot counts, not that of the highest ballot begun.
    const ADOPTS_HIGHEST_ACCEPTED: bool = true;
    /// Beginning an attempt keeps what was accepted before, and who has decided does not begin one.
    const KEEPS_ACCEPTED: bool = true;
    /// The right to write is exclusive.
    const EXCLUSIVE_WRITER: bool = true;
}

impl Rules for AllRules {}

/// A process of Protected Memory Paxos.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ProtectedMemoryPaxos<V, R = AllRules> {
    me: ProcessId,
    processes: u8,
    memories: u8,
    input: V,
    leads: bool,
    /// Attempts begun, and the highest ballot seen anywhere.
    attempts: u64,
    seen: u64,
    attempt: Option<Attempt<V>>,
    slots: MemoryAcceptors<V, R>,
    decided: Option<V>,
    rules: PhantomData<R>,
}

/// One try to have a value accepted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Attempt<V> {
    value: V,
    /// The ballot in which `value` was accepted before; 0 if it is my own.
    accepted: u64,
    /// A majority is ready: the value is settled, and being written.
    started: bool,
}

/// What is said: the value that was decided.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
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
            slots: MemoryAcceptors::new(me, processes, memories),
            decided: None,
            rules: PhantomData,
        }
    }

    /// The regions of each memory: one, which the first process may write.
    pub fn regions(processes: u8) -> Vec<Region> {
        let mut permissions = Permissions::single_writer(processes, ProcessId(0));
        if !R::EXCLUSIVE_WRITER {
            permissions.write = ProcessSet::first(processes);
        }
        vec![Region {
            registers: processes.into(),
            permissions,
            legal_change: LegalChange::ExclusiveWriter,
            kind: RegisterKind::ReadWrite,
        }]
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
        self.attempt = Some(Attempt { value: self.input.clone(), accepted: 0, started: false });
        self.slots.begin(ballot, first, out);
        self.start_if_ready(out);
    }

    /// With a majority ready, the value is settled and is written to all of them; later to each that gets ready.
    fn start_if_ready(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.started |= self.slots.ready() >= majority(self.memories.into());
        if attempt.started {
            self.slots.write(&attempt.value, out);
        }
    }

    fn decide_if_accepted(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &self.attempt else { return };
        if self.slots.accepted() < majority(self.memories.into()) {
            return;
        }
        let value = attempt.value.clone();
        send_others(self.me, self.processes, &Decided(value.clone()), out);
        self.decide(value);
        if !R::KEEPS_ACCEPTED {
            self.begin(out);
        }
    }

    fn decide(&mut self, value: V) {
        self.attempt = None;
        self.slots.abandon();
        self.decided.get_or_insert(value);
    }

    /// Gives the attempt up, and begins another.
    fn abort(&mut self, out: &mut Actions<Self>) {
        self.attempt = None;
        self.slots.abandon();
        self.begin(out);
    }

    /// A memory is ready, where this was accepted last.
    fn adopt(&mut self, last: Option<(u64, V)>, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        if let Some((accepted, value)) = last
            && accepted > attempt.accepted
        {
            if attempt.started && R::ABORTS_ON_LATE_VALUE {
                return self.abort(out);
            }
            (attempt.accepted, attempt.value) = (accepted, value);
        }
        self.start_if_ready(out);
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
            Input::Message { message: Decided(value), .. } => self.decide(value),
            Input::Response { memory, id, response } => {
                match self.slots.answered(memory, id, response, out) {
                    Some(Answer::Ready(last)) => self.adopt(last, out),
                    Some(Answer::Accepted) => self.decide_if_accepted(out),
                    Some(Answer::Refused(seen)) => {
                        self.seen = self.seen.max(seen);
                        self.abort(out);
                    }
                    None => {}
                }
            }
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
