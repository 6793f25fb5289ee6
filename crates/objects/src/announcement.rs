//! The announcements of owners: one word ⟨sequence, overwritten⟩ for each.

use smallvec::smallvec;

use crate::cell_error::CellError;
use crate::operation::{Operation, Progress, Requests};
use crate::request::{Outcome, Request, Word};

/// The highest sequence number that fits into an announcement.
pub(crate) const MAX_SEQUENCE: u64 = u64::MAX >> 1;

/// The array of announcements in the peer's memory: one 8-byte word for each owner, zero at first.
/// The array must have the same home NIC as the cells.
///
/// An announcement is ⟨sequence: 63 bits, overwritten: 1 bit⟩: the number of the owner's last
/// operation on any cell, and whether another owner is about to overwrite the word that this
/// operation stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Announcements {
    first: Word,
    owners: u8,
}

impl Announcements {
    /// Names the array at `first`. Owners have the numbers from 1 to `owners`.
    pub fn new(first: Word, owners: u8) -> Announcements {
        Announcements { first, owners }
    }

    /// The length of an array in bytes.
    pub const fn bytes(owners: u8) -> usize {
        8 * owners as usize
    }

    /// The highest owner number.
    pub fn owners(&self) -> u8 {
        self.owners
    }

    /// Returns the announcement of an owner.
    ///
    /// # Errors
    /// [`CellError::NoSuchOwner`].
    pub(crate) fn of(&self, owner: u8) -> Result<Word, CellError> {
        if (1..=self.owners).contains(&owner) {
            Ok(self.first.nth(u64::from(owner) - 1))
        } else {
            Err(CellError::NoSuchOwner { owner, owners: self.owners })
        }
    }
}

pub(crate) const fn pack(sequence: u64, overwritten: bool) -> u64 {
    sequence << 1 | overwritten as u64
}

/// How an owner publishes the sequence number of an operation in its announcement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Publication {
    /// By two compare-and-swaps, one for each value of the bit `overwritten`. Correct on every NIC:
    /// IBTA guarantees atomicity only among atomics (volume 1, 9.4.5), and a WRITE between the load
    /// and the store of another owner's compare-and-swap would be lost.
    #[default]
    CompareSwap,
    /// By one WRITE. Only for a peer whose NIC executes atomics atomically also with respect to
    /// WRITEs.
    Write,
}

/// A participant that changes cells: a number, and the sequence number of its last operation.
///
/// An operation takes the owner and returns it, so that an owner has one operation at a time. A
/// number must not be used by two clients at once. A client that restarts opens its number again
/// ([`Owner::open`]) after its old queue pairs were fenced.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    announcements: Announcements,
    number: u8,
    own: Word,
    publication: Publication,
    /// The sequence number in the announcement.
    published: u64,
}

impl Owner {
    /// Returns the operation that reads the announcement of owner `number` and returns the owner.
    /// Cost: one READ.
    ///
    /// # Errors
    /// [`CellError::NoSuchOwner`].
    pub fn open(
        announcements: Announcements,
        number: u8,
        publication: Publication,
    ) -> Result<OpenOwner, CellError> {
        let own = announcements.of(number)?;
        Ok(OpenOwner(Owner { announcements, number, own, publication, published: 0 }))
    }

    /// The owner's number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The sequence number of the owner's last operation; 0 before the first.
    pub fn last_sequence(&self) -> u64 {
        self.published
    }

    pub(crate) fn announcements(&self) -> &Announcements {
        &self.announcements
    }

    pub(crate) fn announcement(&self) -> Word {
        self.own
    }

    /// Records the content of the announcement, which only this owner advances. Returns whether the
    /// announcement marks the word of operation `sequence` as overwritten.
    pub(crate) fn on_announcement(&mut self, announcement: u64, sequence: u64) -> bool {
        self.published = announcement >> 1;
        announcement == pack(sequence, true)
    }

    /// Records `sequence` as announced, and returns the requests that announce it.
    pub(crate) fn publish(&mut self, sequence: u64) -> Requests {
        let (new, last) = (pack(sequence, false), self.published);
        self.published = sequence;
        match self.publication {
            Publication::Write => smallvec![Request::write(self.own, new)],
            Publication::CompareSwap => smallvec![
                Request::compare_swap(self.own, pack(last, false), new),
                Request::compare_swap(self.own, pack(last, true), new),
            ],
        }
    }
}

/// The operation of [`Owner::open`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OpenOwner(Owner);

impl Operation for OpenOwner {
    type Output = Owner;

    fn start(&mut self) -> Progress<Owner> {
        Progress::Post(smallvec![Request::read(self.0.own)])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Owner> {
        match outcomes.first().and_then(|outcome| outcome.value()) {
            Some(announcement) => {
                let mut owner = self.0.clone();
                owner.published = announcement >> 1;
                Progress::Done(owner)
            }
            None => self.start(),
        }
    }
}
