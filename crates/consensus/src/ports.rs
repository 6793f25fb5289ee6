//! A process's way to its memories: one operation at a time on each.

use crate::process::Action;
use crate::{MemoryId, Op};

/// At most one operation is outstanding on each memory, those of aborted attempts included: safety rests on that. A write of an
/// attempt that was given up could else land after its writer has taken the region again (consensus.md §2, mutant 2).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ports<C> {
    ports: Vec<Port<C>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Port<C> {
    /// What has not been answered, oldest first, and whether anybody still wants the answer.
    outstanding: Vec<(Op<C>, bool)>,
    /// What is to be asked for then.
    next: Option<Op<C>>,
}

impl<C: Clone> Ports<C> {
    pub(crate) fn new(memories: u8) -> Ports<C> {
        let port = Port { outstanding: Vec::new(), next: None };
        Ports { ports: vec![port; memories.into()] }
    }

    /// Asks for something now, or, if `patient`, as soon as the memory has answered what an earlier attempt asked for.
    pub(crate) fn ask<M>(&mut self, memory: MemoryId, op: Op<C>, patient: bool, out: &mut Vec<Action<C, M>>) {
        let port = &mut self.ports[usize::from(memory.0)];
        if patient && !port.outstanding.is_empty() {
            port.next = Some(op);
        } else {
            port.outstanding.push((op.clone(), true));
            out.push(Action::Ask { memory, op });
        }
    }

    /// The memory has answered the `nth` outstanding operation: what that was, and whether the answer is still wanted. None if it was
    /// asked for no such thing.
    pub(crate) fn answered<M>(
        &mut self,
        memory: MemoryId,
        nth: usize,
        out: &mut Vec<Action<C, M>>,
    ) -> Option<(Op<C>, bool)> {
        let port = self.ports.get_mut(usize::from(memory.0))?;
        if nth >= port.outstanding.len() {
            return None;
        }
        let answered = port.outstanding.remove(nth);
        if let Some(op) = port.next.take() {
            port.outstanding.push((op.clone(), true));
            out.push(Action::Ask { memory, op });
        }
        Some(answered)
    }

    /// Nobody wants what is outstanding any more.
    pub(crate) fn abandon(&mut self) {
        for port in &mut self.ports {
            port.next = None;
            port.outstanding.iter_mut().for_each(|(_, wanted)| *wanted = false);
        }
    }
}
