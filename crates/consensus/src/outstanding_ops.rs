//! The operations that a process has outstanding at its memories, at most one at each.

use crate::process::Action;
use crate::{MemoryId, Op, OpId};

/// The outstanding operations of a process, by memory.
///
/// At most one operation is outstanding at each memory, including those of abandoned attempts. Safety rests on this rule: otherwise a
/// write of an abandoned attempt could land after the same process has taken the region over again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OutstandingOps<C> {
    memories: Vec<MemoryOps<C>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct MemoryOps<C> {
    /// Invoked and not answered, oldest first.
    outstanding: Vec<OutstandingOp<C>>,
    /// The operation to invoke once no operation is outstanding.
    queued: Option<Op<C>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct OutstandingOp<C> {
    id: OpId,
    op: Op<C>,
    /// The attempt that invoked the operation was abandoned.
    abandoned: bool,
}

/// An operation that a memory has answered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AnsweredOp<C> {
    pub(crate) op: Op<C>,
    /// The attempt that invoked the operation was abandoned: the response belongs to no attempt.
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

    /// Invokes an operation. With `one_at_a_time`, the operation waits until the memory has responded to the
    /// outstanding one. A waiting operation replaces an earlier waiting one.
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

    /// Removes the operation that a memory has answered, and invokes the one that waited for it. Returns `None` if no operation with
    /// this id is outstanding there.
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

    /// Marks every outstanding operation as abandoned, and drops those that wait.
    pub(crate) fn abandon(&mut self) {
        for ops in &mut self.memories {
            ops.queued = None;
            ops.outstanding.iter_mut().for_each(|outstanding| outstanding.abandoned = true);
        }
    }
}
