//! What a process has asked its memories for.

use super::Cell;
use crate::{Action, MemoryId, Op, OpId};

/// What an answer will be about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Asked {
    /// Nobody wants it any more.
    Stale,
    /// The right to write.
    Right,
    /// The header, before my ballot is in it.
    Header,
    /// My ballot, in the header.
    Ballot,
    /// What is in the ring, for who takes over.
    Scan,
    /// This entry, written.
    Entry(u64),
    /// A chunk of a snapshot, written.
    Chunk,
    /// The recycling point, moved.
    Move,
    /// What a follower has asked for.
    Fetch,
}

/// Operations under way at each memory, oldest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Inflight(Vec<Vec<(OpId, Asked)>>);

impl Inflight {
    pub(super) fn new(memories: u8) -> Inflight {
        Inflight(vec![Vec::new(); memories.into()])
    }

    /// Invokes an operation. Its id names the register that it accesses, and not its place among the outstanding ones: states that differ
    /// only in what was answered before stay equal for the model checker.
    pub(super) fn ask<M>(&mut self, m: usize, asked: Asked, op: Op<Cell>, out: &mut Vec<Action<Cell, M>>) {
        let mut id = OpId(match op {
            Op::Read { first, .. } => 2 * u64::from(first) + 1,
            Op::Write { register, .. } | Op::WriteOnce { register, .. } => 2 * u64::from(register) + 2,
            Op::ChangePermissions { .. } => 0,
        });
        while self.0[m].iter().any(|&(used, _)| used == id) {
            id.0 += 1 << 32;
        }
        self.0[m].push((id, asked));
        out.push(Action::Invoke { memory: MemoryId(m as u8), id, op });
    }

    /// The memory has answered an operation. `None` if none with this id is outstanding.
    pub(super) fn answered(&mut self, m: usize, id: OpId) -> Option<Asked> {
        let outstanding = self.0.get_mut(m)?;
        let at = outstanding.iter().position(|&(other, _)| other == id)?;
        Some(outstanding.remove(at).1)
    }

    /// Nobody wants what is under way any more.
    pub(super) fn abandon(&mut self) {
        (0..self.0.len()).for_each(|m| self.abandon_at(m));
    }

    /// Nobody wants what is under way at one memory any more.
    pub(super) fn abandon_at(&mut self, m: usize) {
        self.0[m].iter_mut().for_each(|(_, asked)| *asked = Asked::Stale);
    }

    /// What is under way at a memory.
    pub(super) fn at(&self, m: usize) -> impl ExactSizeIterator<Item = Asked> + Clone {
        self.0[m].iter().map(|&(_, asked)| asked)
    }
}
