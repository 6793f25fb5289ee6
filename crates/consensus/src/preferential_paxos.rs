//! Preferential Paxos (PODC 2019, section 4.3; agreement.md §6): Paxos that decides on one of the fP + 1 claims with the best evidence. Each
//! process tells all its [`Claim`], awaits n - fP, its own included, and proposes the best of them. It is an automaton to be run by Robust
//! Backup, as a whole: one that only ran Paxos by it could not see what a process has made of the claims that it has heard.
//!
//! | evidence | priority | |
//! |---|---|---|
//! | all have signed the value | 2 | all correct processes have it: no other value has that |
//! | the leader has | 1 | a correct leader signs one value only |
//! | nobody has | 0 | |
//!
//! How good evidence is everybody finds from the signatures; nobody's word counts for it.

use core::marker::PhantomData;

use serde::Serialize;

use crate::cheap_quorum::{LEADER, VALUE};
use crate::paxos::{self, Paxos};
use crate::process::{majority, send_others};
use crate::robust_backup::Automaton;
use crate::signature::{Signed, Signer};
use crate::{Action, Actions, AllRules, Input, Process, ProcessId, RuleSet, Value};

/// A value, and how good the evidence for it is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Claim<V> {
    /// From 0 to 2.
    pub priority: u8,
    /// What is to be decided.
    pub value: V,
}

/// What processes say.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message<V> {
    /// What I would have decided.
    Claim(Claim<V>),
    /// Of Paxos.
    Paxos(paxos::Message<V>),
}

/// The rules that it rests on, for checkers to switch off.
pub trait Rules: RuleSet {
    /// Signatures are verified, not counted.
    const VERIFIES: bool = true;
    /// The best of the claims is proposed, not one's own.
    const PROPOSES_BEST_CLAIM: bool = true;
}

impl Rules for AllRules {}

/// A process of Preferential Paxos.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PreferentialPaxos<V, R = AllRules> {
    me: ProcessId,
    processes: u8,
    /// The best claim so far, and how many there were.
    best: Claim<V>,
    claims: usize,
    /// Once there are enough.
    paxos: Option<Paxos<V>>,
    /// What came before.
    early: Vec<Input<(), paxos::Message<V>>>,
    rules: PhantomData<R>,
}

impl<V: Value + Serialize, K: Signer, R: Rules> Automaton<K> for PreferentialPaxos<V, R> {
    type Input = Signed<V, K::Signature>;

    fn begin(me: ProcessId, processes: u8, input: Signed<V, K::Signature>, keys: &K) -> Self {
        let evidence = if R::VERIFIES { input.verified(keys, VALUE, ()) } else { input };
        let priority = match evidence.by.len() >= processes.into() {
            true => 2,
            false => u8::from(evidence.by.contains_key(&LEADER)),
        };
        let best = Claim { priority, value: evidence.value };
        PreferentialPaxos {
            me,
            processes,
            best,
            claims: 0,
            paxos: None,
            early: Vec::new(),
            rules: PhantomData,
        }
    }
}

impl<V: Value, R: Rules> PreferentialPaxos<V, R> {
    /// One claim more. With n - fP, Paxos begins.
    fn claim(&mut self, claim: Claim<V>, out: &mut Actions<Self>) {
        if R::PROPOSES_BEST_CLAIM {
            self.best = claim.max(self.best.clone());
        }
        self.claims += 1;
        if self.claims == majority(self.processes.into()) {
            self.paxos = Some(Paxos::new(self.me, self.processes, self.best.value.clone()));
            core::mem::take(&mut self.early).into_iter().for_each(|input| self.tell(input, out));
        }
    }

    /// Tells Paxos something, as soon as it has begun.
    fn tell(&mut self, input: Input<(), paxos::Message<V>>, out: &mut Actions<Self>) {
        let Some(paxos) = &mut self.paxos else { return self.early.push(input) };
        let mut actions = Vec::new();
        paxos.handle(input, &mut actions);
        out.extend(actions.into_iter().filter_map(|action| match action {
            Action::Send { to, message } => Some(Action::Send { to, message: Message::Paxos(message) }),
            Action::Invoke { .. } | Action::Wake | Action::FlipCoin => None,
        }));
    }
}

impl<V: Value, R: Rules> Process for PreferentialPaxos<V, R> {
    type Cell = ();
    type Message = Message<V>;
    type Value = V;

    fn handle(&mut self, input: Input<(), Message<V>>, out: &mut Actions<Self>) {
        match input {
            Input::Start => {
                send_others(self.me, self.processes, &Message::Claim(self.best.clone()), out);
                self.claim(self.best.clone(), out);
            }
            Input::Leader(p) => self.tell(Input::Leader(p), out),
            Input::Message { message: Message::Claim(claim), .. } => self.claim(claim, out),
            Input::Message { from, message: Message::Paxos(message) } => {
                self.tell(Input::Message { from, message }, out);
            }
            Input::Response { .. } | Input::Wake | Input::Coin(_) => {}
        }
    }

    fn decision(&self) -> Option<&V> {
        self.paxos.as_ref()?.decision()
    }

    fn attempts(&self) -> u64 {
        self.paxos.as_ref().map_or(0, Process::attempts)
    }
}
