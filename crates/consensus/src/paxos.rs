//! Paxos over messages (Lamport, 1998): n ≥ 2f + 1 processes, crashes only.
//!
//! This is the baseline without memories. A decision takes four delays, or two in the first ballot
//! of process 0. That ballot is the lowest of all ballots. No acceptor can have accepted a value in
//! a lower ballot, so phase 1 is unnecessary.

use core::marker::PhantomData;

use mitra_mutants::Mutant;
use serde::{Deserialize, Serialize};

use crate::process::{ballot_above, majority, send_others};
use crate::{Action, Actions, AllRules, Input, Process, ProcessId, ProcessSet, RuleSet, Value};

/// A message between processes. The first number of a request is the sender's ballot. The first
/// number of a response is the ballot of the request.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Message<V> {
    /// Phase 1a: asks the acceptor to take part in no lower ballot.
    Prepare(u64),
    /// Phase 1b: the promise, with the ballot and the value that the acceptor accepted last, if
    /// any.
    Promise(u64, Option<(u64, V)>),
    /// Phase 2a: asks the acceptor to accept the value.
    Accept(u64, V),
    /// Phase 2b: the acceptor has accepted the value.
    Accepted(u64),
    /// The acceptor refuses a message. The first number is the ballot of that message; the second
    /// is the higher ballot that the acceptor has promised.
    Refused(u64, u64),
    /// The value is decided.
    Decided(V),
}

/// The rules that safety rests on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// An acceptor refuses ballots below the ballot that it has promised.
    const KEEPS_PROMISES: bool = true;
    /// A proposer adopts the value that was accepted in the highest ballot.
    const ADOPTS: bool = true;
    /// Phase 2 needs a majority of the acceptors. Without the rule, one acceptor fewer suffices.
    const BY_MAJORITY: bool = true;
}

impl Rules for AllRules {}

/// A process of Paxos: a proposer, an acceptor and a learner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Paxos<V, R = AllRules> {
    me: ProcessId,
    processes: u8,
    input: V,
    is_leader: bool,
    attempts: u64,
    highest_ballot: u64,
    attempt: Option<Attempt<V>>,
    acceptor: Acceptor<V>,
    decided: Option<V>,
    rules: PhantomData<R>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Attempt<V> {
    pub(crate) ballot: u64,
    /// The highest ballot in which an acceptor has reported an accepted value, and that value.
    pub(crate) last: Option<(u64, V)>,
    pub(crate) promises: ProcessSet,
    /// The value, once phase 2 has begun.
    pub(crate) proposed: Option<V>,
    pub(crate) acceptors: ProcessSet,
}

impl<V> Attempt<V> {
    pub(crate) fn new(ballot: u64) -> Attempt<V> {
        let none = ProcessSet::NONE;
        Attempt { ballot, last: None, promises: none, proposed: None, acceptors: none }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Acceptor<V> {
    pub(crate) promised: u64,
    /// The ballot and the value that the acceptor accepted last.
    pub(crate) accepted: Option<(u64, V)>,
}

impl<V> Default for Acceptor<V> {
    fn default() -> Acceptor<V> {
        Acceptor { promised: 0, accepted: None }
    }
}

impl<V: Value> Acceptor<V> {
    /// Handles [`Message::Prepare`] and returns the reply. If `keeps_promises` is false, the
    /// acceptor promises every ballot.
    pub(crate) fn prepare(&mut self, ballot: u64, keeps_promises: bool) -> Message<V> {
        if ballot < self.promised && keeps_promises {
            return Message::Refused(ballot, self.promised);
        }
        self.promised = ballot;
        Message::Promise(ballot, self.accepted.clone())
    }

    /// Handles [`Message::Accept`] and returns the reply. If `keeps_promises` is false, the
    /// acceptor accepts every ballot.
    pub(crate) fn accept(&mut self, ballot: u64, value: V, keeps_promises: bool) -> Message<V> {
        if ballot < self.promised && keeps_promises {
            return Message::Refused(ballot, self.promised);
        }
        self.promised = ballot;
        self.accepted = Some((ballot, value));
        Message::Accepted(ballot)
    }
}

impl<V: Value, R: Rules> Paxos<V, R> {
    /// Creates a process that proposes `input`, among `processes` processes.
    pub fn new(me: ProcessId, processes: u8, input: V) -> Paxos<V, R> {
        Paxos {
            me,
            processes,
            input,
            is_leader: false,
            attempts: 0,
            highest_ballot: 0,
            attempt: None,
            acceptor: Acceptor::default(),
            decided: None,
            rules: PhantomData,
        }
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

    fn begin(&mut self, out: &mut Actions<Self>) {
        if !self.is_leader || self.decided.is_some() || self.attempt.is_some() {
            return;
        }
        // A test for the process's first attempt would not suffice: once the process has seen
        // another ballot, its next ballot is not the lowest of all.
        let is_lowest = self.me == ProcessId(0) && self.highest_ballot == 0;
        let ballot = ballot_above(self.highest_ballot, self.me, self.processes);
        self.highest_ballot = ballot;
        self.attempts += 1;
        self.attempt = Some(Attempt::new(ballot));
        match is_lowest {
            true => self.propose(out),
            false => self.send_all(&Message::Prepare(ballot), out),
        }
    }

    fn propose(&mut self, out: &mut Actions<Self>) {
        let Some(attempt) = &mut self.attempt else { return };
        let adopted = attempt
            .last
            .as_ref()
            .filter(|_| R::ADOPTS && !Mutant::AcceptedValueIgnored.is_on())
            .map(|(_, value)| value.clone());
        let value = adopted.unwrap_or_else(|| self.input.clone());
        attempt.proposed = Some(value.clone());
        let message = Message::Accept(attempt.ballot, value);
        self.send_all(&message, out);
    }

    fn on_message(&mut self, from: ProcessId, message: Message<V>, out: &mut Actions<Self>) {
        let quorum = majority(self.processes.into());
        match message {
            Message::Prepare(ballot) => {
                self.highest_ballot = self.highest_ballot.max(ballot);
                let reply =
                    self.acceptor.prepare(ballot, R::KEEPS_PROMISES && !Mutant::PromiseBroken.is_on());
                self.send(from, reply, out);
            }
            Message::Accept(ballot, value) => {
                self.highest_ballot = self.highest_ballot.max(ballot);
                let reply =
                    self.acceptor.accept(ballot, value, R::KEEPS_PROMISES && !Mutant::PromiseBroken.is_on());
                self.send(from, reply, out);
            }
            Message::Promise(ballot, last) => {
                let Some(attempt) = self.attempt.as_mut().filter(|a| a.ballot == ballot) else { return };
                attempt.promises = attempt.promises.with(from);
                if last > attempt.last {
                    attempt.last = last;
                }
                if attempt.proposed.is_none() && attempt.promises.len() >= quorum {
                    self.propose(out);
                }
            }
            Message::Accepted(ballot) => {
                let Some(attempt) = self.attempt.as_mut().filter(|a| a.ballot == ballot) else { return };
                attempt.acceptors = attempt.acceptors.with(from);
                let enough = if R::BY_MAJORITY { quorum } else { quorum - 1 };
                if attempt.acceptors.len() >= enough
                    && let Some(value) = attempt.proposed.clone()
                {
                    self.send_all(&Message::Decided(value), out);
                }
            }
            Message::Refused(ballot, promised) => {
                self.highest_ballot = self.highest_ballot.max(promised);
                if self.attempt.as_ref().is_some_and(|a| a.ballot == ballot) {
                    self.attempt = None;
                    self.begin(out);
                }
            }
            Message::Decided(value) => {
                self.attempt = None;
                self.decided.get_or_insert(value);
            }
        }
    }
}

impl<V: Value, R: Rules> Process for Paxos<V, R> {
    type Cell = ();
    type Message = Message<V>;
    type Value = V;

    fn handle(&mut self, input: Input<(), Message<V>>, out: &mut Actions<Self>) {
        match input {
            Input::Leader(p) => {
                self.is_leader = p == self.me;
                self.begin(out);
            }
            Input::Message { from, message } => self.on_message(from, message, out),
            Input::Start | Input::Response { .. } | Input::Wake | Input::Coin(_) => {}
        }
    }

    fn decision(&self) -> Option<&V> {
        self.decided.as_ref()
    }

    fn attempts(&self) -> u64 {
        self.attempts
    }
}
