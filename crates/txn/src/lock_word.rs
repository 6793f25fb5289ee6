//! The lock word, which names the holder of a record.

/// One life of a process that runs transactions. Each start has a new incarnation, so no lock or
/// log entry of an earlier life belongs to this life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Life {
    /// The number of the coordinator, from 1.
    pub coordinator: u16,
    /// The number of the process's start, from 1.
    pub incarnation: u16,
}

/// The content of a lock: 0 if no one holds it, or the life that holds it and the number of its
/// attempt. No two attempts have the same lock word, so it is also the name of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockWord(u64);

impl LockWord {
    /// No one holds the lock.
    pub const FREE: LockWord = LockWord(0);

    /// Returns the lock word of an attempt, whose number counts from 1. Numbers are not used twice
    /// in a life.
    pub fn new(life: Life, attempt: u32) -> LockWord {
        LockWord(u64::from(life.coordinator) << 48 | u64::from(life.incarnation) << 32 | u64::from(attempt))
    }

    /// Returns the lock word with this content of the memory.
    pub fn from_bits(bits: u64) -> LockWord {
        LockWord(bits)
    }

    /// The content of the memory.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The life that holds the lock; `None` if it is free.
    pub fn life(self) -> Option<Life> {
        (self != LockWord::FREE)
            .then_some(Life { coordinator: (self.0 >> 48) as u16, incarnation: (self.0 >> 32) as u16 })
    }

    /// The number of the attempt that holds the lock.
    pub fn attempt(self) -> u32 {
        self.0 as u32
    }
}
