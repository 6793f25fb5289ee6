//! A cell of 64 bits whose changes are recoverable: the word names the record that contains the
//! value.

use mitra_mutants::Mutant;
use smallvec::smallvec;

use crate::announcement::Owner;
use crate::attempt::{Attempt, AttemptProgress};
use crate::cell_error::CellError;
use crate::operation::{Operation, Progress, Requests};
use crate::recoverable_cell::{Change, Changed, Finished};
use crate::request::{Outcome, Request, Word};
use crate::tag::{TagLayout, Tagged};

/// The layout of a cell's word: the index of the owner's record that has the value (1 bit), the
/// owner (8 bits), the sequence number (55 bits).
const LAYOUT: TagLayout = TagLayout::new(55);

/// A 64-bit value that clients read, compare-and-swap and fetch-and-add. Each operation happens
/// exactly once and returns its result, even if the responder's NIC is lost.
///
/// The design follows Varuna's extended status: the word has a tag, which names the record that has
/// the value. The owner's announcement is the state of the record. An owner has two records in each
/// cell, and writes the record that the word does not name.
///
/// | word of the cell | content |
/// |---|---|
/// | 0 | the tag: record (1 bit), owner (8 bits), sequence number (55 bits) |
/// | 1 | the initial value, which an owner number of 0 names |
/// | 2·j + r, for j from 1 to the number of owners | record r of owner j: the value |
///
/// The sequence numbers of an owner last for 2⁵⁵ − 1 operations. All atomics on a cell and on its
/// [`Announcements`](crate::Announcements) must be executed by one NIC at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IndirectCell {
    first: Word,
    owners: u8,
}

impl IndirectCell {
    /// Names the cell that begins at `first`. `owners` is the number of its announcements.
    pub fn new(first: Word, owners: u8) -> IndirectCell {
        IndirectCell { first, owners }
    }

    /// The length of a cell in bytes.
    pub const fn bytes(owners: u8) -> usize {
        8 * (2 + 2 * owners as usize)
    }

    /// The offset of the initial value in bytes. The peer stores it before clients use the cell.
    /// All other words are zero at first.
    pub const INITIAL_VALUE_OFFSET: usize = 8;

    /// Returns the value of a cell with this content, or `None` if the content is not valid. The
    /// peer calls this function on its own memory while no client changes the cell.
    pub fn value_of(words: &[u64]) -> Option<u64> {
        let Tagged { payload, owner, .. } = LAYOUT.unpack(*words.first()?);
        words.get(if owner == 0 { 1 } else { 2 * usize::from(owner) + payload as usize }).copied()
    }

    /// Returns the operation that reads the cell. Cost: three READs, one after another; two more
    /// for each change of the cell in between.
    pub fn read(&self) -> ReadIndirect {
        ReadIndirect(Snapshot::new(*self))
    }

    /// Returns the operation that changes the cell. Cost without a failure: three round trips, and
    /// two more for each other owner that changed the cell in between. The first two are READs of
    /// the tag and of the record. The third has a WRITE of the owner's record, the announcement,
    /// and the compare-and-swap of the tag. If another owner changed the cell last, the third also
    /// has a compare-and-swap of that owner's announcement. A compare-and-swap that finds another
    /// value costs three READs. The operation is lock-free, not wait-free.
    pub fn change(&self, owner: Owner, change: Change<u64>) -> ChangeIndirect {
        let attempt = Attempt::new(LAYOUT, self.first, owner);
        ChangeIndirect { attempt, change, snapshot: Snapshot::new(*self), stage: Stage::Reading }
    }

    /// Returns the record that a tag names.
    ///
    /// # Errors
    /// [`CellError::NoSuchOwner`].
    fn record(&self, tag: u64) -> Result<Word, CellError> {
        let Tagged { payload, owner, .. } = LAYOUT.unpack(tag);
        match owner {
            0 => Ok(self.first.nth(1)),
            owner if owner > self.owners => Err(CellError::NoSuchOwner { owner, owners: self.owners }),
            owner => Ok(self.first.nth(2 * u64::from(owner) + payload)),
        }
    }
}

/// Reads the tag, the record that the tag names, and on request the tag again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Snapshot {
    cell: IndirectCell,
    stage: ReadStage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReadStage {
    /// Reads the tag.
    Tag,
    /// Reads the record of this tag.
    Record { tag: u64 },
    /// Reads the tag again, after the value of the record.
    Check { tag: u64, value: u64 },
}

/// The next requests of a snapshot, or its result.
enum SnapshotProgress {
    Post(Requests),
    /// The tag and the value of its record. Unless `is_checked`, the record may have had another
    /// value while the word had the tag.
    Read {
        tag: u64,
        value: u64,
        is_checked: bool,
    },
}

impl Snapshot {
    fn new(cell: IndirectCell) -> Snapshot {
        Snapshot { cell, stage: ReadStage::Tag }
    }

    fn requests(&self) -> Result<Requests, CellError> {
        let word = match self.stage {
            ReadStage::Tag | ReadStage::Check { .. } => self.cell.first,
            ReadStage::Record { tag } => self.cell.record(tag)?,
        };
        Ok(smallvec![Request::read(word)])
    }

    fn go_to(&mut self, stage: ReadStage) -> Result<Requests, CellError> {
        self.stage = stage;
        self.requests()
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Result<SnapshotProgress, CellError> {
        let Some(read) = outcomes.first().and_then(|outcome| outcome.value()) else {
            return self.requests().map(SnapshotProgress::Post); // the start, or a READ that failed and may run again
        };
        match self.stage {
            ReadStage::Record { tag } => Ok(SnapshotProgress::Read { tag, value: read, is_checked: false }),
            ReadStage::Check { tag, value } if tag == read => {
                Ok(SnapshotProgress::Read { tag, value, is_checked: true })
            }
            ReadStage::Tag | ReadStage::Check { .. } => {
                self.go_to(ReadStage::Record { tag: read }).map(SnapshotProgress::Post)
            }
        }
    }
}

/// The operation of [`IndirectCell::read`].
///
/// The operation reads the tag, the record that the tag names, and the tag again. If the tag is the
/// same, the value of the record was the value of the cell: the owner writes a record again only
/// after the word has another tag, and no tag is used twice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadIndirect(Snapshot);

impl ReadIndirect {
    fn advance(&mut self, outcomes: &[Outcome]) -> Result<Progress<Result<u64, CellError>>, CellError> {
        Ok(match self.0.on_outcomes(outcomes)? {
            SnapshotProgress::Post(requests) => Progress::Post(requests),
            SnapshotProgress::Read { value, is_checked, .. }
                if is_checked || Mutant::RecordUnchecked.is_on() =>
            {
                Progress::Done(Ok(value))
            }
            SnapshotProgress::Read { tag, value, .. } => {
                Progress::Post(self.0.go_to(ReadStage::Check { tag, value })?)
            }
        })
    }
}

impl Operation for ReadIndirect {
    type Output = Result<u64, CellError>;

    fn start(&mut self) -> Progress<Self::Output> {
        self.on_outcomes(&[])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Self::Output> {
        self.advance(outcomes).unwrap_or_else(|error| Progress::Done(Err(error)))
    }
}

/// The operation of [`IndirectCell::change`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ChangeIndirect {
    attempt: Attempt,
    change: Change<u64>,
    snapshot: Snapshot,
    stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// Reads the snapshot.
    Reading,
    /// The attempt to change the cell from this value is under way.
    Attempting { old: u64 },
}

impl ChangeIndirect {
    fn finish(&self, result: Result<Changed<u64>, CellError>) -> Progress<Finished<Changed<u64>>> {
        Progress::Done(Finished { owner: self.attempt.owner.clone(), result })
    }

    fn advance(&mut self, outcomes: &[Outcome]) -> Result<Progress<Finished<Changed<u64>>>, CellError> {
        let requests = match self.stage {
            Stage::Reading => match self.snapshot.on_outcomes(outcomes)? {
                SnapshotProgress::Post(requests) => requests,
                SnapshotProgress::Read { tag, value, is_checked } => match self.change {
                    Change::CompareSwap { expected, .. } if expected != value => {
                        if is_checked {
                            return Ok(self.finish(Ok(Changed::Not(value))));
                        }
                        self.snapshot.go_to(ReadStage::Check { tag, value })?
                    }
                    Change::CompareSwap { new, .. } => self.attempt(tag, value, new)?,
                    Change::FetchAdd(add) => self.attempt(tag, value, value.wrapping_add(add))?,
                },
            },
            Stage::Attempting { old } => match self.attempt.on_outcomes(outcomes) {
                AttemptProgress::Post(requests) => requests,
                AttemptProgress::Won => return Ok(self.finish(Ok(Changed::From(old)))),
                AttemptProgress::Lost { word } => {
                    self.stage = Stage::Reading;
                    self.snapshot.go_to(ReadStage::Record { tag: word })?
                }
            },
        };
        Ok(Progress::Post(requests))
    }

    /// Begins an attempt to replace the tag and its value `old`. The value needs no check: the
    /// compare-and-swap succeeds only if the word still has the tag, and then the record has not
    /// changed.
    fn attempt(&mut self, tag: u64, old: u64, new: u64) -> Result<Requests, CellError> {
        let (named, number) = (LAYOUT.unpack(tag), self.attempt.owner.number());
        // Only this owner's compare-and-swap can make the word name the other record.
        let other = u64::from(!Mutant::NamedRecordOverwritten.is_on());
        let free = if named.owner == number { named.payload ^ other } else { 0 };
        let own_tag = LAYOUT.pack(Tagged { payload: free, owner: number, sequence: 0 });
        let write = Request::write(self.snapshot.cell.record(own_tag)?, new);
        let requests = self.attempt.begin(&[write], tag, free)?;
        self.stage = Stage::Attempting { old };
        Ok(requests)
    }
}

impl Operation for ChangeIndirect {
    type Output = Finished<Changed<u64>>;

    fn start(&mut self) -> Progress<Self::Output> {
        self.on_outcomes(&[])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Self::Output> {
        self.advance(outcomes).unwrap_or_else(|error| self.finish(Err(error)))
    }
}
