//! Robust Backup (IRA, section 4.1; Clement et al., PODC 2012): turns a message-passing algorithm
//! that tolerates crashes into an algorithm that tolerates Byzantine processes. n ≥ 2fP + 1
//! processes, of which up to fP are Byzantine, and m ≥ 2fM + 1 memories, of which up to fM may
//! crash.
//!
//! In the paper, T-send broadcasts each message together with its sender's history, and T-receive
//! accepts a message only if the algorithm can produce the message from that history. Here, a
//! process broadcasts the new [`Event`]s of its history instead. Every process derives the sender's
//! messages by running the sender's automaton on these events:
//!
//! ```text
//! p's input, leaders from Ω, senders of received messages ──broadcast──▶ all: run p's automaton ──▶ p's messages
//! ```
//!
//! A process therefore cannot send a message that the algorithm would not send. A Byzantine process
//! can choose its input, its leaders, and the order of senders from which it receives. A Byzantine
//! process cannot give two processes different histories, because the broadcast is
//! non-equivocating. A receive event contains only the sender's id, and stands for the sender's
//! next message to the receiver. If a process claims to have received a message that its sender has
//! not sent yet, the replay of the claiming process stops until the sender's events are delivered,
//! possibly forever. If a process broadcasts an impossible event, all others ignore that process.
//!
//! The number of broadcasts per process is bounded by the number of registers in the memories. Each
//! broadcast contains up to [`MAX_BATCH_EVENTS`] events. A process that has used all its broadcasts
//! sends nothing more.

use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;
use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::broadcast::{self, Broadcast, Slot};
use crate::paxos::Paxos;
use crate::signature::Signer;
use crate::{Action, Actions, AllRules, Input, Process, ProcessId, Region, RuleSet, Value};

/// The maximum number of events in a broadcast.
pub const MAX_BATCH_EVENTS: usize = 32;

/// A message-passing algorithm that other processes can replay.
pub trait Automaton<K>: Process<Cell = ()> {
    /// The initial input of a process. A Byzantine process may choose any input, so the automaton
    /// verifies the input.
    type Input: Value + Serialize;

    /// Creates the initial state of a process.
    fn begin(me: ProcessId, processes: u8, input: Self::Input, keys: &K) -> Self;
}

impl<V: Value + Serialize, K> Automaton<K> for Paxos<V> {
    type Input = V;

    fn begin(me: ProcessId, processes: u8, input: V, _: &K) -> Paxos<V> {
        Paxos::new(me, processes, input)
    }
}

/// An event in the history of a process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Event<I> {
    /// The process starts. This is the first event, and occurs once.
    Begin(I),
    /// Ω names a leader.
    Leader(ProcessId),
    /// The process receives the next message that this sender has sent to it.
    Received(ProcessId),
}

/// The events that a process broadcasts together.
pub type EventBatch<I> = Vec<Event<I>>;

/// The content of a register.
pub type Cell<A, K> = Slot<EventBatch<<A as Automaton<K>>::Input>, <K as Signer>::Signature>;

/// The rules that safety rests on, in addition to the rules of the broadcast
/// ([`broadcast::Rules`]). A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// The replay of a process waits for the messages that the process claims to have received.
    /// Without the rule, the replay skips such an event.
    const WAITS_FOR_UNDELIVERED: bool = true;
    /// A process starts once. Otherwise, it could lose its promises and accepted values.
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
    /// The leader that Ω named last, if it is not in the history yet.
    leader: Option<ProcessId>,
    /// This process's events that are not broadcast yet.
    batch: EventBatch<A::Input>,
    /// Whether the events of `batch` made the process send a message.
    has_sent: bool,
    rules: PhantomData<R>,
}

/// The replay of one process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Replica<A: Automaton<K>, K> {
    automaton: Option<A>,
    /// The process's events that are delivered and not replayed yet.
    events: VecDeque<Event<A::Input>>,
    /// By sender: the messages that were sent to the process and that it has not received yet.
    inbox: Vec<VecDeque<A::Message>>,
}

enum ReplayResult {
    Replayed,
    /// The event receives a message that this process cannot derive yet.
    Waits,
    /// No process can have this event at this point of its history.
    Impossible,
}

impl<A: Automaton<K>, K: Signer, R: Rules, B: broadcast::Rules> RobustBackup<A, K, R, B> {
    /// Creates a process with the initial input `input`, among `processes` processes and `memories`
    /// memories. `room` is the maximum number of broadcasts per process.
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
            batch: Vec::new(),
            has_sent: false,
            rules: PhantomData,
        }
    }

    /// Returns the regions of each memory, which equal the regions of the broadcast.
    pub fn regions(processes: u8, room: u16) -> Vec<Region> {
        Broadcast::<EventBatch<A::Input>, K, B>::regions(processes, room)
    }

    fn replica(&mut self, p: ProcessId) -> &mut Replica<A, K> {
        &mut self.replicas[usize::from(p.0)]
    }

    /// Replays an event of process `p`, and puts the messages that `p` sends into the receivers'
    /// inboxes.
    fn replay(&mut self, p: ProcessId, event: Event<A::Input>) -> ReplayResult {
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
                    None => return ReplayResult::Replayed,
                }
            }
        };
        let Some(automaton) = &mut replica.automaton else { return ReplayResult::Impossible };
        let mut actions = Vec::new();
        automaton.handle(input, &mut actions);
        for action in actions {
            if let Action::Send { to, message } = action {
                self.has_sent |= p == self.me;
                self.replica(to).inbox[usize::from(p.0)].push_back(message);
            }
        }
        ReplayResult::Replayed
    }

    /// Executes an event of this process, and adds the event to the next broadcast.
    fn execute_own(&mut self, event: Event<A::Input>) {
        if let ReplayResult::Replayed = self.replay(self.me, event.clone()) {
            self.batch.push(event);
        }
    }

    /// Replays the events of the other processes as far as possible, receives their messages to
    /// this process, and broadcasts this process's events if necessary.
    fn replay_all(&mut self, out: &mut Actions<Self>) {
        let processes = (0..self.processes).map(ProcessId);
        let others: Vec<ProcessId> = processes.filter(|&p| p != self.me).collect();
        let mut progressed = true;
        while progressed {
            progressed = false;
            for &p in &others {
                while let Some(event) = self.replica(p).events.front().cloned() {
                    match self.replay(p, event) {
                        ReplayResult::Replayed => _ = self.replica(p).events.pop_front(),
                        ReplayResult::Waits => break,
                        ReplayResult::Impossible => self.ignore(p),
                    }
                    progressed = true;
                }
                let me = self.me;
                while self.batch.len() < MAX_BATCH_EVENTS
                    && !self.replica(me).inbox[usize::from(p.0)].is_empty()
                {
                    self.execute_own(Event::Received(p));
                    progressed = true;
                }
            }
        }
        self.broadcast_batch(out);
    }

    /// Adds the leader that Ω named last to this process's events. Then broadcasts the events if
    /// the previous broadcast has ended, and if the events made the process send a message or the
    /// batch is full.
    fn broadcast_batch(&mut self, out: &mut Actions<Self>) {
        if self.batch.len() < MAX_BATCH_EVENTS
            && let Some(leader) = self.leader.take()
        {
            self.execute_own(Event::Leader(leader));
        }
        if self.broadcast.can_broadcast() && (self.has_sent || self.batch.len() >= MAX_BATCH_EVENTS) {
            self.has_sent = false;
            self.broadcast.broadcast(core::mem::take(&mut self.batch), out);
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
                self.execute_own(Event::Begin(self.input.clone()));
                self.broadcast.on_wake(out);
            }
            Input::Leader(p) => self.leader = Some(p),
            Input::Wake => self.broadcast.on_wake(out),
            Input::Response { memory, id, response } => {
                match self.broadcast.on_response(memory, id, response, out) {
                    // A process executes its own events before it broadcasts these events.
                    Some((p, batch)) if p != self.me => match batch.len() <= MAX_BATCH_EVENTS {
                        true => self.replica(p).events.extend(batch),
                        false => self.ignore(p),
                    },
                    _ => {}
                }
            }
            Input::Message { .. } | Input::Coin(_) => {}
        }
        self.replay_all(out);
    }

    fn decision(&self) -> Option<&A::Value> {
        self.replicas[usize::from(self.me.0)].automaton.as_ref()?.decision()
    }

    fn attempts(&self) -> u64 {
        self.replicas[usize::from(self.me.0)].automaton.as_ref().map_or(0, Process::attempts)
    }
}
