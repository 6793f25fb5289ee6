//! Memories as Paxos acceptors, each protected by an exclusive permission to write.
//!
//! In each attempt, Protected Memory Paxos and Aligned Paxos execute the same phases at each
//! memory. A process obtains a memory's promise in three phases: it takes the permission, writes
//! its ballot and reads all slots. The memory accepts the value when it acknowledges the write of
//! the value.

use core::marker::PhantomData;

use crate::outstanding_ops::{AnsweredOp, OutstandingOps};
use crate::protected_memory_paxos::{Rules, Slot};
use crate::{Action, MemoryId, Op, OpId, Permissions, ProcessId, Response, Value};
use mitra_mutants::Mutant;

/// One process's current attempt: its progress at each memory, and the process's own slots.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MemoryAcceptors<V, R> {
    me: ProcessId,
    processes: u8,
    ballot: u64,
    phases: Vec<Phase>,
    outstanding: OutstandingOps<Slot<V>>,
    /// The content of this process's slot at each memory, as of the last acknowledged write.
    own_slots: Vec<Slot<V>>,
    rules: PhantomData<R>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Phase {
    TakingPermission,
    WritingBallot,
    ReadingSlots,
    Ready,
    WritingValue,
    Accepted,
}

/// The effect of a memory's response on the attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum PhaseResult<V> {
    /// The memory is ready for a value. Contains the ballot and the value that the memory accepted
    /// last, if any.
    Ready(Option<(u64, V)>),
    Accepted,
    /// Another process has taken the permission, or has begun a higher ballot at the memory, or the
    /// connection broke. Contains the higher ballot, or 0 if it is unknown.
    Refused(u64),
}

impl<V: Value, R: Rules> MemoryAcceptors<V, R> {
    pub(crate) fn new(me: ProcessId, processes: u8, memories: u8) -> MemoryAcceptors<V, R> {
        MemoryAcceptors {
            me,
            processes,
            ballot: 0,
            phases: Vec::new(),
            outstanding: OutstandingOps::new(memories),
            own_slots: vec![Slot::default(); memories.into()],
            rules: PhantomData,
        }
    }

    /// Begins an attempt. If `ready` is true, the attempt needs no promises, and every memory is
    /// ready for a value.
    pub(crate) fn begin(&mut self, ballot: u64, ready: bool, out: &mut Vec<Action<Slot<V>, impl Clone>>) {
        self.ballot = ballot;
        self.phases = vec![if ready { Phase::Ready } else { Phase::TakingPermission }; self.own_slots.len()];
        for memory in self.memories_in(Phase::TakingPermission) {
            self.enter_phase(memory, Phase::TakingPermission, None, out);
        }
    }

    /// Writes the chosen value to every memory that is ready.
    pub(crate) fn write(&mut self, value: &V, out: &mut Vec<Action<Slot<V>, impl Clone>>) {
        for memory in self.memories_in(Phase::Ready) {
            self.enter_phase(memory, Phase::WritingValue, Some(value), out);
        }
    }

    pub(crate) fn abandon(&mut self) {
        self.phases.clear();
        self.outstanding.abandon();
    }

    /// Returns the number of memories whose promise this process has.
    pub(crate) fn ready(&self) -> usize {
        self.phases.iter().filter(|&&phase| phase >= Phase::Ready).count()
    }

    pub(crate) fn accepted(&self) -> usize {
        self.phases.iter().filter(|&&phase| phase == Phase::Accepted).count()
    }

    /// Handles a memory's response. Returns `None` if the response only leads to the next phase, or
    /// belongs to no current attempt.
    pub(crate) fn on_response(
        &mut self,
        memory: MemoryId,
        id: OpId,
        response: Response<Slot<V>>,
        out: &mut Vec<Action<Slot<V>, impl Clone>>,
    ) -> Option<PhaseResult<V>> {
        let AnsweredOp { op, abandoned } = self.outstanding.complete(memory, id, out)?;
        // An acknowledged write is in the slot even if its attempt was abandoned.
        if let (Op::Write { cell, .. }, Response::Ack) = (op, &response) {
            self.own_slots[usize::from(memory.0)] = cell;
        }
        let phase = *self.phases.get(usize::from(memory.0)).filter(|_| !abandoned)?;
        match (phase, response) {
            (Phase::TakingPermission, Response::Ack) => {
                self.enter_phase(memory, Phase::WritingBallot, None, out)
            }
            (Phase::WritingBallot, Response::Ack) => self.enter_phase(memory, Phase::ReadingSlots, None, out),
            (Phase::ReadingSlots, Response::Cells(slots)) => return Some(self.scan(memory, &slots)),
            (Phase::WritingValue, Response::Ack) => {
                self.phases[usize::from(memory.0)] = Phase::Accepted;
                return Some(PhaseResult::Accepted);
            }
            // Another process has taken the permission to write, or the connection broke.
            _ => return Some(PhaseResult::Refused(0)),
        }
        None
    }

    /// Handles the slots of a memory, which were read after this process took the permission and
    /// wrote its ballot.
    fn scan(&mut self, memory: MemoryId, slots: &[Slot<V>]) -> PhaseResult<V> {
        let highest = slots.iter().map(|slot| slot.min).max().unwrap_or(0);
        if R::CHECKS_MIN && !Mutant::HigherMinimumIgnored.is_on() && highest > self.ballot {
            return PhaseResult::Refused(highest);
        }
        self.phases[usize::from(memory.0)] = Phase::Ready;
        let last =
            slots.iter().max_by_key(|slot| if R::ADOPTS_HIGHEST_ACCEPTED { slot.accepted } else { slot.min });
        PhaseResult::Ready(last.and_then(|slot| Some((slot.accepted, slot.value.clone()?))))
    }

    /// Enters a phase at a memory, and invokes the operation of the phase. `value` is needed for
    /// `WritingValue` only.
    fn enter_phase(
        &mut self,
        memory: MemoryId,
        phase: Phase,
        value: Option<&V>,
        out: &mut Vec<Action<Slot<V>, impl Clone>>,
    ) {
        let at = usize::from(memory.0);
        self.phases[at] = phase;
        let min = self.ballot;
        let write = |cell| Op::Write { region: 0, register: self.me.0.into(), cell };
        let op = match phase {
            Phase::TakingPermission if R::EXCLUSIVE_WRITER => Op::ChangePermissions {
                region: 0,
                permissions: Permissions::single_writer(self.processes, self.me),
            },
            Phase::TakingPermission => return self.enter_phase(memory, Phase::WritingBallot, None, out),
            Phase::WritingBallot if R::KEEPS_ACCEPTED => write(Slot { min, ..self.own_slots[at].clone() }),
            Phase::WritingBallot => write(Slot { min, ..Slot::default() }),
            Phase::ReadingSlots => Op::Read { region: 0, first: 0, count: self.processes.into() },
            Phase::WritingValue => write(Slot { min, accepted: min, value: value.cloned() }),
            Phase::Ready | Phase::Accepted => return,
        };
        self.outstanding.invoke(memory, op, R::ONE_AT_A_TIME, out);
    }

    fn memories_in(&self, phase: Phase) -> Vec<MemoryId> {
        let memories = (0..).map(MemoryId).zip(&self.phases);
        memories.filter(|&(_, &at)| at == phase).map(|(memory, _)| memory).collect()
    }
}
