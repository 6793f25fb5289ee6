use core::fmt;

/// Memory that is not Mitra's own: its owner may unmap or protect it at any time, also while it is registered.
///
/// Offsets and lengths are checked by [`Buffer`](crate::Buffer) before: they lie within the length that it was told.
/// What it has in common with own memory: bytes are copied in ascending order, eight bytes at an aligned address by
/// one load or store; of [`write`](ForeignMemory::write) the last byte is stored last with release, of
/// [`read`](ForeignMemory::read) the first is loaded with acquire ordering.
pub trait ForeignMemory: Send + Sync {
    /// Copies bytes out, starting at `offset`.
    ///
    /// # Errors
    /// Some of the memory is gone. What `out` holds then is not said.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped>;

    /// Copies bytes in, starting at `offset`.
    ///
    /// # Errors
    /// Some of the memory is gone or may not be written. A first part may have been.
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped>;

    /// Replaces the word at `offset`, in the machine's byte order, if it is `current`, atomically among CPUs; the inner
    /// result is the old word. The *address* by which work requests name the word is a multiple of 8.
    ///
    /// # Errors
    /// The memory is gone or may not be written.
    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>, Unmapped>;
}

/// Lent memory is gone, or its owner took the right to write it away.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unmapped;

impl fmt::Display for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("registered memory was unmapped or protected by its owner")
    }
}

impl std::error::Error for Unmapped {}
