//! Ω, the leader election, over shared memory (PODC 2018, "Passing Messages while Sharing Memory"; agreement.md §7): from some time on, all
//! living processes name the same living one. Any number of processes may crash; the memory outlives them, links are reliable, and
//! at least one process must be timely in the end, after a time and within a bound that nobody knows.
//!
//! Each process has one register, which it alone writes: a [`State`]. The leader is, of all contenders, the one of the least (badness,
//! id). Who finds that it is this itself keeps incrementing its heartbeat. Others read that on a timer; if there is no progress,
//! they drop it, wait longer from then on, and accuse it, which raises its badness. In the steady state the leader writes, the
//! others read, and nobody sends a message.
//!
//! - Who was accused is worse from then on: else one that stalls again and again would be elected again and again.
//! - Time-outs grow: else no leader would be quick enough for ever.
//! - Whoever yields says so (`active`): silence is no failure then, and the others stop reading it.
//! - A new leader tells the others once that it contends, and only when the memory holds that it is active; and what was read before
//!   that message came is not judged. Else they might find its old state, and drop it for good.
//! - One operation at a time is outstanding, and those that are due take turns: else a process that wakes faster than the memory
//!   answers reads or writes one register for ever, and never learns that another is worse, or better, than it believes.
//!
//! It has no decision; its output is [`Omega::leader`]. For links that lose messages: [`crate::memory_only_omega`].

use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::process::send_others;
use crate::{
    Action, Actions, AllRules, Input, LegalChange, MemoryId, Op, OpId, Permissions, Process, ProcessId,
    ProcessSet, Region, RegisterKind, Response, RuleSet,
};

/// The memory of all registers.
const MEMORY: MemoryId = MemoryId(0);

/// What a process lets the others know.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// Grows while it leads.
    pub heartbeat: u64,
    /// How often it was accused.
    pub badness: u64,
    /// It thinks that it leads.
    pub active: bool,
}

/// What processes say, when they disagree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Message {
    /// I contend: watch me.
    Contend,
    /// You made no progress, and I have dropped you.
    Accuse,
}

/// The rules that the election rests on, for checkers to switch off.
pub trait Rules: RuleSet {
    /// Who makes no progress is told so.
    const ACCUSES: bool = true;
    /// Who is accused is worse from then on.
    const RAISES_BADNESS: bool = true;
    /// Who was accused too soon is given more time.
    const RAISES_TIME_OUT: bool = true;
    /// Registers are read and written in turn. Else those of the least ids first.
    const TAKES_TURNS: bool = true;
    /// A process contends when the memory holds that it is active, not before.
    const ANNOUNCES_AFTER_WRITE: bool = true;
    /// What was asked for before a process said that it contends is not judged.
    const IGNORES_EARLIER_READS: bool = true;
}

impl Rules for AllRules {}

/// A process of Ω.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Omega<R = AllRules> {
    me: ProcessId,
    wakes: u64,
    /// What my register is to hold.
    mine: State,
    /// The others know that I contend.
    announced: bool,
    contenders: ProcessSet,
    others: Vec<Other>,
    /// Whose registers are to be read, in this order, and mine, to be written.
    due: Vec<ProcessId>,
    /// What the memory was asked for.
    asked: Option<Asked>,
    rules: PhantomData<R>,
}

/// What a process knows of another.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Other {
    badness: u64,
    /// At the last read.
    heartbeat: Option<u64>,
    /// How many of my own wakes until it must have made progress, and how many there have been.
    time_out: u64,
    waited: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Asked {
    /// To write a state that is active or not.
    Write(bool),
    /// To read another's.
    Read(ProcessId),
    /// To read one whose answer is too old.
    Stale,
}

impl<R: Rules> Omega<R> {
    /// A process among `processes` processes.
    pub fn new(me: ProcessId, processes: u8) -> Omega<R> {
        let other = Other { badness: 0, heartbeat: None, time_out: 1, waited: 0 };
        Omega {
            me,
            wakes: 0,
            mine: State::default(),
            announced: false,
            contenders: ProcessSet::first(processes),
            others: vec![other; processes.into()],
            due: Vec::new(),
            asked: None,
            rules: PhantomData,
        }
    }

    /// The regions of the one memory: for each process one of one register, which it alone may write.
    pub fn regions(processes: u8) -> Vec<Region> {
        let region = |p| Region {
            registers: 1,
            permissions: Permissions::single_writer(processes, ProcessId(p)),
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        };
        (0..processes).map(region).collect()
    }

    /// Who leads, as far as this process knows.
    pub fn leader(&self) -> ProcessId {
        let contenders = self.processes().filter(|&p| self.contenders.contains(p));
        contenders.min_by_key(|&p| (self.badness(p), p)).unwrap_or(self.me)
    }

    fn badness(&self, p: ProcessId) -> u64 {
        if p == self.me { self.mine.badness } else { self.others[usize::from(p.0)].badness }
    }

    fn processes(&self) -> impl Iterator<Item = ProcessId> + use<R> {
        (0..self.others.len() as u8).map(ProcessId)
    }

    /// Leads or yields, and looks after those that are to make progress.
    fn wake(&mut self, out: &mut Actions<Self>) {
        self.wakes += 1;
        let leads = self.leader() == self.me;
        if leads || self.mine.active {
            self.want(self.me);
        }
        self.mine.heartbeat += u64::from(leads);
        self.mine.active = leads;
        self.announced &= leads;
        if leads && !R::ANNOUNCES_AFTER_WRITE {
            self.announce(out);
        }
        let watched = self.contenders.without(self.me);
        for p in self.processes().filter(|&p| watched.contains(p)) {
            let other = &mut self.others[usize::from(p.0)];
            other.waited += 1;
            if other.waited >= other.time_out {
                other.waited = 0;
                self.want(p);
            }
        }
        self.ask(out);
        out.push(Action::Wake);
    }

    fn want(&mut self, p: ProcessId) {
        if !self.due.contains(&p) {
            self.due.push(p);
        }
    }

    /// Asks the memory for what is next, unless it still owes an answer.
    fn ask(&mut self, out: &mut Actions<Self>) {
        if self.asked.is_some() || self.due.is_empty() {
            return;
        }
        if !R::TAKES_TURNS {
            self.due.sort();
        }
        let p = self.due.remove(0);
        let (asked, op) = if p == self.me {
            let op = Op::Write { region: p.0, register: 0, cell: self.mine.clone() };
            (Asked::Write(self.mine.active), op)
        } else {
            (Asked::Read(p), Op::Read { region: p.0, first: 0, count: 1 })
        };
        self.asked = Some(asked);
        out.push(Action::Invoke { memory: MEMORY, id: OpId::ONLY, op });
    }

    fn announce(&mut self, out: &mut Actions<Self>) {
        if !self.announced {
            self.announced = true;
            send_others(self.me, self.others.len() as u8, &Message::Contend, out);
        }
    }

    fn answered(&mut self, response: Response<State>, out: &mut Actions<Self>) {
        match (self.asked.take(), response) {
            (Some(Asked::Write(true)), Response::Ack) if self.mine.active => self.announce(out),
            (Some(Asked::Read(p)), Response::Cells(cells)) => {
                if let [state] = &cells[..] {
                    self.judge(p, state, out);
                }
            }
            _ => {}
        }
        self.ask(out);
    }

    /// Whether another that is watched has made progress.
    fn judge(&mut self, p: ProcessId, state: &State, out: &mut Actions<Self>) {
        let other = &mut self.others[usize::from(p.0)];
        other.badness = state.badness;
        let before = other.heartbeat.replace(state.heartbeat);
        let stalls = before == Some(state.heartbeat);
        if state.active && !stalls {
            return;
        }
        other.heartbeat = None;
        self.contenders = self.contenders.without(p);
        if state.active {
            other.time_out += u64::from(R::RAISES_TIME_OUT);
            if R::ACCUSES {
                out.push(Action::Send { to: p, message: Message::Accuse });
            }
        }
    }

    fn hear(&mut self, from: ProcessId, message: Message, out: &mut Actions<Self>) {
        if usize::from(from.0) >= self.others.len() {
            return;
        }
        match message {
            Message::Contend => {
                self.contenders = self.contenders.with(from);
                self.want(from);
                let other = &mut self.others[usize::from(from.0)];
                (other.heartbeat, other.waited) = (None, 0);
                if self.asked == Some(Asked::Read(from)) && R::IGNORES_EARLIER_READS {
                    self.asked = Some(Asked::Stale);
                }
            }
            Message::Accuse => {
                if R::RAISES_BADNESS {
                    self.mine.badness += 1;
                    self.want(self.me);
                }
                // The accuser does not watch it any more.
                if self.announced {
                    out.push(Action::Send { to: from, message: Message::Contend });
                }
            }
        }
        self.ask(out);
    }
}

impl<R: Rules> Process for Omega<R> {
    type Cell = State;
    type Message = Message;
    type Value = ProcessId;

    fn handle(&mut self, input: Input<State, Message>, out: &mut Actions<Self>) {
        match input {
            Input::Start => out.push(Action::Wake),
            Input::Wake => self.wake(out),
            Input::Message { from, message } => self.hear(from, message, out),
            Input::Response { response, .. } => self.answered(response, out),
            Input::Leader(_) | Input::Coin(_) => {}
        }
    }

    /// None: leaders come and go.
    fn decision(&self) -> Option<&ProcessId> {
        None
    }

    /// Counts wakes.
    fn attempts(&self) -> u64 {
        self.wakes
    }
}
