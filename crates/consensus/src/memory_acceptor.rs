//! Memories as acceptors, each guarded by the exclusive right to write it: what Protected Memory Paxos and Aligned Paxos do on each
//! memory in an attempt. To promise is to give the right away, and to have the ballot written and the slots read; to accept is to
//! let a write pass.

use core::marker::PhantomData;

use crate::outstanding_ops::{AnsweredOp, OutstandingOps};
use crate::protected_memory_paxos::{Rules, Slot};
use crate::{Action, MemoryId, Op, OpId, Permissions, ProcessId, Response, Value};

/// One process's slots in all memories, and how far an attempt of it has come on each.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MemoryAcceptors<V, R> {
    me: ProcessId,
    processes: u8,
    ballot: u64,
    phases: Vec<Phase>,
    outstanding: OutstandingOps<Slot<V>>,
    /// What each memory holds of mine.
    mine: Vec<Slot<V>>,
    rules: PhantomData<R>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Phase {
    Taking,
    Promising,
    Reading,
    Ready,
    Writing,
    Accepted,
}

/// What a memory's answer means to an attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Answer<V> {
    /// It is ready for a value; this is the ballot and the value that were accepted last there.
    Ready(Option<(u64, V)>),
    /// It has accepted the value.
    Accepted,
    /// Another has taken it, or has begun this ballot there, which is higher.
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
            mine: vec![Slot::default(); memories.into()],
            rules: PhantomData,
        }
    }

    /// An attempt begins. Who needs no phase 1 finds every memory ready.
    pub(crate) fn begin(&mut self, ballot: u64, ready: bool, out: &mut Vec<Action<Slot<V>, impl Clone>>) {
        self.ballot = ballot;
        self.phases = vec![if ready { Phase::Ready } else { Phase::Taking }; self.mine.len()];
        for memory in self.at(Phase::Taking) {
            self.enter(memory, Phase::Taking, None, out);
        }
    }

    /// The value is settled: writes it to those that are ready.
    pub(crate) fn write(&mut self, value: &V, out: &mut Vec<Action<Slot<V>, impl Clone>>) {
        for memory in self.at(Phase::Ready) {
            self.enter(memory, Phase::Writing, Some(value), out);
        }
    }

    /// Nobody wants any more what was asked for.
    pub(crate) fn abandon(&mut self) {
        self.phases.clear();
        self.outstanding.abandon();
    }

    /// On how many memories the attempt has come as far as to be ready for a value.
    pub(crate) fn ready(&self) -> usize {
        self.phases.iter().filter(|&&phase| phase >= Phase::Ready).count()
    }

    /// How many memories have accepted the value.
    pub(crate) fn accepted(&self) -> usize {
        self.phases.iter().filter(|&&phase| phase == Phase::Accepted).count()
    }

    /// Takes a memory's answer. None if it leaves the attempt where it was.
    pub(crate) fn answered(
        &mut self,
        memory: MemoryId,
        id: OpId,
        response: Response<Slot<V>>,
        out: &mut Vec<Action<Slot<V>, impl Clone>>,
    ) -> Option<Answer<V>> {
        let AnsweredOp { op, abandoned } = self.outstanding.complete(memory, id, out)?;
        // Also what an attempt wrote that was given up stands there.
        if let (Op::Write { cell, .. }, Response::Ack) = (op, &response) {
            self.mine[usize::from(memory.0)] = cell;
        }
        let phase = *self.phases.get(usize::from(memory.0)).filter(|_| !abandoned)?;
        match (phase, response) {
            (Phase::Taking, Response::Ack) => self.enter(memory, Phase::Promising, None, out),
            (Phase::Promising, Response::Ack) => self.enter(memory, Phase::Reading, None, out),
            (Phase::Reading, Response::Cells(slots)) => return Some(self.scan(memory, &slots)),
            (Phase::Writing, Response::Ack) => {
                self.phases[usize::from(memory.0)] = Phase::Accepted;
                return Some(Answer::Accepted);
            }
            // Somebody else has taken the right to write.
            _ => return Some(Answer::Refused(0)),
        }
        None
    }

    /// What is in a memory's slots, read after the right to write them was taken.
    fn scan(&mut self, memory: MemoryId, slots: &[Slot<V>]) -> Answer<V> {
        let highest = slots.iter().map(|slot| slot.min).max().unwrap_or(0);
        if R::CHECKS_MIN && highest > self.ballot {
            return Answer::Refused(highest);
        }
        self.phases[usize::from(memory.0)] = Phase::Ready;
        let last =
            slots.iter().max_by_key(|slot| if R::ADOPTS_HIGHEST_ACCEPTED { slot.accepted } else { slot.min });
        Answer::Ready(last.and_then(|slot| Some((slot.accepted, slot.value.clone()?))))
    }

    /// The attempt comes to a phase on a memory, and asks it for what that takes.
    fn enter(
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
            Phase::Taking if R::EXCLUSIVE_WRITER => Op::ChangePermissions {
                region: 0,
                permissions: Permissions::single_writer(self.processes, self.me),
            },
            Phase::Taking => return self.enter(memory, Phase::Promising, None, out),
            Phase::Promising if R::KEEPS_ACCEPTED => write(Slot { min, ..self.mine[at].clone() }),
            Phase::Promising => write(Slot { min, ..Slot::default() }),
            Phase::Reading => Op::Read { region: 0, first: 0, count: self.processes.into() },
            Phase::Writing => write(Slot { min, accepted: min, value: value.cloned() }),
            Phase::Ready | Phase::Accepted => return,
        };
        self.outstanding.invoke(memory, op, R::ONE_AT_A_TIME, out);
    }

    fn at(&self, phase: Phase) -> Vec<MemoryId> {
        let memories = (0..).map(MemoryId).zip(&self.phases);
        memories.filter(|&(_, &at)| at == phase).map(|(memory, _)| memory).collect()
    }
}
