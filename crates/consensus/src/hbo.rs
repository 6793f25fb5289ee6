//! HBO (PODC 2018, "Passing Messages while Sharing Memory"; agreement.md §7): randomized consensus where each process shares memory
//! with its neighbours in a graph only, and a memory outlives its process. Crashes only.
//!
//! Ben-Or's algorithm, in which a message speaks for its sender and all its neighbours: whoever shares memory with q settles q's vote
//! with the others by a consensus object in q's memory. So a round needs votes that *represent* more than half of the processes, and
//! those may come from few. How many crashes that survives is a property of the graph: `mitra topology`.

use core::marker::PhantomData;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Action, Actions, AllRules, Input, LegalChange, MemoryId, Op, OpId, Permissions, Process, ProcessId,
    ProcessSet, Region, RegisterKind, Response, RuleSet,
};

/// Rounds for which the memories have room. More than a handful takes an adversary who knows the coins.
pub const MAX_ROUNDS: u8 = 100;

/// A vote: a value, or none in the second phase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Vote {
    /// For a value.
    For(bool),
    /// The first phase had no majority.
    Unsure,
}

/// The two phases of a round.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// R: what everybody has.
    Report,
    /// P: what a majority has, if one has.
    Propose,
}

/// What processes say.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The settled votes of the sender's neighbourhood.
    Votes {
        /// The round, from 0.
        round: u8,
        /// Its phase.
        phase: Phase,
        /// Who votes what.
        votes: Vec<(ProcessId, Vote)>,
    },
    /// It is decided.
    Decided(bool),
}

/// The rules that safety rests on, for checkers to switch off.
pub trait Rules: RuleSet {
    /// Who speaks for another settles its vote with all others who do.
    const AGREES_ON_VOTES: bool = true;
    /// A value is proposed and decided only with the votes of more than half of all.
    const BY_MAJORITY: bool = true;
    /// A proposed value is taken over, where it is not decided.
    const ADOPTS: bool = true;
}

impl Rules for AllRules {}

/// A process of HBO.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Hbo<R = AllRules> {
    me: ProcessId,
    processes: u8,
    /// Those whose memory I share, me included.
    neighbours: Vec<ProcessId>,
    value: bool,
    round: u8,
    phase: Phase,
    /// What is settled of my neighbourhood in this phase.
    settled: Vec<(ProcessId, Vote)>,
    /// Once I have sent my votes: waits for those of others.
    waiting: bool,
    /// What each process votes, as far as I have heard, in this and later phases.
    heard: BTreeMap<(u8, Phase), BTreeMap<ProcessId, Vote>>,
    decided: Option<bool>,
    rules: PhantomData<R>,
}

impl<R: Rules> Hbo<R> {
    /// A process that wants `input` decided, among `processes` processes, and shares memory with `neighbours`.
    pub fn new(me: ProcessId, processes: u8, neighbours: ProcessSet, input: bool) -> Hbo<R> {
        let with_me = neighbours.with(me);
        Hbo {
            me,
            processes,
            neighbours: (0..processes).map(ProcessId).filter(|&q| with_me.contains(q)).collect(),
            value: input,
            round: 0,
            phase: Phase::Report,
            settled: Vec::new(),
            waiting: false,
            heard: BTreeMap::new(),
            decided: None,
            rules: PhantomData,
        }
    }

    /// The regions of a process's memory: one, for it and its neighbours, with a consensus object for each phase.
    pub fn regions(owner: ProcessId, neighbours: ProcessSet) -> Vec<Region> {
        let all = neighbours.with(owner);
        vec![Region {
            registers: 2 * u16::from(MAX_ROUNDS),
            permissions: Permissions { read: all, write: all },
            legal_change: LegalChange::Never,
            kind: RegisterKind::WriteOnce,
        }]
    }

    fn vote(&mut self, vote: Vote, out: &mut Actions<Self>) {
        self.settled.clear();
        self.waiting = false;
        let register = 2 * u16::from(self.round) + u16::from(self.phase == Phase::Propose);
        if register >= 2 * u16::from(MAX_ROUNDS) {
            return;
        }
        for &q in &self.neighbours.clone() {
            if R::AGREES_ON_VOTES {
                let op = Op::WriteOnce { region: 0, register, cell: Some(vote) };
                out.push(Action::Invoke { memory: MemoryId(q.0), id: OpId::ONLY, op });
            } else {
                self.settle(q, vote, out);
            }
        }
    }

    /// The vote of a neighbour is settled; with all of them, they are sent.
    fn settle(&mut self, q: ProcessId, vote: Vote, out: &mut Actions<Self>) {
        self.settled.push((q, vote));
        if self.settled.len() < self.neighbours.len() {
            return;
        }
        self.waiting = true;
        let (round, phase) = (self.round, self.phase);
        let message = Message::Votes { round, phase, votes: self.settled.clone() };
        for to in (0..self.processes).map(ProcessId).filter(|&to| to != self.me) {
            out.push(Action::Send { to, message: message.clone() });
        }
        let own = self.settled.clone();
        self.hear(round, phase, own, out);
    }

    fn hear(&mut self, round: u8, phase: Phase, votes: Vec<(ProcessId, Vote)>, out: &mut Actions<Self>) {
        if (round, phase) >= (self.round, self.phase) {
            let heard = self.heard.entry((round, phase)).or_default();
            votes.into_iter().for_each(|(q, vote)| _ = heard.entry(q).or_insert(vote));
        }
        let half = usize::from(self.processes / 2);
        let Some(heard) = self.heard.get(&(self.round, self.phase)).filter(|_| self.waiting) else { return };
        if heard.len() <= half {
            return;
        }
        let votes_for = |value| heard.values().filter(|&&vote| vote == Vote::For(value)).count();
        let enough = if R::BY_MAJORITY { half } else { 0 };
        let sides = [false, true];
        let chosen = sides.into_iter().find(|&value| votes_for(value) > enough);
        let named = sides.into_iter().find(|&value| votes_for(value) > 0);
        self.heard.remove(&(self.round, self.phase));
        match (self.phase, chosen) {
            (Phase::Report, _) => {
                self.phase = Phase::Propose;
                self.vote(chosen.map_or(Vote::Unsure, Vote::For), out);
            }
            (Phase::Propose, Some(value)) => self.decide(value, out),
            (Phase::Propose, None) => match named.filter(|_| R::ADOPTS) {
                Some(value) => self.next_round(value, out),
                None => out.push(Action::FlipCoin),
            },
        }
    }

    fn next_round(&mut self, value: bool, out: &mut Actions<Self>) {
        (self.value, self.round, self.phase) = (value, self.round + 1, Phase::Report);
        self.vote(Vote::For(value), out);
    }

    fn decide(&mut self, value: bool, out: &mut Actions<Self>) {
        if self.decided.is_some() {
            return;
        }
        (self.decided, self.waiting) = (Some(value), false);
        self.heard.clear();
        for to in (0..self.processes).map(ProcessId).filter(|&to| to != self.me) {
            out.push(Action::Send { to, message: Message::Decided(value) });
        }
    }
}

impl<R: Rules> Process for Hbo<R> {
    type Cell = Option<Vote>;
    type Message = Message;
    type Value = bool;

    fn handle(&mut self, input: Input<Option<Vote>, Message>, out: &mut Actions<Self>) {
        if self.decided.is_some() {
            return;
        }
        match input {
            Input::Start => self.vote(Vote::For(self.value), out),
            Input::Response { memory, response: Response::Cells(cells), .. } => {
                if let [Some(vote)] = cells[..] {
                    self.settle(ProcessId(memory.0), vote, out);
                }
            }
            Input::Message { message: Message::Votes { round, phase, votes }, .. } => {
                self.hear(round, phase, votes, out);
            }
            Input::Message { message: Message::Decided(value), .. } => self.decide(value, out),
            Input::Coin(side) => self.next_round(side, out),
            Input::Leader(_) | Input::Response { .. } | Input::Wake => {}
        }
    }

    fn decision(&self) -> Option<&bool> {
        self.decided.as_ref()
    }

    fn attempts(&self) -> u64 {
        u64::from(self.round) + 1
    }
}
