//! The byte layout of a memory's regions.

use std::ops::Range;

use mitra_consensus::{Region, RegisterKind};

use crate::two_slot_register;

/// The sizes and offsets of the registers of a memory's regions. Offsets are relative to the start
/// of their region.
#[derive(Clone, Debug)]
pub struct Layout {
    regions: Vec<(RegisterKind, u16)>,
    /// The capacity of a register's contents, in bytes.
    register_capacity: usize,
}

impl Layout {
    /// Creates the layout of `regions`, whose registers hold contents of up to `register_capacity`
    /// bytes.
    pub fn new(regions: &[Region], register_capacity: usize) -> Layout {
        Layout { regions: regions.iter().map(|r| (r.kind, r.registers)).collect(), register_capacity }
    }

    /// Returns the properties of each region that determine the meaning of stored bytes: the number
    /// of registers, whether they are write-once words, and the size of a register in bytes.
    pub(crate) fn shape(&self) -> Vec<(u16, bool, usize)> {
        let of = |region| (self.registers(region), self.is_write_once(region), self.stride(region));
        (0..self.regions() as u8).map(of).collect()
    }

    /// Returns the number of regions.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    pub(crate) fn register_capacity(&self) -> usize {
        self.register_capacity
    }

    /// Returns the number of registers of a region, or 0 if the region does not exist.
    pub(crate) fn registers(&self, region: u8) -> u16 {
        self.regions.get(usize::from(region)).map_or(0, |&(_, registers)| registers)
    }

    /// Returns the size of one slot of a register, in bytes: the length of the longest WRITE.
    pub fn slot_bytes(&self) -> usize {
        two_slot_register::slot_bytes(self.register_capacity)
    }

    /// Returns the size of a register that may be written more than once, in bytes.
    pub fn register_bytes(&self) -> usize {
        2 * self.slot_bytes()
    }

    /// Returns the size of each register of a region, in bytes.
    pub(crate) fn stride(&self, region: u8) -> usize {
        match self.regions.get(usize::from(region)) {
            Some((RegisterKind::WriteOnce, _)) => 8,
            _ => self.register_bytes(),
        }
    }

    /// Returns the size of a region, in bytes.
    pub fn len(&self, region: u8) -> usize {
        usize::from(self.registers(region)) * self.stride(region)
    }

    pub(crate) fn is_write_once(&self, region: u8) -> bool {
        matches!(self.regions.get(usize::from(region)), Some((RegisterKind::WriteOnce, _)))
    }

    /// Returns the offset in the region to which the write with sequence number `seq` goes.
    pub(crate) fn slot_offset(&self, region: u8, register: u16, seq: u64) -> u64 {
        let in_register = two_slot_register::slot_of(seq) * self.slot_bytes();
        (usize::from(register) * self.stride(region) + in_register) as u64
    }

    /// Splits a range of a region's registers into ranges of at most `bytes` bytes. A range of one
    /// register may be longer.
    pub(crate) fn chunks(
        &self,
        region: u8,
        registers: Range<u16>,
        bytes: usize,
    ) -> impl Iterator<Item = Range<u16>> + use<> {
        let per_chunk = (bytes / self.stride(region)).clamp(1, usize::from(u16::MAX)) as u16;
        let end = registers.end;
        registers
            .step_by(usize::from(per_chunk))
            .map(move |start| start..end.min(start.saturating_add(per_chunk)))
    }
}
