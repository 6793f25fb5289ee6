//! A cell of 32 bits whose changes are recoverable.

use crate::announcement::Owner;
use crate::attempt::{Attempt, AttemptProgress};
use crate::cell_error::CellError;
use crate::operation::{Operation, Progress, Requests};
use crate::read_word::ReadWord;
use crate::request::{Outcome, Word};
use crate::tag::{TagLayout, Tagged};

/// The layout of a cell's word: the value (32 bits), the owner (8 bits), the sequence number (24
/// bits).
const LAYOUT: TagLayout = TagLayout::new(24);

/// The change that an operation makes to a value of type `V`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change<V> {
    /// Stores `new` if the value is `expected`.
    CompareSwap {
        /// The value that the cell must have.
        expected: V,
        /// The new value.
        new: V,
    },
    /// Adds, and wraps around at the width of the value.
    FetchAdd(V),
}

/// The result of a change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Changed<V> {
    /// The change happened exactly once. The field is the value before the change.
    From(V),
    /// The cell did not have the expected value and was not changed. The field is the cell's value
    /// at some time during the operation.
    Not(V),
}

impl<V: Copy> Changed<V> {
    /// The value that a compare-and-swap or a fetch-and-add returns: the value before the change,
    /// or the value found instead of the expected value.
    pub fn value(self) -> V {
        match self {
            Changed::From(value) | Changed::Not(value) => value,
        }
    }
}

/// The result of an operation of an owner, and the owner, for its next operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Finished<T> {
    /// The owner.
    pub owner: Owner,
    /// The result.
    pub result: Result<T, CellError>,
}

/// A 32-bit value in one 8-byte word that clients read, compare-and-swap and fetch-and-add. Each
/// operation happens exactly once and returns its result, even if the responder's NIC is lost.
///
/// An owner makes at most 2²⁴ − 1 operations that change 32-bit cells
/// ([`CellError::SequencesUsedUp`]). All atomics on a cell and on its
/// [`Announcements`](crate::Announcements) must be executed by one NIC at a time, because atomicity
/// holds per NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RecoverableCell {
    word: Word,
}

impl RecoverableCell {
    /// Names the cell in this word.
    pub fn new(word: Word) -> RecoverableCell {
        RecoverableCell { word }
    }

    /// Returns the content of the word of a new cell with this value. The peer stores it before
    /// clients use the cell; zeroed memory is a cell of value 0.
    pub const fn initial_word(value: u32) -> u64 {
        LAYOUT.pack(Tagged { payload: value as u64, owner: 0, sequence: 0 })
    }

    /// Returns the value in the content of a cell's word. The peer calls this function on its own
    /// memory.
    pub const fn value_of(word: u64) -> u32 {
        LAYOUT.unpack(word).payload as u32
    }

    /// Returns the operation that reads the cell. Cost: one READ, one round trip.
    pub fn read(&self) -> ReadCell {
        ReadCell(ReadWord(self.word))
    }

    /// Returns the operation that changes the cell. Cost without a failure: two round trips, and
    /// one more for each other owner that changed the cell in between. The first is a READ of the
    /// word. The second has the announcement and the compare-and-swap of the word. If another owner
    /// changed the cell last, the second also has a compare-and-swap of that owner's announcement.
    /// A compare-and-swap that finds another value costs one READ. The operation is lock-free, not
    /// wait-free.
    pub fn change(&self, owner: Owner, change: Change<u32>) -> ChangeCell {
        let read = ReadWord(self.word);
        ChangeCell { attempt: Attempt::new(LAYOUT, self.word, owner), change, stage: Stage::Reading(read) }
    }
}

/// The operation of [`RecoverableCell::read`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadCell(ReadWord);

impl Operation for ReadCell {
    type Output = u32;

    fn start(&mut self) -> Progress<u32> {
        self.0.start().map(RecoverableCell::value_of)
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<u32> {
        self.0.on_outcomes(outcomes).map(RecoverableCell::value_of)
    }
}

/// The operation of [`RecoverableCell::change`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ChangeCell {
    attempt: Attempt,
    change: Change<u32>,
    stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Reading(ReadWord),
    /// The attempt to change the cell from this value is under way.
    Attempting {
        old: u32,
    },
}

impl ChangeCell {
    fn finish(&self, result: Result<Changed<u32>, CellError>) -> Progress<Finished<Changed<u32>>> {
        Progress::Done(Finished { owner: self.attempt.owner.clone(), result })
    }

    fn on_word(&mut self, word: u64) -> Progress<Finished<Changed<u32>>> {
        let old = RecoverableCell::value_of(word);
        let new = match self.change {
            Change::CompareSwap { expected, .. } if expected != old => {
                return self.finish(Ok(Changed::Not(old)));
            }
            Change::CompareSwap { new, .. } => new,
            Change::FetchAdd(add) => old.wrapping_add(add),
        };
        match self.attempt.begin(&Requests::new(), word, u64::from(new)) {
            Ok(requests) => {
                self.stage = Stage::Attempting { old };
                Progress::Post(requests)
            }
            Err(error) => self.finish(Err(error)),
        }
    }
}

impl Operation for ChangeCell {
    type Output = Finished<Changed<u32>>;

    fn start(&mut self) -> Progress<Self::Output> {
        self.on_outcomes(&[])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Self::Output> {
        match &mut self.stage {
            Stage::Reading(read) => match read.on_outcomes(outcomes) {
                Progress::Post(requests) => Progress::Post(requests),
                Progress::Done(word) => self.on_word(word),
            },
            Stage::Attempting { old } => match self.attempt.on_outcomes(outcomes) {
                AttemptProgress::Post(requests) => Progress::Post(requests),
                AttemptProgress::Won => {
                    let old = *old;
                    self.finish(Ok(Changed::From(old)))
                }
                AttemptProgress::Lost { word } => self.on_word(word),
            },
        }
    }
}
