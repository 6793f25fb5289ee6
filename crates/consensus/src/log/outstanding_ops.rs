//! The operations that a process of the log has outstanding at its memories.

use super::Cell;
use crate::{Action, MemoryId, Op, OpId};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum OpPurpose {
    /// No purpose any more: the operation was abandoned.
    Stale,
    /// Takes the permission to write.
    Permission,
    /// Reads the header in a takeover, before the leader writes its ballot.
    Header,
    /// Writes the leader's ballot to the header.
    Ballot,
    /// Reads a window of the ring in a takeover.
    Scan,
    /// Writes the entry with this index.
    Entry(u64),
    /// Writes a chunk of a snapshot.
    Chunk,
    /// Writes the header with a new recycling point.
    Recycle,
    /// Reads entries, the header or chunks for a follower.
    Fetch,
}

/// The outstanding operations at each memory, oldest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct OutstandingLogOps(Vec<Vec<(OpId, OpPurpose)>>);

impl OutstandingLogOps {
    pub(super) fn new(memories: u8) -> OutstandingLogOps {
        OutstandingLogOps(vec![Vec::new(); memories.into()])
    }

    /// Records an operation at memory `m`, and appends the action that invokes it.
    ///
    /// The id is derived from the register that the operation accesses, and not from the number of
    /// earlier operations. States that differ only in completed operations are therefore equal for
    /// the model checker.
    pub(super) fn invoke<M>(
        &mut self,
        m: usize,
        purpose: OpPurpose,
        op: Op<Cell>,
        out: &mut Vec<Action<Cell, M>>,
    ) {
        let mut id = OpId(match op {
            Op::Read { first, .. } => 2 * u64::from(first) + 1,
            Op::Write { register, .. } | Op::WriteOnce { register, .. } => 2 * u64::from(register) + 2,
            Op::ChangePermissions { .. } => 0,
        });
        while self.0[m].iter().any(|&(used, _)| used == id) {
            id.0 += 1 << 32;
        }
        self.0[m].push((id, purpose));
        out.push(Action::Invoke { memory: MemoryId(m as u8), id, op });
    }

    /// Removes an operation that memory `m` has answered, and returns the operation's purpose.
    /// Returns `None` if no operation with this id is outstanding at the memory.
    pub(super) fn complete(&mut self, m: usize, id: OpId) -> Option<OpPurpose> {
        let outstanding = self.0.get_mut(m)?;
        let at = outstanding.iter().position(|&(other, _)| other == id)?;
        Some(outstanding.remove(at).1)
    }

    /// Whether any operation is outstanding, including abandoned operations.
    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|at_memory| !at_memory.is_empty())
    }

    pub(super) fn abandon(&mut self) {
        (0..self.0.len()).for_each(|m| self.abandon_at(m));
    }

    pub(super) fn abandon_at(&mut self, m: usize) {
        self.0[m].iter_mut().for_each(|(_, purpose)| *purpose = OpPurpose::Stale);
    }

    /// The purposes of the operations outstanding at a memory, including abandoned operations.
    pub(super) fn at(&self, m: usize) -> impl ExactSizeIterator<Item = OpPurpose> + Clone {
        self.0[m].iter().map(|&(_, purpose)| purpose)
    }
}
