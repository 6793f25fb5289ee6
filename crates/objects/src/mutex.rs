//! A mutex whose word holds the owner and the number of the lock, so that a retry of a lock is
//! recognized and a copy of a request changes nothing.
//!
//! ```text
//!  63        48 47                                   0
//! ┌────────────┬──────────────────────────────────────┐
//! │ owner      │ number of the last lock              │   owner 0: free
//! └────────────┴──────────────────────────────────────┘
//!   ⟨0, n⟩ ── lock by p: CAS ──▶ ⟨p, n+1⟩ ── unlock by p: CAS ──▶ ⟨0, n+1⟩
//! ```
//!
//! The number only grows, and a word with a number is first held and then free. So no content of
//! the word recurs: a compare-and-swap that was executed or overtaken never succeeds again. A lock
//! whose outcome is unknown is therefore posted again unchanged. The old value that the copy
//! returns tells whether the lock is held by this owner with this number (Eslick, DeHon and Knight,
//! 1994, test-and-set). A lock never ends while its outcome is unknown, and only its result
//! [`Held`] can be unlocked.
//!
//! A client that has not seen the word reads the word first. Its lock therefore has a higher number
//! than the locks of its earlier lives, and a delayed unlock of an earlier life changes nothing.
//!
//! # Limits
//! 65,535 owners; 2⁴⁸ − 1 locks, then [`MutexError::NumbersUsedUp`]. Lock-free, not fair. The mutex
//! of an owner that crashes stays locked until that owner resumes it ([`MutexClient::resume`]).

use core::num::NonZeroU16;

use mitra_mutants::Mutant;
use smallvec::smallvec;

use crate::operation::{Operation, Progress};
use crate::request::{Outcome, Request, Word};

const NUMBER_BITS: u32 = 48;
/// The highest number of a lock.
pub const MAX_NUMBER: u64 = (1 << NUMBER_BITS) - 1;

/// The error of an operation on a mutex.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MutexError {
    /// The mutex was locked as often as its numbers allow.
    #[error("the mutex was locked {MAX_NUMBER} times, as often as its numbers allow; use a new word")]
    NumbersUsedUp,
    /// The word has an older content than this client has seen.
    #[error("the mutex's word went back to {found:?}; only lock and unlock may change it")]
    WentBack {
        /// The content of the word.
        found: MutexState,
    },
    /// The word is not locked by this client, although this client has not unlocked it.
    #[error(
        "the mutex is no longer held, its word is {found:?}; give each client an owner number of its own"
    )]
    NotHeld {
        /// The content of the word.
        found: MutexState,
    },
}

/// The content of a mutex's word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MutexState {
    /// The owner. `None`: free.
    pub owner: Option<NonZeroU16>,
    /// The number of the last lock. 0: never locked.
    pub number: u64,
}

impl MutexState {
    /// Returns the state that a word contains. Every content is valid. 0 is a mutex that was never
    /// locked.
    pub fn from_word(content: u64) -> MutexState {
        MutexState { owner: NonZeroU16::new((content >> NUMBER_BITS) as u16), number: content & MAX_NUMBER }
    }

    fn word(self) -> u64 {
        u64::from(self.owner.map_or(0, NonZeroU16::get)) << NUMBER_BITS | self.number
    }
}

/// A client that does not hold the mutex.
///
/// A client has at most one operation under way: the operation takes the client, and its result
/// returns the client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MutexClient {
    word: Word,
    owner: NonZeroU16,
    /// The highest number that this client has seen. `None` before it has seen the word.
    number: Option<u64>,
}

impl MutexClient {
    /// Creates a client. No two clients of a mutex have the same owner number. The word is 0 before
    /// its first use.
    ///
    /// The next life of a client that crashed begins here too. An earlier life may hold the mutex,
    /// or have a request on its way.
    pub fn new(word: Word, owner: NonZeroU16) -> MutexClient {
        MutexClient { word, owner, number: None }
    }

    /// Locks the mutex, if it is free.
    ///
    /// Cost: one CAS, one round trip, if no other client has locked it since this client last saw
    /// the word; one CAS more for each other lock and for each failure in between. The first lock
    /// reads the word before: one READ more.
    pub fn lock(self) -> Lock {
        Lock(self)
    }

    /// Takes over a lock that an earlier life of this owner took. `holder` was read from the word,
    /// after everything that the earlier life had posted was fenced. A lock that ends as
    /// [`LockResult::Busy`] after the fence returns the holder, too.
    ///
    /// # Errors
    /// [`MutexError::NotHeld`] if the holder is not this owner.
    pub fn resume(self, holder: MutexState) -> Result<Held, MutexError> {
        if holder.owner != Some(self.owner) {
            return Err(MutexError::NotHeld { found: holder });
        }
        Ok(self.holds(holder.number))
    }

    fn holds(&self, number: u64) -> Held {
        Held { word: self.word, owner: self.owner, number }
    }
}

/// A client that holds the mutex. The outcome of its lock is known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Held {
    word: Word,
    owner: NonZeroU16,
    number: u64,
}

impl Held {
    /// Returns the number of the lock. The number is higher than the number of every earlier lock
    /// of the mutex, so it can order the owner's accesses to other resources (a fencing token).
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Unlocks the mutex. First complete everything that the mutex protects: a WRITE that is
    /// executed after the unlock is not protected.
    ///
    /// Cost: one CAS, one round trip; one CAS more for each failure in between.
    pub fn unlock(self) -> Unlock {
        Unlock { held: self, is_retry: false }
    }

    fn state(&self) -> MutexState {
        MutexState { owner: Some(self.owner), number: self.number }
    }

    fn free(&self) -> MutexClient {
        MutexClient { word: self.word, owner: self.owner, number: Some(self.number) }
    }
}

/// The result of a lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LockResult {
    /// This client holds the mutex.
    Locked(Held),
    /// Another owner holds the mutex, or an earlier life of this owner does.
    Busy {
        /// The client, for another attempt.
        client: MutexClient,
        /// The holder.
        holder: MutexState,
    },
}

/// A lock under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lock(MutexClient);

impl Lock {
    /// Without the content of the word, the client could not tell its own lock from a lock of an
    /// earlier life.
    fn read_word(&self) -> Progress<<Lock as Operation>::Output> {
        Progress::Post(smallvec![Request::read(self.0.word)])
    }

    /// `found` is not the lock of this operation.
    fn on_word(&mut self, found: MutexState) -> Progress<<Lock as Operation>::Output> {
        self.0.number = Some(found.number);
        if found.owner.is_none() {
            return self.start();
        }
        Progress::Done(Ok(LockResult::Busy { client: self.0.clone(), holder: found }))
    }
}

impl Operation for Lock {
    type Output = Result<LockResult, MutexError>;

    fn start(&mut self) -> Progress<Self::Output> {
        if Mutant::WordAssumedFresh.is_on() {
            self.0.number.get_or_insert(0);
        }
        let Some(number) = self.0.number else { return self.read_word() };
        if number == MAX_NUMBER {
            return Progress::Done(Err(MutexError::NumbersUsedUp));
        }
        let free = MutexState { owner: None, number };
        let locked = self.0.holds(number + 1).state();
        Progress::Post(smallvec![Request::compare_swap(self.0.word, free.word(), locked.word())])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Self::Output> {
        let Some(value) = outcomes.first().and_then(|outcome| outcome.value()) else {
            return self.start();
        };
        let found = MutexState::from_word(value);
        let Some(number) = self.0.number else { return self.on_word(found) };
        let held = self.0.holds(number + 1);
        let is_free = found == MutexState { owner: None, number };
        if is_free || found == held.state() && !Mutant::OwnLockUnrecognized.is_on() {
            return Progress::Done(Ok(LockResult::Locked(held)));
        }
        if found.number < number {
            return Progress::Done(Err(MutexError::WentBack { found }));
        }
        self.on_word(found)
    }
}

/// An unlock under way. Its result is the client, which may lock again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Unlock {
    held: Held,
    /// An earlier copy may have been executed.
    is_retry: bool,
}

impl Operation for Unlock {
    type Output = Result<MutexClient, MutexError>;

    fn start(&mut self) -> Progress<Self::Output> {
        let held = self.held.state();
        let free = MutexState { owner: None, ..held };
        Progress::Post(smallvec![Request::compare_swap(self.held.word, held.word(), free.word())])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Self::Output> {
        let Some(value) = outcomes.first().and_then(|outcome| outcome.value()) else {
            if Mutant::UnlockNotRepeated.is_on() {
                return Progress::Done(Ok(self.held.free()));
            }
            self.is_retry |= outcomes.first() != Some(&Outcome::NotExecuted);
            return self.start();
        };
        let found = MutexState::from_word(value);
        let held = self.held.state();
        // An earlier copy may have unlocked, and others may have locked since.
        if found == held || self.is_retry && found.number >= held.number {
            Progress::Done(Ok(self.held.free()))
        } else {
            Progress::Done(Err(MutexError::NotHeld { found }))
        }
    }
}
