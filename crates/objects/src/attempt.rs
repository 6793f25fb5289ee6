//! One attempt to change a tagged word, with its recovery: the part that the recoverable and the
//! indirect cell share.
//!
//! The algorithm is a recoverable compare-and-swap (Attiya, Ben-Baruch and Hendler, PODC 2018;
//! Ben-David, Blelloch, Friedman and Wei, SPAA 2019) on words in the peer's memory. An attempt
//! posts, in this order on one queue pair:
//!
//! 1. requests of the caller, if any,
//! 2. the announcement ⟨s, 0⟩ of the owner,
//! 3. if the word is tagged by another owner j with sequence t: CAS(announcement of j, ⟨t, 0⟩ → ⟨t,
//!    1⟩),
//! 4. CAS(word, the whole word that was read → ⟨payload, owner, s⟩).
//!
//! If the result of step 4 is lost, the attempt reads the word and *then* the announcement. If the
//! word has the tag ⟨owner, s⟩, or the announcement is ⟨s, 1⟩, the change happened, because another
//! owner replaces the tag only after its step 3. If the READs were in the other order, another
//! owner could act between them. In all other cases, the change did not happen, and never will,
//! because the path was fenced.

use mitra_mutants::Mutant;
use smallvec::smallvec;

use crate::announcement::{Owner, pack};
use crate::cell_error::CellError;
use crate::operation::Requests;
use crate::request::{Outcome, Request, Word};
use crate::tag::{TagLayout, Tagged};

/// An owner's attempts to change a word.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Attempt {
    layout: TagLayout,
    word: Word,
    pub(crate) owner: Owner,
    stage: Stage,
    /// The announced sequence number, if the last attempt failed: no word ever had this number in
    /// its tag.
    unused: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Idle,
    /// The batch is posted. The last request is the CAS on the word.
    Posted {
        current: u64,
        sequence: u64,
    },
    ReadingWord {
        sequence: u64,
    },
    ReadingAnnouncement {
        sequence: u64,
        word: u64,
    },
}

/// The next requests of an attempt, or its result.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum AttemptProgress {
    Post(Requests),
    Won,
    /// The word was not changed. `word` is its content at some time during the attempt.
    Lost {
        word: u64,
    },
}

impl Attempt {
    pub(crate) fn new(layout: TagLayout, word: Word, owner: Owner) -> Attempt {
        Attempt { layout, word, owner, stage: Stage::Idle, unused: None }
    }

    /// Begins an attempt to replace `current`, the whole content of the word, by `payload` with the
    /// owner's tag. The requests in `first` precede all others.
    ///
    /// # Errors
    /// [`CellError`]; nothing was posted.
    pub(crate) fn begin(
        &mut self,
        first: &[Request],
        current: u64,
        payload: u64,
    ) -> Result<Requests, CellError> {
        let found = self.layout.unpack(current);
        let number = self.owner.number();
        let mut requests: Requests = first.iter().copied().collect();
        let help = match found.owner {
            0 => None,
            // The owner knows the result of its earlier operations.
            owner if owner == number || Mutant::OverwriterSilent.is_on() => None,
            owner => Some((self.owner.announcements().of(owner)?, found.sequence)),
        };
        let sequence = match self.unused.take() {
            Some(announced) => announced,
            None => {
                let next = self.owner.last_sequence() + 1;
                let max = self.layout.max_sequence();
                if next > max {
                    return Err(CellError::SequencesUsedUp { owner: number, max });
                }
                requests.extend(self.owner.publish(next));
                next
            }
        };
        if let Some((announcement, t)) = help {
            requests.push(Request::compare_swap(announcement, pack(t, false), pack(t, true)));
        }
        let new = self.layout.pack(Tagged { payload, owner: number, sequence });
        requests.push(Request::compare_swap(self.word, current, new));
        self.stage = Stage::Posted { current, sequence };
        Ok(requests)
    }

    /// The next attempt may begin after [`AttemptProgress::Won`] or [`AttemptProgress::Lost`].
    pub(crate) fn on_outcomes(&mut self, outcomes: &[Outcome]) -> AttemptProgress {
        let last = outcomes.last().copied().unwrap_or(Outcome::Unknown);
        match self.stage {
            Stage::Idle => AttemptProgress::Lost { word: 0 },
            Stage::Posted { current, sequence } => match last.value() {
                Some(found) if found == current => self.end(AttemptProgress::Won),
                Some(word) => {
                    self.unused = Some(sequence);
                    self.end(AttemptProgress::Lost { word })
                }
                None if Mutant::LostSwapTakenAsFailed.is_on() => {
                    self.end(AttemptProgress::Lost { word: current })
                }
                None => self.read_word(sequence),
            },
            Stage::ReadingWord { sequence } => match last.value() {
                Some(word) => {
                    self.stage = Stage::ReadingAnnouncement { sequence, word };
                    AttemptProgress::Post(smallvec![Request::read(self.owner.announcement())])
                }
                None => self.read_word(sequence),
            },
            Stage::ReadingAnnouncement { sequence, word } => match last.value() {
                Some(announcement) => {
                    let tag = self.layout.unpack(word);
                    let is_in_word = (tag.owner, tag.sequence) == (self.owner.number(), sequence);
                    let overwritten = self.owner.on_announcement(announcement, sequence);
                    let happened = is_in_word || overwritten && !Mutant::AnnouncementIgnored.is_on();
                    self.end(if happened { AttemptProgress::Won } else { AttemptProgress::Lost { word } })
                }
                // The content of the word needs no new READ, because the announcement is read after
                // the word.
                None => AttemptProgress::Post(smallvec![Request::read(self.owner.announcement())]),
            },
        }
    }

    fn read_word(&mut self, sequence: u64) -> AttemptProgress {
        self.stage = Stage::ReadingWord { sequence };
        AttemptProgress::Post(smallvec![Request::read(self.word)])
    }

    fn end(&mut self, result: AttemptProgress) -> AttemptProgress {
        self.stage = Stage::Idle;
        result
    }
}
