//! Reads a whole store at rest, and reports its errors.

use core::fmt::{self, Display, Formatter};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::execution::{bucket_of, record_of};
use crate::index::Bucket;
use crate::layout::Layout;
use crate::lock_word::{Life, LockWord};
use crate::place::{Place, PlaceKind};
use crate::record::{self, Record, Version};
use crate::request::{NodeId, Outcome, Request};
use crate::scan::Scan;
use crate::store_number::{self, StoreError};
use crate::transaction::{RecordKey, TableId};

/// The number of findings of a kind that are kept. All findings are counted.
const MAX_KEPT: usize = 20;

/// Findings of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Findings<T> {
    /// The number of all findings.
    pub count: u64,
    /// The first findings, at most 20.
    pub first: Vec<T>,
}

/// A copy of a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PlaceCopy {
    /// The place.
    pub place: Place,
    /// The node of the copy.
    pub node: NodeId,
}

/// A lock that is not free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeldLock {
    /// The place of the lock. In a correct store, the locks of backups are always free.
    pub at: PlaceCopy,
    /// The key, if the record exists and is not torn.
    pub key: Option<u64>,
    /// The lock.
    pub lock: LockWord,
}

/// A mismatch between an index and its records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The value at the place of a bucket is not this bucket.
    #[error("{0} is not a bucket")]
    NotABucket(Place),
    /// A bucket has a key whose place has no such record.
    #[error("the index has key {key} at {place}, which has no record of this key")]
    NoRecord {
        /// The key.
        key: u64,
        /// The place that the bucket gives the key.
        place: Place,
    },
    /// A record exists, and its bucket does not have the key.
    #[error("{place} has key {key}, and the index does not have it there")]
    NoKey {
        /// The key.
        key: u64,
        /// The place of the record.
        place: Place,
    },
    /// A key is in a bucket or a partition that the search for the key does not reach.
    #[error("a search for key {key} does not come to {place}")]
    Unreachable {
        /// The key.
        key: u64,
        /// The place that the bucket gives the key.
        place: Place,
    },
    /// The index of a partition has a key twice.
    #[error("the index has key {key} twice: {first}, and {second}")]
    Twice {
        /// The key.
        key: u64,
        /// A place of the key.
        first: Place,
        /// Another place of the key.
        second: Place,
    },
}

/// The judgement of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing is wrong.
    Clean,
    /// Coordinators have ended in the middle of transactions, and nobody has recovered them. The
    /// rest of the store can be judged after the recovery.
    Unrecovered,
    /// The store has errors that no recovery mends.
    Damaged,
}

/// The findings of an [`Inspector`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inspection {
    /// The number of records of each table, by the number of the table.
    pub records: Vec<u64>,
    /// Locks that are not free, except locks of recovered lives and `unrecovered_locks`.
    pub held_locks: Findings<HeldLock>,
    /// Locks at primaries of lives that were not recovered. The copies of their places are not
    /// compared, because a recovery completes or undoes what these lives have written.
    pub unrecovered_locks: Findings<HeldLock>,
    /// The number of locks of recovered lives. They block no transaction: the first transaction
    /// that meets such a lock frees it.
    pub recovered_locks: u64,
    /// Copies whose checksum does not fit.
    pub torn: Findings<PlaceCopy>,
    /// Copies whose version, key or value differs from the primary. If the primary's node is
    /// declared dead, the first backup replaces it in the comparison.
    pub differing: Findings<PlaceCopy>,
    /// Mismatches between indexes and their records.
    pub index_errors: Findings<IndexError>,
    /// The nodes that do not have the store, for example after a restart or an incomplete load.
    pub store_errors: Findings<StoreError>,
    /// The nodes that are declared dead. The inspector cannot read them.
    pub dead_nodes: BTreeSet<NodeId>,
    /// The partitions whose copies are all on dead nodes.
    pub lost: Findings<(TableId, u32)>,
}

/// Inspects a store, without I/O. It needs memory for the index of one partition and, for each
/// copy, for 256 KiB or one record.
///
/// No transaction may run or wait for a recovery, because the inspector may report unfinished
/// writes as torn or different. The caller executes [`Inspector::requests`] and passes their
/// outcomes to [`Inspector::on_outcomes`], until there are no more requests.
#[derive(Clone, Debug)]
pub struct Inspector {
    layout: Rc<Layout>,
    /// Whether the store's number is still to be read.
    reads_store: bool,
    scan: Scan,
    recovered: BTreeMap<u16, u16>,
    unrecovered: BTreeSet<Life>,
    /// The buckets of the partition that is read; `None` for an unreadable bucket.
    buckets: Vec<Option<Bucket>>,
    found: Inspection,
}

impl<T> Default for Findings<T> {
    fn default() -> Findings<T> {
        Findings { count: 0, first: Vec::new() }
    }
}

impl<T> Findings<T> {
    fn add(&mut self, finding: T) {
        self.count += 1;
        if self.first.len() < MAX_KEPT {
            self.first.push(finding);
        }
    }
}

impl Inspector {
    /// Creates the inspector of all tables of a store.
    pub fn new(layout: Rc<Layout>) -> Inspector {
        let tables = (0..).map(TableId).zip(&layout.schema().tables);
        let partitions = tables.flat_map(|(table, schema)| (0..schema.partitions).map(move |it| (table, it)));
        let areas = partitions.flat_map(|(table, partition)| {
            [PlaceKind::Bucket, PlaceKind::Record].map(|kind| (table, partition, kind))
        });
        let scan = Scan::new(Rc::clone(&layout), areas.collect(), layout.log_copies());
        let found = Inspection { records: vec![0; layout.schema().tables.len()], ..Inspection::default() };
        let (recovered, unrecovered, buckets) = Default::default();
        Inspector { layout, reads_store: true, scan, recovered, unrecovered, buckets, found }
    }

    /// Reports that a life and all earlier lives of its coordinator are recovered.
    pub fn set_recovered(&mut self, life: Life) {
        let last = self.recovered.entry(life.coordinator).or_default();
        *last = life.incarnation.max(*last);
    }

    /// Reports that a life has begun and is not recovered.
    pub fn set_unrecovered(&mut self, life: Life) {
        self.unrecovered.insert(life);
    }

    /// The requests to execute; `None` when all is read.
    pub fn requests(&mut self) -> Option<Vec<Request>> {
        if self.reads_store { Some(store_number::reads(&self.layout)) } else { self.scan.requests() }
    }

    /// Takes the outcomes of the last requests, in the same order. Passes all records in these
    /// outcomes to `record`, in the order of their places.
    pub fn on_outcomes(&mut self, outcomes: &[Outcome], mut record: impl FnMut(RecordKey, &[u8])) {
        if self.reads_store {
            let Some(errors) = store_number::check(&self.layout, outcomes) else { return };
            self.reads_store = false;
            return errors.into_iter().for_each(|error| self.found.store_errors.add(error));
        }
        let Some(piece) = self.scan.on_outcomes(outcomes) else { return };
        self.found.dead_nodes.extend(piece.dead_nodes());
        for (place, copies) in piece.places() {
            let found = self.compare(place, &copies);
            let is_first = place.index == 0;
            match place.kind {
                PlaceKind::Bucket => {
                    if is_first {
                        self.buckets.clear();
                    }
                    self.on_bucket(place, found);
                }
                PlaceKind::Record => {
                    if is_first {
                        self.check_index(place);
                    }
                    if is_first && copies.is_empty() {
                        self.found.lost.add((place.table, place.partition));
                    }
                    if let Some(found) = found.as_ref().filter(|found| found.version.is_present()) {
                        self.found.records[usize::from(place.table.0)] += 1;
                        record(RecordKey { table: place.table, key: found.key }, &found.value);
                    }
                    self.check_record(place, found);
                }
            }
        }
    }

    /// Returns what was found.
    pub fn into_inspection(self) -> Inspection {
        self.found
    }

    /// Compares the copies of a place. Returns the record of the first copy, unless it is torn.
    fn compare(&mut self, place: Place, copies: &[(NodeId, &[u8])]) -> Option<Record> {
        let mut first = None;
        for (number, &(node, bytes)) in copies.iter().enumerate() {
            let at = PlaceCopy { place, node };
            let copy = record::decode(bytes);
            let lock = record::decode_header(bytes).map_or(LockWord::FREE, |header| header.lock);
            if let Some(life) = lock.life() {
                if self.recovered.get(&life.coordinator).is_some_and(|&last| life.incarnation <= last) {
                    self.found.recovered_locks += 1;
                } else {
                    let is_record = place.kind == PlaceKind::Record;
                    let record = copy.as_ref().filter(|copy| is_record && copy.version.is_present());
                    let key = record.map(|record| record.key);
                    let is_primary =
                        self.layout.copies_of(place).is_some_and(|copies| copies.primary.node == node);
                    if is_primary && self.unrecovered.contains(&life) {
                        self.found.unrecovered_locks.add(HeldLock { at, key, lock });
                        return copy;
                    }
                    self.found.held_locks.add(HeldLock { at, key, lock });
                }
            }
            match (&copy, &first) {
                (None, _) => self.found.torn.add(at),
                (Some(copy), Some(Record { version, key, value, .. }))
                    if (copy.version, copy.key, &copy.value) != (*version, *key, value) =>
                {
                    self.found.differing.add(at);
                }
                _ => {}
            }
            if number == 0 {
                first = copy;
            }
        }
        first
    }

    fn on_bucket(&mut self, place: Place, found: Option<Record>) {
        let bucket = found.and_then(|record| {
            let is_its_own = record.version == Version::UNUSED || record.key == u64::from(place.index);
            let (_, bucket_records) = self.layout.buckets(place.table)?;
            let bucket = Bucket::decode(&record.value, bucket_records).filter(|_| is_its_own);
            if bucket.is_none() {
                self.found.index_errors.add(IndexError::NotABucket(place));
            }
            bucket
        });
        self.buckets.push(bucket);
    }

    /// Checks that the search for each key of a partition's index reaches the key, and that no key
    /// is there twice. The caller has read all buckets of the partition.
    fn check_index(&mut self, Place { table, partition, .. }: Place) {
        let count = self.buckets.len();
        let mut places = Vec::new();
        // For each bucket, the number of marked or unreadable buckets directly before it. After the
        // last bucket, the search continues with the first.
        let mut leading = vec![0; count];
        for step in 1..2 * count {
            let before = (step - 1) % count;
            let leads_on = self.buckets[before].as_ref().is_none_or(|bucket| bucket.is_passed);
            leading[step % count] = if leads_on { leading[before] + 1 } else { 0 };
        }
        for (index, bucket) in self.buckets.iter().enumerate() {
            let at = Place { table, partition, kind: PlaceKind::Bucket, index: index as u32 };
            for (slot, key) in bucket.iter().flat_map(Bucket::keys) {
                let place = record_of(&self.layout, at, slot);
                let first = self.layout.first_bucket(RecordKey { table, key });
                let is_reachable = first.is_some_and(|first| {
                    let distance = (index + count - first.index as usize) % count;
                    first.partition == partition && distance <= leading[index]
                });
                if !is_reachable {
                    self.found.index_errors.add(IndexError::Unreachable { key, place });
                }
                places.push((key, place));
            }
        }
        places.sort_unstable();
        for pair in places.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            let (key, first, second) = (pair[0].0, pair[0].1, pair[1].1);
            self.found.index_errors.add(IndexError::Twice { key, first, second });
        }
    }

    /// Compares a record with the key in its bucket.
    fn check_record(&mut self, place: Place, found: Option<Record>) {
        let at = bucket_of(&self.layout, place);
        let slot = place.index - record_of(&self.layout, at, 0).index;
        let (Some(Some(bucket)), Some(record)) = (self.buckets.get(at.index as usize), found) else { return };
        let (indexed, key) = (bucket.key(slot), record.version.is_present().then_some(record.key));
        if indexed != key {
            let errors = &mut self.found.index_errors;
            indexed.into_iter().for_each(|key| errors.add(IndexError::NoRecord { key, place }));
            key.into_iter().for_each(|key| errors.add(IndexError::NoKey { key, place }));
        }
    }
}

impl Inspection {
    /// Returns whether nothing was found. Locks of recovered lives and dead nodes do not count.
    pub fn is_clean(&self) -> bool {
        self.verdict() == Verdict::Clean
    }

    /// Judges the store. A transaction that is not recovered may have written a record and not its
    /// bucket, so errors of the index count only if nothing is unrecovered.
    pub fn verdict(&self) -> Verdict {
        let Inspection { held_locks, torn, differing, index_errors, store_errors, lost, .. } = self;
        let damage = held_locks.count + torn.count + differing.count + store_errors.count + lost.count;
        match (damage, self.unrecovered_locks.count, index_errors.count) {
            (0, 0, 0) => Verdict::Clean,
            (0, 1.., _) => Verdict::Unrecovered,
            _ => Verdict::Damaged,
        }
    }
}

impl Display for PlaceCopy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} on node {}", self.place, self.node.0)
    }
}

impl Display for HeldLock {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at)?;
        if let Some(key) = self.key {
            write!(f, ", key {key}")?;
        }
        let Life { coordinator, incarnation } =
            self.lock.life().unwrap_or(Life { coordinator: 0, incarnation: 0 });
        let attempt = self.lock.attempt();
        write!(f, ": attempt {attempt} of coordinator {coordinator}, incarnation {incarnation}")
    }
}

fn list<T>(
    f: &mut Formatter<'_>,
    what: &str,
    findings: &Findings<T>,
    text: impl Fn(&T) -> String,
) -> fmt::Result {
    writeln!(f, "{what}: {}", findings.count)?;
    findings.first.iter().try_for_each(|finding| writeln!(f, "  {}", text(finding)))?;
    let more = findings.count - findings.first.len() as u64;
    if more > 0 {
        writeln!(f, "  and {more} more")?;
    }
    Ok(())
}

/// One line for each finding.
impl Display for Inspection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (table, records) in self.records.iter().enumerate() {
            writeln!(f, "table {table}: {records} records")?;
        }
        list(f, "held locks", &self.held_locks, HeldLock::to_string)?;
        if self.unrecovered_locks.count > 0 {
            list(
                f,
                "locks of coordinators that are not recovered",
                &self.unrecovered_locks,
                HeldLock::to_string,
            )?;
        }
        if self.recovered_locks > 0 {
            let count = self.recovered_locks;
            writeln!(f, "locks of recovered coordinators, which transactions free: {count}")?;
        }
        list(f, "torn records", &self.torn, PlaceCopy::to_string)?;
        list(f, "copies that differ from the primary", &self.differing, PlaceCopy::to_string)?;
        list(f, "index errors", &self.index_errors, IndexError::to_string)?;
        if self.store_errors.count > 0 {
            list(f, "memory nodes without the store", &self.store_errors, StoreError::to_string)?;
        }
        for node in &self.dead_nodes {
            writeln!(f, "node {} is declared dead, and was not read", node.0)?;
        }
        if self.lost.count > 0 {
            list(f, "partitions without a copy", &self.lost, |(table, partition)| {
                format!("partition {partition} of table {}", table.0)
            })?;
        }
        f.write_str(match self.verdict() {
            Verdict::Clean => "nothing is wrong",
            Verdict::Unrecovered => "the store is not recovered",
            Verdict::Damaged => "the store is damaged",
        })
    }
}
