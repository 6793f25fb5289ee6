//! One attempt of a transaction, as a state machine: reads and locks records, validates the read
//! records, logs, applies and unlocks.
//!
//! The caller executes the requests of each [`Step::Post`] and passes all their outcomes to
//! [`Attempt::on_outcomes`], in the same order. Requests may fail in any way that [`Outcome`]
//! names. A request is not executed any more when its outcome is known. Therefore the attempt may
//! repeat:
//! - a compare-and-swap that takes a free lock, because no other attempt has the same lock word;
//! - a WRITE of a record that the attempt has locked.

use mitra_mutants::Mutant;

use crate::joined_reads::{JoinedReads, ReadOutcome};
use crate::lock_word::LockWord;
use crate::log_entry::{Logged, encode_entry};
use crate::place::{Copies, Location, Place};
use crate::record::{self, LOCK_AND_VERSION_BYTES, LOCK_BYTES, Record, Version};
use crate::request::{Outcome, Request};

/// The limit of repeated READs of records that another attempt has locked.
const MAX_LOCKED_READS: u32 = 8;
/// The limit of repeated READs of records with a free lock and a wrong checksum. A WRITE in
/// progress needs few repetitions. In damaged memory, the checksum stays wrong.
const MAX_TORN_READS: u32 = 64;

/// The next action of the caller, or the end of the attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Execute these requests: at least one.
    Post(Vec<Request>),
    /// The records of the last [`Attempt::fetch`] are known. [`Attempt::record`] returns them.
    Fetched,
    /// The transaction is committed and applied, and all its locks are free. The commit happened
    /// when [`Attempt::is_committed`] began to return true.
    Applied,
    /// The transaction had no effect, and its locks are free.
    Aborted(Conflict),
    /// Too few nodes live to decide whether the log entry counts. The life of the coordinator must
    /// end, and a recovery decides.
    Undecided,
}

/// Why an attempt has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Conflict {
    /// Another attempt holds the lock of this place.
    Locked(Place, LockWord),
    /// Another attempt has written this place since it was read.
    Changed(Place),
    /// The primary of this place is dead.
    Unavailable(Place),
    /// The checksum of this place was wrong each time it was read.
    Damaged(Place),
    /// The caller has ended the attempt.
    RolledBack,
}

/// A write of a transaction to a record.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Write {
    /// The key.
    pub key: u64,
    /// The value, or `None` to delete the record.
    pub value: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Item {
    copies: Copies,
    record: Option<Record>,
    lock: Lock,
    write: Option<Write>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Lock {
    /// The attempt has not tried to take the lock, or another attempt holds it.
    No,
    /// A compare-and-swap was posted, and it is unknown whether it was executed.
    Undecided,
    Held,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Executing,
    /// The records of these items are read, and the items with `true` are locked. `rereads` counts
    /// the rounds in which a record was torn, or locked by another attempt.
    Fetching {
        wanted: Vec<(usize, bool)>,
        rereads: u32,
    },
    /// The locks of these items are taken.
    Locking {
        wanted: Vec<usize>,
    },
    /// The headers of these items are read again.
    Validating {
        wanted: Vec<usize>,
    },
    /// The log entry is written at the `wanted` locations. `complete` is the number of other
    /// locations that already have the entry.
    Logging {
        wanted: Vec<Location>,
        spare: Vec<Location>,
        complete: usize,
    },
    ApplyingBackups {
        wanted: Vec<(usize, Location)>,
    },
    ApplyingPrimaries {
        wanted: Vec<(usize, Apply)>,
    },
    Releasing {
        wanted: Vec<usize>,
        why: Conflict,
    },
    Ended,
}

/// The remaining work at a primary.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Apply {
    WriteAndUnlock,
    Unlock,
    /// It is unknown whether the record was written and unlocked. The lock word is read to find
    /// out.
    Look,
}

/// One attempt of a transaction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attempt {
    lock: LockWord,
    /// The slot of the attempt in the log of each node, in the order of use.
    log: Vec<Location>,
    /// The number of logs that must have the entry.
    copies: usize,
    items: Vec<Item>,
    stage: Stage,
    is_committed: bool,
}

impl Attempt {
    /// Creates an attempt with its lock word. The attempt writes its log entry to `copies` of the
    /// slots `log`: the first slots whose nodes live.
    pub fn new(lock: LockWord, log: Vec<Location>, copies: usize) -> Attempt {
        Attempt { lock, log, copies, items: Vec::new(), stage: Stage::Executing, is_committed: false }
    }

    pub(crate) fn lock(&self) -> LockWord {
        self.lock
    }

    /// Returns whether the transaction is committed. From then on, its caller may be told.
    pub fn is_committed(&self) -> bool {
        self.is_committed
    }

    /// Returns the record at a place, if the attempt has read it.
    pub fn record(&self, place: Place) -> Option<&Record> {
        self.items.iter().find(|item| item.copies.place == place)?.record.as_ref()
    }

    /// Returns whether the log entry is being written. If the life ends meanwhile, it is unknown
    /// whether the transaction takes effect.
    pub fn is_logging(&self) -> bool {
        matches!(self.stage, Stage::Logging { .. })
    }

    /// Returns the places that the attempt has read, with the versions found there.
    pub fn reads(&self) -> impl Iterator<Item = (Place, Version)> {
        self.items.iter().filter_map(|item| Some((item.copies.place, item.record.as_ref()?.version)))
    }

    /// Returns the places that the attempt writes, with the versions that the commit makes. The
    /// versions are known when all locks are held.
    pub fn writes(&self) -> impl Iterator<Item = (Place, Version)> {
        let items = self.items.iter().enumerate().filter(|(_, item)| item.write.is_some());
        items.map(|(index, item)| (item.copies.place, self.new_version(index)))
    }

    /// Returns the primaries whose locks the attempt holds or may hold.
    pub(crate) fn locked(&self) -> impl Iterator<Item = Location> {
        self.items.iter().filter(|item| item.lock != Lock::No).map(|item| item.copies.primary)
    }

    /// Removes a place from the read places, so that the place is not validated. The attempt must
    /// have no requests in flight. Returns false if the attempt locks or writes the place.
    pub fn forget(&mut self, place: Place) -> bool {
        let position = self.items.iter().position(|item| item.copies.place == place);
        let Some(index) = position else { return true };
        let is_unused = self.items[index].lock == Lock::No && self.items[index].write.is_none();
        if is_unused {
            self.items.remove(index);
        }
        is_unused
    }

    /// Reads records, and locks the records with `true`. A record that the attempt has already read
    /// is read again only if it is to be locked.
    pub fn fetch(&mut self, wanted: &[(Copies, bool)]) -> Step {
        let mut items = Vec::new();
        for (copies, locks) in wanted {
            let index = self.item(copies);
            let item = &self.items[index];
            if item.record.is_none() || (*locks && item.lock != Lock::Held) {
                items.push((index, *locks));
            }
        }
        self.stage = Stage::Fetching { wanted: items, rereads: 0 };
        self.go_on()
    }

    /// Writes a record when the attempt commits.
    pub fn write(&mut self, copies: &Copies, write: Write) {
        let index = self.item(copies);
        self.items[index].write = Some(write);
    }

    /// Commits: validates, logs, applies and unlocks.
    pub fn commit(&mut self) -> Step {
        let is_missing = |item: &(usize, &Item)| item.1.write.is_some() && item.1.lock != Lock::Held;
        let wanted = self.items.iter().enumerate().filter(is_missing).map(|(index, _)| index).collect();
        self.stage = Stage::Locking { wanted };
        self.go_on()
    }

    /// Ends the attempt without an effect.
    pub fn roll_back(&mut self) -> Step {
        self.abort(Conflict::RolledBack)
    }

    /// Returns the index of a place's item. Adds an item for a new place.
    fn item(&mut self, copies: &Copies) -> usize {
        match self.items.iter().position(|item| item.copies.place == copies.place) {
            Some(index) => index,
            None => {
                self.items.push(Item { copies: copies.clone(), record: None, lock: Lock::No, write: None });
                self.items.len() - 1
            }
        }
    }

    /// Continues with the outcomes of the last requests, in their order.
    pub fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Step {
        let mut outcomes = outcomes.iter();
        let mut next = || outcomes.next().unwrap_or(&Outcome::Unknown);
        match core::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Fetching { wanted, rereads } => {
                let mut again = Vec::new();
                let mut conflict = None;
                let mut is_reread = false;
                let lock = |&(index, locks): &(usize, bool)| self.takes_lock(index, locks).then(&mut next);
                let taken: Vec<_> = wanted.iter().map(lock).collect();
                let found = self.read_records(&wanted).outcomes(outcomes);
                for (((index, locks), lock), found) in wanted.into_iter().zip(taken).zip(found) {
                    let max_rereads = |why: &Conflict| match why {
                        Conflict::Locked(..) if !locks => MAX_LOCKED_READS,
                        Conflict::Damaged(_) => MAX_TORN_READS,
                        _ => 0,
                    };
                    match self.on_fetched(index, locks, lock, found) {
                        Ok(true) => {}
                        Ok(false) => again.push((index, locks)),
                        Err(why) if rereads < max_rereads(&why) => {
                            is_reread = true;
                            again.push((index, locks));
                        }
                        Err(why) => _ = conflict.get_or_insert(why),
                    }
                }
                if let Some(why) = conflict {
                    return self.abort(why);
                }
                self.stage = Stage::Fetching { wanted: again, rereads: rereads + u32::from(is_reread) };
            }
            Stage::Locking { wanted } => {
                let mut again = Vec::new();
                let mut conflict = None;
                let taken: Vec<_> = wanted.iter().map(|_| next()).collect();
                let found = self.read_headers(&wanted).outcomes(outcomes);
                for ((index, lock), header) in wanted.into_iter().zip(taken).zip(found) {
                    match self.on_locked(index, lock, header) {
                        Ok(true) => {}
                        Ok(false) => again.push(index),
                        Err(why) => _ = conflict.get_or_insert(why),
                    }
                }
                if let Some(why) = conflict {
                    return self.abort(why);
                }
                self.stage = Stage::Locking { wanted: again };
            }
            Stage::Validating { wanted } => {
                let mut again = Vec::new();
                let found = self.read_headers(&wanted).outcomes(outcomes);
                for (index, header) in wanted.into_iter().zip(found) {
                    match self.on_validated(index, header) {
                        Ok(true) => {}
                        Ok(false) => again.push(index),
                        // Validation posts READs only, so no lock is undecided.
                        Err(why) => return self.abort(why),
                    }
                }
                self.stage = Stage::Validating { wanted: again };
            }
            Stage::Logging { wanted, mut spare, mut complete } => {
                let mut again = Vec::new();
                for location in wanted {
                    match next() {
                        Outcome::NodeDead => again.extend((!spare.is_empty()).then(|| spare.remove(0))),
                        outcome if outcome.is_executed() => complete += 1,
                        _ if Mutant::LogWriteAssumed.is_on() => complete += 1,
                        _ if Mutant::AbortedWhileLogging.is_on() => return self.abort(Conflict::RolledBack),
                        _ => again.push(location),
                    }
                }
                let is_undecided = again.is_empty() && complete < self.copies;
                self.stage = Stage::Logging { wanted: again, spare, complete };
                if is_undecided {
                    return Step::Undecided;
                }
            }
            Stage::ApplyingBackups { wanted } => {
                let first: Vec<_> = wanted.iter().map(|_| next()).collect();
                let again = wanted.into_iter().zip(first).filter(|(_, first)| {
                    [*first, next()].iter().any(|write| write.needs_repetition())
                        && !Mutant::BackupNotRepeated.is_on()
                });
                self.stage = Stage::ApplyingBackups { wanted: again.map(|(wanted, _)| wanted).collect() };
            }
            Stage::ApplyingPrimaries { wanted } => {
                let first = |(_, apply): &(usize, Apply)| (*apply != Apply::Unlock).then(&mut next);
                let first: Vec<_> = wanted.iter().map(first).collect();
                let again = wanted.into_iter().zip(first).filter_map(|((index, apply), first)| {
                    let unlock = (apply != Apply::Look).then(&mut next);
                    Some((index, self.after(first, unlock)?))
                });
                self.stage = Stage::ApplyingPrimaries { wanted: again.collect() };
            }
            Stage::Releasing { wanted, why } => {
                let again = wanted.into_iter().filter(|_| {
                    let outcome = next();
                    !is_answered(outcome) && *outcome != Outcome::NodeDead
                });
                self.stage = Stage::Releasing { wanted: again.collect(), why };
            }
            stage @ (Stage::Executing | Stage::Ended) => self.stage = stage,
        }
        self.go_on()
    }

    /// Posts the remaining requests of the stage, or enters the next stage.
    fn go_on(&mut self) -> Step {
        loop {
            let requests = self.requests();
            if !requests.is_empty() {
                return Step::Post(requests);
            }
            self.stage = match core::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Executing | Stage::Fetching { .. } => {
                    self.stage = Stage::Executing;
                    return Step::Fetched;
                }
                Stage::Locking { .. } => {
                    let changes = |item: &Item| item.record.is_some() && item.lock != Lock::Held;
                    let items = self.items.iter().enumerate();
                    let wanted: Vec<usize> =
                        items.filter(|(_, item)| changes(item)).map(|(index, _)| index).collect();
                    // A single record needs no validation: it was valid when it was read.
                    let is_valid = self.items.len() == 1 || Mutant::ValidationSkipped.is_on();
                    Stage::Validating { wanted: if is_valid { Vec::new() } else { wanted } }
                }
                Stage::Validating { .. } if self.items.iter().all(|item| item.write.is_none()) => {
                    self.is_committed = true;
                    let held = (0..self.items.len()).filter(|&index| self.items[index].lock != Lock::No);
                    Stage::ApplyingPrimaries { wanted: held.map(|index| (index, Apply::Unlock)).collect() }
                }
                Stage::Validating { .. } => {
                    if Mutant::ToldBeforeLogged.is_on() {
                        self.is_committed = true;
                    }
                    if Mutant::LoggedOnce.is_on() {
                        self.copies = 1;
                    }
                    let mut wanted = self.log.clone();
                    let spare = wanted.split_off(self.copies.min(wanted.len()));
                    Stage::Logging { wanted, spare, complete: 0 }
                }
                Stage::Logging { .. } => {
                    self.is_committed = true;
                    if Mutant::PrimaryFirst.is_on() { self.apply_primaries() } else { self.apply_backups() }
                }
                Stage::ApplyingBackups { .. } if Mutant::PrimaryFirst.is_on() => return Step::Applied,
                Stage::ApplyingBackups { .. } => self.apply_primaries(),
                Stage::ApplyingPrimaries { .. } if Mutant::PrimaryFirst.is_on() => self.apply_backups(),
                Stage::ApplyingPrimaries { .. } => return Step::Applied,
                Stage::Releasing { why, .. } => return Step::Aborted(why),
                Stage::Ended => return Step::Undecided,
            };
        }
    }

    fn apply_backups(&self) -> Stage {
        let backups = |(index, item): (usize, &Item)| {
            let backups = item.write.as_ref().map(|_| item.copies.backups.clone()).unwrap_or_default();
            backups.into_iter().map(move |location| (index, location))
        };
        Stage::ApplyingBackups { wanted: self.items.iter().enumerate().flat_map(backups).collect() }
    }

    fn apply_primaries(&self) -> Stage {
        let apply = |(index, item): (usize, &Item)| match (item.lock, &item.write) {
            (Lock::No, _) => None,
            (_, Some(_)) => Some((index, Apply::WriteAndUnlock)),
            (_, None) => Some((index, Apply::Unlock)),
        };
        Stage::ApplyingPrimaries { wanted: self.items.iter().enumerate().filter_map(apply).collect() }
    }

    /// Returns the requests that the stage needs. Requests of one kind are adjacent, because a NIC
    /// sends and receives packets of equal length at less cost.
    fn requests(&self) -> Vec<Request> {
        let copies = |index: usize| &self.items[index].copies;
        match &self.stage {
            Stage::Executing | Stage::Ended => Vec::new(),
            Stage::Fetching { wanted, .. } => {
                let taken = wanted.iter().filter(|&&(index, locks)| self.takes_lock(index, locks));
                let locks = taken.map(|&(index, _)| self.take_lock(index));
                locks.chain(self.read_records(wanted).into_requests()).collect()
            }
            Stage::Locking { wanted } => {
                let locks = wanted.iter().map(|&index| self.take_lock(index));
                locks.chain(self.read_headers(wanted).into_requests()).collect()
            }
            Stage::Validating { wanted } => self.read_headers(wanted).into_requests(),
            Stage::Logging { wanted, .. } => {
                if wanted.is_empty() {
                    return Vec::new();
                }
                let entry = self.entry();
                wanted.iter().map(|&location| Request::write(location, 0, entry.clone())).collect()
            }
            Stage::ApplyingBackups { wanted } => {
                let write = |&(index, location): &(usize, Location)| {
                    Request::write_backup(location, &self.content(index))
                };
                let (first, second): (Vec<_>, Vec<_>) = wanted.iter().map(write).map(<(_, _)>::from).unzip();
                [first, second].concat()
            }
            Stage::ApplyingPrimaries { wanted } => {
                let first = |&(index, apply): &(usize, Apply)| match apply {
                    Apply::WriteAndUnlock => {
                        Some(Request::write(copies(index).primary, LOCK_BYTES, self.content(index)))
                    }
                    Apply::Unlock => None,
                    Apply::Look => Some(Request::read(copies(index).primary, LOCK_AND_VERSION_BYTES)),
                };
                let unlocked = wanted.iter().filter(|(_, apply)| *apply != Apply::Look);
                let unlocks = unlocked.map(|&(index, _)| self.free_lock(index));
                wanted.iter().filter_map(first).chain(unlocks).collect()
            }
            Stage::Releasing { wanted, .. } => wanted.iter().map(|&index| self.free_lock(index)).collect(),
        }
    }

    /// Returns whether a fetched item needs nothing more.
    fn on_fetched(
        &mut self,
        index: usize,
        locks: bool,
        lock: Option<&Outcome>,
        found: ReadOutcome<'_>,
    ) -> Result<bool, Conflict> {
        let place = self.items[index].copies.place;
        lock.map_or(Ok(()), |lock| self.on_lock(index, lock))?;
        if found.is_dead {
            return Err(Conflict::Unavailable(place));
        }
        let item = &mut self.items[index];
        let Some(header) = found.bytes.and_then(record::decode_header) else { return Ok(false) };
        if locks && item.lock != Lock::Held {
            return Ok(false);
        }
        // The holder of the lock may have ended in the middle of a WRITE. So a torn record behind a
        // held lock counts as locked.
        let record = found.bytes.and_then(record::decode);
        let is_used = header.lock == LockWord::FREE || (Mutant::ReadUnderLock.is_on() && record.is_some());
        if !is_used && header.lock != self.lock {
            return Err(Conflict::Locked(place, header.lock));
        }
        let Some(record) = record else { return Err(Conflict::Damaged(place)) };
        match &item.record {
            Some(before) if before.version != record.version => Err(Conflict::Changed(place)),
            _ => {
                item.record = Some(record);
                Ok(true)
            }
        }
    }

    /// Returns whether a locked item needs nothing more.
    fn on_locked(&mut self, index: usize, lock: &Outcome, found: ReadOutcome<'_>) -> Result<bool, Conflict> {
        let header = found.bytes.and_then(record::decode_header);
        self.on_lock(index, lock)?;
        let item = &mut self.items[index];
        let (Some(header), Lock::Held) = (header, item.lock) else { return Ok(false) };
        match &item.record {
            Some(record) if record.version != header.version && !Mutant::LockedVersionUnchecked.is_on() => {
                Err(Conflict::Changed(item.copies.place))
            }
            Some(_) => Ok(true),
            None => {
                let (lock, version) = (header.lock, header.version);
                item.record = Some(Record { lock, version, key: 0, value: Vec::new() });
                Ok(true)
            }
        }
    }

    fn on_lock(&mut self, index: usize, outcome: &Outcome) -> Result<(), Conflict> {
        let item = &mut self.items[index];
        let place = item.copies.place;
        item.lock = match outcome.word().map(LockWord::from_bits) {
            Some(found) if found == LockWord::FREE || found == self.lock => Lock::Held,
            Some(holder) => {
                item.lock = Lock::No;
                return Err(Conflict::Locked(place, holder));
            }
            None if *outcome == Outcome::NodeDead => return Err(Conflict::Unavailable(place)),
            None if Mutant::UndecidedLockTaken.is_on() => Lock::Held,
            None => Lock::Undecided,
        };
        Ok(())
    }

    /// Returns whether the validation of an item needs nothing more.
    fn on_validated(&mut self, index: usize, found: ReadOutcome<'_>) -> Result<bool, Conflict> {
        let item = &self.items[index];
        let place = item.copies.place;
        if found.is_dead {
            return Err(Conflict::Unavailable(place));
        }
        let Some(header) = found.bytes.and_then(record::decode_header) else { return Ok(false) };
        if item.record.as_ref().is_none_or(|record| record.version != header.version) {
            return Err(Conflict::Changed(place));
        }
        let is_free = header.lock == LockWord::FREE || Mutant::ValidatedUnderLock.is_on();
        if !is_free && header.lock != self.lock {
            return Err(Conflict::Locked(place, header.lock));
        }
        Ok(true)
    }

    /// Returns the remaining work at a primary. `first` is the outcome of the WRITE or READ,
    /// `unlock` the outcome of the compare-and-swap.
    fn after(&self, first: Option<&Outcome>, unlock: Option<&Outcome>) -> Option<Apply> {
        if [first, unlock].contains(&Some(&Outcome::NodeDead)) {
            return None;
        }
        match (first, unlock) {
            // The node executes both requests in order.
            (_, Some(unlock)) if is_answered(unlock) => None,
            (None, Some(_)) => Some(Apply::Unlock),
            (Some(write), Some(_)) if write.is_executed() => Some(Apply::Unlock),
            (Some(_), Some(Outcome::NotExecuted)) => Some(Apply::WriteAndUnlock),
            (Some(_), Some(_)) if Mutant::AppliedAgainUnseen.is_on() => Some(Apply::WriteAndUnlock),
            (Some(_), Some(_)) => Some(Apply::Look),
            (look, None) => match look.and_then(Outcome::bytes).and_then(record::decode_header) {
                None => Some(Apply::Look),
                Some(header) => (header.lock == self.lock).then_some(Apply::WriteAndUnlock),
            },
        }
    }

    /// Frees the locks that the attempt has or may have.
    fn abort(&mut self, why: Conflict) -> Step {
        let taken = (0..self.items.len()).filter(|&index| match self.items[index].lock {
            Lock::No => false,
            Lock::Undecided => !Mutant::UndecidedLockKept.is_on(),
            Lock::Held => true,
        });
        self.stage = Stage::Releasing { wanted: taken.collect(), why };
        self.go_on()
    }

    fn new_version(&self, index: usize) -> Version {
        let item = &self.items[index];
        let before = item.record.as_ref().map_or(Version::UNUSED, |record| record.version);
        before.next(item.write.as_ref().is_some_and(|write| write.value.is_none()))
    }

    /// Returns what is written to a record behind its lock.
    fn content(&self, index: usize) -> Vec<u8> {
        let write = self.items[index].write.as_ref();
        let key = write.map_or(0, |write| write.key);
        let value = write.and_then(|write| write.value.as_deref()).unwrap_or_default();
        record::encode_behind_lock(self.new_version(index), key, value)
    }

    fn entry(&self) -> Vec<u8> {
        let written = (0..self.items.len()).filter(|&index| self.items[index].write.is_some());
        let logged = written
            .map(|index| Logged { place: self.items[index].copies.place, content: self.content(index) });
        encode_entry(self.lock, &logged.collect::<Vec<_>>())
    }

    /// Returns whether a fetch of an item takes its lock, too.
    fn takes_lock(&self, index: usize, locks: bool) -> bool {
        locks && self.items[index].lock != Lock::Held
    }

    fn read_records(&self, wanted: &[(usize, bool)]) -> JoinedReads {
        let copies = |&(index, _): &(usize, bool)| &self.items[index].copies;
        JoinedReads::new(wanted.iter().map(copies).map(|copies| (copies, copies.bytes)))
    }

    fn read_headers(&self, wanted: &[usize]) -> JoinedReads {
        let copies = |&index: &usize| &self.items[index].copies;
        JoinedReads::new(wanted.iter().map(copies).map(|copies| (copies, LOCK_AND_VERSION_BYTES)))
    }

    fn take_lock(&self, index: usize) -> Request {
        Request::swap_lock(self.items[index].copies.primary, LockWord::FREE, self.lock)
    }

    fn free_lock(&self, index: usize) -> Request {
        let primary = self.items[index].copies.primary;
        if Mutant::UnlockedByWrite.is_on() {
            return Request::write(primary, 0, vec![0; LOCK_BYTES]);
        }
        Request::swap_lock(primary, self.lock, LockWord::FREE)
    }
}

/// Returns whether the outcome of a compare-and-swap contains the word that was found.
fn is_answered(unlock: &Outcome) -> bool {
    unlock.word().is_some() || (Mutant::UnlockedByWrite.is_on() && unlock.is_executed())
}
