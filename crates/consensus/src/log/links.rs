//! What a process has asked its memories for.

use super::Cell;
use crate::{Action, MemoryId, Op};

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
pub(super) struct Links(Vec<Vec<Asked>>);

impl Links {
    pub(super) fn new(memories: u8) -> Links {
        Links(vec![Vec::new(); memories.into()])
    }

    pub(super) fn ask<M>(&mut self, m: usize, asked: Asked, op: Op<Cell>, out: &mut Vec<Action<Cell, M>>) {
        self.0[m].push(asked);
        out.push(Action::Ask { memory: MemoryId(m as u8), op });
    }

    /// The memory has answered the so manieth operation. None if it was asked for no such thing.
    pub(super) fn answered(&mut self, m: usize, nth: usize) -> Option<Asked> {
        let link = self.0.get_mut(m)?;
        (nth < link.len()).then(|| link.remove(nth))
    }

    /// Nobody wants what is under way any more.
    pub(super) fn abandon(&mut self) {
        (0..self.0.len()).for_each(|m| self.abandon_at(m));
    }

    /// Nobody wants what is under way at one memory any more.
    pub(super) fn abandon_at(&mut self, m: usize) {
        self.0[m].fill(Asked::Stale);
    }

    /// What is under way at a memory.
    pub(super) fn at(&self, m: usize) -> &[Asked] {
        &self.0[m]
    }
}
