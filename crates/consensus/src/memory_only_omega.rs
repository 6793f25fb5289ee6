//! The failure detector Ω without messages: the leader election of [`crate::omega`] for links that
//! may lose every message ("Passing Messages while Sharing Memory", PODC 2018). Processes exchange
//! announcements and accusations through registers.
//!
//! ```text
//! p ──"contend" count 3, "accuse" count 1──▶ p's register for q ◀──read at each wake-up── q
//! ```
//!
//! A process has one register for each peer, which no other process writes. The register holds the
//! number of times that the process has sent each message to the peer. A process reads the
//! registers addressed to it at each wake-up, and treats an increased count as a message. A link
//! through such registers loses no message while the memory is alive:
//!
//! - A count stays in the register until it is read. A refused write is repeated, because a NAK
//!   does not show whether the memory executed the write. Writing a count twice is harmless.
//! - Several equal messages between two reads are delivered as one message, at the second read. For
//!   announcements, this makes no difference. Several accusations delivered as one are counted as
//!   one. The accused process reads at each wake-up, and each read with a new accusation adds one.
//!   Under accusations without end, its accusation count therefore still grows without bound.
//! - An announcement is counted only after the announced state is in the register, because
//!   [`Omega`] announces a candidacy only after `active` is written.
//! - At most one operation for messages is outstanding at a time. Further operations for messages
//!   wait in a queue. The election may have one more outstanding operation.
//!
//! *Assumptions:* the assumptions of [`Omega`], except for the reliable links. Processes may crash,
//! but are not Byzantine: the registers addressed to q form one region, in which each writer may
//! write every register. In return, q reads all of them with one operation. *Cost:* one read of n
//! registers per wake-up, n² additional registers, and delivery only at the receiver's next
//! wake-up. In the steady state, the leader writes and all processes read. Where links are
//! reliable, [`Omega`] costs less.

use core::marker::PhantomData;
use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::composite::{translate_op, translate_response};
use crate::omega::{self, Message, Omega, RegisterContent};
use crate::{
    Action, Actions, AllRules, Either, Input, LegalChange, MemoryId, Op, OpId, Permissions, Process,
    ProcessId, ProcessSet, Region, RegisterKind, Response, RuleSet,
};

/// The memory that holds all registers.
const MEMORY: MemoryId = MemoryId(0);

/// The number of times that a process has sent each message to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct MessageCounts {
    /// The number of [`Message::Contend`].
    pub contends: u64,
    /// The number of [`Message::Accuse`].
    pub accuses: u64,
}

impl MessageCounts {
    fn of(&mut self, message: Message) -> &mut u64 {
        match message {
            Message::Contend => &mut self.contends,
            Message::Accuse => &mut self.accuses,
        }
    }
}

/// The message type, which has no values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Never {}

/// The rules that message delivery depends on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// A process reads its messages at each wake-up.
    const READS_MESSAGES: bool = true;
    /// A message is delivered once.
    const DELIVERS_ONCE: bool = true;
    /// A refused write is repeated.
    const RETRIES_REFUSED_WRITES: bool = true;
}

impl Rules for AllRules {}

/// A process of Ω that sends no messages. `R` is the set of rules of message delivery, and `E` the
/// set of rules of the election.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MemoryOnlyOmega<R = AllRules, E = AllRules> {
    me: ProcessId,
    omega: Omega<E>,
    /// The counts of messages sent to each process.
    sent: Vec<MessageCounts>,
    /// The counts of messages received from each process.
    received: Vec<MessageCounts>,
    /// The operations for messages that are to be invoked, in order.
    due: VecDeque<MessageOp>,
    outstanding: Option<MessageOp>,
    rules: PhantomData<R>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum MessageOp {
    /// Writes the counts of messages sent to a process.
    Send(ProcessId),
    /// Reads the counts addressed to this process.
    Receive,
}

/// The parts of a process that invoke operations, as in [`OpId::of_part`]: the election, and the
/// message registers.
const PARTS: u64 = 2;
const ELECTION: u64 = 0;
const MESSAGES: u64 = 1;

impl<R: Rules, E: omega::Rules> MemoryOnlyOmega<R, E> {
    /// Creates a process among `processes` processes.
    pub fn new(me: ProcessId, processes: u8) -> MemoryOnlyOmega<R, E> {
        let no_messages = vec![MessageCounts::default(); processes.into()];
        MemoryOnlyOmega {
            me,
            omega: Omega::new(me, processes),
            sent: no_messages.clone(),
            received: no_messages,
            due: VecDeque::new(),
            outstanding: None,
            rules: PhantomData,
        }
    }

    /// Returns the regions of the memory: the regions of [`Omega`], followed by one region per
    /// process. The process alone may read its region. The other processes may write the region,
    /// and each of them has one register in the region.
    pub fn regions(processes: u8) -> Vec<Region> {
        let region = |p| Region {
            registers: processes.into(),
            permissions: Permissions {
                read: ProcessSet::only(p),
                write: ProcessSet::first(processes).without(p),
            },
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        };
        Omega::<E>::regions(processes).into_iter().chain((0..processes).map(ProcessId).map(region)).collect()
    }

    /// Returns the leader from the point of view of this process.
    pub fn leader(&self) -> ProcessId {
        self.omega.leader()
    }

    fn step_election(&mut self, input: Input<RegisterContent, Message>, out: &mut Actions<Self>) {
        let mut actions = Vec::new();
        self.omega.handle(input, &mut actions);
        for action in actions {
            match action {
                Action::Send { to, message } => {
                    *self.sent[usize::from(to.0)].of(message) += 1;
                    self.schedule(MessageOp::Send(to));
                }
                Action::Invoke { memory, id, op } => {
                    let id = id.of_part(ELECTION, PARTS);
                    out.push(Action::Invoke { memory, id, op: translate_op(op, 0, Either::First) });
                }
                Action::Wake => out.push(Action::Wake),
                Action::FlipCoin => out.push(Action::FlipCoin),
            }
        }
    }

    fn schedule(&mut self, op: MessageOp) {
        if !self.due.contains(&op) {
            self.due.push_back(op);
        }
    }

    fn invoke_next(&mut self, out: &mut Actions<Self>) {
        if self.outstanding.is_some() {
            return;
        }
        self.outstanding = self.due.pop_front();
        let n = self.sent.len() as u8;
        let op = match self.outstanding {
            Some(MessageOp::Send(to)) => Op::Write {
                region: n + to.0,
                register: self.me.0.into(),
                cell: Either::Second(self.sent[usize::from(to.0)]),
            },
            Some(MessageOp::Receive) => Op::Read { region: n + self.me.0, first: 0, count: n.into() },
            None => return,
        };
        out.push(Action::Invoke { memory: MEMORY, id: OpId::ONLY.of_part(MESSAGES, PARTS), op });
    }

    fn on_response(
        &mut self,
        id: OpId,
        response: Response<Either<RegisterContent, MessageCounts>>,
        out: &mut Actions<Self>,
    ) {
        match id.part(PARTS) {
            (ELECTION, id) => {
                let response = translate_response(response, Either::first);
                self.step_election(Input::Response { memory: MEMORY, id, response }, out);
            }
            (_, _) => match (self.outstanding.take(), response) {
                (Some(MessageOp::Send(to)), Response::Nak) if R::RETRIES_REFUSED_WRITES => {
                    self.schedule(MessageOp::Send(to))
                }
                (Some(MessageOp::Receive), Response::Cells(cells)) => {
                    let all = (0..self.sent.len() as u8).map(ProcessId);
                    for (from, sent) in all.zip(cells) {
                        self.deliver_new(from, sent.second(), out);
                    }
                }
                _ => {}
            },
        }
    }

    /// Delivers a message for each count that has increased.
    fn deliver_new(&mut self, from: ProcessId, mut sent: MessageCounts, out: &mut Actions<Self>) {
        for message in [Message::Contend, Message::Accuse] {
            let (sent, received) = (*sent.of(message), self.received[usize::from(from.0)].of(message));
            if sent > *received {
                if R::DELIVERS_ONCE {
                    *received = sent;
                }
                self.step_election(Input::Message { from, message }, out);
            }
        }
    }
}

impl<R: Rules, E: omega::Rules> Process for MemoryOnlyOmega<R, E> {
    type Cell = Either<RegisterContent, MessageCounts>;
    type Message = Never;
    type Value = ProcessId;

    fn handle(&mut self, input: Input<Self::Cell, Never>, out: &mut Actions<Self>) {
        match input {
            Input::Start => self.step_election(Input::Start, out),
            Input::Wake => {
                self.step_election(Input::Wake, out);
                if R::READS_MESSAGES {
                    self.schedule(MessageOp::Receive);
                }
            }
            Input::Response { id, response, .. } => self.on_response(id, response, out),
            Input::Message { message, .. } => match message {},
            Input::Leader(_) | Input::Coin(_) => {}
        }
        self.invoke_next(out);
    }

    /// Returns `None`: the output is [`MemoryOnlyOmega::leader`], which may change.
    fn decision(&self) -> Option<&ProcessId> {
        None
    }

    fn attempts(&self) -> u64 {
        self.omega.attempts()
    }
}
