//! The requests of an operation, and their outcomes.

use mitra_verbs::RemoteAddr;

/// The address of an 8-byte word in the peer's memory. The address is a multiple of 8, as atomics
/// require (IBTA volume 1, 9.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Word(RemoteAddr);

/// The error of [`Word::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the word at address {0:#x} is not 8-byte aligned; place the object at a multiple of 8")]
pub struct MisalignedWord(pub u64);

impl Word {
    /// Creates the address of a word.
    ///
    /// # Errors
    /// [`MisalignedWord`] if the address is not a multiple of 8.
    pub fn new(at: RemoteAddr) -> Result<Word, MisalignedWord> {
        if at.addr.is_multiple_of(8) { Ok(Word(at)) } else { Err(MisalignedWord(at.addr)) }
    }

    /// The address and the remote key.
    pub fn remote(self) -> RemoteAddr {
        self.0
    }

    /// Returns the word that lies `words` words behind this word. The address wraps around at 2⁶⁴.
    #[must_use]
    pub fn nth(self, words: u64) -> Word {
        Word(RemoteAddr { addr: self.0.addr.wrapping_add(words.wrapping_mul(8)), ..self.0 })
    }
}

/// The access of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WordOp {
    /// RDMA READ.
    Read,
    /// RDMA WRITE of this value.
    Write(u64),
    /// Compare-and-swap.
    CompareSwap {
        /// The value that the word must have for the swap.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Fetch-and-add. The addition wraps around at 2⁶⁴.
    FetchAdd(u64),
}

/// One access to one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// The word.
    pub word: Word,
    /// The access.
    pub op: WordOp,
}

impl Request {
    /// Returns a READ.
    pub fn read(word: Word) -> Request {
        Request { word, op: WordOp::Read }
    }

    /// Returns a WRITE.
    pub fn write(word: Word, value: u64) -> Request {
        Request { word, op: WordOp::Write(value) }
    }

    /// Returns a compare-and-swap.
    pub fn compare_swap(word: Word, compare: u64, swap: u64) -> Request {
        Request { word, op: WordOp::CompareSwap { compare, swap } }
    }

    /// Returns a fetch-and-add.
    pub fn fetch_add(word: Word, add: u64) -> Request {
        Request { word, op: WordOp::FetchAdd(add) }
    }
}

/// The known result of a request that has ended. Such a request is never executed later: the path
/// is fenced before any outcome other than [`Outcome::Executed`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// The request was executed exactly once.
    Executed {
        /// The word's value before the request was executed. 0 for a WRITE, which returns no value.
        value: u64,
    },
    /// The request was executed exactly once, and the value that it returned is lost.
    ValueLost,
    /// The request was not executed.
    NotExecuted,
    /// The request was either executed exactly once or not executed; no evidence tells which.
    Unknown,
}

impl Outcome {
    /// The value that the request returned, if it is known.
    pub fn value(self) -> Option<u64> {
        match self {
            Outcome::Executed { value } => Some(value),
            _ => None,
        }
    }

    /// Whether the request was certainly executed.
    pub fn is_executed(self) -> bool {
        matches!(self, Outcome::Executed { .. } | Outcome::ValueLost)
    }
}
