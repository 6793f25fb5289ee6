//! A life of a process: its client of the memory node, and its operations.

use mitra_consensus::{
    LegalChange, Op, OpId, Permissions, ProcessId, ProcessSet, Region, RegisterKind, Response,
};
use mitra_consensus_memory::Client;
use mitra_prng::Prng;

use super::fabric::QpId;
use super::history::{History, Time, WriteId};

const MAX_OUTSTANDING: usize = 4;

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) op: Op<WriteId>,
    invoked: Time,
    pub(super) is_done: bool,
}

impl Operation {
    fn region(&self) -> u8 {
        match self.op {
            Op::Read { region, .. }
            | Op::Write { region, .. }
            | Op::WriteOnce { region, .. }
            | Op::ChangePermissions { region, .. } => region,
        }
    }

    fn is_read(&self) -> bool {
        matches!(self.op, Op::Read { .. })
    }
}

/// A life of a process, from its start to its crash.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) process: ProcessId,
    pub(super) incarnation: u64,
    pub(super) client: Client<WriteId, u64>,
    /// The current end of a connection, connected or dialling.
    pub(super) end: Option<QpId>,
    /// The number of the handshake in progress.
    pub(super) attempt: Option<u64>,
    /// All operations. The operation at index i has the id i, and its work requests have the id
    /// i + 1.
    pub(super) operations: Vec<Operation>,
    /// The number of the memory's contents at the client's first connection.
    pub(super) contents: Option<usize>,
    pub(super) is_suspended: bool,
    pub(super) is_dead: bool,
}

impl Life {
    pub(super) fn new(process: ProcessId, incarnation: u64, regions: &[Region], capacity: usize) -> Life {
        Life {
            process,
            incarnation,
            client: Client::new(regions, capacity),
            end: None,
            attempt: None,
            operations: Vec::new(),
            contents: None,
            is_suspended: false,
            is_dead: false,
        }
    }

    pub(super) fn runs(&self) -> bool {
        !self.is_dead && !self.is_suspended
    }

    pub(super) fn outstanding(&self) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(|operation| !operation.is_done)
    }

    pub(super) fn may_submit(&self) -> bool {
        self.runs() && self.outstanding().count() < MAX_OUTSTANDING
    }

    pub(super) fn submit(&mut self, op: Op<WriteId>, now: Time) {
        self.client.submit(OpId(self.operations.len() as u64), op.clone());
        self.operations.push(Operation { op, invoked: now, is_done: false });
    }

    /// Returns a random operation that a correct process may submit now, or `None` if the random
    /// choice found no such operation. A correct process has one update outstanding per register,
    /// and changes permissions of a region only if no update is outstanding in the region.
    pub(super) fn random_operation(
        &self,
        regions: &[Region],
        focus: Option<u8>,
        processes: u8,
        write: WriteId,
        rng: &mut Prng,
    ) -> Option<Op<WriteId>> {
        let at = focus.map_or_else(|| rng.index(regions.len()), usize::from);
        let (region, registers) = (at as u8, if focus.is_some() { 1 } else { regions[at].registers });
        let register = rng.below(registers.into()) as u16;
        let busy = |other: &Operation| {
            other.region() == region
                && match other.op {
                    Op::Read { .. } => false,
                    Op::ChangePermissions { .. } => true,
                    Op::Write { register: r, .. } | Op::WriteOnce { register: r, .. } => r == register,
                }
        };
        let updates = self.outstanding().filter(|other| other.region() == region && !other.is_read());
        let change = match regions[at].legal_change {
            LegalChange::ExclusiveWriter if rng.below(3) == 0 => {
                Some(Permissions::single_writer(processes, self.process))
            }
            LegalChange::ReadOnly if rng.below(12) == 0 => Some(Permissions::read_only(processes)),
            _ => None,
        };
        if let Some(permissions) = change {
            return (updates.count() == 0).then_some(Op::ChangePermissions { region, permissions });
        }
        if rng.below(2) == 0 {
            let first = rng.below(registers.into()) as u16;
            let count = rng.between(1, u64::from(registers - first)) as u16;
            return Some(Op::Read { region, first, count });
        }
        let may_write = regions[at].legal_change == LegalChange::ExclusiveWriter
            || regions[at].permissions.write.contains(self.process);
        if !may_write || self.outstanding().any(busy) {
            return None;
        }
        Some(match regions[at].kind {
            RegisterKind::ReadWrite => Op::Write { region, register, cell: write },
            RegisterKind::WriteOnce => Op::WriteOnce { region, register, cell: write },
        })
    }

    /// Records a response, and returns the property that it violates.
    pub(super) fn check(
        &mut self,
        id: OpId,
        response: &Response<WriteId>,
        history: &mut History,
    ) -> Option<&'static str> {
        let operation = &mut self.operations[id.0 as usize];
        if std::mem::replace(&mut operation.is_done, true) {
            return Some("an operation has one response");
        }
        let invoked = operation.invoked;
        let holds = match (&operation.op, response) {
            (&Op::Write { region, register, cell }, Response::Ack) => {
                history.is_executed((region, register), cell)
            }
            (Op::Write { .. }, Response::Nak) | (Op::ChangePermissions { .. }, Response::Ack) => true,
            (&Op::WriteOnce { region, register, .. }, Response::Cells(cells)) => {
                matches!(cells[..], [held] if held != 0 && history.explains_read((region, register), held, invoked))
            }
            (&Op::Read { region, first, count }, Response::Cells(cells)) => {
                cells.len() == usize::from(count)
                    && (first..)
                        .zip(cells)
                        .all(|(register, &cell)| history.explains_read((region, register), cell, invoked))
            }
            _ => false,
        };
        let property = match operation.op {
            Op::Write { .. } => "an acknowledged write was executed",
            Op::Read { .. } => "a read returns a value that its register held meanwhile",
            Op::WriteOnce { .. } => "a write-once operation returns the value that its register holds",
            Op::ChangePermissions { .. } => "a change of permissions is acknowledged",
        };
        (!holds).then_some(property)
    }
}

/// Returns the regions of the memory: a region whose writer changes by takeover, a region with a
/// static writer, a region of write-once registers, and a region that can be made read-only.
pub(super) fn regions(processes: u8) -> Vec<Region> {
    let region =
        |registers, permissions, legal_change, kind| Region { registers, permissions, legal_change, kind };
    let first = Permissions::single_writer(processes, ProcessId(0));
    let second = Permissions::single_writer(processes, ProcessId(1));
    let all = Permissions { read: ProcessSet::first(processes), write: ProcessSet::first(processes) };
    vec![
        region(2, first, LegalChange::ExclusiveWriter, RegisterKind::ReadWrite),
        region(2, second, LegalChange::Never, RegisterKind::ReadWrite),
        region(2, all, LegalChange::Never, RegisterKind::WriteOnce),
        region(1, first, LegalChange::ReadOnly, RegisterKind::ReadWrite),
    ]
}
