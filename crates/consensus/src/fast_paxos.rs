//! Fast Paxos (Lamport, "Fast Paxos", Distributed Computing, 2006): the baseline in which every
//! process proposes directly to the acceptors, without a leader. Up to f of n processes may crash.
//! If at most e processes have crashed, the fast path still decides. The numbers satisfy n > 2f and
//! n > 2e + f.
//!
//! | run | delays |
//! |---|---|
//! | no concurrent proposal | 2: proposal, vote |
//! | a collision, and process 0 leads | 4: the leader treats the votes as promises, and proposes again |
//! | a collision, and another process leads | 6: the leader's ballot does not directly follow the fast ballot, so the leader needs promises |
//!
//! If the proposers' own votes reveal the collision, the run takes one delay less, because a
//! proposer votes for its own value at once.
//!
//! Ballot 0 is the fast ballot. In the fast ballot, each acceptor votes once, for the first
//! proposal that it receives, and sends its vote to all processes. A value with n − e votes is
//! decided. All other ballots are ballots of classic Paxos, with quorums of n − f acceptors.
//!
//! After the fast ballot, a leader has the reports of a quorum Q. If a fast quorum may have chosen
//! a value, the leader must propose this value (Lamport's rule O4). Such a value has at least |Q| −
//! e votes in Q. Since |Q| ≥ n − f > 2e, these votes are more than half of Q. The leader therefore
//! proposes the value with the most votes in Q. If no value has |Q| − e votes, every value is
//! allowed.
//!
//! A vote in the fast ballot also serves as a promise to the next ballot: an acceptor votes once
//! per ballot, and there is no ballot in between (Lamport's coordinated recovery). The next ballot
//! is the first ballot of process 0.

mod quorums;

use core::marker::PhantomData;

use mitra_mutants::Mutant;
pub use quorums::Quorums;
use serde::{Deserialize, Serialize};

use crate::paxos::{self, Acceptor, Attempt};
use crate::process::{ballot_above, send_others};
use crate::{Action, Actions, AllRules, Input, Process, ProcessId, ProcessSet, RuleSet, Value};

/// The fast ballot, in which every process may propose.
const FAST: u64 = 0;

/// A message between processes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Message<V> {
    /// Asks the acceptor to vote for this value in the fast ballot.
    Propose(V),
    /// The sender has voted for this value in the fast ballot.
    Voted(V),
    /// A message of a classic ballot, or a decision.
    Classic(paxos::Message<V>),
}

/// The rules that safety rests on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// The fast ballot needs n − e votes. Without the rule, n − e − 1 suffice.
    const FAST_QUORUM: bool = true;
    /// An acceptor votes once in the fast ballot. Without the rule, it votes for every proposal.
    const VOTES_ONCE: bool = true;
    /// An acceptor takes part in no ballot, including the fast ballot, that is lower than the
    /// ballot it has promised.
    const KEEPS_PROMISES: bool = true;
    /// If values were accepted before, a leader proposes one of them.
    const ADOPTS: bool = true;
    /// Among the values of one ballot, a leader proposes the value with the most votes. Without the
    /// rule, it proposes the greatest value.
    const BY_VOTES: bool = true;
    /// A leader considers the reports of the highest ballot only. Without the rule, it considers
    /// all reports.
    const BY_BALLOT: bool = true;
    /// A vote is a promise to the next ballot only. Without the rule, a leader treats a vote as a
    /// promise to every ballot.
    const NEXT_BALLOT_ONLY: bool = true;
}

impl Rules for AllRules {}

/// A process of Fast Paxos: a proposer, an acceptor and a learner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FastPaxos<V, R = AllRules> {
    me: ProcessId,
    quorums: Quorums,
    /// The value that this process proposes as leader if it is free to choose: its own input, or
    /// otherwise the first proposal that it received.
    input: Option<V>,
    is_leader: bool,
    attempts: u64,
    highest_ballot: u64,
    /// The votes of the fast ballot that this process has received.
    votes: Reports<V>,
    /// The current attempt as leader, with the reports that it is based on.
    attempt: Option<(Attempt<V>, Reports<V>)>,
    acceptor: Acceptor<V>,
    decided: Option<V>,
    rules: PhantomData<R>,
}

/// The acceptors' reports: the acceptor, the ballot in which it accepted a value, and the value.
type Reports<V> = Vec<(ProcessId, u64, V)>;

impl<V: Value, R: Rules> FastPaxos<V, R> {
    /// Creates a process that proposes `input` when it starts. If `input` is `None`, it proposes
    /// nothing.
    pub fn new(me: ProcessId, quorums: Quorums, input: Option<V>) -> FastPaxos<V, R> {
        FastPaxos {
            me,
            quorums,
            input,
            is_leader: false,
            attempts: 0,
            highest_ballot: 0,
            votes: Vec::new(),
            attempt: None,
            acceptor: Acceptor::default(),
            decided: None,
            rules: PhantomData,
        }
    }

    /// Sends a message to all processes, including this one.
    fn send_all(&mut self, message: &Message<V>, out: &mut Actions<Self>) {
        send_others(self.me, self.quorums.processes, message, out);
        self.on_message(self.me, message.clone(), out);
    }

    fn send(&mut self, to: ProcessId, message: paxos::Message<V>, out: &mut Actions<Self>) {
        match to == self.me {
            true => self.hear_classic(to, message, out),
            false => out.push(Action::Send { to, message: Message::Classic(message) }),
        }
    }

    fn most_votes(&self) -> usize {
        let votes_for = |value| self.votes.iter().filter(|(_, _, other)| other == value).count();
        self.votes.iter().map(|(_, _, value)| votes_for(value)).max().unwrap_or(0)
    }

    fn on_vote(&mut self, from: ProcessId, value: V, out: &mut Actions<Self>) {
        if R::VOTES_ONCE && self.votes.iter().any(|&(voter, ..)| voter == from) {
            return;
        }
        self.votes.push((from, FAST, value.clone()));
        self.votes.sort();
        let votes = self.votes.iter().filter(|(_, _, other)| *other == value).count();
        if votes >= self.quorums.fast - usize::from(!R::FAST_QUORUM || Mutant::FastQuorumTooSmall.is_on()) {
            self.attempt = None;
            self.decided.get_or_insert(value);
        }
        self.recover(out);
    }

    /// Returns whether a classic quorum has voted, and the missing votes cannot give any value a
    /// fast quorum.
    fn has_collided(&self) -> bool {
        let absent = usize::from(self.quorums.processes).saturating_sub(self.votes.len());
        self.votes.len() >= self.quorums.classic && self.most_votes() + absent < self.quorums.fast
    }

    /// Begins a classic ballot if this process leads and the proposals have collided.
    fn recover(&mut self, out: &mut Actions<Self>) {
        if self.has_collided() {
            self.begin(true, out);
        }
    }

    /// Begins a classic ballot if this process leads. If `enough_voted` is true, a classic quorum
    /// has voted in the fast ballot; the next ballot then needs no promises.
    fn begin(&mut self, enough_voted: bool, out: &mut Actions<Self>) {
        if !self.is_leader || self.decided.is_some() || self.attempt.is_some() {
            return;
        }
        let next = self.me == ProcessId(0) && self.highest_ballot == FAST;
        let ballot = ballot_above(self.highest_ballot, self.me, self.quorums.processes);
        self.highest_ballot = ballot;
        self.attempts += 1;
        let mut attempt = Attempt::new(ballot);
        if enough_voted && (next || !R::NEXT_BALLOT_ONLY) {
            attempt.promises = self.votes.iter().fold(ProcessSet::NONE, |all, &(voter, ..)| all.with(voter));
            self.attempt = Some((attempt, self.votes.clone()));
            self.propose(out);
        } else {
            self.attempt = Some((attempt, Vec::new()));
            self.send_all(&Message::Classic(paxos::Message::Prepare(ballot)), out);
        }
    }

    /// If a quorum has promised, proposes the value that the reports require, or, if there are no
    /// reports, any known value.
    fn propose(&mut self, out: &mut Actions<Self>) {
        let Some((attempt, reports)) = &mut self.attempt else { return };
        if attempt.promises.len() < self.quorums.classic || attempt.proposed.is_some() {
            return;
        }
        let picked = pick::<V, R>(reports).filter(|_| R::ADOPTS);
        let Some(value) = picked.or_else(|| self.input.clone()) else { return };
        attempt.proposed = Some(value.clone());
        let message = paxos::Message::Accept(attempt.ballot, value);
        self.send_all(&Message::Classic(message), out);
    }

    fn on_message(&mut self, from: ProcessId, message: Message<V>, out: &mut Actions<Self>) {
        match message {
            Message::Propose(value) => {
                self.input.get_or_insert(value.clone());
                let Acceptor { promised, accepted } = &self.acceptor;
                let open = *promised == FAST || !R::KEEPS_PROMISES;
                if open && (accepted.is_none() || !R::VOTES_ONCE) {
                    self.acceptor.accepted = Some((FAST, value.clone()));
                    self.send_all(&Message::Voted(value), out);
                }
                self.propose(out);
            }
            Message::Voted(value) => self.on_vote(from, value, out),
            Message::Classic(message) => self.hear_classic(from, message, out),
        }
    }

    fn attempt(&mut self, ballot: u64) -> Option<&mut (Attempt<V>, Reports<V>)> {
        self.attempt.as_mut().filter(|(attempt, _)| attempt.ballot == ballot)
    }

    fn hear_classic(&mut self, from: ProcessId, message: paxos::Message<V>, out: &mut Actions<Self>) {
        use paxos::Message;
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
                let Some((attempt, reports)) = self.attempt(ballot) else { return };
                if attempt.proposed.is_none() && !attempt.promises.contains(from) {
                    attempt.promises = attempt.promises.with(from);
                    reports.extend(last.map(|(ballot, value)| (from, ballot, value)));
                    self.propose(out);
                }
            }
            Message::Accepted(ballot) => {
                let quorum = self.quorums.classic;
                let Some((attempt, _)) = self.attempt(ballot) else { return };
                attempt.acceptors = attempt.acceptors.with(from);
                if attempt.acceptors.len() >= quorum
                    && let Some(value) = attempt.proposed.clone()
                {
                    self.send_all(&self::Message::Classic(Message::Decided(value)), out);
                }
            }
            Message::Refused(ballot, promised) => {
                self.highest_ballot = self.highest_ballot.max(promised);
                if self.attempt(ballot).is_some() {
                    self.attempt = None;
                    self.begin(false, out);
                }
            }
            Message::Decided(value) => {
                self.attempt = None;
                self.decided.get_or_insert(value);
            }
        }
    }
}

/// Returns the value that a leader proposes after a quorum's reports: the value with the most votes
/// in the highest ballot. Returns `None` if there are no reports.
fn pick<V: Value, R: Rules>(reports: &Reports<V>) -> Option<V> {
    let highest = reports.iter().map(|&(_, ballot, _)| ballot).max()?;
    let counted = reports.iter().filter(|&&(_, ballot, _)| ballot == highest || !R::BY_BALLOT);
    let values: Vec<&V> = counted.map(|(_, _, value)| value).collect();
    let votes = |value| values.iter().filter(|&&other| other == value).count();
    values.iter().copied().max_by_key(|&value| (if R::BY_VOTES { votes(value) } else { 0 }, value)).cloned()
}

impl<V: Value, R: Rules> Process for FastPaxos<V, R> {
    type Cell = ();
    type Message = Message<V>;
    type Value = V;

    fn handle(&mut self, input: Input<(), Message<V>>, out: &mut Actions<Self>) {
        match input {
            Input::Start => {
                if let Some(value) = self.input.clone() {
                    self.send_all(&Message::Propose(value), out);
                }
            }
            Input::Leader(p) => {
                self.is_leader = p == self.me;
                self.recover(out);
                // If too many processes have crashed, the fast ballot may fail without a collision.
                // Only a timeout reveals this failure.
                if self.is_leader && self.decided.is_none() && self.attempt.is_none() {
                    out.push(Action::Wake);
                }
            }
            Input::Message { from, message } => self.on_message(from, message, out),
            Input::Wake => self.begin(false, out),
            Input::Response { .. } | Input::Coin(_) => {}
        }
    }

    fn decision(&self) -> Option<&V> {
        self.decided.as_ref()
    }

    fn attempts(&self) -> u64 {
        self.attempts
    }
}

#[cfg(test)]
mod tests {
    use super::quorums::tests::sets;
    use super::*;

    #[test]
    fn pick_returns_the_chosen_value() {
        for n in 1..=9u8 {
            for (f, e) in (0..=n).flat_map(|f| (0..=f).map(move |e| (f, e))) {
                let Some(quorums) = Quorums::new(n, f, e) else { continue };
                for (chosen, reporting) in sets(n, quorums.fast).into_iter().flat_map(|chosen| {
                    sets(n, quorums.classic).into_iter().map(move |reporting| (chosen, reporting))
                }) {
                    // The hardest case: all acceptors that did not vote for `value` vote for the
                    // same other value. Both orders of the two values are tested.
                    for (value, other) in [(1, 2), (2, 1)] {
                        let vote = |p: u8| if chosen >> p & 1 == 1 { value } else { other };
                        let voters = (0..n).filter(|p| reporting >> p & 1 == 1);
                        let reports = voters.map(|p| (ProcessId(p), FAST, vote(p))).collect();
                        assert_eq!(
                            pick::<u8, AllRules>(&reports),
                            Some(value),
                            "n={n} f={f} e={e} {reports:?}"
                        );
                    }
                }
            }
        }
    }
}
