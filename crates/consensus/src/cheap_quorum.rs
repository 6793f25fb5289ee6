//! Cheap Quorum (IRA, section 4.2): n ≥ 2fP + 1 processes, of which up to fP are Byzantine, and m ≥
//! 2fM + 1 memories, of which up to fM may crash. In a failure-free synchronous run, the leader
//! decides in two delays and with one signature. Otherwise, processes *panic* and then *abort* with
//! a value and the evidence for that value, from which [`crate::preferential_paxos`] continues.
//!
//! ```text
//! leader    ──write signed v──▶ its region ──ack──▶ decides, unless a process has revoked its permission
//! followers ──poll──▶ write v, signed too ──poll──▶ all have written v ▶ write the proof ──poll──▶ all have proofs ▶ decide
//! panicking ──write panic, revoke writing the leader's region, read it──▶ abort
//! ```
//!
//! Each memory has one region with the leader's value, which any process may make read-only, and
//! one region per process, which that process alone may write. Each region has one register, which
//! holds a [`Slot`].
//!
//! - A panicking process revokes the leader's permission and then reads the leader's region *at
//!   each memory*. If the memory acknowledged the leader's write before the revocation, the read
//!   finds the value. A process that revoked at one majority and then read a different majority
//!   could miss the value.
//! - After its decision, the leader acts as a follower too, and writes its own proof, because the
//!   followers wait for the proofs of all processes.
//! - A process that has decided keeps polling, and joins a panic. Otherwise, too few processes
//!   would take part in the fallback.
//! - A follower may already have decided a value that has the signatures of all n processes. The
//!   leader may already have decided a value that has the leader's signature alone.

use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;
use std::collections::BTreeMap;

use mitra_mutants::Mutant;
use serde::{Deserialize, Serialize};

use crate::replicated_registers::{CallOutcome, ReplicatedRegisters, WriteOnceFields, unique_value};
use crate::signature::{Purpose, Signed, Signer};
use crate::{
    Action, Actions, AllRules, Input, LegalChange, Op, Permissions, Process, ProcessId, Region, RegisterKind,
    RuleSet, Value,
};

/// The only leader (p1 in the paper).
pub const LEADER: ProcessId = ProcessId(0);
/// The purpose of a process's signature of the value that it received from the leader.
pub const VALUE: Purpose = Purpose("cheap quorum: value");

/// The register of one process.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Slot<V, S> {
    /// The value, signed by the leader and this process.
    pub value: Option<Signed<V, S>>,
    /// The unanimity proof: the value, signed by all processes.
    pub proof: Option<Signed<V, S>>,
    /// Written if the process has panicked.
    pub panic: Option<()>,
}

impl<V, S> Default for Slot<V, S> {
    fn default() -> Slot<V, S> {
        Slot { value: None, proof: None, panic: None }
    }
}

impl<V: Value, S: Clone + Eq + Hash + Debug> WriteOnceFields for Slot<V, S> {
    fn merge(copies: &[Slot<V, S>]) -> Slot<V, S> {
        Slot {
            value: unique_value(copies.iter().map(|slot| &slot.value)),
            proof: unique_value(copies.iter().map(|slot| &slot.proof)),
            panic: unique_value(copies.iter().map(|slot| &slot.panic)),
        }
    }
}

/// The rules that the protocol depends on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// At each memory, a panicking process revokes the leader's permission and then reads the
    /// leader's region. Without the rule, the process revokes at a majority, and then reads any
    /// majority.
    const REVOKES_AND_READS_PER_MEMORY: bool = true;
    /// A panicking process revokes the permission to write the leader's region.
    const REVOKES: bool = true;
    /// The leader writes its own proof.
    const LEADER_PROVES: bool = true;
    /// A process that has decided keeps polling for a panic.
    const DECIDERS_JOIN: bool = true;
    /// A follower decides when all processes have written a proof. Without the rule, one proof
    /// suffices.
    const AWAITS_PROOFS: bool = true;
}

impl Rules for AllRules {}

/// A process of Cheap Quorum.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CheapQuorum<V, K: Signer, R = AllRules> {
    me: ProcessId,
    processes: u8,
    keys: K,
    input: V,
    /// The number of polls so far without a decision.
    polls: u8,
    /// The number of polls without a decision after which the process panics.
    max_polls: u8,
    registers: ReplicatedRegisters<Slot<V, K::Signature>>,
    own_slot: Slot<V, K::Signature>,
    phase: Phase,
    decided: Option<V>,
    aborted: Option<Signed<V, K::Signature>>,
    rules: PhantomData<R>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Proposing,
    Polling,
    Waiting,
    Writing,
    Revoking,
    /// A read of the leader's region is in progress, after the revocation. If the rule
    /// [`Rules::REVOKES_AND_READS_PER_MEMORY`] is enabled, the panic and the revocation are part of
    /// this phase.
    Reading,
    Idle,
}

impl<V: Value + Serialize, K: Signer, R: Rules> CheapQuorum<V, K, R> {
    /// Creates a process that proposes `input`, among `processes` processes and `memories`
    /// memories. The process panics after `max_polls` polls without a decision.
    pub fn new(
        me: ProcessId,
        (processes, memories): (u8, u8),
        max_polls: u8,
        keys: K,
        input: V,
    ) -> CheapQuorum<V, K, R> {
        CheapQuorum {
            me,
            processes,
            keys,
            input,
            polls: 0,
            max_polls,
            registers: ReplicatedRegisters::new(memories),
            own_slot: Slot::default(),
            phase: Phase::Idle,
            decided: None,
            aborted: None,
            rules: PhantomData,
        }
    }

    /// Returns the regions of each memory: one for the leader's value, and one per process.
    pub fn regions(processes: u8) -> Vec<Region> {
        let region = |p, legal_change| Region {
            registers: 1,
            permissions: Permissions::single_writer(processes, p),
            legal_change,
            kind: RegisterKind::ReadWrite,
        };
        let slots = (0..processes).map(|p| region(ProcessId(p), LegalChange::Never));
        [region(LEADER, LegalChange::ReadOnly)].into_iter().chain(slots).collect()
    }

    /// Returns the value that the process aborted with, and the signatures of the value.
    pub fn aborted(&self) -> Option<&Signed<V, K::Signature>> {
        self.aborted.as_ref()
    }

    fn call(&mut self, phase: Phase, steps: Vec<Op<Slot<V, K::Signature>>>, out: &mut Actions<Self>) {
        self.phase = phase;
        self.registers.call(steps, out);
    }

    fn propose(&mut self, out: &mut Actions<Self>) {
        let value = Some(Signed::by(self.me, &self.keys, VALUE, (), self.input.clone()));
        let cell = Slot { value, ..Slot::default() };
        self.phase = Phase::Proposing;
        self.registers.call_refusable(vec![Op::Write { region: 0, register: 0, cell }], out);
    }

    /// Begins to read the leader's value and all slots, or panics after too many polls.
    fn poll(&mut self, out: &mut Actions<Self>) {
        if self.decided.is_none() {
            if self.polls == self.max_polls {
                return self.panic(out);
            }
            self.polls += 1;
        }
        let read = |region| Op::Read { region, first: 0, count: 1 };
        self.call(Phase::Polling, (0..=self.processes).map(read).collect(), out);
    }

    fn write(&self) -> Op<Slot<V, K::Signature>> {
        Op::Write { region: self.me.0 + 1, register: 0, cell: self.own_slot.clone() }
    }

    /// Handles the result of a poll: the leader's value, and the slots of all processes.
    fn on_poll(&mut self, slots: &[Slot<V, K::Signature>], out: &mut Actions<Self>) {
        let Some((leader, slots)) = slots.split_first() else { return };
        if slots.iter().any(|slot| slot.panic.is_some()) {
            return self.panic(out);
        }
        // A decision does not end the writes, because the leader writes its proof after its
        // decision.
        if self.advance(leader, slots) {
            let write = self.write();
            return self.call(Phase::Writing, vec![write], out);
        }
        if self.decided.is_none() || self.me == LEADER || R::DECIDERS_JOIN {
            self.wait_for_wake(out);
        }
    }

    fn wait_for_wake(&mut self, out: &mut Actions<Self>) {
        self.phase = Phase::Waiting;
        out.push(Action::Wake);
    }

    /// Takes the next step that the result of a poll allows: adds a field to this process's slot,
    /// or decides. Returns whether the slot is to be written.
    fn advance(&mut self, leader: &Slot<V, K::Signature>, slots: &[Slot<V, K::Signature>]) -> bool {
        let Some(value) = &self.own_slot.value else {
            let Some(mut value) = leader.value.clone().and_then(|value| self.signed_by_leader(value)) else {
                return false;
            };
            if self.me != LEADER {
                value.by.extend(Signed::by(self.me, &self.keys, VALUE, (), value.value.clone()).by);
            }
            self.own_slot.value = Some(value);
            return true;
        };
        let all = usize::from(self.processes);
        if self.own_slot.proof.is_none() {
            let mut together = Signed { value: value.value.clone(), by: BTreeMap::new() };
            let alike = |slot: &&Slot<V, _>| slot.value.as_ref().is_some_and(|v| v.value == together.value);
            let signed = slots.iter().filter(alike).filter_map(|slot| slot.value.clone());
            let signed: Vec<_> = signed.map(|signed| self.verified(signed)).collect();
            signed.into_iter().for_each(|signed| together.by.extend(signed.by));
            if together.by.len() < all || self.me == LEADER && !R::LEADER_PROVES {
                return false;
            }
            self.own_slot.proof = Some(together);
            return true;
        }
        let proves = |slot: &&Slot<V, _>| {
            let proof = slot.proof.clone().filter(|proof| proof.value == value.value);
            proof.is_some_and(|proof| self.verified(proof).by.len() == all)
        };
        let enough = if R::AWAITS_PROOFS { all } else { 1 };
        if slots.iter().filter(proves).count() >= enough {
            self.decided.get_or_insert(value.value.clone());
        }
        false
    }

    /// Returns the value with the leader's signature alone, if that signature verifies.
    fn signed_by_leader(&self, value: Signed<V, K::Signature>) -> Option<Signed<V, K::Signature>> {
        let mut value = self.verified(value);
        value.by.retain(|&p, _| p == LEADER);
        Some(value).filter(|value| !value.by.is_empty())
    }

    fn verified(&self, signed: Signed<V, K::Signature>) -> Signed<V, K::Signature> {
        signed.verified(&self.keys, VALUE, ())
    }

    fn panic(&mut self, out: &mut Actions<Self>) {
        self.own_slot.panic = Some(());
        let mut steps = vec![self.write()];
        if R::REVOKES && !Mutant::LeaderNotRevoked.is_on() {
            steps.push(Op::ChangePermissions {
                region: 0,
                permissions: Permissions::read_only(self.processes),
            });
        }
        if R::REVOKES_AND_READS_PER_MEMORY {
            steps.push(Op::Read { region: 0, first: 0, count: 1 });
            return self.call(Phase::Reading, steps, out);
        }
        self.call(Phase::Revoking, steps, out);
    }

    fn abort(&mut self, leader: Option<Signed<V, K::Signature>>) {
        self.phase = Phase::Idle;
        let own_evidence = self.own_slot.proof.take().or(self.own_slot.value.take());
        let evidence = own_evidence.or_else(|| self.signed_by_leader(leader?));
        let bare = || Signed { value: self.input.clone(), by: BTreeMap::new() };
        self.aborted = Some(evidence.unwrap_or_else(bare));
    }
}

impl<V: Value + Serialize, K: Signer, R: Rules> Process for CheapQuorum<V, K, R> {
    type Cell = Slot<V, K::Signature>;
    type Message = ();
    type Value = V;

    fn handle(&mut self, input: Input<Self::Cell, ()>, out: &mut Actions<Self>) {
        match input {
            Input::Start if self.me == LEADER => self.propose(out),
            Input::Start => self.poll(out),
            Input::Wake if self.phase == Phase::Waiting => self.poll(out),
            Input::Wake => self.registers.on_wake(out),
            Input::Response { memory, id, response } => {
                let Some(outcome) = self.registers.on_response(memory, id, response, out) else { return };
                match (self.phase, outcome) {
                    (Phase::Proposing, CallOutcome::Done(_)) => {
                        self.decided = Some(self.input.clone());
                        self.wait_for_wake(out);
                    }
                    (Phase::Proposing, CallOutcome::Refused) => self.panic(out),
                    (Phase::Writing, CallOutcome::Done(_)) => self.poll(out),
                    (Phase::Polling, CallOutcome::Done(slots)) => self.on_poll(&slots, out),
                    (Phase::Revoking, CallOutcome::Done(_)) => {
                        let read = vec![Op::Read { region: 0, first: 0, count: 1 }];
                        self.call(Phase::Reading, read, out);
                    }
                    (Phase::Reading, CallOutcome::Done(mut slots)) => {
                        let leader = slots.pop().and_then(|slot| slot.value);
                        self.abort(leader);
                    }
                    // Only the leader's proposal can be refused.
                    (_, CallOutcome::Refused) | (Phase::Waiting | Phase::Idle, _) => {}
                }
            }
            Input::Message { .. } | Input::Leader(_) | Input::Coin(_) => {}
        }
    }

    fn decision(&self) -> Option<&V> {
        self.decided.as_ref()
    }

    /// The number of polls, plus one for the leader while the leader polls, writes its slot or
    /// panics.
    fn attempts(&self) -> u64 {
        let proposes = matches!(self.phase, Phase::Idle | Phase::Proposing | Phase::Waiting);
        u64::from(self.polls) + u64::from(self.me == LEADER && !proposes)
    }
}
