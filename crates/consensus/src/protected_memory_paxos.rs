//! Protected Memory Paxos (IRA, section 5): n ≥ fP + 1 processes and m ≥ 2fM + 1 memories, of which
//! up to fP and fM may crash. The first leader, process 0, decides in two delays.
//!
//! Each memory has one region with a register (a [`Slot`]) per process. The leader takes the
//! exclusive permission to write at each memory. An acknowledged write therefore proves that no
//! other process had taken the permission before, and the leader need not read the slots after its
//! write. A later leader takes the permission at a majority of the memories before it reads their
//! slots.
//!
//! | phase at a memory | delays | note |
//! |---|---|---|
//! | take the permission | 2 | in its first attempt, the first leader only writes the value |
//! | write the ballot | 2 | |
//! | read all slots | 2 | adopt the value accepted in the highest ballot |
//! | write the value | 2 | a majority of acknowledgements decides |

use core::marker::PhantomData;

use mitra_mutants::Mutant;
use serde::{Deserialize, Serialize};

use crate::memory_acceptor::{MemoryAcceptors, PhaseResult};
use crate::process::{ballot_above, majority, send_others};
use crate::{
    Actions, AllRules, Input, LegalChange, Permissions, Process, ProcessId, ProcessSet, Region, RegisterKind,
    RuleSet, Value,
};

/// The content of one process's register, which describes its attempts.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Slot<V> {
    /// The highest ballot that the process has begun.
    pub min: u64,
    /// The highest ballot in which the process has proposed `value`; 0 for none.
    pub accepted: u64,
    /// The value that the process proposed in ballot `accepted`.
    pub value: Option<V>,
}

impl<V> Default for Slot<V> {
    fn default() -> Slot<V> {
        Slot { min: 0, accepted: 0, value: None }
    }
}

/// The rules that safety rests on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// A process that reads a higher ballot aborts its attempt.
    const CHECKS_MIN: bool = true;
    /// At most one operation is outstanding at each memory.
    const ONE_AT_A_TIME: bool = true;
    /// A process that has begun to write its value aborts its attempt when it reads a value with a
    /// higher accepted ballot. Without the rule, the attempt continues with the value read.
    const ABORTS_ON_LATE_VALUE: bool = true;
    /// An attempt adopts the value of the highest `accepted`. Without the rule, it adopts the value
    /// of the highest `min`.
    const ADOPTS_HIGHEST_ACCEPTED: bool = true;
    /// The write of the ballot keeps the accepted value in the process's slot, and a process that
    /// has decided begins no attempt.
    const KEEPS_ACCEPTED: bool = true;
    /// Only one process at a time has the permission to write.
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
    is_leader: bool,
    attempts: u64,
    highest_ballot: u64,
    attempt: Option<Attempt<V>>,
    memory_acceptors: MemoryAcceptors<V, R>,
    decided: Option<V>,
    rules: PhantomData<R>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Attempt<V> {
    value: V,
    /// The ballot in which `value` was accepted; 0 if `value` is the process's own input.
    accepted: u64,
    /// Whether a majority of the memories has become ready. From then on, the value is fixed, and
    /// the process writes it.
    started: bool,
}

/// The announcement of the decided value.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Decided<V>(pub V);

impl<V: Value, R: Rules> ProtectedMemoryPaxos<V, R> {
    /// Creates a process that proposes `input`, among `processes` processes and `memories`
    /// memories.
    pub fn new(me: ProcessId, processes: u8, memories: u8, input: V) -> ProtectedMemoryPaxos<V, R> {
        ProtectedMemoryPaxos {
            me,
            processes,
            memories,
            input,
            is_leader: false,
            attempts: 0,
            highest_ballot: 0,
            attempt: None,
            memory_acceptors: MemoryAcceptors::new(me, processes, memories),
            decided: None,
            rules: PhantomData,
        }
    }

    /// Returns the regions of each memory: one region, which process 0 may write initially.
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
        if !self.is_leader || over || self.attempt.is_some() {
            return;
        }
        let ballot = ballot_above(self.highest_ballot, self.me, self.processes);
        self.highest_ballot = ballot;
        // Initially, process 0 has the permission to write. Another process takes this permission
        // before it writes a value, so the memory then refuses the write of process 0.
        let first = self.me == ProcessId(0) && self.attempts == 0;
        self.attempts += 1;
        self.attempt = Some(Attempt { value: self.input.clone(), accepted: 0, started: false });
        self.memory_acceptors.begin(ballot, first, out);
        self.start_if_ready(out);
    }

    /// If a majority of the memories has become ready, fixes the value and writes it to each memory
    /// that is ready.
    fn start_if_ready(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.started |= self.memory_acceptors.ready() >= majority(self.memories.into());
        if attempt.started {
            self.memory_acceptors.write(&attempt.value, out);
        }
    }

    fn decide_if_accepted(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &self.attempt else { return };
        if self.memory_acceptors.accepted() < majority(self.memories.into()) {
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
        self.memory_acceptors.abandon();
        self.decided.get_or_insert(value);
    }

    /// Aborts the attempt, and begins the next attempt if this process still leads.
    fn abort(&mut self, out: &mut Actions<Self>) {
        self.attempt = None;
        self.memory_acceptors.abandon();
        self.begin(out);
    }

    /// Handles a memory that has become ready. `last` is the ballot and the value that the memory
    /// accepted last.
    fn adopt(&mut self, last: Option<(u64, V)>, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        if let Some((accepted, value)) = last
            && accepted > attempt.accepted
        {
            if attempt.started && R::ABORTS_ON_LATE_VALUE && !Mutant::LateValueTaken.is_on() {
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
                self.is_leader = p == self.me;
                self.begin(out);
            }
            Input::Message { message: Decided(value), .. } => self.decide(value),
            Input::Response { memory, id, response } => {
                match self.memory_acceptors.on_response(memory, id, response, out) {
                    Some(PhaseResult::Ready(last)) => self.adopt(last, out),
                    Some(PhaseResult::Accepted) => self.decide_if_accepted(out),
                    Some(PhaseResult::Refused(highest_ballot)) => {
                        self.highest_ballot = self.highest_ballot.max(highest_ballot);
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
