//! A latch that opens when all participants have arrived: one bit per participant, and an identity
//! that grows with each reuse.
//!
//! ```text
//!  63                      n n-1                     0
//! ┌─────────────────────────┬─────────────────────────┐
//! │ identity                │ one bit per participant │   open: all n bits are set
//! └─────────────────────────┴─────────────────────────┘
//!   ⟨i, bits⟩ ── p arrives: CAS ──▶ ⟨i, bits + 2^p⟩      ⟨i, all⟩ ── reset: CAS ──▶ ⟨i+1, none⟩
//! ```
//!
//! Setting a bit is idempotent, unlike incrementing a counter (Eslick, DeHon and Knight, 1994,
//! fetch-and-op). A stale arrival names an old identity. The word only grows, so no content recurs:
//! a compare-and-swap that was executed or overtaken never succeeds again. An arrival whose outcome
//! is unknown is therefore posted again unchanged.
//!
//! # Limits
//! 1 to 48 participants; 2^(64−n) identities, then [`LatchError::IdentitiesUsedUp`]. An arrival is
//! wait-free: without failures it posts at most one CAS per participant, because each CAS that
//! fails shows a new bit.

use mitra_mutants::Mutant;
use smallvec::smallvec;

use crate::operation::{Operation, Progress};
use crate::read_word::ReadWord;
use crate::request::{Outcome, Request, Word};

/// The highest number of participants, which leaves 2¹⁶ identities.
pub const MAX_PARTICIPANTS: u8 = 48;

/// The error of an operation on a latch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LatchError {
    /// The number of participants is out of range.
    #[error("a latch has 1 to {MAX_PARTICIPANTS} participants, not {0}; combine several latches")]
    Participants(u8),
    /// There is no such participant.
    #[error("participant {0} does not exist; the numbers begin with 0")]
    NoSuchParticipant(u8),
    /// The identity exceeds the bits that the participants leave.
    #[error("the latch was reused as often as its identities allow; use a new word")]
    IdentitiesUsedUp,
    /// The latch still has an earlier identity.
    #[error(
        "the latch has identity {current}, and is not yet reset for the one asked for; wait for the reset"
    )]
    NotYetReset {
        /// The latch's identity.
        current: u64,
    },
    /// The latch cannot be reset, because it is not open.
    #[error("{arrived} participants have arrived, not all; reset the latch when it is open")]
    NotOpen {
        /// The number of participants that have arrived.
        arrived: u32,
    },
}

/// The content of a latch's word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LatchState {
    /// The number of resets so far.
    pub identity: u64,
    /// The number of participants that have arrived.
    pub arrived: u32,
    /// Whether all participants have arrived.
    pub is_open: bool,
}

/// A latch. The word is 0 before its first use: identity 0, nobody has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Latch {
    word: Word,
    participants: u8,
}

impl Latch {
    /// Creates the description of a latch.
    ///
    /// # Errors
    /// [`LatchError::Participants`].
    pub fn new(word: Word, participants: u8) -> Result<Latch, LatchError> {
        if !(1..=MAX_PARTICIPANTS).contains(&participants) {
            return Err(LatchError::Participants(participants));
        }
        Ok(Latch { word, participants })
    }

    /// Returns the state that the word contains.
    pub fn state(self, content: u64) -> LatchState {
        let bits = content & self.all();
        LatchState {
            identity: content >> self.participants,
            arrived: bits.count_ones(),
            is_open: bits == self.all(),
        }
    }

    /// Returns the highest identity.
    pub fn max_identity(self) -> u64 {
        u64::MAX >> self.participants
    }

    /// Reads the word, for [`Latch::state`]. Cost: one READ.
    pub fn read(self) -> ReadWord {
        ReadWord(self.word)
    }

    /// Lets a participant arrive at the latch with this identity. A retry, and an arrival at an
    /// identity that is past, change nothing.
    ///
    /// Cost: one CAS, one round trip, for the first arrival; two if others have arrived; one more
    /// for each arrival and each failure in between.
    ///
    /// # Errors
    /// [`LatchError::NoSuchParticipant`], [`LatchError::IdentitiesUsedUp`].
    pub fn arrive(self, participant: u8, identity: u64) -> Result<Arrive, LatchError> {
        if participant >= self.participants {
            return Err(LatchError::NoSuchParticipant(participant));
        }
        self.check(identity)?;
        Ok(Arrive { latch: self, participant, identity, content: self.word_of(identity, 0) })
    }

    /// Resets the latch with this identity, if it is open, to the next identity. A retry changes
    /// nothing. Any participant may reset the latch. Over a path without a fence, reset only a
    /// latch that was seen open: a copy of a refused reset may be executed later.
    ///
    /// Cost: one CAS, one round trip; one more for each failure in between.
    ///
    /// # Errors
    /// [`LatchError::IdentitiesUsedUp`].
    pub fn reset(self, identity: u64) -> Result<Reset, LatchError> {
        self.check(identity.saturating_add(1))?;
        Ok(Reset { latch: self, identity })
    }

    fn check(self, identity: u64) -> Result<(), LatchError> {
        if identity > self.max_identity() { Err(LatchError::IdentitiesUsedUp) } else { Ok(()) }
    }

    /// The bits of all participants.
    fn all(self) -> u64 {
        (1 << self.participants) - 1
    }

    fn word_of(self, identity: u64, bits: u64) -> u64 {
        identity << self.participants | bits
    }
}

/// The result of an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arrived {
    /// The latch has this participant's bit.
    Counted(LatchState),
    /// The latch has a later identity: this participant had arrived before, and the latch was
    /// opened and reset.
    Past(LatchState),
}

/// An arrival under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Arrive {
    latch: Latch,
    participant: u8,
    identity: u64,
    /// The content that the word is expected to have.
    content: u64,
}

impl Arrive {
    fn with_bit(&self) -> u64 {
        self.content | 1 << self.participant
    }
}

impl Operation for Arrive {
    type Output = Result<Arrived, LatchError>;

    fn start(&mut self) -> Progress<Self::Output> {
        Progress::Post(smallvec![Request::compare_swap(self.latch.word, self.content, self.with_bit())])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Self::Output> {
        let Some(found) = outcomes.first().and_then(|outcome| outcome.value()) else {
            return self.start();
        };
        if found == self.content {
            return Progress::Done(Ok(Arrived::Counted(self.latch.state(self.with_bit()))));
        }
        let state = self.latch.state(found);
        if state.identity > self.identity && !Mutant::LateArrivalCounted.is_on() {
            return Progress::Done(Ok(Arrived::Past(state)));
        }
        if state.identity < self.identity {
            return Progress::Done(Err(LatchError::NotYetReset { current: state.identity }));
        }
        if found & 1 << self.participant != 0 {
            return Progress::Done(Ok(Arrived::Counted(state)));
        }
        self.content = found;
        self.start()
    }
}

/// A reset under way. Its result is the state of the latch: the next identity, or a later identity
/// if other participants were faster.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reset {
    latch: Latch,
    identity: u64,
}

impl Reset {
    fn open(&self) -> u64 {
        self.latch.word_of(self.identity, self.latch.all())
    }

    fn next(&self) -> u64 {
        self.latch.word_of(self.identity + 1, 0)
    }
}

impl Operation for Reset {
    type Output = Result<LatchState, LatchError>;

    fn start(&mut self) -> Progress<Self::Output> {
        Progress::Post(smallvec![Request::compare_swap(self.latch.word, self.open(), self.next())])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Self::Output> {
        let Some(found) = outcomes.first().and_then(|outcome| outcome.value()) else {
            return self.start();
        };
        if found == self.open() {
            return Progress::Done(Ok(self.latch.state(self.next())));
        }
        let state = self.latch.state(found);
        if state.identity > self.identity {
            return Progress::Done(Ok(state));
        }
        if state.identity < self.identity {
            return Progress::Done(Err(LatchError::NotYetReset { current: state.identity }));
        }
        Progress::Done(Err(LatchError::NotOpen { arrived: state.arrived }))
    }
}
