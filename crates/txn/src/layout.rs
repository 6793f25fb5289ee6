//! The addresses of records, logs and lines in the memory of the nodes. All processes of a store
//! compute the same layout.
//!
//! A node lends one region:
//!
//! | offset | content |
//! |---|---|
//! | 0 | the line of the store: its number, nonzero, which the loader writes last; at byte 8, the number of the load that has begun |
//! | 64 c | the line of coordinator c, from 1: its life word, and its heartbeat |
//! | then | the log: the slots of coordinator 1, of coordinator 2, … |
//! | then | for each table, and each copy i from 0 to f: the partitions p for which (p + i) mod M is the number of the node |
//!
//! M is the number of nodes, and f the number of backups of each record.
//!
//! A partition begins with its buckets. The places of its records follow: for each bucket, as many
//! places as the bucket has keys. Copy 0 of a partition is the primary.

use std::ops::Range;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::index;
use crate::place::{Copies, Location, Place, PlaceKind};
use crate::record::HEADER_BYTES;
use crate::request::NodeId;
use crate::scan::MAX_PIECE_BYTES;
use crate::transaction::{RecordKey, TableId};

/// The length of a line of the memory, in bytes. Records, slots and the words of a coordinator
/// begin at its multiples.
const LINE_BYTES: u64 = 64;
/// The ratio of a partition's places to the records that it must hold. Full buckets make searches
/// longer.
const SPARE: (u64, u64) = (5, 4);
/// The longest region of a node, in bytes.
const MAX_BYTES: u64 = 1 << 47;
const MAX_TABLES: usize = 1 << 15;

/// The sizes of a table.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TableSchema {
    /// The number of bytes of the longest value.
    pub max_value_bytes: u32,
    /// The number of partitions.
    pub partitions: u32,
    /// The number of records that each partition must hold.
    pub records: u32,
    /// The number of lowest key bits that do not affect the choice of the bucket, at most 4. Keys
    /// that differ only in these bits share a bucket while the bucket has free places. A
    /// transaction that inserts all these keys then locks one bucket.
    pub group_bits: u8,
}

/// The tables of a store, and their distribution over the nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Schema {
    /// The tables: the number of a table is its position.
    pub tables: Vec<TableSchema>,
    /// The number of memory nodes, M.
    pub nodes: u16,
    /// The number of backups of each record, f.
    pub backups: u16,
    /// The number of coordinators.
    pub coordinators: u16,
    /// The number of transactions that a coordinator has in flight at once.
    pub slots: u16,
    /// The length of the longest log entry, in bytes. An entry has the values that a transaction
    /// writes, and about 60 bytes for each value.
    pub slot_bytes: u32,
}

/// Why a [`Schema`] has no layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSchema {
    /// A record and its log entries must be on different nodes.
    #[error("{backups} backups need {} memory nodes, and there are {nodes}", u32::from(*backups) + 1)]
    TooFewNodes {
        /// The number of nodes.
        nodes: u16,
        /// The number of backups.
        backups: u16,
    },
    /// A required element is missing: a node, coordinator, slot, table or partition.
    #[error("a store has at least one node, coordinator, slot and table, and a table at least one partition")]
    Empty,
    /// This table, or the tables up to it, need more memory than can be addressed.
    #[error("the table {0:?} is too large")]
    TooLarge(TableId),
    /// The slots of all coordinators need more memory than can be addressed.
    #[error("a log of {coordinators} coordinators with {slots} slots of {slot_bytes} bytes is too large")]
    LogTooLarge {
        /// The number of coordinators.
        coordinators: u16,
        /// The number of slots of each.
        slots: u16,
        /// The length of a slot, in bytes.
        slot_bytes: u32,
    },
    /// There are too many tables.
    #[error("there are {0} tables, and a store has at most 32768")]
    TooManyTables(usize),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct TableLayout {
    schema: TableSchema,
    base: u64,
    buckets: u32,
    bucket_records: u32,
    bucket_bytes: u64,
    record_bytes: u64,
    partition_bytes: u64,
    /// The largest number of partitions that have the same copy i on one node.
    partitions_of_node: u64,
}

/// The layout of a store.
#[derive(Clone, Debug)]
pub struct Layout {
    schema: Schema,
    partition_of: fn(RecordKey) -> u32,
    tables: Vec<TableLayout>,
    log: u64,
    slot_bytes: u64,
    bytes: u64,
}

fn in_lines(bytes: u64) -> u64 {
    bytes.next_multiple_of(LINE_BYTES)
}

impl Layout {
    /// Lays out a store. `partition_of` gives the partition of a record; the store takes it modulo
    /// the number of the table's partitions. All processes must use the same function.
    ///
    /// # Errors
    /// [`InvalidSchema`].
    pub fn new(schema: Schema, partition_of: fn(RecordKey) -> u32) -> Result<Layout, InvalidSchema> {
        let Schema { nodes, backups, coordinators, slots, slot_bytes, .. } = schema;
        if nodes == 0 || coordinators == 0 || slots == 0 || schema.tables.is_empty() {
            return Err(InvalidSchema::Empty);
        }
        if backups >= nodes {
            return Err(InvalidSchema::TooFewNodes { nodes, backups });
        }
        if schema.tables.len() > MAX_TABLES {
            return Err(InvalidSchema::TooManyTables(schema.tables.len()));
        }
        let log = (1 + u64::from(coordinators)) * LINE_BYTES;
        let log_too_large = InvalidSchema::LogTooLarge { coordinators, slots, slot_bytes };
        let slot_bytes = in_lines(slot_bytes.into());
        // No overflow: the factors have 16, 16 and 32 bits.
        let mut base = log + u64::from(coordinators) * u64::from(slots) * slot_bytes;
        if base > MAX_BYTES || slot_bytes > u32::MAX.into() {
            return Err(log_too_large);
        }
        let mut tables = Vec::new();
        for (number, table) in schema.tables.iter().enumerate() {
            let too_large = InvalidSchema::TooLarge(TableId(number as u16));
            if table.partitions == 0 {
                return Err(InvalidSchema::Empty);
            }
            let bucket_records = index::bucket_records(table.group_bits);
            let places = u64::from(table.records.max(1)) * SPARE.0 / SPARE.1 + 1;
            let buckets = places.div_ceil(bucket_records.into());
            let record_bytes = in_lines(HEADER_BYTES as u64 + u64::from(table.max_value_bytes));
            let bucket_bytes = in_lines((HEADER_BYTES + index::bucket_bytes(bucket_records)) as u64);
            if record_bytes > u32::MAX.into() {
                return Err(too_large);
            }
            let partition_bytes = (bucket_bytes + u64::from(bucket_records) * record_bytes)
                .checked_mul(buckets)
                .ok_or(too_large)?;
            let partitions_of_node = u64::from(table.partitions).div_ceil(nodes.into());
            let layout = TableLayout {
                schema: table.clone(),
                base,
                buckets: u32::try_from(buckets)
                    .ok()
                    .filter(|buckets| buckets.checked_mul(bucket_records).is_some())
                    .ok_or(too_large)?,
                bucket_records,
                bucket_bytes,
                record_bytes,
                partition_bytes,
                partitions_of_node,
            };
            let copies = partitions_of_node * (u64::from(backups) + 1);
            base = copies
                .checked_mul(partition_bytes)
                .and_then(|bytes| base.checked_add(bytes))
                .filter(|&end| end <= MAX_BYTES)
                .ok_or(too_large)?;
            tables.push(layout);
        }
        Ok(Layout { schema, partition_of, tables, log, slot_bytes, bytes: base })
    }

    /// The length of the region of each node, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The schema.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.schema.nodes).map(NodeId)
    }

    /// The number of nodes whose logs must have the entry of a transaction.
    pub fn log_copies(&self) -> usize {
        usize::from(self.schema.backups) + 1
    }

    /// The length of a slot of the log, in bytes.
    pub fn slot_bytes(&self) -> u32 {
        self.slot_bytes as u32
    }

    /// An upper bound for the length of a request of a session, a loader or an inspection, in
    /// bytes.
    pub fn longest_request(&self) -> u64 {
        let lines = u64::from(self.schema.coordinators) * LINE_BYTES;
        let piece = |table: &TableLayout| {
            let longest = MAX_PIECE_BYTES.max(table.bucket_bytes).max(table.record_bytes);
            longest.min(table.partition_bytes)
        };
        self.tables.iter().map(piece).fold(lines.max(self.slot_bytes), u64::max)
    }

    /// A number that two stores share only if their layouts are the same. It does not cover the
    /// function that gives the partitions.
    pub fn fingerprint(&self) -> u64 {
        xxh3_64(format!("{:?}", self.schema).as_bytes())
    }

    /// The offset of the line of the store on each node. Its first word is the store's number.
    pub fn store_line(&self) -> u64 {
        0
    }

    /// The offset of a coordinator's line on each node.
    pub fn life_line(&self, coordinator: u16) -> u64 {
        u64::from(coordinator) * LINE_BYTES
    }

    /// The offsets of a coordinator's log on each node.
    pub fn log(&self, coordinator: u16) -> Range<u64> {
        let bytes = u64::from(self.schema.slots) * self.slot_bytes;
        let begin = self.log + u64::from(coordinator.saturating_sub(1)) * bytes;
        begin..begin + bytes
    }

    /// A slot of a coordinator's log on all nodes. The first node rotates with the slot, so that
    /// the log writes are spread over the nodes.
    pub fn log_slot(&self, coordinator: u16, slot: u16) -> Vec<Location> {
        let at = self.log(coordinator).start + u64::from(slot) * self.slot_bytes;
        let nodes = self.schema.nodes;
        (0..nodes).map(|node| Location { node: NodeId((node + slot % nodes) % nodes), at }).collect()
    }

    /// All slots of a coordinator's log.
    pub fn log_slots(&self, coordinator: u16) -> Vec<Vec<Location>> {
        (0..self.schema.slots).map(|slot| self.log_slot(coordinator, slot)).collect()
    }

    /// Returns the copies of a place, or `None` if the place does not exist.
    pub fn copies_of(&self, place: Place) -> Option<Copies> {
        let table = self.tables.get(usize::from(place.table.0))?;
        let (count, stride) = self.places(place.table, place.kind)?;
        let (first, bytes) = match place.kind {
            PlaceKind::Bucket => (0, index::bucket_bytes(table.bucket_records) as u32),
            PlaceKind::Record => {
                (u64::from(table.buckets) * table.bucket_bytes, table.schema.max_value_bytes)
            }
        };
        if place.partition >= table.schema.partitions || place.index >= count {
            return None;
        }
        let offset = first + u64::from(place.index) * stride;
        let copy = |copy: u16| {
            let (node, at) = self.partition(place.table, place.partition, copy)?;
            Some(Location { node, at: at + offset })
        };
        Some(Copies {
            place,
            primary: copy(0)?,
            backups: (1..=self.schema.backups).filter_map(copy).collect(),
            bytes: HEADER_BYTES as u32 + bytes,
        })
    }

    /// The number of places of a kind that a partition has, and the distance from each to the next,
    /// in bytes; `None` if there is no such table.
    pub(crate) fn places(&self, table: TableId, kind: PlaceKind) -> Option<(u32, u64)> {
        let table = self.tables.get(usize::from(table.0))?;
        Some(match kind {
            PlaceKind::Bucket => (table.buckets, table.bucket_bytes),
            PlaceKind::Record => (table.buckets * table.bucket_records, table.record_bytes),
        })
    }

    /// All places of all tables.
    pub fn all_places(&self) -> impl Iterator<Item = Copies> {
        let tables = (0..).map(TableId).zip(&self.tables);
        let partitions =
            tables.flat_map(|(table, layout)| (0..layout.schema.partitions).map(move |it| (table, it)));
        let kinds = partitions.flat_map(|it| [PlaceKind::Bucket, PlaceKind::Record].map(|kind| (it, kind)));
        kinds.flat_map(move |((table, partition), kind)| {
            let place = move |index| Place { table, partition, kind, index };
            (0..).map_while(move |index| self.copies_of(place(index)))
        })
    }

    /// The node that has a copy of a partition, and the offset of the copy on that node.
    pub(crate) fn partition(&self, table: TableId, partition: u32, copy: u16) -> Option<(NodeId, u64)> {
        let table = self.tables.get(usize::from(table.0))?;
        let nodes = u32::from(self.schema.nodes);
        let node = (partition % nodes + u32::from(copy)) % nodes;
        let position = u64::from(copy) * table.partitions_of_node + u64::from(partition / nodes);
        Some((NodeId(node as u16), table.base + position * table.partition_bytes))
    }

    /// The number of buckets of a partition, and the number of keys of a bucket; `None` if there is
    /// no such table.
    pub(crate) fn buckets(&self, table: TableId) -> Option<(u32, u32)> {
        let table = self.tables.get(usize::from(table.0))?;
        Some((table.buckets, table.bucket_records))
    }

    /// The bucket in which the search for a key begins; `None` if there is no such table.
    pub(crate) fn first_bucket(&self, at: RecordKey) -> Option<Place> {
        let table = self.tables.get(usize::from(at.table.0))?;
        let partition = (self.partition_of)(at) % table.schema.partitions;
        let group = at.key >> table.schema.group_bits.min(index::MAX_GROUP_BITS);
        let hash = xxh3_64_with_seed(&group.to_le_bytes(), at.table.0.into());
        // The upper half of the product is evenly distributed over the buckets.
        let index = ((u128::from(hash) * u128::from(table.buckets)) >> 64) as u32;
        Some(Place { table: at.table, partition, kind: PlaceKind::Bucket, index })
    }

    /// The length of the longest value of a table; `None` if there is no such table.
    pub(crate) fn max_value_bytes(&self, table: TableId) -> Option<u32> {
        self.tables.get(usize::from(table.0)).map(|table| table.schema.max_value_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        let table = TableSchema { max_value_bytes: 100, partitions: 5, records: 40, group_bits: 0 };
        let other = TableSchema { max_value_bytes: 0, partitions: 1, records: 1, group_bits: 4 };
        Schema {
            tables: vec![table, other],
            nodes: 3,
            backups: 1,
            coordinators: 2,
            slots: 3,
            slot_bytes: 100,
        }
    }

    fn layout() -> Layout {
        Layout::new(schema(), |at| at.key as u32).unwrap()
    }

    #[test]
    fn nothing_overlaps_and_all_is_inside() {
        let layout = layout();
        let mut ranges: Vec<_> = layout.nodes().map(|node| (node, layout.store_line(), 64)).collect();
        for coordinator in 1..=2 {
            for node in layout.nodes() {
                ranges.push((node, layout.life_line(coordinator), 64));
            }
            for slot in layout.log_slots(coordinator) {
                assert_eq!(slot.len(), 3);
                ranges.extend(slot.iter().map(|at| (at.node, at.at, u64::from(layout.slot_bytes()))));
            }
        }
        let mut places = 0;
        for (table, partitions) in [(TableId(0), 5), (TableId(1), 1)] {
            for partition in 0..partitions {
                for kind in [PlaceKind::Bucket, PlaceKind::Record] {
                    let places_of = (0..).map(|index| Place { table, partition, kind, index });
                    for copies in places_of.map_while(|place| layout.copies_of(place)) {
                        places += 1;
                        assert_eq!(copies.backups.len(), 1);
                        for at in [copies.primary, copies.backups[0]] {
                            assert_eq!(at.at % 64, 0);
                            ranges.push((at.node, at.at, copies.bytes.into()));
                        }
                        assert_ne!(copies.primary.node, copies.backups[0].node);
                    }
                }
                assert_eq!(
                    layout.copies_of(Place {
                        table,
                        partition: partitions,
                        kind: PlaceKind::Record,
                        index: 0
                    }),
                    None
                );
            }
        }
        assert!(places > 5 * 50, "{places}");
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1, "{pair:?}");
        }
        assert!(ranges.iter().all(|(_, at, bytes)| at + bytes <= layout.bytes()));
    }

    #[test]
    fn schemas_without_a_layout_are_refused() {
        let refused = |change: fn(&mut Schema)| {
            let mut schema = schema();
            change(&mut schema);
            Layout::new(schema, |_| 0).unwrap_err()
        };
        assert_eq!(refused(|schema| schema.backups = 3), InvalidSchema::TooFewNodes { nodes: 3, backups: 3 });
        assert_eq!(refused(|schema| schema.tables.clear()), InvalidSchema::Empty);
        assert_eq!(refused(|schema| schema.tables[1].partitions = 0), InvalidSchema::Empty);
        assert_eq!(
            refused(|schema| schema.tables[1].records = u32::MAX),
            InvalidSchema::TooLarge(TableId(1))
        );
        let huge = |schema: &mut Schema| {
            schema.tables[0] = TableSchema {
                max_value_bytes: u32::MAX,
                partitions: u32::MAX,
                records: 1 << 20,
                group_bits: 0,
            };
        };
        assert_eq!(refused(huge), InvalidSchema::TooLarge(TableId(0)));
    }

    #[test]
    fn largest_numbers_of_a_schema_are_refused_or_laid_out() {
        let most = |records, group_bits| TableSchema {
            max_value_bytes: u32::MAX,
            partitions: u32::MAX,
            records,
            group_bits,
        };
        let refused = |schema: Schema| {
            let error = Layout::new(schema, |_| 0).unwrap_err();
            assert!(!error.to_string().is_empty());
            error
        };
        for (records, group_bits) in [(1, 0), (u32::MAX, 0), (u32::MAX, 4), (3 << 30, u8::MAX)] {
            for max_value_bytes in [u32::MAX, u32::MAX - 64, 1 << 20] {
                let table = TableSchema { max_value_bytes, ..most(records, group_bits) };
                assert_eq!(
                    refused(Schema { tables: vec![table], ..schema() }),
                    InvalidSchema::TooLarge(TableId(0))
                );
            }
        }
        let (coordinators, slots, slot_bytes) = (u16::MAX, u16::MAX, u32::MAX);
        let log = Schema { coordinators, slots, slot_bytes, ..schema() };
        assert_eq!(refused(log), InvalidSchema::LogTooLarge { coordinators, slots, slot_bytes });
        let long = Schema { slot_bytes, ..schema() };
        assert!(matches!(refused(long), InvalidSchema::LogTooLarge { .. }), "a length of 32 bits");
        let backups = Schema { backups: u16::MAX, nodes: u16::MAX, ..schema() };
        assert!(matches!(refused(backups), InvalidSchema::TooFewNodes { .. }));
        let table = TableSchema { max_value_bytes: 0, partitions: 1, records: 1, group_bits: 0 };
        let tables = |count| Schema { tables: vec![table.clone(); count], ..schema() };
        assert_eq!(refused(tables(MAX_TABLES + 1)), InvalidSchema::TooManyTables(MAX_TABLES + 1));
        let many =
            Layout::new(Schema { nodes: u16::MAX, coordinators, slots: 1, ..tables(MAX_TABLES) }, |_| 0);
        let many = many.unwrap();
        assert_eq!(many.log(coordinators).end, many.tables[0].base);
        assert_eq!(many.longest_request(), u64::from(coordinators) * LINE_BYTES);
    }

    #[test]
    fn keys_of_a_group_begin_in_one_bucket() {
        let layout = layout();
        let bucket = |key| layout.first_bucket(RecordKey { table: TableId(1), key });
        assert!((0..16).all(|key| bucket(key) == bucket(0)));
        assert_eq!(layout.first_bucket(RecordKey { table: TableId(2), key: 0 }), None);
    }
}
