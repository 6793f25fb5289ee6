//! Ω without links: the leader election of [`crate::omega`] where no message can be relied on, so that none is sent (PODC 2018,
//! "Passing Messages while Sharing Memory", links that lose messages; agreement.md §7). What processes tell each other when they
//! disagree goes through the memory.
//!
//! ```text
//! p ──"I contend" 3 times, "I accuse you" once──▶ p's register of those for q ◀──read, when it wakes── q
//! ```
//!
//! Each process has, for each other one, a register that it alone writes: how often it has told that one each thing. Who wakes reads
//! those meant for it, and takes a count that has grown for a message. That is a link that loses nothing, as long as the memory lives:
//!
//! - Counts stay until they are read, and a write that was refused, done or not, is made again. To write a count twice does no harm.
//! - What was told several times between two reads is heard once, later than it was told for the last time. To hear "I contend" twice
//!   is to hear it once. Accusations that are heard as one raise the badness by one, not more: but who is accused again and again
//!   hears it again and again, so its badness still grows without bound; and who is accused no more is no worse from then on.
//! - A count is written after what it tells of: [`Omega`] says that it contends when the memory holds that it is active.
//! - Of what is told and heard one operation at a time is outstanding, and those that are due take turns. The election has another.
//!
//! *Assumes* what [`Omega`] does, but nothing of links. Processes crash and never lie: those that write for q have a region together, so
//! that q reads it at once, and no right keeps one from another's register in it. *Cost:* one read of n registers each time that a
//! process wakes, also of the leader; n² more registers; and what is told is heard at the next wake, not at once. In the steady state
//! the leader writes and all read. Where links are reliable, [`Omega`] is the cheaper one.

use core::marker::PhantomData;
use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::composite::{answer, renamed_op};
use crate::omega::{self, Message, Omega, State};
use crate::{
    Action, Actions, AllRules, Either, Input, LegalChange, MemoryId, Op, OpId, Permissions, Process,
    ProcessId, ProcessSet, Region, RegisterKind, Response, RuleSet,
};

/// The memory of all registers.
const MEMORY: MemoryId = MemoryId(0);

/// How often a process has told another each thing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// [`Message::Contend`].
    pub contends: u64,
    /// [`Message::Accuse`].
    pub accuses: u64,
}

impl Told {
    fn of(&mut self, message: Message) -> &mut u64 {
        match message {
            Message::Contend => &mut self.contends,
            Message::Accuse => &mut self.accuses,
        }
    }
}

/// What processes send: there is none of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Never {}

/// The rules of telling, for checkers to switch off.
pub trait Rules: RuleSet {
    /// Who wakes reads what it was told.
    const READS_MESSAGES: bool = true;
    /// What was heard is not new any more.
    const DELIVERS_ONCE: bool = true;
    /// A write that was refused is made again.
    const RETRIES_REFUSED_WRITES: bool = true;
}

impl Rules for AllRules {}

/// A process of Ω that sends nothing. `R` are the rules of telling, `E` those of the election.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MemoryOnlyOmega<R = AllRules, E = AllRules> {
    me: ProcessId,
    omega: Omega<E>,
    /// What I have told each.
    told: Vec<Told>,
    /// What I have heard of each.
    heard: Vec<Told>,
    /// What is to be done beside the election, in this order.
    due: VecDeque<Job>,
    /// What of it is under way.
    doing: Option<Job>,
    rules: PhantomData<R>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Job {
    /// To write what I have told another.
    Tell(ProcessId),
    /// To read what all have told me.
    Hear,
}

/// The parts of a process that invoke operations: the election, and telling.
const PARTS: u64 = 2;
const ELECTION: u64 = 0;
const TELLING: u64 = 1;

impl<R: Rules, E: omega::Rules> MemoryOnlyOmega<R, E> {
    /// A process among `processes` processes.
    pub fn new(me: ProcessId, processes: u8) -> MemoryOnlyOmega<R, E> {
        let nothing = vec![Told::default(); processes.into()];
        MemoryOnlyOmega {
            me,
            omega: Omega::new(me, processes),
            told: nothing.clone(),
            heard: nothing,
            due: VecDeque::new(),
            doing: None,
            rules: PhantomData,
        }
    }

    /// The regions of the one memory: those of [`Omega`], and for each process one that it alone may read, in which each other one has a
    /// register to write.
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

    /// Who leads, as far as this process knows.
    pub fn leader(&self) -> ProcessId {
        self.omega.leader()
    }

    /// Lets the election take something, and does what it asks for.
    fn elect(&mut self, input: Input<State, Message>, out: &mut Actions<Self>) {
        let mut actions = Vec::new();
        self.omega.handle(input, &mut actions);
        for action in actions {
            match action {
                Action::Send { to, message } => {
                    *self.told[usize::from(to.0)].of(message) += 1;
                    self.want(Job::Tell(to));
                }
                Action::Invoke { memory, id, op } => {
                    let id = id.of_part(ELECTION, PARTS);
                    out.push(Action::Invoke { memory, id, op: renamed_op(op, 0, Either::First) });
                }
                Action::Wake => out.push(Action::Wake),
                Action::FlipCoin => out.push(Action::FlipCoin),
            }
        }
    }

    fn want(&mut self, job: Job) {
        if !self.due.contains(&job) {
            self.due.push_back(job);
        }
    }

    /// Does what is next beside the election, unless something is under way.
    fn go_on(&mut self, out: &mut Actions<Self>) {
        if self.doing.is_some() {
            return;
        }
        self.doing = self.due.pop_front();
        let n = self.told.len() as u8;
        let op = match self.doing {
            Some(Job::Tell(to)) => Op::Write {
                region: n + to.0,
                register: self.me.0.into(),
                cell: Either::Second(self.told[usize::from(to.0)]),
            },
            Some(Job::Hear) => Op::Read { region: n + self.me.0, first: 0, count: n.into() },
            None => return,
        };
        out.push(Action::Invoke { memory: MEMORY, id: OpId::ONLY.of_part(TELLING, PARTS), op });
    }

    fn answered(&mut self, id: OpId, response: Response<Either<State, Told>>, out: &mut Actions<Self>) {
        match id.part(PARTS) {
            (ELECTION, id) => {
                let response = answer(response, Either::first);
                self.elect(Input::Response { memory: MEMORY, id, response }, out);
            }
            (_, _) => match (self.doing.take(), response) {
                (Some(Job::Tell(to)), Response::Nak) if R::RETRIES_REFUSED_WRITES => self.want(Job::Tell(to)),
                (Some(Job::Hear), Response::Cells(cells)) => {
                    let all = (0..self.told.len() as u8).map(ProcessId);
                    for (from, told) in all.zip(cells) {
                        self.hear(from, told.second(), out);
                    }
                }
                _ => {}
            },
        }
    }

    /// Takes for a message what another has told me more often than I have heard.
    fn hear(&mut self, from: ProcessId, mut told: Told, out: &mut Actions<Self>) {
        for message in [Message::Contend, Message::Accuse] {
            let (told, heard) = (*told.of(message), self.heard[usize::from(from.0)].of(message));
            if told > *heard {
                if R::DELIVERS_ONCE {
                    *heard = told;
                }
                self.elect(Input::Message { from, message }, out);
            }
        }
    }
}

impl<R: Rules, E: omega::Rules> Process for MemoryOnlyOmega<R, E> {
    type Cell = Either<State, Told>;
    type Message = Never;
    type Value = ProcessId;

    fn handle(&mut self, input: Input<Self::Cell, Never>, out: &mut Actions<Self>) {
        match input {
            Input::Start => self.elect(Input::Start, out),
            Input::Wake => {
                self.elect(Input::Wake, out);
                if R::READS_MESSAGES {
                    self.want(Job::Hear);
                }
            }
            Input::Response { id, response, .. } => self.answered(id, response, out),
            Input::Message { message, .. } => match message {},
            Input::Leader(_) | Input::Coin(_) => {}
        }
        self.go_on(out);
    }

    /// None: leaders come and go.
    fn decision(&self) -> Option<&ProcessId> {
        None
    }

    /// Counts wakes.
    fn attempts(&self) -> u64 {
        self.omega.attempts()
    }
}
