//! One execution of a transaction by keys: finds the places of its records, and runs an [`Attempt`]
//! on them.
//!
//! The place of a record comes from the cache, or from the index. A record that is not at its
//! cached place is looked up in the index. A search without a result has read every bucket in which
//! the key could be. The attempt validates these buckets, so no other transaction inserts the key
//! before the commit.

use std::collections::{BTreeMap, BTreeSet};

use mitra_mutants::Mutant;

use crate::attempt::{Attempt, Conflict, Step, Write};
use crate::index::Bucket;
use crate::layout::Layout;
use crate::place::{Location, Place, PlaceKind};
use crate::place_cache::PlaceCache;
use crate::record::Version;
use crate::request::{NodeId, Outcome, Request};
use crate::transaction::{Abort, Access, RecordKey};
use crate::{LockWord, log_entry};

/// The next action of the caller, or the end of the execution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Execute these requests: at least one.
    Post(Vec<Request>),
    /// The values of the last [`Execution::get_all`], in the order of its items.
    Values(Vec<Option<Vec<u8>>>),
    /// The transaction is committed and applied.
    Applied,
    /// The transaction had no effect. Contains the lock of another attempt if that lock was the
    /// reason.
    Aborted(Abort, Option<(Place, LockWord)>),
    /// Unknown whether the transaction takes effect: the life must end.
    Undecided,
}

/// The state that all executions of a coordinator share.
pub(crate) struct Store<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) cache: &'a mut PlaceCache,
    pub(crate) dead: &'a BTreeSet<NodeId>,
}

/// A write that waits for the commit.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Pending {
    /// True if the record must exist before the write, false if the record must not exist.
    exists: bool,
    value: Option<Vec<u8>>,
}

/// The position of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// The record is expected at this place.
    Record(Place),
    /// The key is looked for in this bucket.
    Bucket(Place),
    /// The key is removed from the bucket to which this place belongs.
    Removal(Place),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Search {
    key: RecordKey,
    /// Whether the record is locked when it is found.
    locks: bool,
    /// Whether the record is to be inserted, so every bucket that is searched is locked.
    inserts: bool,
    at: At,
    /// The buckets that were searched.
    chain: Vec<Place>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    Reading(Vec<RecordKey>),
    Preparing,
    /// The attempt commits. `Some` is the error of a failed transaction: it only validates its
    /// reads, and then its caller gets the error.
    Committing(Option<Abort>),
    RollingBack(Abort),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Execution {
    attempt: Attempt,
    writes: BTreeMap<RecordKey, Pending>,
    /// An error of the program's writes.
    failed: Option<Abort>,
    /// The places of the records that were looked for; `None` if a record does not exist.
    found: BTreeMap<RecordKey, Option<Place>>,
    inserted: BTreeMap<RecordKey, Place>,
    /// The buckets that the attempt changes.
    buckets: BTreeMap<Place, Bucket>,
    /// The buckets that show that a record does not exist.
    needed: BTreeSet<Place>,
    searches: Vec<Search>,
    stage: Stage,
}

/// The places that a committed transaction has read and written, with their versions. Two
/// transactions with a place in common are ordered by the versions of this place.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Footprint {
    /// The read places, with the versions that were found.
    pub reads: Vec<(Place, u64)>,
    /// The written places, with the versions that the commit made.
    pub writes: Vec<(Place, u64)>,
}

impl Execution {
    pub(crate) fn new(lock: LockWord, log: Vec<Location>, copies: usize) -> Execution {
        Execution {
            attempt: Attempt::new(lock, log, copies),
            writes: BTreeMap::new(),
            failed: None,
            found: BTreeMap::new(),
            inserted: BTreeMap::new(),
            buckets: BTreeMap::new(),
            needed: BTreeSet::new(),
            searches: Vec::new(),
            stage: Stage::Idle,
        }
    }

    pub(crate) fn is_committed(&self) -> bool {
        matches!(self.stage, Stage::Committing(None)) && self.attempt.is_committed()
    }

    /// Returns whether a WRITE of the log entry was posted. From then on, the transaction may take
    /// effect even after the end of the life.
    pub(crate) fn is_logging(&self) -> bool {
        self.attempt.is_logging()
    }

    pub(crate) fn lock(&self) -> LockWord {
        self.attempt.lock()
    }

    pub(crate) fn footprint(&self) -> Footprint {
        let number = |(place, version): (Place, Version)| (place, version.number());
        Footprint {
            reads: self.attempt.reads().map(number).collect(),
            writes: self.attempt.writes().map(number).collect(),
        }
    }

    /// Reads records. Their values come in the next `Progress::Values`.
    pub(crate) fn get_all(&mut self, store: &mut Store<'_>, items: &[(RecordKey, Access)]) -> Progress {
        for &(key, access) in items {
            let locks = access == Access::Update;
            if self.writes.contains_key(&key)
                || self.searches.iter().any(|search| search.key == key && search.locks >= locks)
            {
                continue;
            }
            let at = match self.found.get(&key) {
                Some(None) => continue,
                Some(Some(place)) => Some(At::Record(*place)),
                None => self.begin(store, key),
            };
            let Some(at) = at else { return self.abort(Abort::UnknownTable(key.table)) };
            self.searches.push(Search { key, locks, inserts: false, at, chain: Vec::new() });
        }
        self.stage = Stage::Reading(items.iter().map(|(key, _)| *key).collect());
        self.search(store)
    }

    pub(crate) fn put(&mut self, at: RecordKey, value: Vec<u8>) {
        self.write(at, Some(value), true);
    }

    pub(crate) fn insert(&mut self, at: RecordKey, value: Vec<u8>) {
        self.write(at, Some(value), false);
    }

    pub(crate) fn delete(&mut self, at: RecordKey) {
        self.write(at, None, true);
    }

    fn write(&mut self, at: RecordKey, value: Option<Vec<u8>>, must_exist: bool) {
        match self.writes.get_mut(&at) {
            None => _ = self.writes.insert(at, Pending { exists: must_exist, value }),
            Some(pending) => {
                let exists = pending.value.is_some();
                if exists != must_exist {
                    self.failed.get_or_insert(if exists { Abort::Exists(at) } else { Abort::Missing(at) });
                }
                pending.value = value;
            }
        }
    }

    pub(crate) fn commit(&mut self, store: &mut Store<'_>) -> Progress {
        let mut searches = Vec::new();
        for (&key, pending) in &self.writes {
            let too_long = pending.value.as_ref().is_some_and(|value| {
                store.layout.max_value_bytes(key.table).is_some_and(|max| value.len() > max as usize)
            });
            if too_long {
                return self.abort(Abort::TooLong(key));
            }
            let at = match (pending.exists, self.found.get(&key)) {
                (true, Some(Some(place))) if pending.value.is_none() => Some(At::Removal(*place)),
                (true, Some(_)) => continue,
                (true, None) => self.begin(store, key),
                (false, Some(None)) if pending.value.is_none() => continue,
                (false, _) => store.layout.first_bucket(key).map(At::Bucket),
            };
            let Some(at) = at else { return self.abort(Abort::UnknownTable(key.table)) };
            let inserts = !pending.exists && pending.value.is_some();
            searches.push(Search { key, locks: pending.exists, inserts, at, chain: Vec::new() });
        }
        // Removals come first, because inserted keys can use the places of removed keys.
        searches.sort_by_key(|search| !self.removes(search.key));
        self.searches = searches;
        self.stage = Stage::Preparing;
        self.search(store)
    }

    /// Returns whether the transaction is committed and holds a lock that one of the requests would
    /// meet.
    pub(crate) fn applies_at(&self, requests: &[Request]) -> bool {
        self.is_committed()
            && self
                .attempt
                .locked()
                .any(|lock| requests.iter().any(|request| request.node == lock.node && request.at == lock.at))
    }

    /// Validates the program's reads, and then ends the transaction without an effect.
    pub(crate) fn refuse(&mut self, store: &mut Store<'_>, why: Abort) -> Progress {
        self.writes.clear();
        self.failed = Some(why);
        self.commit_attempt(store)
    }

    pub(crate) fn roll_back(&mut self) -> Progress {
        self.abort(Abort::RolledBack)
    }

    pub(crate) fn on_outcomes(&mut self, store: &mut Store<'_>, outcomes: &[Outcome]) -> Progress {
        let step = self.attempt.on_outcomes(outcomes);
        self.on_step(store, step)
    }

    fn on_step(&mut self, store: &mut Store<'_>, step: Step) -> Progress {
        match step {
            Step::Post(requests) => Progress::Post(requests),
            Step::Fetched => match self.take_fetched(store) {
                Ok(()) => self.search(store),
                Err(why) => self.abort(why),
            },
            Step::Applied => match &self.stage {
                Stage::Committing(Some(why)) => Progress::Aborted(why.clone(), None),
                _ => {
                    self.remember(store);
                    Progress::Applied
                }
            },
            Step::Aborted(conflict) => {
                let (why, lock) = match conflict {
                    Conflict::Locked(place, lock) => (Abort::Locked(place.table), Some((place, lock))),
                    Conflict::Changed(place) => (Abort::Changed(place.table), None),
                    Conflict::Unavailable(place) => (Abort::Unavailable(place.table), None),
                    Conflict::Damaged(Place { table, kind: PlaceKind::Bucket, .. }) => {
                        (Abort::DamagedIndex(table), None)
                    }
                    Conflict::Damaged(Place { table, .. }) => (Abort::DamagedRecord(table), None),
                    Conflict::RolledBack => (Abort::RolledBack, None),
                };
                match &self.stage {
                    Stage::RollingBack(why) => Progress::Aborted(why.clone(), None),
                    _ => Progress::Aborted(why, lock),
                }
            }
            Step::Undecided => Progress::Undecided,
        }
    }

    fn abort(&mut self, why: Abort) -> Progress {
        self.stage = Stage::RollingBack(why.clone());
        match self.attempt.roll_back() {
            Step::Post(requests) => Progress::Post(requests),
            _ => Progress::Aborted(why, None),
        }
    }

    /// Returns the first place of the search for a key, or `None` if the table does not exist.
    fn begin(&self, store: &mut Store<'_>, key: RecordKey) -> Option<At> {
        match store.cache.get(key) {
            Some(place) => Some(At::Record(place)),
            None => store.layout.first_bucket(key).map(At::Bucket),
        }
    }

    /// Continues the searches. After the last search, returns the values or commits.
    fn search(&mut self, store: &mut Store<'_>) -> Progress {
        loop {
            if self.searches.is_empty() {
                return match core::mem::replace(&mut self.stage, Stage::Idle) {
                    Stage::Reading(keys) => {
                        Progress::Values(keys.iter().map(|key| self.value(*key)).collect())
                    }
                    _ => self.commit_attempt(store),
                };
            }
            let mut wanted: BTreeMap<Place, bool> = BTreeMap::new();
            for search in &self.searches {
                let (place, locks) = match search.at {
                    At::Record(place) => (place, search.locks),
                    At::Bucket(place) => (place, search.inserts),
                    At::Removal(place) => (bucket_of(store.layout, place), true),
                };
                *wanted.entry(place).or_default() |= locks;
            }
            let copies = |(place, locks)| Some((store.layout.copies_of(place)?, locks));
            let wanted: Option<Vec<_>> = wanted.into_iter().map(copies).collect();
            let Some(wanted) = wanted else { return self.abort(Abort::Changed(self.searches[0].key.table)) };
            match self.attempt.fetch(&wanted) {
                Step::Fetched => {
                    if let Err(why) = self.take_fetched(store) {
                        return self.abort(why);
                    }
                }
                step => return self.on_step(store, step),
            }
        }
    }

    /// Passes the read records to the searches, and ends the complete searches.
    fn take_fetched(&mut self, store: &mut Store<'_>) -> Result<(), Abort> {
        let mut unneeded = Vec::new();
        for mut search in core::mem::take(&mut self.searches) {
            if self.advance(store, &mut search, &mut unneeded)? {
                self.searches.push(search);
            }
        }
        // Places that were read only to find a record do not belong to the transaction's reads.
        for place in unneeded {
            let is_needed = self.needed.contains(&place)
                || self.found.values().any(|found| *found == Some(place))
                || self.searches.iter().any(|search| search.chain.contains(&place));
            if !is_needed {
                self.attempt.forget(place);
            }
        }
        Ok(())
    }

    /// Returns whether the search goes on.
    fn advance(
        &mut self,
        store: &mut Store<'_>,
        search: &mut Search,
        unneeded: &mut Vec<Place>,
    ) -> Result<bool, Abort> {
        let key = search.key;
        match search.at {
            At::Record(place) => {
                let record = self.attempt.record(place);
                let is_key = |found: u64| found == key.key || Mutant::CachedPlaceTrusted.is_on();
                if record.is_some_and(|record| record.version.is_present() && is_key(record.key)) {
                    store.cache.insert(key, place);
                    self.found.insert(key, Some(place));
                    unneeded.append(&mut search.chain);
                    let deletes = self.stage == Stage::Preparing && self.removes(key);
                    search.at = At::Removal(place);
                    return Ok(deletes);
                }
                store.cache.remove(key);
                if !search.chain.is_empty() || self.found.contains_key(&key) {
                    // An earlier READ has found the record or its bucket entry, so the record was
                    // changed since.
                    return Err(Abort::Changed(key.table));
                }
                unneeded.push(place);
                search.at = At::Bucket(store.layout.first_bucket(key).ok_or(Abort::UnknownTable(key.table))?);
                Ok(true)
            }
            At::Bucket(place) => {
                let bucket = self.bucket(store, place)?;
                search.chain.push(place);
                if let Some(slot) = bucket.find(key.key) {
                    if search.inserts {
                        self.needed.extend(&search.chain);
                        self.found.insert(key, Some(record_of(store.layout, place, slot)));
                        return Ok(false);
                    }
                    search.at = At::Record(record_of(store.layout, place, slot));
                    return Ok(true);
                }
                let (buckets, _) =
                    store.layout.buckets(place.table).ok_or(Abort::UnknownTable(place.table))?;
                let next = Place { index: (place.index + 1) % buckets, ..place };
                let is_last = next == search.chain[0];
                if bucket.is_passed && !is_last {
                    search.at = At::Bucket(next);
                    return Ok(true);
                }
                if search.inserts && !self.add(store, key, &search.chain)? {
                    if is_last && self.searches.iter().any(|search| self.removes(search.key)) {
                        search.chain.pop();
                        return Ok(true);
                    }
                    if is_last {
                        return Err(Abort::Full(key.table));
                    }
                    self.buckets.entry(place).or_insert(bucket).is_passed = true;
                    search.at = At::Bucket(next);
                    return Ok(true);
                }
                self.found.insert(key, None);
                if Mutant::AbsenceNotValidated.is_on() {
                    unneeded.append(&mut search.chain);
                }
                self.needed.extend(&search.chain);
                Ok(false)
            }
            At::Removal(place) => {
                let at = bucket_of(store.layout, place);
                let mut bucket = self.bucket(store, at)?;
                let slot = place.index - record_of(store.layout, at, 0).index;
                if bucket.find(key.key) != Some(slot) {
                    return Err(Abort::Changed(key.table));
                }
                bucket.remove(slot);
                self.buckets.insert(at, bucket);
                Ok(false)
            }
        }
    }

    fn removes(&self, key: RecordKey) -> bool {
        self.writes.get(&key).is_some_and(|pending| pending.value.is_none())
    }

    /// Adds a key to the first locked bucket of `chain` with a free place. Returns false if all
    /// these buckets are full.
    fn add(&mut self, store: &Store<'_>, key: RecordKey, chain: &[Place]) -> Result<bool, Abort> {
        for &place in chain {
            let mut bucket = self.bucket(store, place)?;
            if let Some(slot) = bucket.add(key.key) {
                self.buckets.insert(place, bucket);
                self.inserted.insert(key, record_of(store.layout, place, slot));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns a bucket as the transaction sees it.
    fn bucket(&self, store: &Store<'_>, place: Place) -> Result<Bucket, Abort> {
        if let Some(bucket) = self.buckets.get(&place) {
            return Ok(bucket.clone());
        }
        let bucket = self.attempt.record(place).and_then(|record| {
            let (_, records) = store.layout.buckets(place.table)?;
            Bucket::decode(&record.value, records)
        });
        bucket.ok_or(Abort::DamagedIndex(place.table))
    }

    /// Returns the value of a record as the transaction sees it.
    fn value(&self, key: RecordKey) -> Option<Vec<u8>> {
        if let Some(pending) = self.writes.get(&key) {
            return pending.value.clone();
        }
        let place = self.found.get(&key).copied().flatten()?;
        let record = self.attempt.record(place).expect("a record that was found has been read");
        Some(record.value.clone())
    }

    fn commit_attempt(&mut self, store: &mut Store<'_>) -> Progress {
        let misfit = self.writes.iter().find_map(|(&key, pending)| {
            let exists = self.found.get(&key).copied().flatten().is_some();
            (exists != pending.exists).then_some(if exists {
                Abort::Exists(key)
            } else {
                Abort::Missing(key)
            })
        });
        let failed = self.failed.clone().or(misfit);
        if failed.is_none() {
            let writes = self.writes.iter().filter_map(|(key, pending)| {
                let inserted = self.inserted.get(key).copied();
                let found = self.found.get(key).copied().flatten();
                // The place of a deleted record may be used again by this transaction.
                let is_free =
                    |place: &Place| inserted.is_some() || !self.inserted.values().any(|at| at == place);
                let place = inserted.or(found).filter(is_free)?;
                Some((place, Write { key: key.key, value: pending.value.clone() }))
            });
            let buckets = self.buckets.iter().map(|(&place, bucket)| {
                (place, Write { key: place.index.into(), value: Some(bucket.encode()) })
            });
            let mut entry_bytes = log_entry::HEADER_BYTES;
            for (place, write) in writes.chain(buckets).collect::<Vec<_>>() {
                let Some(copies) = store.layout.copies_of(place) else {
                    return self.abort(Abort::DamagedIndex(place.table));
                };
                if copies.backups.iter().any(|at| store.dead.contains(&at.node)) {
                    return self.abort(Abort::Unavailable(place.table));
                }
                entry_bytes += log_entry::record_bytes(write.value.as_ref().map_or(0, Vec::len));
                self.attempt.write(&copies, write);
            }
            if entry_bytes > store.layout.slot_bytes() as usize {
                return self.abort(Abort::TooManyBytes {
                    bytes: entry_bytes,
                    max: store.layout.slot_bytes() as usize,
                });
            }
            let live = store.layout.nodes().filter(|node| !store.dead.contains(node)).count();
            if !self.writes.is_empty() && live < store.layout.log_copies() {
                return self.abort(Abort::TooFewNodes);
            }
        }
        self.stage = Stage::Committing(failed);
        let step = self.attempt.commit();
        self.on_step(store, step)
    }

    /// Adds the places of inserted records to the cache, and removes the places of deleted records.
    fn remember(&mut self, store: &mut Store<'_>) {
        for (&key, pending) in &self.writes {
            match (&pending.value, self.inserted.get(&key)) {
                (Some(_), Some(&place)) => store.cache.insert(key, place),
                (Some(_), None) => {}
                (None, _) => store.cache.remove(key),
            }
        }
    }
}

pub(crate) fn bucket_of(layout: &Layout, record: Place) -> Place {
    let records = layout.buckets(record.table).map_or(1, |(_, records)| records);
    Place { kind: PlaceKind::Bucket, index: record.index / records, ..record }
}

/// The place of the record with the number `slot` in a bucket.
pub(crate) fn record_of(layout: &Layout, bucket: Place, slot: u32) -> Place {
    let records = layout.buckets(bucket.table).map_or(1, |(_, records)| records);
    Place { kind: PlaceKind::Record, index: bucket.index * records + slot, ..bucket }
}
