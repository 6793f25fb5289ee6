//! The operations that a process has outstanding at its memories: in the correct protocols, at most
//! one at each memory.

use crate::process::Action;
use crate::{MemoryId, Op, OpId};

/// At most one operation is outstanding at each memory, including operations of abandoned attempts.
/// The safety of the protocols depends on this rule. Otherwise, a write of an abandoned attempt
/// could take effect after the same process has taken the region over again. A checker disables the
/// rule by `one_at_a_time`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OutstandingOps<C> {
    memories: Vec<MemoryOps<C>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct MemoryOps<C> {
    /// The operations that were invoked and not answered, oldest first.
    outstanding: Vec<OutstandingOp<C>>,
    /// The operation to invoke once no operation is outstanding.
    queued: Option<Op<C>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct OutstandingOp<C> {
    id: OpId,
    op: Op<C>,
    abandoned: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AnsweredOp<C> {
    pub(crate) op: Op<C>,
    /// Whether the attempt that invoked the operation was abandoned. The response then belongs to
    /// no attempt.
    pub(crate) abandoned: bool,
}

impl<C: Clone> MemoryOps<C> {
    fn invoke<M>(&mut self, memory: MemoryId, op: Op<C>, out: &mut Vec<Action<C, M>>) {
        let id = OpId::first_unused(self.outstanding.iter().map(|outstanding| outstanding.id));
        self.outstanding.push(OutstandingOp { id, op: op.clone(), abandoned: false });
        out.push(Action::Invoke { memory, id, op });
    }
}

impl<C: Clone> OutstandingOps<C> {
    pub(crate) fn new(memories: u8) -> OutstandingOps<C> {
        let memory = MemoryOps { outstanding: Vec::new(), queued: None };
        OutstandingOps { memories: vec![memory; memories.into()] }
    }

    /// Invokes an operation. If `one_at_a_time` is true and an operation is outstanding at the
    /// memory, queues the new operation until the memory has responded. The new operation replaces
    /// an operation that was queued before.
    pub(crate) fn invoke<M>(
        &mut self,
        memory: MemoryId,
        op: Op<C>,
        one_at_a_time: bool,
        out: &mut Vec<Action<C, M>>,
    ) {
        let ops = &mut self.memories[usize::from(memory.0)];
        if one_at_a_time && !ops.outstanding.is_empty() {
            ops.queued = Some(op);
        } else {
            ops.invoke(memory, op, out);
        }
    }

    /// Removes the operation that a memory has answered, and invokes the queued operation. Returns
    /// `None` if no operation with this id is outstanding at the memory.
    pub(crate) fn complete<M>(
        &mut self,
        memory: MemoryId,
        id: OpId,
        out: &mut Vec<Action<C, M>>,
    ) -> Option<AnsweredOp<C>> {
        let ops = self.memories.get_mut(usize::from(memory.0))?;
        let at = ops.outstanding.iter().position(|outstanding| outstanding.id == id)?;
        let OutstandingOp { op, abandoned, .. } = ops.outstanding.remove(at);
        if let Some(next) = ops.queued.take() {
            ops.invoke(memory, next, out);
        }
        Some(AnsweredOp { op, abandoned })
    }

    /// Marks every outstanding operation as abandoned, and drops the queued operations.
    pub(crate) fn abandon(&mut self) {
        for ops in &mut self.memories {
            ops.queued = None;
            ops.outstanding.iter_mut().for_each(|outstanding| outstanding.abandoned = true);
        }
    }
}
