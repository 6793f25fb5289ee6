//! Hybrid Ben-Or (HBO; "Passing Messages while Sharing Memory", PODC 2018): randomized consensus in
//! which each process shares memory only with its neighbours in a graph. Processes may crash; the
//! memory of a crashed process stays available.
//!
//! The protocol is Ben-Or's algorithm, in which a message carries the votes of its sender and of
//! all the sender's neighbours. The processes that share memory with q agree on q's vote by a
//! consensus object in q's memory. A round needs messages that *represent* more than half of the
//! processes; a few senders with many neighbours can suffice. The number of crashes that the
//! protocol tolerates depends on the graph; `mitra topology` computes it.

use core::marker::PhantomData;
use std::collections::BTreeMap;

use mitra_mutants::Mutant;
use serde::{Deserialize, Serialize};

use crate::{
    Action, Actions, AllRules, Input, LegalChange, MemoryId, Op, OpId, Permissions, Process, ProcessId,
    ProcessSet, Region, RegisterKind, Response, RuleSet,
};

/// The number of rounds for which the memories have registers. A process that has completed all of
/// them takes no further part. The expected number of rounds is small unless the adversary predicts
/// the coins.
pub const MAX_ROUNDS: u8 = 100;

/// The vote of a process in one phase of a round.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Vote {
    /// A vote for a value.
    For(bool),
    /// No value had a majority in the first phase (the paper's `?`).
    Unsure,
}

/// The phases of a round.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// Phase R: each process votes for its value.
    Report,
    /// Phase P: each process votes for the value with a majority in phase R, if there is one.
    Propose,
}

/// A message between processes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The agreed votes of the sender and its neighbours.
    Votes {
        /// The round, from 0.
        round: u8,
        /// The phase of the round.
        phase: Phase,
        /// The votes, by process.
        votes: Vec<(ProcessId, Vote)>,
    },
    /// The value is decided.
    Decided(bool),
}

/// The rules that safety rests on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// The processes that represent a process agree on its vote. Without the rule, each
    /// representing process uses its own vote instead.
    const AGREES_ON_VOTES: bool = true;
    /// A value needs the votes of more than half of all processes to be proposed or decided.
    const BY_MAJORITY: bool = true;
    /// A process adopts a value that was proposed but not decided.
    const ADOPTS: bool = true;
}

impl Rules for AllRules {}

/// A process of HBO.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Hbo<R = AllRules> {
    me: ProcessId,
    processes: u8,
    /// The processes whose memory this process shares, including itself.
    neighbours: Vec<ProcessId>,
    value: bool,
    round: u8,
    phase: Phase,
    /// The agreed votes of this process and its neighbours in this phase, as far as known.
    agreed_votes: Vec<(ProcessId, Vote)>,
    /// Whether the process has sent the agreed votes of this phase, and waits for votes from other
    /// processes.
    awaiting_votes: bool,
    /// The votes received for this phase and later phases.
    received_votes: BTreeMap<(u8, Phase), BTreeMap<ProcessId, Vote>>,
    decided: Option<bool>,
    rules: PhantomData<R>,
}

impl<R: Rules> Hbo<R> {
    /// Creates a process that proposes `input`, among `processes` processes. The process shares
    /// memory with `neighbours`.
    pub fn new(me: ProcessId, processes: u8, neighbours: ProcessSet, input: bool) -> Hbo<R> {
        let with_me = neighbours.with(me);
        Hbo {
            me,
            processes,
            neighbours: (0..processes).map(ProcessId).filter(|&q| with_me.contains(q)).collect(),
            value: input,
            round: 0,
            phase: Phase::Report,
            agreed_votes: Vec::new(),
            awaiting_votes: false,
            received_votes: BTreeMap::new(),
            decided: None,
            rules: PhantomData,
        }
    }

    /// Returns the regions of a process's memory: one region for the process and its neighbours,
    /// with a consensus object per phase.
    pub fn regions(owner: ProcessId, neighbours: ProcessSet) -> Vec<Region> {
        let all = neighbours.with(owner);
        vec![Region {
            registers: 2 * u16::from(MAX_ROUNDS),
            permissions: Permissions { read: all, write: all },
            legal_change: LegalChange::Never,
            kind: RegisterKind::WriteOnce,
        }]
    }

    fn begin_phase(&mut self, vote: Vote, out: &mut Actions<Self>) {
        self.agreed_votes.clear();
        let register = 2 * u16::from(self.round) + u16::from(self.phase == Phase::Propose);
        if register >= 2 * u16::from(MAX_ROUNDS) {
            return;
        }
        for &q in &self.neighbours.clone() {
            if R::AGREES_ON_VOTES {
                let op = Op::WriteOnce { region: 0, register, cell: Some(vote) };
                out.push(Action::Invoke { memory: MemoryId(q.0), id: OpId::ONLY, op });
            } else {
                self.on_vote_agreed(q, vote, out);
            }
        }
    }

    /// Records the agreed vote of a neighbour. Sends the agreed votes once the votes of all
    /// neighbours are known.
    fn on_vote_agreed(&mut self, q: ProcessId, vote: Vote, out: &mut Actions<Self>) {
        self.agreed_votes.push((q, vote));
        if self.agreed_votes.len() < self.neighbours.len() {
            return;
        }
        self.awaiting_votes = true;
        let (round, phase) = (self.round, self.phase);
        let message = Message::Votes { round, phase, votes: self.agreed_votes.clone() };
        for to in (0..self.processes).map(ProcessId).filter(|&to| to != self.me) {
            out.push(Action::Send { to, message: message.clone() });
        }
        let own = self.agreed_votes.clone();
        self.on_votes(round, phase, own, out);
    }

    fn on_votes(&mut self, round: u8, phase: Phase, votes: Vec<(ProcessId, Vote)>, out: &mut Actions<Self>) {
        if (round, phase) >= (self.round, self.phase) {
            let received = self.received_votes.entry((round, phase)).or_default();
            votes.into_iter().for_each(|(q, vote)| _ = received.entry(q).or_insert(vote));
        }
        let half = usize::from(self.processes / 2);
        let Some(received_votes) =
            self.received_votes.get(&(self.round, self.phase)).filter(|_| self.awaiting_votes)
        else {
            return;
        };
        if received_votes.len() <= half {
            return;
        }
        let votes_for = |value| received_votes.values().filter(|&&vote| vote == Vote::For(value)).count();
        let enough = if R::BY_MAJORITY && !Mutant::MinorityDecides.is_on() { half } else { 0 };
        let values = [false, true];
        let chosen = values.into_iter().find(|&value| votes_for(value) > enough);
        let proposed = values.into_iter().find(|&value| votes_for(value) > 0);
        self.received_votes.remove(&(self.round, self.phase));
        // The phase is over also until the coin arrives: votes that arrive late change nothing.
        self.awaiting_votes = false;
        match (self.phase, chosen) {
            (Phase::Report, _) => {
                self.phase = Phase::Propose;
                self.begin_phase(chosen.map_or(Vote::Unsure, Vote::For), out);
            }
            (Phase::Propose, Some(value)) => self.decide(value, out),
            (Phase::Propose, None) => match proposed.filter(|_| R::ADOPTS) {
                Some(value) => self.next_round(value, out),
                None => out.push(Action::FlipCoin),
            },
        }
    }

    fn next_round(&mut self, value: bool, out: &mut Actions<Self>) {
        (self.value, self.round, self.phase) = (value, self.round + 1, Phase::Report);
        self.begin_phase(Vote::For(value), out);
    }

    fn decide(&mut self, value: bool, out: &mut Actions<Self>) {
        if self.decided.is_some() {
            return;
        }
        self.decided = Some(value);
        self.received_votes.clear();
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
            Input::Start => self.begin_phase(Vote::For(self.value), out),
            Input::Response { memory, response: Response::Cells(cells), .. } => {
                if let [Some(vote)] = cells[..] {
                    self.on_vote_agreed(ProcessId(memory.0), vote, out);
                }
            }
            Input::Message { message: Message::Votes { round, phase, votes }, .. } => {
                self.on_votes(round, phase, votes, out);
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
