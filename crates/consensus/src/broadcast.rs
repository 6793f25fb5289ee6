//! Non-equivocating broadcast (IRA, section 4.1): n ≥ 2fP + 1 processes, of which up to fP are
//! Byzantine, and m ≥ 2fM + 1 memories, of which up to fM may crash. No two correct processes
//! deliver different messages as the k-th message of one sender. If one correct process delivers a
//! message, all correct processes deliver it.
//!
//! For each pair of a sender q and an index k, each process has one register that this process
//! alone may write. The register holds a [`Slot`] with three fields.
//!
//! | field | condition for writing (result of a scan of all slots for (q, k)) | meaning |
//! |---|---|---|
//! | copy | a message in q's own slot, signed by q | the process has seen this message |
//! | witness (L1) | after the process's copy: a majority of copies, all equal | the process has seen no other message |
//! | proof (L2) | a majority of witnesses for one message, or a proof | no other message can have a proof |
//!
//! If two correct processes copied different messages, the process that scans last finds both
//! copies and signs no witness. The intersection of two majorities may consist of Byzantine
//! processes only, but each majority contains a correct process. A proof therefore contains a
//! witness of a correct process. Two valid proofs for the same (q, k) have the same message, so
//! processes may copy each other's proofs. A process delivers a message once it has written a
//! proof. If a process delivered as soon as it became a witness, a correct process with a copy of a
//! different message might never deliver the same message.
//!
//! In the paper, L1 contains the copies that it is based on. Here, L1 is the witness's signature
//! only. This suffices because at least one process in a majority of witnesses is correct.
//!
//! A field whose signatures do not verify is treated as unwritten. A proof is valid no matter which
//! process wrote it. The number of messages per sender is limited by the number of registers
//! ([`Broadcast::regions`]). A process never scans the slots of an ignored sender again.

use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;

use mitra_mutants::Mutant;
use serde::{Deserialize, Serialize};

use crate::process::{Action, majority};
use crate::replicated_registers::{CallOutcome, ReplicatedRegisters, WriteOnceFields, unique_value};
use crate::signature::{Purpose, Signed, Signer};
use crate::{
    AllRules, LegalChange, MemoryId, Op, OpId, Permissions, ProcessId, Region, RegisterKind, Response,
    RuleSet, Value,
};

/// The purpose of a sender's signature of its k-th message.
pub const MESSAGE: Purpose = Purpose("broadcast: message");
/// The purpose of a witness's signature: the process has seen no other message.
pub const WITNESS: Purpose = Purpose("broadcast: witness");

/// The register of one process for one sender's k-th message.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Slot<V, S> {
    /// The message, signed by its sender.
    pub copy: Option<Signed<V, S>>,
    /// The message, signed by this process as a witness.
    pub witness: Option<Signed<V, S>>,
    /// The message, with the witness signatures of a majority of the processes.
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

/// The rules that safety and totality depend on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// A process delivers a message once it has written a proof. Without the rule, it delivers once
    /// it is a witness.
    const TWO_LEVELS: bool = true;
    /// A process awaits the slots of a majority before it delivers. Without the rule, it delivers a
    /// message once it has copied the message.
    const AWAITS_OTHERS: bool = true;
    /// A process becomes a witness only by a scan that began after its copy was written.
    const SCANS_AFTER_COPYING: bool = true;
    /// A process that finds two messages does not become a witness.
    const ONE_MESSAGE_ONLY: bool = true;
    /// Signatures are verified. Without the rule, all are considered valid.
    const VERIFIES: bool = true;
}

impl Rules for AllRules {}

/// The state of one process in the broadcasts of all senders.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Broadcast<V, K: Signer, R = AllRules> {
    me: ProcessId,
    processes: u8,
    room: u16,
    signer: K,
    registers: ReplicatedRegisters<Slot<V, K::Signature>>,
    senders: Vec<Sender<V, K::Signature>>,
    /// The message that this process is about to broadcast.
    message: Option<V>,
    phase: Phase,
    /// The number of consecutive scans without progress. After one such scan per sender, the
    /// process waits for a wake-up.
    idle_scans: u8,
    rules: PhantomData<R>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Sender<V, S> {
    /// The index of the sender's next message.
    next: u16,
    /// The content of this process's slot for that message.
    own_slot: Slot<V, S>,
    ignored: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Waiting,
    Scanning(ProcessId),
    Writing(ProcessId),
}

impl<V: Value + Serialize, K: Signer, R: Rules> Broadcast<V, K, R> {
    /// Creates the state of process `me` among `processes` processes and `memories` memories.
    /// `room` is the maximum number of messages per sender.
    pub fn new(me: ProcessId, processes: u8, memories: u8, room: u16, signer: K) -> Broadcast<V, K, R> {
        let sender = Sender { next: 0, own_slot: Slot::default(), ignored: false };
        Broadcast {
            me,
            processes,
            room,
            signer,
            registers: ReplicatedRegisters::new(memories),
            senders: vec![sender; processes.into()],
            message: None,
            phase: Phase::Waiting,
            idle_scans: 0,
            rules: PhantomData,
        }
    }

    /// Returns the regions of each memory: one region per process, which that process alone may
    /// write. The region has a slot for each sender and each of the sender's `room` messages.
    pub fn regions(processes: u8, room: u16) -> Vec<Region> {
        let region = |p| Region {
            registers: room * u16::from(processes),
            permissions: Permissions::single_writer(processes, p),
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        };
        (0..processes).map(|p| region(ProcessId(p))).collect()
    }

    /// Returns whether the process has delivered its own last message and may broadcast the next
    /// message.
    pub fn can_broadcast(&self) -> bool {
        let own = &self.senders[usize::from(self.me.0)];
        self.message.is_none() && own.own_slot == Slot::default() && own.next < self.room
    }

    /// Begins to broadcast a message if [`Broadcast::can_broadcast`] returns true. Otherwise, drops
    /// the message.
    pub fn broadcast<M>(&mut self, message: V, out: &mut Vec<Action<Slot<V, K::Signature>, M>>) {
        if self.can_broadcast() {
            self.message = Some(message);
            self.on_wake(out);
        }
    }

    /// Starts or resumes scanning, or retries refused operations. The caller calls this function
    /// for [`crate::Input::Start`] and [`crate::Input::Wake`].
    pub fn on_wake<M>(&mut self, out: &mut Vec<Action<Slot<V, K::Signature>, M>>) {
        match self.phase {
            Phase::Waiting => self.scan_next(ProcessId(0), out),
            Phase::Scanning(_) | Phase::Writing(_) => self.registers.on_wake(out),
        }
    }

    /// Ignores all further messages of a sender.
    pub fn ignore(&mut self, sender: ProcessId) {
        self.senders[usize::from(sender.0)].ignored = true;
    }

    /// Ignores all senders except one.
    pub fn ignore_all_except(&mut self, sender: ProcessId) {
        (0..self.processes).map(ProcessId).filter(|&q| q != sender).for_each(|q| self.ignore(q));
    }

    /// Handles a memory's response. Returns the sender and the message if a message is delivered.
    pub fn on_response<M>(
        &mut self,
        memory: MemoryId,
        id: OpId,
        response: Response<Slot<V, K::Signature>>,
        out: &mut Vec<Action<Slot<V, K::Signature>, M>>,
    ) -> Option<(ProcessId, V)> {
        // The call is never refused, because no process can lose the permission to read or to write
        // its own region.
        let CallOutcome::Done(slots) = self.registers.on_response(memory, id, response, out)? else {
            return None;
        };
        let (q, delivered) = match self.phase {
            Phase::Waiting => return None,
            Phase::Scanning(q) => {
                if self.advance(q, &slots) {
                    self.idle_scans = 0;
                    self.phase = Phase::Writing(q);
                    let sender = &self.senders[usize::from(q.0)];
                    let (register, cell) = (self.register(q, sender.next), sender.own_slot.clone());
                    self.registers.call(vec![Op::Write { region: self.me.0, register, cell }], out);
                    return None;
                }
                self.idle_scans += 1;
                (ProcessId((q.0 + 1) % self.processes), None)
            }
            Phase::Writing(q) => (q, self.deliver(q)),
        };
        self.scan_next(q, out);
        delivered
    }

    /// The register for a sender's message has the same number in each process's region.
    fn register(&self, sender: ProcessId, index: u16) -> u16 {
        u16::from(sender.0) * self.room + index
    }

    /// Begins to scan the slots for the next message of the first active sender from `from` on. An
    /// active sender is not ignored and has messages left. If one scan per active sender made no
    /// progress, the process waits for a wake-up instead.
    fn scan_next<M>(&mut self, from: ProcessId, out: &mut Vec<Action<Slot<V, K::Signature>, M>>) {
        let candidates = (0..self.processes).map(|p| ProcessId((from.0 + p) % self.processes));
        let active = |q: &ProcessId| {
            let sender = &self.senders[usize::from(q.0)];
            !sender.ignored && sender.next < self.room
        };
        let active: Vec<ProcessId> = candidates.filter(active).collect();
        if usize::from(self.idle_scans) >= active.len() {
            (self.phase, self.idle_scans) = (Phase::Waiting, 0);
            return out.push(Action::Wake);
        }
        let q = active[0];
        self.phase = Phase::Scanning(q);
        let first = self.register(q, self.senders[usize::from(q.0)].next);
        let read = |region| Op::Read { region, first, count: 1 };
        self.registers.call((0..self.processes).map(read).collect(), out);
    }

    /// Handles the result of a scan for a sender's next message: adds a field to this process's own
    /// slot if the result allows it. Returns whether the slot is to be written.
    fn advance(&mut self, q: ProcessId, slots: &[Slot<V, K::Signature>]) -> bool {
        let at = usize::from(q.0);
        if let Some(proof) = self.proof(q, slots).filter(|_| R::TWO_LEVELS) {
            self.senders[at].own_slot.proof = Some(proof);
            return true;
        }
        match &self.senders[at].own_slot {
            Slot { witness: Some(_), .. } => false,
            Slot { copy: Some(copy), .. } => {
                let witness = self.witness(q, copy, slots);
                self.senders[at].own_slot.witness = witness;
                self.senders[at].own_slot.witness.is_some()
            }
            Slot { copy: None, .. } => {
                let Some(copy) = self.next_message(q, slots) else { return false };
                if !R::SCANS_AFTER_COPYING {
                    let copies = [slots, &[Slot { copy: Some(copy.clone()), ..Slot::default() }]].concat();
                    self.senders[at].own_slot.witness = self.witness(q, &copy, &copies);
                }
                self.senders[at].own_slot.copy = Some(copy);
                true
            }
        }
    }

    /// Returns the sender's next message, signed by the sender. If this process is the sender,
    /// takes the message to broadcast and signs it. Otherwise, returns the copy in the sender's own
    /// slot if its signature is valid.
    fn next_message(
        &mut self,
        q: ProcessId,
        slots: &[Slot<V, K::Signature>],
    ) -> Option<Signed<V, K::Signature>> {
        if q != self.me {
            return self.verified_message(q, slots[usize::from(q.0)].copy.as_ref()?);
        }
        let about = (q, self.senders[usize::from(q.0)].next);
        self.message.take().map(|message| Signed::by(q, &self.signer, MESSAGE, about, message))
    }

    /// Returns this process's witness signature if a majority of the slots holds an equal copy and
    /// no slot holds a different message.
    fn witness(
        &self,
        q: ProcessId,
        copy: &Signed<V, K::Signature>,
        slots: &[Slot<V, K::Signature>],
    ) -> Option<Signed<V, K::Signature>> {
        let copies = slots.iter().filter_map(|slot| self.verified_message(q, slot.copy.as_ref()?));
        let (alike, others): (Vec<_>, Vec<_>) = copies.partition(|other| other.value == copy.value);
        let about = (q, self.senders[usize::from(q.0)].next);
        (alike.len() >= majority(self.processes.into())
            && (others.is_empty() || !R::ONE_MESSAGE_ONLY || Mutant::SecondMessageIgnored.is_on()))
        .then(|| Signed::by(self.me, &self.signer, WITNESS, about, copy.value.clone()))
    }

    /// Returns a proof if the valid signatures in all slots, taken together, are sufficient for one
    /// message. Invalid signatures are removed before the signatures are combined, so that they
    /// cannot replace valid signatures.
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

    /// Delivers the sender's next message if this process has written the proof of that message.
    fn deliver(&mut self, q: ProcessId) -> Option<(ProcessId, V)> {
        let sender = &mut self.senders[usize::from(q.0)];
        let deciding_field = match (R::AWAITS_OTHERS, R::TWO_LEVELS) {
            (true, true) => &mut sender.own_slot.proof,
            (true, false) => &mut sender.own_slot.witness,
            (false, _) => &mut sender.own_slot.copy,
        };
        let message = deciding_field.take()?.value;
        sender.next += 1;
        sender.own_slot = Slot::default();
        (!sender.ignored).then_some((q, message))
    }

    /// Returns the signed message if it has the sender's valid signature for the sender's next
    /// message.
    fn verified_message(
        &self,
        q: ProcessId,
        copy: &Signed<V, K::Signature>,
    ) -> Option<Signed<V, K::Signature>> {
        Some(self.verified(q, MESSAGE, copy.clone())).filter(|copy| copy.by.contains_key(&q))
    }

    fn verified(
        &self,
        q: ProcessId,
        purpose: Purpose,
        signed: Signed<V, K::Signature>,
    ) -> Signed<V, K::Signature> {
        match R::VERIFIES {
            true => signed.verified(&self.signer, purpose, (q, self.senders[usize::from(q.0)].next)),
            false => signed,
        }
    }
}
