//! Memories: registers in regions, and who may read and write them.

use core::ops::Range;

use crate::{ProcessId, ProcessSet};

/// Who may read and who may write a region. The papers' disjoint sets are R = `read` without `write`, W = `write` without `read`,
/// RW = both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Permissions {
    /// Who may read.
    pub read: ProcessSet,
    /// Who may write.
    pub write: ProcessSet,
}

impl Permissions {
    /// All of `n` processes may read, and one of them write: SWMR.
    pub fn single_writer(n: u8, writer: ProcessId) -> Permissions {
        Permissions { read: ProcessSet::first(n), write: ProcessSet::only(writer) }
    }

    /// All of `n` processes may read, and nobody write.
    pub fn read_only(n: u8) -> Permissions {
        Permissions { read: ProcessSet::first(n), write: ProcessSet::NONE }
    }
}

/// `legalChange`: which changes of a region's rights a memory carries out. It ignores others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LegalChange {
    /// None: the rights are static.
    Never,
    /// Whoever asks becomes the only writer: (all but p, ∅, {p}), Protected Memory Paxos.
    ExclusiveWriter,
    /// Writing ends, for good: (all, ∅, ∅), Cheap Quorum.
    ReadOnly,
}

impl LegalChange {
    /// Whether `p` may change the rights to `new`, for a region that `n` processes share.
    pub fn allows(self, n: u8, p: ProcessId, new: Permissions) -> bool {
        match self {
            LegalChange::Never => false,
            LegalChange::ExclusiveWriter => new == Permissions::single_writer(n, p),
            LegalChange::ReadOnly => new == Permissions::read_only(n),
        }
    }
}

/// A region as it is at first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Region {
    /// How many registers it has. They hold the default at first.
    pub registers: u16,
    /// Who may do what.
    pub permissions: Permissions,
    /// How that may change.
    pub legal_change: LegalChange,
    /// What its registers are.
    pub kind: RegisterKind,
}

/// What the registers of a region are made of, where memory is bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegisterKind {
    /// Written by [`Op::Write`].
    ReadWrite,
    /// Written by [`Op::WriteOnce`]: words of eight bytes.
    WriteOnce,
}

/// What a process asks of a memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op<C> {
    /// Registers of a region that follow one another. Each is read at some time of its own: writes may come in between.
    Read {
        /// Number of the region.
        region: u8,
        /// Number of the first register.
        first: u16,
        /// How many.
        count: u16,
    },
    /// Writes a register.
    Write {
        /// Number of the region.
        region: u8,
        /// Number of the register in it.
        register: u16,
        /// What it holds from then on.
        cell: C,
    },
    /// Writes a register that nobody has written, and answers what it holds then: compare and swap with the default. A wait-free
    /// consensus object (Herlihy 1991). Takes the right to read and to write.
    WriteOnce {
        /// Number of the region.
        region: u8,
        /// Number of the register in it.
        register: u16,
        /// What is proposed.
        cell: C,
    },
    /// Changes a region's rights, if that is legal.
    ChangePermissions {
        /// Number of the region.
        region: u8,
        /// Its rights from then on.
        permissions: Permissions,
    },
}

/// What a memory answers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Response<C> {
    /// Done. Of a change also where it was not legal.
    Ack,
    /// What was read, or settled.
    Cells(Vec<C>),
    /// Refused for want of the right. Nothing was done.
    Nak,
}

/// A memory: it obeys its regions' rights, and otherwise fails by crashing only.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Memory<C> {
    processes: u8,
    regions: Vec<(Region, Vec<C>)>,
}

impl<C: Clone + Default + PartialEq> Memory<C> {
    /// A memory that `n` processes share.
    pub fn new(n: u8, regions: &[Region]) -> Memory<C> {
        let with_cells = |r: &Region| (r.clone(), vec![C::default(); r.registers.into()]);
        Memory { processes: n, regions: regions.iter().map(with_cells).collect() }
    }

    /// Does what a process asks for, at once. What does not exist is refused.
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

    /// It ends, and goes on with what it held; but of rights that can be taken nobody has any.
    pub fn reopen(&mut self) {
        for (region, _) in
            self.regions.iter_mut().filter(|(region, _)| region.legal_change != LegalChange::Never)
        {
            region.permissions.write = ProcessSet::NONE;
        }
    }

    /// Reads the next of some registers of a region into `read`, as a NIC does that reads one after the other. Says what the whole
    /// read answers if this was its end.
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
    fn who_takes_over_writes_and_who_had_it_is_refused() {
        let mut m = memory(LegalChange::ExclusiveWriter);
        assert_eq!(m.execute(P0, &write(7)), Response::Ack);
        assert_eq!(m.execute(P1, &write(8)), Response::Nak);
        let mine = Op::ChangePermissions { region: 0, permissions: Permissions::single_writer(2, P1) };
        assert_eq!(m.execute(P0, &mine), Response::Ack);
        assert_eq!(m.execute(P1, &write(8)), Response::Nak, "nobody takes it for another");
        assert_eq!(m.execute(P1, &mine), Response::Ack);
        assert_eq!(m.execute(P0, &write(9)), Response::Nak);
        assert_eq!(m.execute(P1, &write(8)), Response::Ack);
        assert_eq!(m.execute(P0, &Op::Read { region: 0, first: 0, count: 2 }), Response::Cells(vec![0, 8]));
    }

    #[test]
    fn what_is_frozen_stays_so_and_what_is_static_too() {
        for (rule, after) in [(LegalChange::ReadOnly, Response::Nak), (LegalChange::Never, Response::Ack)] {
            let mut m = memory(rule);
            m.execute(P1, &Op::ChangePermissions { region: 0, permissions: Permissions::read_only(2) });
            m.execute(
                P0,
                &Op::ChangePermissions { region: 0, permissions: Permissions::single_writer(2, P0) },
            );
            assert_eq!(m.execute(P0, &write(7)), after, "{rule:?}");
        }
    }

    #[test]
    fn what_is_settled_stays_so() {
        let mut m = memory(LegalChange::Never);
        let settle = |cell| Op::WriteOnce { region: 0, register: 1, cell };
        assert_eq!(m.execute(P1, &settle(8)), Response::Nak, "it may only read");
        assert_eq!(m.execute(P0, &settle(7)), Response::Cells(vec![7]));
        assert_eq!(m.execute(P0, &settle(8)), Response::Cells(vec![7]));
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        let mut m = memory(LegalChange::Never);
        assert_eq!(m.execute(P0, &Op::Read { region: 0, first: 1, count: 2 }), Response::Nak);
        assert_eq!(m.execute(P0, &Op::Read { region: 1, first: 0, count: 1 }), Response::Nak);
        assert_eq!(m.execute(P0, &Op::Write { region: 0, register: 2, cell: 1 }), Response::Nak);
    }
}
