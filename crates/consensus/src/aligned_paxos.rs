//! Aligned Paxos (IRA, section 5.2): the n processes and the m memories are all *agents*, and a
//! majority of the n + m agents decides. Up to fP processes and fM memories may crash, where fP +
//! fM < (n + m) / 2. More memories can therefore compensate for fewer processes, and more processes
//! for fewer memories.
//!
//! | | a process as an agent | delays | a memory as an agent | delays |
//! |---|---|---|---|---|
//! | phase 1 | prepare, promise | 2 | take the permission to write, write the ballot, read all slots | 6 |
//! | phase 2 | accept, accepted | 2 | write the value | 2 |
//!
//! The first leader, process 0, skips phase 1 and decides in two delays. For any other leader,
//! phase 1 takes two delays if the responding processes alone are a majority of the agents, and six
//! otherwise.
//!
//! Any two majorities of agents have an agent in common, which may be a process or a memory. Both
//! kinds of agent therefore keep the whole promise: an agent that has accepted a value reports the
//! value to every higher ballot, and accepts no lower ballot. By contrast, a majority of the
//! processes and a majority of the memories have no agent in common.
//!
//! The first leader skips phase 1 only while it has seen no other ballot. In Protected Memory
//! Paxos, the first leader skips phase 1 in its first attempt in any case: if another process has
//! begun a ballot, the memories refuse the leader's writes. An agent that is a process has no such
//! permission to check.

use core::marker::PhantomData;

use crate::memory_acceptor::{MemoryAcceptors, PhaseResult};
use crate::paxos::{Acceptor, Attempt, Message};
use crate::process::{ballot_above, majority, send_others};
use crate::protected_memory_paxos::{self as memory, ProtectedMemoryPaxos, Slot};
use crate::{Action, Actions, AllRules, Input, Process, ProcessId, Region, RuleSet, Value};
use mitra_mutants::Mutant;

/// The rules that safety rests on, in addition to the rules of the memories ([`memory::Rules`]). A
/// checker disables them one at a time.
pub trait Rules: RuleSet {
    /// A process refuses ballots below the ballot that it has promised.
    const KEEPS_PROMISES: bool = true;
    /// A quorum is a majority of all agents. Without the rule, a majority of the processes
    /// suffices, and so does a majority of the memories.
    const COUNTS_AGENTS_TOGETHER: bool = true;
    /// A leader adopts values that processes report as accepted.
    const ADOPTS_FROM_PROCESSES: bool = true;
    /// A leader adopts values that it reads from memories as accepted.
    const ADOPTS_FROM_MEMORIES: bool = true;
    /// Only the lowest ballot of all skips phase 1. Without the rule, the first attempt of process
    /// 0 always skips it.
    const SKIPS_PHASE_1_FOR_LEAST_BALLOT_ONLY: bool = true;
}

impl Rules for AllRules {}

/// A process of Aligned Paxos: a proposer, a learner, and an agent.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AlignedPaxos<V, R = AllRules, M = AllRules> {
    me: ProcessId,
    processes: u8,
    memories: u8,
    input: V,
    is_leader: bool,
    attempts: u64,
    highest_ballot: u64,
    attempt: Option<Attempt<V>>,
    acceptor: Acceptor<V>,
    memory_acceptors: MemoryAcceptors<V, M>,
    decided: Option<V>,
    rules: PhantomData<R>,
}

impl<V: Value, R: Rules, M: memory::Rules> AlignedPaxos<V, R, M> {
    /// Creates a process that proposes `input`, among `processes` processes and `memories`
    /// memories.
    pub fn new(me: ProcessId, processes: u8, memories: u8, input: V) -> AlignedPaxos<V, R, M> {
        AlignedPaxos {
            me,
            processes,
            memories,
            input,
            is_leader: false,
            attempts: 0,
            highest_ballot: 0,
            attempt: None,
            acceptor: Acceptor::default(),
            memory_acceptors: MemoryAcceptors::new(me, processes, memories),
            decided: None,
            rules: PhantomData,
        }
    }

    /// Returns the regions of each memory, which equal the regions of Protected Memory Paxos.
    pub fn regions(processes: u8) -> Vec<Region> {
        ProtectedMemoryPaxos::<V, M>::regions(processes)
    }

    /// Sends a message to all processes, including this one.
    fn send_all(&mut self, message: &Message<V>, out: &mut Actions<Self>) {
        send_others(self.me, self.processes, message, out);
        self.on_message(self.me, message.clone(), out);
    }

    fn send(&mut self, to: ProcessId, message: Message<V>, out: &mut Actions<Self>) {
        match to == self.me {
            true => self.on_message(to, message, out),
            false => out.push(Action::Send { to, message }),
        }
    }

    fn is_quorum(&self, processes: usize, memories: usize) -> bool {
        let (n, m) = (usize::from(self.processes), usize::from(self.memories));
        match R::COUNTS_AGENTS_TOGETHER {
            true => processes + memories >= majority(n + m),
            false => processes >= majority(n) || memories >= majority(m),
        }
    }

    fn begin(&mut self, out: &mut Actions<Self>) {
        let over = self.decided.is_some() && M::KEEPS_ACCEPTED;
        if !self.is_leader || over || self.attempt.is_some() {
            return;
        }
        let no_other_ballot = if R::SKIPS_PHASE_1_FOR_LEAST_BALLOT_ONLY {
            self.highest_ballot == 0
        } else {
            self.attempts == 0
        };
        let skips_phase_1 = self.me == ProcessId(0) && no_other_ballot;
        let ballot = ballot_above(self.highest_ballot, self.me, self.processes);
        self.highest_ballot = ballot;
        self.attempts += 1;
        self.attempt = Some(Attempt::new(ballot));
        self.memory_acceptors.begin(ballot, skips_phase_1, out);
        match skips_phase_1 {
            true => self.propose(out),
            false => self.send_all(&Message::Prepare(ballot), out),
        }
    }

    /// Handles an agent's promise. `last` is the ballot and the value that the agent accepted last.
    /// Once the attempt has fixed its value, `last` has no effect, and the value is written to each
    /// memory that has become ready.
    fn adopt(&mut self, last: Option<(u64, V)>, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        match &mut attempt.proposed {
            None => attempt.last = last.max(attempt.last.take()),
            Some(value) => {
                if let Some((_, late)) = last.filter(|_| !M::ABORTS_ON_LATE_VALUE) {
                    *value = late;
                }
                return self.memory_acceptors.write(value, out);
            }
        }
        let promises = attempt.promises.len();
        if self.is_quorum(promises, self.memory_acceptors.ready()) {
            self.propose(out);
        }
    }

    fn propose(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        let value = attempt.last.take().map_or_else(|| self.input.clone(), |(_, value)| value);
        attempt.proposed = Some(value.clone());
        let message = Message::Accept(attempt.ballot, value.clone());
        self.memory_acceptors.write(&value, out);
        self.send_all(&message, out);
    }

    fn decide_if_accepted(&mut self, out: &mut Actions<Self>) {
        let Some(Attempt { acceptors, proposed: Some(value), .. }) = &self.attempt else { return };
        if self.is_quorum(acceptors.len(), self.memory_acceptors.accepted()) {
            let message = Message::Decided(value.clone());
            self.send_all(&message, out);
        }
    }

    fn attempt(&mut self, ballot: u64) -> Option<&mut Attempt<V>> {
        self.attempt.as_mut().filter(|attempt| attempt.ballot == ballot)
    }

    /// Handles an agent's refusal: abandons the attempt and begins the next attempt. `promised` is
    /// the higher ballot that the agent has promised, or 0 if it is unknown.
    fn on_refusal(&mut self, promised: u64, out: &mut Actions<Self>) {
        self.highest_ballot = self.highest_ballot.max(promised);
        self.attempt = None;
        self.memory_acceptors.abandon();
        self.begin(out);
    }

    fn on_message(&mut self, from: ProcessId, message: Message<V>, out: &mut Actions<Self>) {
        match message {
            Message::Prepare(ballot) => {
                self.highest_ballot = self.highest_ballot.max(ballot);
                let answer = self.acceptor.prepare(ballot, R::KEEPS_PROMISES);
                self.send(from, answer, out);
            }
            Message::Accept(ballot, value) => {
                self.highest_ballot = self.highest_ballot.max(ballot);
                let answer = self.acceptor.accept(ballot, value, R::KEEPS_PROMISES);
                self.send(from, answer, out);
            }
            Message::Promise(ballot, last) => {
                let Some(attempt) = self.attempt(ballot) else { return };
                if attempt.proposed.is_none() {
                    attempt.promises = attempt.promises.with(from);
                    self.adopt(last.filter(|_| R::ADOPTS_FROM_PROCESSES), out);
                }
            }
            Message::Accepted(ballot) => {
                let Some(attempt) = self.attempt(ballot) else { return };
                attempt.acceptors = attempt.acceptors.with(from);
                self.decide_if_accepted(out);
            }
            Message::Refused(ballot, promised) => {
                if self.attempt(ballot).is_some() {
                    self.on_refusal(promised, out);
                }
            }
            Message::Decided(value) => {
                self.attempt = None;
                self.memory_acceptors.abandon();
                self.decided.get_or_insert(value);
                if !M::KEEPS_ACCEPTED {
                    self.begin(out);
                }
            }
        }
    }
}

impl<V: Value, R: Rules, M: memory::Rules> Process for AlignedPaxos<V, R, M> {
    type Cell = Slot<V>;
    type Message = Message<V>;
    type Value = V;

    fn handle(&mut self, input: Input<Slot<V>, Message<V>>, out: &mut Actions<Self>) {
        match input {
            Input::Leader(p) => {
                self.is_leader = p == self.me;
                self.begin(out);
            }
            Input::Message { from, message } => self.on_message(from, message, out),
            Input::Response { memory, id, response } => {
                match self.memory_acceptors.on_response(memory, id, response, out) {
                    Some(PhaseResult::Ready(last)) => self.adopt(
                        last.filter(|_| R::ADOPTS_FROM_MEMORIES && !Mutant::MemoryValueIgnored.is_on()),
                        out,
                    ),
                    Some(PhaseResult::Accepted) => self.decide_if_accepted(out),
                    Some(PhaseResult::Refused(highest_ballot)) => self.on_refusal(highest_ballot, out),
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
