//! Fast Paxos (Lamport, "Fast Paxos", Distributed Computing 2006): the baseline in which any process proposes straight to the acceptors,
//! with no leader in between. n > 2f and n > 2e + f processes, crashes only: f may crash at all, e of them without loss of speed.
//!
//! | | delays |
//! |---|---|
//! | nobody else's proposal comes in between | 2: proposal, vote |
//! | a collision, and the first process leads | 4: it takes the votes for promises, and proposes anew |
//! | a collision, and another leads | 6: its ballot is not the next one, so it asks for promises |
//!
//! One less where a collision shows by the votes of the proposers, who vote for their own at once.
//!
//! Ballot 0 is the fast one: each acceptor votes once in it, for the first proposal that it hears, and tells everybody. Whatever
//! n − e acceptors vote for is decided. All other ballots are those of Paxos, with quorums of n − f.
//!
//! What a leader may propose after the fast ballot (Lamport's rule O4): of a quorum Q, what all of Q vote for that are in some fast
//! quorum. That is |Q| − e votes or more; and since |Q| ≥ n − f > 2e, these are most of Q. So the value of the most votes is
//! always right, and where none has so many, any is.
//!
//! A vote in the fast ballot is as good as a promise to the next ballot, as nobody votes twice in one ballot and there is none in
//! between (Lamport's coordinated recovery). The next ballot is the first process's first.

use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::paxos::{self, Acceptor, Attempt};
use crate::process::{ballot_above, send_others};
use crate::{Action, Actions, AllRules, Input, Process, ProcessId, ProcessSet, RuleSet, Value};

/// The ballot in which everybody proposes.
const FAST: u64 = 0;

/// How many acceptors are enough.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quorums {
    processes: u8,
    /// In an ordinary ballot: any two of these share an acceptor.
    classic: usize,
    /// In the fast ballot: any two of these and one ordinary quorum share an acceptor.
    fast: usize,
}

impl Quorums {
    /// Of `processes` acceptors, `crashes` (f) may crash; and with `fast_crashes` (e) of them crashed, the fast ballot still decides.
    /// None unless n > 2f and n > 2e + f; and e ≤ f, as beyond f nothing goes on.
    pub fn new(processes: u8, crashes: u8, fast_crashes: u8) -> Option<Quorums> {
        let (n, f, e) = (usize::from(processes), usize::from(crashes), usize::from(fast_crashes));
        let quorums = Quorums { processes, classic: n.checked_sub(f)?, fast: n.checked_sub(e)? };
        (n > 2 * f && n > 2 * e + f && e <= f).then_some(quorums)
    }
}

/// What processes say.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Message<V> {
    /// The fast ballot: vote for this value.
    Propose(V),
    /// I have voted for it.
    Voted(V),
    /// What belongs to an ordinary ballot, or to none.
    Classic(paxos::Message<V>),
}

/// The rules that safety rests on, for checkers to switch off.
pub trait Rules: RuleSet {
    /// The fast ballot needs n − e votes. Else n − e − 1 are enough.
    const FAST_QUORUM: bool = true;
    /// An acceptor votes once in the fast ballot. Else for every proposal.
    const VOTES_ONCE: bool = true;
    /// An acceptor takes part in no ballot, the fast one included, below the one that it has promised.
    const KEEPS_PROMISES: bool = true;
    /// A leader proposes what was accepted before, if anything was.
    const ADOPTS: bool = true;
    /// Of the values of a ballot, a leader takes that of the most votes. Else the greatest.
    const BY_VOTES: bool = true;
    /// Only reports of the highest ballot count. Else those of all.
    const BY_BALLOT: bool = true;
    /// Votes are promises to the next ballot only. Else a leader takes them for promises to any.
    const NEXT_BALLOT_ONLY: bool = true;
}

impl Rules for AllRules {}

/// A process of Fast Paxos: proposer, acceptor and learner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FastPaxos<V, R = AllRules> {
    me: ProcessId,
    quorums: Quorums,
    /// What a leader may propose if it is free: its own input, or the first proposal that it has heard.
    input: Option<V>,
    leads: bool,
    attempts: u64,
    seen: u64,
    /// Who has voted for what in the fast ballot.
    votes: Reports<V>,
    attempt: Option<(Attempt<V>, Reports<V>)>,
    acceptor: Acceptor<V>,
    decided: Option<V>,
    rules: PhantomData<R>,
}

/// What acceptors have accepted: ballots and values.
type Reports<V> = Vec<(ProcessId, u64, V)>;

impl<V: Value, R: Rules> FastPaxos<V, R> {
    /// A process that proposes `input` as soon as it starts, or leaves that to others.
    pub fn new(me: ProcessId, quorums: Quorums, input: Option<V>) -> FastPaxos<V, R> {
        FastPaxos {
            me,
            quorums,
            input,
            leads: false,
            attempts: 0,
            seen: 0,
            votes: Vec::new(),
            attempt: None,
            acceptor: Acceptor::default(),
            decided: None,
            rules: PhantomData,
        }
    }

    /// To everybody, this process included.
    fn send_all(&mut self, message: &Message<V>, out: &mut Actions<Self>) {
        send_others(self.me, self.quorums.processes, message, out);
        self.hear(self.me, message.clone(), out);
    }

    fn send(&mut self, to: ProcessId, message: paxos::Message<V>, out: &mut Actions<Self>) {
        match to == self.me {
            true => self.hear_classic(to, message, out),
            false => out.push(Action::Send { to, message: Message::Classic(message) }),
        }
    }

    /// How many have voted for the value of the most votes.
    fn most_votes(&self) -> usize {
        let votes_for = |value| self.votes.iter().filter(|(_, _, other)| other == value).count();
        self.votes.iter().map(|(_, _, value)| votes_for(value)).max().unwrap_or(0)
    }

    /// As a learner: another's vote.
    fn voted(&mut self, from: ProcessId, value: V, out: &mut Actions<Self>) {
        if R::VOTES_ONCE && self.votes.iter().any(|&(voter, ..)| voter == from) {
            return;
        }
        self.votes.push((from, FAST, value.clone()));
        self.votes.sort();
        let votes = self.votes.iter().filter(|(_, _, other)| *other == value).count();
        if votes >= self.quorums.fast - usize::from(!R::FAST_QUORUM) {
            self.attempt = None;
            self.decided.get_or_insert(value);
        }
        self.recover(out);
    }

    /// After a collision, whatever votes are still to come, no value can win the fast ballot any more.
    fn collided(&self) -> bool {
        let absent = usize::from(self.quorums.processes).saturating_sub(self.votes.len());
        self.votes.len() >= self.quorums.classic && self.most_votes() + absent < self.quorums.fast
    }

    /// As a leader: after a collision, goes on.
    fn recover(&mut self, out: &mut Actions<Self>) {
        if self.collided() {
            self.begin(true, out);
        }
    }

    /// An ordinary ballot begins. The next one after the fast ballot needs no more promises if enough have voted.
    fn begin(&mut self, enough_voted: bool, out: &mut Actions<Self>) {
        if !self.leads || self.decided.is_some() || self.attempt.is_some() {
            return;
        }
        let next = self.me == ProcessId(0) && self.seen == FAST;
        let ballot = ballot_above(self.seen, self.me, self.quorums.processes);
        self.seen = ballot;
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

    /// Once a quorum has promised: proposes what may have been decided before, else what it likes, as soon as there is any.
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

    fn hear(&mut self, from: ProcessId, message: Message<V>, out: &mut Actions<Self>) {
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
            Message::Voted(value) => self.voted(from, value, out),
            Message::Classic(message) => self.hear_classic(from, message, out),
        }
    }

    /// The attempt of this ballot, if it is still under way.
    fn attempt(&mut self, ballot: u64) -> Option<&mut (Attempt<V>, Reports<V>)> {
        self.attempt.as_mut().filter(|(attempt, _)| attempt.ballot == ballot)
    }

    fn hear_classic(&mut self, from: ProcessId, message: paxos::Message<V>, out: &mut Actions<Self>) {
        use paxos::Message;
        match message {
            Message::Prepare(ballot) => {
                self.seen = self.seen.max(ballot);
                let answer = self.acceptor.prepare(ballot, R::KEEPS_PROMISES);
                self.send(from, answer, out);
            }
            Message::Accept(ballot, value) => {
                self.seen = self.seen.max(ballot);
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
                self.seen = self.seen.max(promised);
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

/// What a quorum's reports tell a leader to propose: of the highest ballot, the value of the most votes.
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
                self.leads = p == self.me;
                self.recover(out);
                // The fast ballot may take too many crashes to end, without a collision: that only time can tell.
                if self.leads && self.decided.is_none() && self.attempt.is_none() {
                    out.push(Action::Wake);
                }
            }
            Input::Message { from, message } => self.hear(from, message, out),
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
    use super::*;

    /// Sets of acceptors, of so many of `n`.
    fn sets(n: u8, len: usize) -> Vec<u16> {
        (0..1 << n).filter(|set: &u16| set.count_ones() as usize == len).collect()
    }

    /// Up to nine acceptors, the quorums are taken exactly where every two ordinary ones meet, and every two fast ones in every
    /// ordinary one.
    #[test]
    fn quorums_meet_wherever_they_are_allowed_and_nowhere_else() {
        for n in 1..=9 {
            for (f, e) in (0..=n).flat_map(|f| (0..=f).map(move |e| (f, e))) {
                let (classic, fast) = (sets(n, usize::from(n - f)), sets(n, usize::from(n - e)));
                let classic_meet = classic.iter().all(|a| classic.iter().all(|b| a & b != 0));
                let mut two_fast: Vec<u16> =
                    fast.iter().flat_map(|a| fast.iter().map(move |b| a & b)).collect();
                two_fast.sort();
                two_fast.dedup();
                let fast_meet = two_fast.iter().all(|ab| classic.iter().all(|c| ab & c != 0));
                let quorums = Quorums::new(n, f, e);
                assert_eq!(quorums.is_some(), classic_meet && fast_meet, "n={n} f={f} e={e}");
            }
        }
    }

    /// Up to nine acceptors, whatever they voted and whichever quorum is asked: what a fast quorum chose is picked.
    #[test]
    fn what_may_have_been_chosen_is_picked() {
        for n in 1..=9u8 {
            for (f, e) in (0..=n).flat_map(|f| (0..=f).map(move |e| (f, e))) {
                let Some(quorums) = Quorums::new(n, f, e) else { continue };
                for (chosen, asked) in sets(n, quorums.fast)
                    .into_iter()
                    .flat_map(|chosen| sets(n, quorums.classic).into_iter().map(move |asked| (chosen, asked)))
                {
                    // The others all voted for the same, greater or lesser; nothing is harder.
                    for (value, other) in [(1, 2), (2, 1)] {
                        let vote = |p: u8| if chosen >> p & 1 == 1 { value } else { other };
                        let voters = (0..n).filter(|p| asked >> p & 1 == 1);
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
