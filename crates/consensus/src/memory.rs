//! Memories: registers in regions, and the permissions to read and write each region.

use core::ops::Range;

use crate::{ProcessId, ProcessSet};

/// The permissions of a region. The papers describe permissions by three disjoint sets of
/// processes: R may only read, W may only write, and RW may do both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Permissions {
    /// The processes that may read.
    pub read: ProcessSet,
    /// The processes that may write.
    pub write: ProcessSet,
}

impl Permissions {
    /// Returns permissions under which all `n` processes may read and only `writer` may write
    /// (SWMR).
    pub fn single_writer(n: u8, writer: ProcessId) -> Permissions {
        Permissions { read: ProcessSet::first(n), write: ProcessSet::only(writer) }
    }

    /// Returns permissions under which all `n` processes may read and no process may write.
    pub fn read_only(n: u8) -> Permissions {
        Permissions { read: ProcessSet::first(n), write: ProcessSet::NONE }
    }
}

/// The papers' `legalChange`: the changes of a region's permissions that a memory carries out. A
/// memory ignores every other change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LegalChange {
    /// No change is legal: the permissions are static.
    Never,
    /// Process p may make itself the only writer: R = all but p, W = ∅, RW = {p}. Protected Memory
    /// Paxos uses this rule.
    ExclusiveWriter,
    /// Any process may remove all writers: R = all, W = RW = ∅. No later change restores a writer.
    /// Cheap Quorum uses this rule.
    ReadOnly,
}

impl LegalChange {
    /// Returns whether process `p` may change the permissions of a region that `n` processes share
    /// to `new`.
    pub fn allows(self, n: u8, p: ProcessId, new: Permissions) -> bool {
        match self {
            LegalChange::Never => false,
            LegalChange::ExclusiveWriter => new == Permissions::single_writer(n, p),
            LegalChange::ReadOnly => new == Permissions::read_only(n),
        }
    }
}

/// A region's layout and permissions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Region {
    /// The number of registers. Initially, each register holds the cell's default value.
    pub registers: u16,
    /// The permissions: initial in a configuration, current in a [`Memory`].
    pub permissions: Permissions,
    /// The legal changes of the permissions.
    pub legal_change: LegalChange,
    /// The kind of all registers of the region.
    pub kind: RegisterKind,
}

/// The kind of a region's registers. The kind determines how a driver that stores registers as
/// bytes represents them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegisterKind {
    /// Written by [`Op::Write`], any number of times.
    ReadWrite,
    /// Written by [`Op::WriteOnce`]. Over RDMA, each register is an 8-byte word.
    WriteOnce,
}

/// An operation that a process invokes at a memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op<C> {
    /// Reads consecutive registers of a region. The registers are read one after another, not
    /// atomically: a write may take effect between the reads of two registers.
    Read {
        /// The number of the region.
        region: u8,
        /// The number of the first register.
        first: u16,
        /// The number of registers.
        count: u16,
    },
    /// Writes a register.
    Write {
        /// The number of the region.
        region: u8,
        /// The number of the register in the region.
        register: u16,
        /// The new content.
        cell: C,
    },
    /// Writes a register unless it was written before, and returns the content that the register
    /// has afterwards. The operation is a compare-and-swap that expects the default value. The
    /// register is a wait-free consensus object (Herlihy, "Wait-Free Synchronization", 1991). The
    /// operation needs permission to read and to write.
    WriteOnce {
        /// The number of the region.
        region: u8,
        /// The number of the register in the region.
        register: u16,
        /// The proposed content. It differs from the cell's default value.
        cell: C,
    },
    /// Changes a region's permissions, if the change is legal.
    ChangePermissions {
        /// The number of the region.
        region: u8,
        /// The new permissions.
        permissions: Permissions,
    },
}

/// A memory's response to an operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Response<C> {
    /// The operation took effect, or it was a change of permissions that is not legal. The memory
    /// ignores such a change.
    Ack,
    /// The content of the registers that [`Op::Read`] read, or of the register of
    /// [`Op::WriteOnce`].
    Cells(Vec<C>),
    /// The process lacks the permission, or the region or register does not exist. The operation
    /// had no effect. Over RDMA, a write also has this response if its connection broke. Such a
    /// write may have taken effect, but will not take effect later.
    Nak,
}

/// A model of a memory, which enforces its regions' permissions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Memory<C> {
    processes: u8,
    regions: Vec<(Region, Vec<C>)>,
}

impl<C: Clone + Default + PartialEq> Memory<C> {
    /// Creates a memory that `n` processes share.
    pub fn new(n: u8, regions: &[Region]) -> Memory<C> {
        let with_cells = |r: &Region| (r.clone(), vec![C::default(); r.registers.into()]);
        Memory { processes: n, regions: regions.iter().map(with_cells).collect() }
    }

    /// Executes an operation of process `p` atomically.
    pub fn execute(&mut self, p: ProcessId, op: &Op<C>) -> Response<C> {
        match op {
            Op::Read { region, first, count } => {
                let mut read = Vec::new();
                loop {
                    if let Some(response) =
                        self.read_next(p, *region, *first..first.saturating_add(*count), &mut read)
                    {
                        return response;
                    }
                }
            }
            Op::Write { region, register, cell } => {
                let Some((r, cells)) = self.regions.get_mut(usize::from(*region)) else {
                    return Response::Nak;
                };
                match cells.get_mut(usize::from(*register)) {
                    Some(place) if r.permissions.write.contains(p) => {
                        place.clone_from(cell);
                        Response::Ack
                    }
                    _ => Response::Nak,
                }
            }
            Op::WriteOnce { region, register, cell } => {
                let Some((r, cells)) = self.regions.get_mut(usize::from(*region)) else {
                    return Response::Nak;
                };
                match cells.get_mut(usize::from(*register)) {
                    Some(place) if r.permissions.write.contains(p) && r.permissions.read.contains(p) => {
                        if *place == C::default() {
                            place.clone_from(cell);
                        }
                        Response::Cells(vec![place.clone()])
                    }
                    _ => Response::Nak,
                }
            }
            Op::ChangePermissions { region, permissions } => {
                let Some((r, _)) = self.regions.get_mut(usize::from(*region)) else { return Response::Nak };
                if r.legal_change.allows(self.processes, p, *permissions) {
                    r.permissions = *permissions;
                }
                Response::Ack
            }
        }
    }

    /// Restarts the memory with its content. Regions whose permissions can change lose all writers.
    /// Under [`LegalChange::ExclusiveWriter`], a writer can take the permission again. Under
    /// [`LegalChange::ReadOnly`], no writer can.
    pub fn restart(&mut self) {
        for (region, _) in
            self.regions.iter_mut().filter(|(region, _)| region.legal_change != LegalChange::Never)
        {
            region.permissions.write = ProcessSet::NONE;
        }
    }

    /// Executes one step of a read of `registers`: appends the content of the next register to
    /// `read`, which holds the contents read so far. Returns the response to the read once the read
    /// is complete or refused.
    pub fn read_next(
        &self,
        p: ProcessId,
        region: u8,
        registers: Range<u16>,
        read: &mut Vec<C>,
    ) -> Option<Response<C>> {
        let Some((r, cells)) = self.regions.get(usize::from(region)) else { return Some(Response::Nak) };
        let Some(cells) = cells.get(usize::from(registers.start)..usize::from(registers.end)) else {
            return Some(Response::Nak);
        };
        if !r.permissions.read.contains(p) {
            return Some(Response::Nak);
        }
        read.extend(cells.get(read.len()).cloned());
        (read.len() >= cells.len()).then(|| Response::Cells(core::mem::take(read)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P0: ProcessId = ProcessId(0);
    const P1: ProcessId = ProcessId(1);

    fn memory(legal_change: LegalChange) -> Memory<u8> {
        Memory::new(
            2,
            &[Region {
                registers: 2,
                permissions: Permissions::single_writer(2, P0),
                legal_change,
                kind: RegisterKind::ReadWrite,
            }],
        )
    }

    fn write(cell: u8) -> Op<u8> {
        Op::Write { region: 0, register: 1, cell }
    }

    #[test]
    fn takeover_grants_new_writer_and_revokes_old() {
        let mut m = memory(LegalChange::ExclusiveWriter);
        assert_eq!(m.execute(P0, &write(7)), Response::Ack);
        assert_eq!(m.execute(P1, &write(8)), Response::Nak);
        let takeover = Op::ChangePermissions { region: 0, permissions: Permissions::single_writer(2, P1) };
        assert_eq!(m.execute(P0, &takeover), Response::Ack);
        assert_eq!(m.execute(P1, &write(8)), Response::Nak, "a process cannot take over for another process");
        assert_eq!(m.execute(P1, &takeover), Response::Ack);
        assert_eq!(m.execute(P0, &write(9)), Response::Nak);
        assert_eq!(m.execute(P1, &write(8)), Response::Ack);
        assert_eq!(m.execute(P0, &Op::Read { region: 0, first: 0, count: 2 }), Response::Cells(vec![0, 8]));
    }

    #[test]
    fn read_only_and_static_regions_keep_their_permissions() {
        for (legal_change, last_response) in
            [(LegalChange::ReadOnly, Response::Nak), (LegalChange::Never, Response::Ack)]
        {
            let mut m = memory(legal_change);
            m.execute(P1, &Op::ChangePermissions { region: 0, permissions: Permissions::read_only(2) });
            m.execute(
                P0,
                &Op::ChangePermissions { region: 0, permissions: Permissions::single_writer(2, P0) },
            );
            assert_eq!(m.execute(P0, &write(7)), last_response, "{legal_change:?}");
        }
    }

    #[test]
    fn write_once_register_keeps_its_first_value() {
        let mut m = memory(LegalChange::Never);
        let write_once = |cell| Op::WriteOnce { region: 0, register: 1, cell };
        assert_eq!(m.execute(P1, &write_once(8)), Response::Nak, "process 1 has no permission to write");
        assert_eq!(m.execute(P0, &write_once(7)), Response::Cells(vec![7]));
        assert_eq!(m.execute(P0, &write_once(8)), Response::Cells(vec![7]));
    }

    #[test]
    fn missing_regions_and_registers_are_refused() {
        let mut m = memory(LegalChange::Never);
        assert_eq!(m.execute(P0, &Op::Read { region: 0, first: 1, count: 2 }), Response::Nak);
        assert_eq!(m.execute(P0, &Op::Read { region: 1, first: 0, count: 1 }), Response::Nak);
        assert_eq!(m.execute(P0, &Op::Write { region: 0, register: 2, cell: 1 }), Response::Nak);
    }
}
