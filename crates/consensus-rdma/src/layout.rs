//! Where the registers of a memory's regions lie.

use std::ops::Range;

use mitra_consensus::{Region, RegisterKind};

use crate::register;

/// The regions of a memory as bytes, each from 0.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    regions: Vec<(RegisterKind, u16)>,
    /// Bytes that a register has room for.
    room: usize,
}

impl Layout {
    pub(crate) fn new(regions: &[Region], room: usize) -> Layout {
        Layout { regions: regions.iter().map(|r| (r.kind, r.registers)).collect(), room }
    }

    /// What must be the same for bytes to mean the same: of each region its registers, whether they are words, and bytes of each.
    pub(crate) fn shape(&self) -> Vec<(u16, bool, usize)> {
        let of = |region| (self.registers(region), self.is_settled(region), self.stride(region));
        (0..self.regions() as u8).map(of).collect()
    }

    /// How many regions there are.
    pub(crate) fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Bytes of a register's contents, at most.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// How many registers a region has; 0 if there is no such region.
    pub(crate) fn registers(&self, region: u8) -> u16 {
        self.regions.get(usize::from(region)).map_or(0, |&(_, registers)| registers)
    }

    /// Bytes of each register of a region.
    pub(crate) fn stride(&self, region: u8) -> usize {
        match self.regions.get(usize::from(region)) {
            Some((RegisterKind::WriteOnce, _)) => 8,
            _ => 2 * register::place_len(self.room),
        }
    }

    /// Bytes of a region.
    pub(crate) fn len(&self, region: u8) -> usize {
        usize::from(self.registers(region)) * self.stride(region)
    }

    /// Whether a region is of words that are settled.
    pub(crate) fn is_settled(&self, region: u8) -> bool {
        matches!(self.regions.get(usize::from(region)), Some((RegisterKind::WriteOnce, _)))
    }

    /// Where a write with this sequence number goes.
    pub(crate) fn place(&self, region: u8, register: u16, seq: u64) -> u64 {
        let place = register::place_of(seq) * register::place_len(self.room);
        (usize::from(register) * self.stride(region) + place) as u64
    }

    /// The registers of a region in pieces of at most so many bytes, at least one register each.
    pub(crate) fn pieces(
        &self,
        region: u8,
        registers: Range<u16>,
        bytes: usize,
    ) -> impl Iterator<Item = Range<u16>> + use<> {
        let at_once = (bytes / self.stride(region)).clamp(1, usize::from(u16::MAX)) as u16;
        let end = registers.end;
        registers
            .step_by(usize::from(at_once))
            .map(move |first| first..end.min(first.saturating_add(at_once)))
    }
}
