//! Robust Backup (PODC 2019, section 4.1, after Clement et al., PODC 2012; agreement.md §5): an algorithm by messages that bears crashes, run so
//! that it bears Byzantine processes: n ≥ 2fP + 1 of them, m ≥ 2fM + 1 memories.
//!
//! T-send would broadcast each message along with its sender's history, and T-receive take it only if that is one which the algorithm
//! can have. Here a process broadcasts what the history is made of, its [`Event`]s, as far as it has not yet; and what it has said by them
//! everybody finds by running the same automaton on them:
//!
//! ```text
//! p's input, whom Ω names to it, from whom it has heard ──broadcast──▶ all: run p's automaton ──▶ p's messages
//! ```
//!
//! So nothing that the algorithm would not have said can be said: a Byzantine process chooses its input, its Ω, and from whom it
//! hears next; it cannot tell two of them two things, as the broadcast does not equivocate. Heard of a sender is its next message to me,
//! in order: what it says is not repeated. Who claims to have heard what its sender has not said yet is heard no further until that is
//! delivered: for ever, if it never was said. What no process can go through makes that one ignored for good.
//!
//! Bounded: a process broadcasts so many turns as there is room for, each of at most [`MAX_BATCH_EVENTS`] events; then it falls silent.

use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;
use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::broadcast::{self, Broadcast, Slot};
use crate::paxos::Paxos;
use crate::signature::Signer;
use crate::{Action, Actions, AllRules, Input, Process, ProcessId, Region, RuleSet, Value};

/// The most events of a turn.
pub const MAX_BATCH_EVENTS: usize = 32;

/// An algorithm by messages, whose every process can be run by all others.
pub trait Automaton<K>: Process<Cell = ()> {
    /// What a process begins with. It is believed as far as this automaton itself verifies it.
    type Input: Value + Serialize;

    /// A process that begins.
    fn begin(me: ProcessId, processes: u8, input: Self::Input, keys: &K) -> Self;
}

impl<V: Value + Serialize, K> Automaton<K> for Paxos<V> {
    type Input = V;

    fn begin(me: ProcessId, processes: u8, input: V, _: &K) -> Paxos<V> {
        Paxos::new(me, processes, input)
    }
}

/// What happens to a process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Event<I> {
    /// It begins. Comes first, and once.
    Begin(I),
    /// Ω names it a leader.
    Leader(ProcessId),
    /// It hears the next message to it from another.
    Received(ProcessId),
}

/// What a process tells all others at once.
pub type EventBatch<I> = Vec<Event<I>>;

/// What a register holds.
pub type Cell<A, K> = Slot<EventBatch<<A as Automaton<K>>::Input>, <K as Signer>::Signature>;

/// The rules that safety rests on, beside those of the broadcast ([`broadcast::Rules`]), for checkers to switch off.
pub trait Rules: RuleSet {
    /// Who has heard what I have not is followed when I have.
    const WAITS_FOR_UNDELIVERED: bool = true;
    /// Nobody begins anew, as if it had promised and accepted nothing.
    const BEGINS_ONCE: bool = true;
}

impl Rules for AllRules {}

/// A process of Robust Backup.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RobustBackup<A: Automaton<K>, K: Signer, R = AllRules, B = AllRules> {
    me: ProcessId,
    processes: u8,
    keys: K,
    input: A::Input,
    broadcast: Broadcast<EventBatch<A::Input>, K, B>,
    replicas: Vec<Replica<A, K>>,
    /// Whom Ω names, if I have not gone through that yet.
    leader: Option<ProcessId>,
    /// What I have gone through and not told, and whether I have said anything by it.
    turn: EventBatch<A::Input>,
    spoken: bool,
    rules: PhantomData<R>,
}

/// A process, as everybody runs it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Replica<A: Automaton<K>, K> {
    automaton: Option<A>,
    /// What it says it has gone through, as far as I have not followed it.
    events: VecDeque<Event<A::Input>>,
    /// By sender: what it has not heard yet.
    inbox: Vec<VecDeque<A::Message>>,
}

/// What comes of following a process through an event.
enum ReplayResult {
    Passed,
    /// What it has heard is yet to be delivered to me.
    Waits,
    /// No process can go through that.
    Impossible,
}

impl<A: Automaton<K>, K: Signer, R: Rules, B: broadcast::Rules> RobustBackup<A, K, R, B> {
    /// A process that begins with `input`, among `processes` processes, over `memories` memories with room for `room` turns of each.
    pub fn new(
        me: ProcessId,
        (processes, memories): (u8, u8),
        room: u16,
        keys: K,
        input: A::Input,
    ) -> RobustBackup<A, K, R, B> {
        let inbox = vec![VecDeque::new(); processes.into()];
        let replica = Replica { automaton: None, events: VecDeque::new(), inbox };
        RobustBackup {
            me,
            processes,
            broadcast: Broadcast::new(me, processes, memories, room, keys.clone()),
            keys,
            input,
            replicas: vec![replica; processes.into()],
            leader: None,
            turn: Vec::new(),
            spoken: false,
            rules: PhantomData,
        }
    }

    /// The regions of each memory: those of the broadcast.
    pub fn regions(processes: u8, room: u16) -> Vec<Region> {
        Broadcast::<EventBatch<A::Input>, K, B>::regions(processes, room)
    }

    fn replica(&mut self, p: ProcessId) -> &mut Replica<A, K> {
        &mut self.replicas[usize::from(p.0)]
    }

    /// Runs a process through an event. What it says by it is put before those to whom it says that.
    fn pass(&mut self, p: ProcessId, event: Event<A::Input>) -> ReplayResult {
        let replica = &mut self.replicas[usize::from(p.0)];
        let input = match event {
            Event::Begin(input) if replica.automaton.is_none() || !R::BEGINS_ONCE => {
                replica.automaton = Some(A::begin(p, self.processes, input, &self.keys));
                Input::Start
            }
            Event::Begin(_) => return ReplayResult::Impossible,
            Event::Leader(leader) => Input::Leader(leader),
            Event::Received(from) => {
                let Some(inbox) = replica.inbox.get_mut(usize::from(from.0)).filter(|_| from != p) else {
                    return ReplayResult::Impossible;
                };
                match inbox.pop_front() {
                    Some(message) => Input::Message { from, message },
                    None if R::WAITS_FOR_UNDELIVERED => return ReplayResult::Waits,
                    None => return ReplayResult::Passed,
                }
            }
        };
        let Some(automaton) = &mut replica.automaton else { return ReplayResult::Impossible };
        let mut actions = Vec::new();
        automaton.handle(input, &mut actions);
        for action in actions {
            if let Action::Send { to, message } = action {
                self.spoken |= p == self.me;
                self.replica(to).inbox[usize::from(p.0)].push_back(message);
            }
        }
        ReplayResult::Passed
    }

    /// Goes through an event myself, and will tell of it.
    fn undergo(&mut self, event: Event<A::Input>) {
        if let ReplayResult::Passed = self.pass(self.me, event.clone()) {
            self.turn.push(event);
        }
    }

    /// Follows the others as far as it goes, and hears what they have said to me.
    fn follow(&mut self, out: &mut Actions<Self>) {
        let others = || (0..self.processes).map(ProcessId);
        let others: Vec<ProcessId> = others().filter(|&p| p != self.me).collect();
        let mut passed = true;
        while passed {
            passed = false;
            for &p in &others {
                while let Some(event) = self.replica(p).events.front().cloned() {
                    match self.pass(p, event) {
                        ReplayResult::Passed => _ = self.replica(p).events.pop_front(),
                        ReplayResult::Waits => break,
                        ReplayResult::Impossible => self.ignore(p),
                    }
                    passed = true;
                }
                let me = self.me;
                while self.turn.len() < MAX_BATCH_EVENTS
                    && !self.replica(me).inbox[usize::from(p.0)].is_empty()
                {
                    self.undergo(Event::Received(p));
                    passed = true;
                }
            }
        }
        self.tell(out);
    }

    /// Tells of what I went through, once I have said something by it or can remember no more.
    fn tell(&mut self, out: &mut Actions<Self>) {
        if self.turn.len() < MAX_BATCH_EVENTS
            && let Some(leader) = self.leader.take()
        {
            self.undergo(Event::Leader(leader));
        }
        if self.broadcast.can_broadcast() && (self.spoken || self.turn.len() >= MAX_BATCH_EVENTS) {
            self.spoken = false;
            self.broadcast.broadcast(core::mem::take(&mut self.turn), out);
        }
    }

    fn ignore(&mut self, p: ProcessId) {
        self.replica(p).events.clear();
        self.broadcast.ignore(p);
    }
}

impl<A: Automaton<K>, K: Signer, R: Rules, B: broadcast::Rules> Process for RobustBackup<A, K, R, B> {
    type Cell = Cell<A, K>;
    type Message = ();
    type Value = A::Value;

    fn handle(&mut self, input: Input<Self::Cell, ()>, out: &mut Actions<Self>) {
        match input {
            Input::Start => {
                self.undergo(Event::Begin(self.input.clone()));
                self.broadcast.wake(out);
            }
            Input::Leader(p) => self.leader = Some(p),
            Input::Wake => self.broadcast.wake(out),
            Input::Response { memory, id, response } => {
                match self.broadcast.answered(memory, id, response, out) {
                    // My own I went through when I told of it.
                    Some((p, turn)) if p != self.me => match turn.len() <= MAX_BATCH_EVENTS {
                        true => self.replica(p).events.extend(turn),
                        false => self.ignore(p),
                    },
                    _ => {}
                }
            }
            Input::Message { .. } | Input::Coin(_) => {}
        }
        self.follow(out);
    }

    fn decision(&self) -> Option<&A::Value> {
        self.replicas[usize::from(self.me.0)].automaton.as_ref()?.decision()
    }

    fn attempts(&self) -> u64 {
        self.replicas[usize::from(self.me.0)].automaton.as_ref().map_or(0, Process::attempts)
    }
}
