//! Non-equivocating broadcast (PODC 2019, section 4.1; agreement.md §5): n ≥ 2fP + 1 processes, any fP of them Byzantine, m ≥ 2fM + 1
//! memories. No two correct processes deliver different messages as the k-th of one sender, and if one delivers it, all do.
//!
//! Each process has a register for each sender and k, which it alone writes: a [`Slot`] of three fields.
//!
//! | field | written where a scan of all slots for (q, k) finds | says |
//! |---|---|---|
//! | copy | a message in q's own slot, signed by q | this is what I have seen |
//! | witness (L1) | after my copy: a majority of copies, all alike | I have seen no other |
//! | proof (L2) | a majority of witnesses for a message, or a proof | nobody ever finds another |
//!
//! Of two correct processes that copied different messages, the one that scans last finds both; so they are not both witnesses. A
//! majority may have only one correct process in common with the correct ones: a proof holds the word of one, so proofs are unique, and
//! may be handed on. Delivered is what I have proof of. Without the second level a correct witness delivers, while
//! another, which copied a different message, never does: not total.
//!
//! The paper's L1 holds the copies that it is made of. Here it is its signer's word alone: one in a majority of words is honest.
//!
//! What does not verify is as good as not written; a proof counts whoever its sender is. A sender has room for so many messages, and
//! no more ([`Broadcast::regions`]); one that was ignored is never scanned again.

use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::process::{Action, majority};
use crate::replicated_registers::{CallOutcome, ReplicatedRegisters, WriteOnceFields, unique_value};
use crate::signature::{Purpose, Signed, Signer};
use crate::{
    AllRules, LegalChange, MemoryId, Op, OpId, Permissions, ProcessId, Region, RegisterKind, Response,
    RuleSet, Value,
};

/// A sender signs its k-th message.
pub const MESSAGE: Purpose = Purpose("broadcast: message");
/// A process signs that it has seen no other.
pub const WITNESS: Purpose = Purpose("broadcast: witness");

/// What a process has written about a sender's k-th message.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Slot<V, S> {
    /// The message, signed by its sender.
    pub copy: Option<Signed<V, S>>,
    /// The same, signed by this process.
    pub witness: Option<Signed<V, S>>,
    /// The same, signed by a majority of witnesses.
    pub proof: Option<Signed<V, S>>,
}

impl<V, S> Default for Slot<V, S> {
    fn default() -> Slot<V, S> {
        Slot { copy: None, witness: None, proof: None }
    }
}

impl<V: Value, S: Clone + Eq + Hash + Debug> WriteOnceFields for Slot<V, S> {
    fn merge(copies: &[Slot<V, S>]) -> Slot<V, S> {
        Slot {
            copy: unique_value(copies.iter().map(|slot| &slot.copy)),
            witness: unique_value(copies.iter().map(|slot| &slot.witness)),
            proof: unique_value(copies.iter().map(|slot| &slot.proof)),
        }
    }
}

/// The rules that safety and totality rest on, for checkers to switch off.
pub trait Rules: RuleSet {
    /// Delivered is what there is proof of. Else what I am a witness of.
    const TWO_LEVELS: bool = true;
    /// Others are awaited at all. Else delivered is what its sender has written.
    const AWAITS_OTHERS: bool = true;
    /// A witness has scanned after its copy was written.
    const SCANS_AFTER_COPYING: bool = true;
    /// Who finds two messages is no witness.
    const ONE_MESSAGE_ONLY: bool = true;
    /// Signatures are verified.
    const VERIFIES: bool = true;
}

impl Rules for AllRules {}

/// A process's part in the broadcasts of all.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Broadcast<V, K: Signer, R = AllRules> {
    me: ProcessId,
    processes: u8,
    room: u16,
    keys: K,
    registers: ReplicatedRegisters<Slot<V, K::Signature>>,
    senders: Vec<Sender<V, K::Signature>>,
    /// What I am to broadcast.
    message: Option<V>,
    doing: Doing,
    /// How many scans in a row have led to nothing. After one of each sender's slots it is time to rest.
    fruitless: u8,
    rules: PhantomData<R>,
}

/// What I know of a sender.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Sender<V, S> {
    /// The index of its next message.
    next: u16,
    /// What I have to write about that.
    mine: Slot<V, S>,
    ignored: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Resting,
    Scanning(ProcessId),
    Writing(ProcessId),
}

impl<V: Value + Serialize, K: Signer, R: Rules> Broadcast<V, K, R> {
    /// A process among `processes` processes, over `memories` memories with room for `room` messages of each sender.
    pub fn new(me: ProcessId, processes: u8, memories: u8, room: u16, keys: K) -> Broadcast<V, K, R> {
        let sender = Sender { next: 0, mine: Slot::default(), ignored: false };
        Broadcast {
            me,
            processes,
            room,
            keys,
            registers: ReplicatedRegisters::new(memories),
            senders: vec![sender; processes.into()],
            message: None,
            doing: Doing::Resting,
            fruitless: 0,
            rules: PhantomData,
        }
    }

    /// The regions of each memory: one for each process, with a slot for each sender and index, which it alone may write.
    pub fn regions(processes: u8, room: u16) -> Vec<Region> {
        let region = |p| Region {
            registers: room * u16::from(processes),
            permissions: Permissions::single_writer(processes, p),
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        };
        (0..processes).map(|p| region(ProcessId(p))).collect()
    }

    /// Whether there is room for a message, and the last one is delivered.
    pub fn can_broadcast(&self) -> bool {
        let own = &self.senders[usize::from(self.me.0)];
        self.message.is_none() && own.mine == Slot::default() && own.next < self.room
    }

    /// Broadcasts a message, if [`Broadcast::is_free`].
    pub fn broadcast<M>(&mut self, message: V, out: &mut Vec<Action<Slot<V, K::Signature>, M>>) {
        if self.can_broadcast() {
            self.message = Some(message);
            self.wake(out);
        }
    }

    /// Begins, or goes on after a rest.
    pub fn wake<M>(&mut self, out: &mut Vec<Action<Slot<V, K::Signature>, M>>) {
        match self.doing {
            Doing::Resting => self.scan_next(ProcessId(0), out),
            Doing::Scanning(_) | Doing::Writing(_) => self.registers.wake(out),
        }
    }

    /// Hears nothing of a sender any more.
    pub fn ignore(&mut self, sender: ProcessId) {
        self.senders[usize::from(sender.0)].ignored = true;
    }

    /// Hears of one sender alone.
    pub fn ignore_all_except(&mut self, sender: ProcessId) {
        (0..self.processes).map(ProcessId).filter(|&q| q != sender).for_each(|q| self.ignore(q));
    }

    /// Takes a memory's answer. Some if a message is delivered: whose, and what it says.
    pub fn answered<M>(
        &mut self,
        memory: MemoryId,
        id: OpId,
        response: Response<Slot<V, K::Signature>>,
        out: &mut Vec<Action<Slot<V, K::Signature>, M>>,
    ) -> Option<(ProcessId, V)> {
        // Nobody is refused its own region, nor to read.
        let CallOutcome::Done(slots) = self.registers.answered(memory, id, response, out)? else {
            return None;
        };
        let (q, delivered) = match self.doing {
            Doing::Resting => return None,
            Doing::Scanning(q) => {
                if self.advance(q, &slots) {
                    self.fruitless = 0;
                    self.doing = Doing::Writing(q);
                    let sender = &self.senders[usize::from(q.0)];
                    let (register, cell) = (self.register(q, sender.next), sender.mine.clone());
                    self.registers.call(vec![Op::Write { region: self.me.0, register, cell }], out);
                    return None;
                }
                self.fruitless += 1;
                (ProcessId((q.0 + 1) % self.processes), None)
            }
            Doing::Writing(q) => (q, self.deliver(q)),
        };
        self.scan_next(q, out);
        delivered
    }

    /// Where each process writes about a sender's message.
    fn register(&self, sender: ProcessId, index: u16) -> u16 {
        u16::from(sender.0) * self.room + index
    }

    /// Scans the slots of this sender's next message, or of the next sender of whom there is anything to hear. Rests if that has led to
    /// nothing with each of them.
    fn scan_next<M>(&mut self, from: ProcessId, out: &mut Vec<Action<Slot<V, K::Signature>, M>>) {
        let everybody = (0..self.processes).map(|p| ProcessId((from.0 + p) % self.processes));
        let heard = |q: &ProcessId| {
            let sender = &self.senders[usize::from(q.0)];
            !sender.ignored && sender.next < self.room
        };
        let heard: Vec<ProcessId> = everybody.filter(heard).collect();
        if usize::from(self.fruitless) >= heard.len() {
            (self.doing, self.fruitless) = (Doing::Resting, 0);
            return out.push(Action::Wake);
        }
        let q = heard[0];
        self.doing = Doing::Scanning(q);
        let first = self.register(q, self.senders[usize::from(q.0)].next);
        let read = |region| Op::Read { region, first, count: 1 };
        self.registers.call((0..self.processes).map(read).collect(), out);
    }

    /// Takes what a scan has found about a sender's next message. True if there is more to write about it now.
    fn advance(&mut self, q: ProcessId, slots: &[Slot<V, K::Signature>]) -> bool {
        let at = usize::from(q.0);
        if let Some(proof) = self.proof(q, slots).filter(|_| R::TWO_LEVELS) {
            self.senders[at].mine.proof = Some(proof);
            return true;
        }
        match &self.senders[at].mine {
            Slot { witness: Some(_), .. } => false,
            Slot { copy: Some(copy), .. } => {
                let witness = self.witness(q, copy, slots);
                self.senders[at].mine.witness = witness;
                self.senders[at].mine.witness.is_some()
            }
            Slot { copy: None, .. } => {
                let Some(copy) = self.message_of(q, slots) else { return false };
                if !R::SCANS_AFTER_COPYING {
                    let copies = [slots, &[Slot { copy: Some(copy.clone()), ..Slot::default() }]].concat();
                    self.senders[at].mine.witness = self.witness(q, &copy, &copies);
                }
                self.senders[at].mine.copy = Some(copy);
                true
            }
        }
    }

    /// The next message of a sender, signed by it: mine, or what stands in its own slot.
    fn message_of(
        &mut self,
        q: ProcessId,
        slots: &[Slot<V, K::Signature>],
    ) -> Option<Signed<V, K::Signature>> {
        if q != self.me {
            return self.is_message(q, slots[usize::from(q.0)].copy.as_ref()?);
        }
        let about = (q, self.senders[usize::from(q.0)].next);
        self.message.take().map(|message| Signed::by(q, &self.keys, MESSAGE, about, message))
    }

    /// My word that I have found no other message than I have copied, if that is so, and a majority has copied it.
    fn witness(
        &self,
        q: ProcessId,
        copy: &Signed<V, K::Signature>,
        slots: &[Slot<V, K::Signature>],
    ) -> Option<Signed<V, K::Signature>> {
        let copies = slots.iter().filter_map(|slot| self.is_message(q, slot.copy.as_ref()?));
        let (alike, others): (Vec<_>, Vec<_>) = copies.partition(|other| other.value == copy.value);
        let about = (q, self.senders[usize::from(q.0)].next);
        (alike.len() >= majority(self.processes.into()) && (others.is_empty() || !R::ONE_MESSAGE_ONLY))
            .then(|| Signed::by(self.me, &self.keys, WITNESS, about, copy.value.clone()))
    }

    /// A proof: one that somebody hands on, or what the witnesses of a message say together. What does not verify goes first: it must not
    /// take the place of what does.
    fn proof(&self, q: ProcessId, slots: &[Slot<V, K::Signature>]) -> Option<Signed<V, K::Signature>> {
        let mut proofs: Vec<Signed<V, K::Signature>> = Vec::new();
        for signed in slots.iter().flat_map(|slot| [&slot.proof, &slot.witness]).flatten() {
            let signed = self.verified(q, WITNESS, signed.clone());
            match proofs.iter_mut().find(|proof| proof.value == signed.value) {
                Some(proof) => proof.by.extend(signed.by),
                None => proofs.push(signed),
            }
        }
        proofs.into_iter().find(|proof| proof.by.len() >= majority(self.processes.into()))
    }

    /// What I have written last about a sender's message may be the proof of it.
    fn deliver(&mut self, q: ProcessId) -> Option<(ProcessId, V)> {
        let sender = &mut self.senders[usize::from(q.0)];
        let last = match (R::AWAITS_OTHERS, R::TWO_LEVELS) {
            (true, true) => &mut sender.mine.proof,
            (true, false) => &mut sender.mine.witness,
            (false, _) => &mut sender.mine.copy,
        };
        let message = last.take()?.value;
        sender.next += 1;
        sender.mine = Slot::default();
        (!sender.ignored).then_some((q, message))
    }

    /// This, if it is the sender's next message.
    fn is_message(&self, q: ProcessId, copy: &Signed<V, K::Signature>) -> Option<Signed<V, K::Signature>> {
        Some(self.verified(q, MESSAGE, copy.clone())).filter(|copy| copy.by.contains_key(&q))
    }

    fn verified(
        &self,
        q: ProcessId,
        purpose: Purpose,
        signed: Signed<V, K::Signature>,
    ) -> Signed<V, K::Signature> {
        match R::VERIFIES {
            true => signed.verified(&self.keys, purpose, (q, self.senders[usize::from(q.0)].next)),
            false => signed,
        }
    }
}
