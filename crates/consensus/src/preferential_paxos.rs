//! Preferential Paxos (IRA, section 4.3): a variant of Paxos that decides one of the fP + 1 claims
//! with the best evidence. Each process sends its [`Claim`] to all processes, awaits n - fP claims
//! including its own, and proposes the best of these claims. Robust Backup runs the whole protocol
//! as one automaton. If Robust Backup ran only the Paxos part, it could not verify that a process
//! proposes the best of the claims that the process received.
//!
//! | evidence | priority | reason |
//! |---|---|---|
//! | all processes have signed the value | 2 | no other value can have this evidence |
//! | the leader has signed the value | 1 | a correct leader signs one value only |
//! | none | 0 | |
//!
//! A claim's priority follows from the signatures: every process that replays the claiming process
//! computes the priority itself.

use core::marker::PhantomData;

use serde::Serialize;

use crate::cheap_quorum::{LEADER, VALUE};
use crate::paxos::{self, Paxos};
use crate::process::{majority, send_others};
use crate::robust_backup::Automaton;
use crate::signature::{Signed, Signer};
use crate::{Action, Actions, AllRules, Input, Process, ProcessId, RuleSet, Value};

/// A value and the priority of its evidence.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Claim<V> {
    /// The priority, from 0 to 2.
    pub priority: u8,
    /// The claimed value.
    pub value: V,
}

/// A message between processes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message<V> {
    /// The sender's claim.
    Claim(Claim<V>),
    /// A message of Paxos.
    Paxos(paxos::Message<V>),
}

/// The rules that the protocol depends on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// Signatures are verified. Without the rule, all are considered valid.
    const VERIFIES: bool = true;
    /// A process proposes the best claim. Without the rule, a process proposes its own claim.
    const PROPOSES_BEST_CLAIM: bool = true;
}

impl Rules for AllRules {}

/// A process of Preferential Paxos.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PreferentialPaxos<V, R = AllRules> {
    me: ProcessId,
    processes: u8,
    /// The best claim so far, including this process's own claim.
    best: Claim<V>,
    /// The number of claims received, including this process's own claim.
    claims: usize,
    /// Paxos, once enough claims have been received.
    paxos: Option<Paxos<V>>,
    /// The inputs to Paxos that arrived before Paxos started.
    queued_inputs: Vec<Input<(), paxos::Message<V>>>,
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
            queued_inputs: Vec::new(),
            rules: PhantomData,
        }
    }
}

impl<V: Value, R: Rules> PreferentialPaxos<V, R> {
    /// Handles a claim. Starts Paxos when it is claim number n - fP.
    fn claim(&mut self, claim: Claim<V>, out: &mut Actions<Self>) {
        if R::PROPOSES_BEST_CLAIM {
            self.best = claim.max(self.best.clone());
        }
        self.claims += 1;
        if self.claims == majority(self.processes.into()) {
            self.paxos = Some(Paxos::new(self.me, self.processes, self.best.value.clone()));
            core::mem::take(&mut self.queued_inputs)
                .into_iter()
                .for_each(|input| self.step_paxos(input, out));
        }
    }

    /// Passes an input to Paxos, or queues it until Paxos starts.
    fn step_paxos(&mut self, input: Input<(), paxos::Message<V>>, out: &mut Actions<Self>) {
        let Some(paxos) = &mut self.paxos else { return self.queued_inputs.push(input) };
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
            Input::Leader(p) => self.step_paxos(Input::Leader(p), out),
            Input::Message { message: Message::Claim(claim), .. } => self.claim(claim, out),
            Input::Message { from, message: Message::Paxos(message) } => {
                self.step_paxos(Input::Message { from, message }, out);
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
