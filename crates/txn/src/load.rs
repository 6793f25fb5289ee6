//! The first content of a store: one loader writes it before any coordinator starts, without locks
//! and without a log.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::num::NonZeroU64;

use crate::index::Bucket;
use crate::layout::Layout;
use crate::place::{Copies, Location, Place, PlaceKind};
use crate::record::{self, LOCK_BYTES, Version};
use crate::request::Request;
use crate::scan::MAX_PIECE_BYTES;
use crate::transaction::{RecordKey, TableId};

/// The longest gap between two places that one WRITE covers, in bytes. A longer gap costs about as
/// much as a second WRITE.
const MAX_GAP_BYTES: u64 = 4096;

/// Why a record cannot be loaded.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The store has no such table.
    #[error("the store has no {0:?}")]
    UnknownTable(TableId),
    /// Two records have the same key.
    #[error("{0:?} is loaded twice")]
    Twice(RecordKey),
    /// A value is longer than the table allows.
    #[error("the value of {at:?} has {bytes} bytes, and its table allows {max}")]
    TooLong {
        /// The record.
        at: RecordKey,
        /// The length of the value, in bytes.
        bytes: usize,
        /// The length of the longest value.
        max: u32,
    },
    /// A partition has no place left.
    #[error("partition {partition} of {table:?} is full; give the schema more records")]
    Full {
        /// The table.
        table: TableId,
        /// The partition.
        partition: u32,
    },
    /// The partition of a record was already taken out of the loader.
    #[error(
        "{at:?} belongs to partition {partition}, which is already written; load all its records together"
    )]
    Late {
        /// The record.
        at: RecordKey,
        /// The partition.
        partition: u32,
    },
    /// The load ends before all records were taken out of the loader.
    #[error("records were not taken out of the loader; take and write them before the load ends")]
    Untaken,
}

/// Assigns places to records, and makes the WRITEs that load them. The memory of the nodes must be
/// zero before the load.
///
/// Records of several partitions may be inserted in any order. The loader keeps records until
/// [`Loader::take_requests`], so a caller that takes complete partitions early needs less memory.
/// No life begins on a store before the WRITEs of [`Loader::finish`].
#[derive(Clone, Debug)]
pub struct Loader<'a> {
    layout: &'a Layout,
    partitions: BTreeMap<(TableId, u32), Partition>,
    taken: BTreeSet<(TableId, u32)>,
}

#[derive(Clone, Debug, Default)]
struct Partition {
    /// Key and value of each record, by the number of its place. The records of a bucket fill its
    /// places from the first place on.
    records: BTreeMap<u32, (u64, Vec<u8>)>,
    /// The buckets that a key has passed.
    passed: BTreeSet<u32>,
}

impl<'a> Loader<'a> {
    /// Creates a loader without records.
    pub fn new(layout: &'a Layout) -> Loader<'a> {
        Loader { layout, partitions: BTreeMap::new(), taken: BTreeSet::new() }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`LoadError`]. The record is not added.
    pub fn insert(&mut self, at: RecordKey, value: Vec<u8>) -> Result<(), LoadError> {
        let RecordKey { table, key } = at;
        let unknown = LoadError::UnknownTable(table);
        let Some(max) = self.layout.max_value_bytes(table) else { return Err(unknown) };
        if value.len() > max as usize {
            return Err(LoadError::TooLong { at, bytes: value.len(), max });
        }
        let (Some(first), Some((buckets, bucket_records))) =
            (self.layout.first_bucket(at), self.layout.buckets(table))
        else {
            return Err(unknown);
        };
        let partition = first.partition;
        if self.taken.contains(&(table, partition)) {
            return Err(LoadError::Late { at, partition });
        }
        let content = self.partitions.entry((table, partition)).or_default();
        for distance in 0..buckets {
            let bucket =
                |distance| ((u64::from(first.index) + u64::from(distance)) % u64::from(buckets)) as u32;
            let begin = bucket(distance) * bucket_records;
            let mut used = 0;
            for (_, (found, _)) in content.records.range(begin..begin + bucket_records) {
                if *found == key {
                    return Err(LoadError::Twice(at));
                }
                used += 1;
            }
            if used < bucket_records {
                content.records.insert(begin + used, (key, value));
                content.passed.extend((0..distance).map(bucket));
                return Ok(());
            }
        }
        Err(LoadError::Full { table, partition })
    }

    /// Removes all partitions with records from the loader. These partitions must be complete.
    /// Returns the WRITEs of all their copies, each of at most 256 KiB or of one record. The WRITEs
    /// may be executed in any order, and repeated until executed. The iterator makes the WRITEs
    /// lazily, so that they need little memory.
    pub fn take_requests(&mut self) -> impl Iterator<Item = Request> + use<'a> {
        let layout = self.layout;
        let partitions = core::mem::take(&mut self.partitions);
        self.taken.extend(partitions.keys());
        partitions.into_iter().flat_map(move |((table, partition), content)| {
            let (_, bucket_records) = layout.buckets(table).unwrap_or_default();
            let buckets = content.buckets(bucket_records);
            let buckets = buckets.into_iter().map(move |(index, bucket)| {
                let place = Place { table, partition, kind: PlaceKind::Bucket, index };
                (place, u64::from(index), bucket.encode())
            });
            let records = content.records.into_iter().map(move |(index, (key, value))| {
                (Place { table, partition, kind: PlaceKind::Record, index }, key, value)
            });
            let contents = buckets.chain(records).filter_map(move |(place, key, value)| {
                let content = record::encode_behind_lock(Version::UNUSED.next(false), key, &value);
                Some((layout.copies_of(place)?, content))
            });
            joined(contents).flat_map(|(copies, bytes)| {
                let nodes = [copies.primary].into_iter().chain(copies.backups);
                nodes.map(move |at| Request::write(at, LOCK_BYTES, bytes.clone()))
            })
        })
    }

    /// Ends the load. Returns the WRITEs of the store's number to all nodes. The caller executes
    /// them after all other WRITEs, and only if no connection was lost meanwhile. They may be
    /// executed in any order, and repeated. The caller draws `number` at random, so that no two
    /// stores have the same number.
    ///
    /// # Errors
    /// [`LoadError::Untaken`].
    pub fn finish(self, number: NonZeroU64) -> Result<Vec<Request>, LoadError> {
        if !self.partitions.is_empty() {
            return Err(LoadError::Untaken);
        }
        let at = self.layout.store_line();
        let number = number.get().to_le_bytes();
        Ok(self.layout.nodes().map(|node| Request::write(Location { node, at }, 0, number.into())).collect())
    }
}

impl Partition {
    fn buckets(&self, bucket_records: u32) -> BTreeMap<u32, Bucket> {
        let mut buckets = BTreeMap::new();
        for (place, (key, _)) in &self.records {
            let index = place / bucket_records;
            let bucket = buckets.entry(index).or_insert_with(|| Bucket::empty(bucket_records));
            bucket.is_passed = self.passed.contains(&index);
            bucket.add(*key);
        }
        buckets
    }
}

/// Joins the contents of places to long WRITEs, in the order of their offsets. A content begins
/// behind the lock of its place. A long WRITE sets the locks between its contents to 0, which means
/// free.
fn joined(contents: impl Iterator<Item = (Copies, Vec<u8>)>) -> impl Iterator<Item = (Copies, Vec<u8>)> {
    let mut contents = contents.peekable();
    iter::from_fn(move || {
        let (first, mut bytes) = contents.next()?;
        let begin = first.primary.at;
        let follows = |bytes: &[u8], (copies, next): &(Copies, Vec<u8>)| {
            let offset = copies.primary.at - begin;
            offset <= bytes.len() as u64 + MAX_GAP_BYTES && offset + next.len() as u64 <= MAX_PIECE_BYTES
        };
        while let Some((copies, next)) = contents.next_if(|next| follows(&bytes, next)) {
            bytes.resize((copies.primary.at - begin) as usize, 0);
            bytes.extend_from_slice(&next);
        }
        Some((first, bytes))
    })
}
