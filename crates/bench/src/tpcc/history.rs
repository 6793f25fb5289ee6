//! The committed transactions of a coordinator, in a file that outlives its process.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::Context;
use mitra_txn::{Footprint, Place, PlaceKind, TableId};
use mitra_txn_workloads::tpcc::Kind;

/// A committed transaction.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) begun: u64,
    pub(crate) told: u64,
    pub(crate) attempts: u32,
    pub(crate) round_trips: u32,
    pub(crate) footprint: Footprint,
}

const KINDS: [Kind; 5] = [Kind::NewOrder, Kind::Payment, Kind::OrderStatus, Kind::Delivery, Kind::StockLevel];

/// Writes entries. An entry is in the file when [`Writer::add`] returns, even if the process is
/// then killed.
pub(crate) struct Writer {
    file: File,
    buffer: Vec<u8>,
}

impl Writer {
    pub(crate) fn create(path: &Path) -> io::Result<Writer> {
        Ok(Writer { file: File::options().create(true).append(true).open(path)?, buffer: Vec::new() })
    }

    pub(crate) fn add(&mut self, entry: &Entry) -> io::Result<()> {
        let Entry { kind, begun, told, attempts, round_trips, footprint } = entry;
        self.buffer.clear();
        let number = KINDS.iter().position(|of| of == kind).unwrap_or_default() as u64;
        let counts = [*attempts, *round_trips, footprint.reads.len() as u32, footprint.writes.len() as u32];
        for word in [number, *begun, *told] {
            self.buffer.extend_from_slice(&word.to_le_bytes());
        }
        counts.iter().for_each(|count| self.buffer.extend_from_slice(&count.to_le_bytes()));
        for (place, version) in footprint.reads.iter().chain(&footprint.writes) {
            let kind = u16::from(place.kind == PlaceKind::Record);
            self.buffer.extend_from_slice(&place.table.0.to_le_bytes());
            self.buffer.extend_from_slice(&kind.to_le_bytes());
            self.buffer.extend_from_slice(&place.partition.to_le_bytes());
            self.buffer.extend_from_slice(&place.index.to_le_bytes());
            self.buffer.extend_from_slice(&version.to_le_bytes());
        }
        self.file.write_all(&self.buffer)
    }
}

/// Reads a file of entries, without the incomplete last entry of a killed writer.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.with_context(|| format!("cannot read the history {}", path.display()))?;
    let mut rest = bytes.as_slice();
    Ok(std::iter::from_fn(|| next(&mut rest)).collect())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*bytes)
}

fn next(rest: &mut &[u8]) -> Option<Entry> {
    let kind = *KINDS.get(u64::from_le_bytes(take(rest)?) as usize)?;
    let (begun, told) = (u64::from_le_bytes(take(rest)?), u64::from_le_bytes(take(rest)?));
    let (attempts, round_trips) = (u32::from_le_bytes(take(rest)?), u32::from_le_bytes(take(rest)?));
    let (reads, writes) = (u32::from_le_bytes(take(rest)?), u32::from_le_bytes(take(rest)?));
    let mut places = |count: u32| (0..count).map(|_| place(rest)).collect::<Option<Vec<_>>>();
    let footprint = Footprint { reads: places(reads)?, writes: places(writes)? };
    Some(Entry { kind, begun, told, attempts, round_trips, footprint })
}

fn place(rest: &mut &[u8]) -> Option<(Place, u64)> {
    let table = TableId(u16::from_le_bytes(take(rest)?));
    let kind = if u16::from_le_bytes(take(rest)?) == 0 { PlaceKind::Bucket } else { PlaceKind::Record };
    let (partition, index) = (u32::from_le_bytes(take(rest)?), u32::from_le_bytes(take(rest)?));
    Some((Place { table, partition, kind, index }, u64::from_le_bytes(take(rest)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_up_to_a_partial_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let place = Place { table: TableId(3), partition: 2, kind: PlaceKind::Record, index: 9 };
        let footprint = Footprint {
            reads: vec![(place, 7), (Place { kind: PlaceKind::Bucket, ..place }, 1)],
            writes: vec![(place, 8)],
        };
        let (kind, begun, told) = (Kind::Payment, 5, 6);
        let entry = Entry { kind, begun, told, attempts: 2, round_trips: 4, footprint };
        let mut writer = Writer::create(&path).unwrap();
        writer.add(&entry).unwrap();
        writer.add(&entry).unwrap();
        assert_eq!(read(&path).unwrap(), [entry.clone(), entry.clone()]);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(read(&path).unwrap(), [entry]);
    }
}
