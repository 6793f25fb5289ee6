use core::fmt;

/// Memory that its owner may unmap or protect at any time, also while it is registered.
///
/// [`Buffer`](crate::Buffer) checks offsets and lengths before it calls these methods. An implementation copies bytes in ascending
/// order, and eight bytes at an aligned address by one load or store. [`write`](ForeignMemory::write) stores the last byte last,
/// with release ordering. [`read`](ForeignMemory::read) loads the first byte with acquire ordering.
pub trait ForeignMemory: Send + Sync {
    /// Copies bytes out, starting at `offset`.
    ///
    /// # Errors
    /// Part of the memory is unmapped or not readable. The content of `out` is then unspecified.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped>;

    /// Copies bytes in, starting at `offset`.
    ///
    /// # Errors
    /// Part of the memory is unmapped or not writable. A first part of the data may have been written.
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped>;

    /// Replaces the word at `offset`, in the machine's byte order, by `new` if it equals `current`, atomically among CPUs. The inner
    /// result holds the old word. The *address* by which work requests name the word is a multiple of 8.
    ///
    /// # Errors
    /// The memory is unmapped or not writable.
    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>, Unmapped>;
}

/// Error: foreign memory is unmapped, or its protection forbids the access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unmapped;

impl fmt::Display for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("registered memory was unmapped or protected by its owner")
    }
}

impl std::error::Error for Unmapped {}
