use core::fmt;

/// Memory that its owner may unmap or protect at any time, even while it is registered.
///
/// [`Buffer`](crate::Buffer) checks offsets and lengths before it calls these methods. An
/// implementation copies bytes in ascending order. It copies eight bytes at an aligned address by
/// one load or store. [`write`](ForeignMemory::write) stores the last byte last, with release
/// ordering. [`read`](ForeignMemory::read) loads the first byte first, with acquire ordering.
pub trait ForeignMemory: Send + Sync {
    /// Returns the address of the first byte in this process, so that a device can be given the
    /// memory. `None` if no device may access it.
    fn process_addr(&self) -> Option<usize> {
        None
    }

    /// Copies the bytes from `offset` on to `out`.
    ///
    /// # Errors
    /// If a part of the memory is unmapped or not readable. The content of `out` is then
    /// unspecified.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped>;

    /// Copies `data` to the memory, from `offset` on.
    ///
    /// # Errors
    /// If a part of the memory is unmapped or not writable. The first bytes of `data` may have been
    /// written.
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped>;

    /// Replaces the 8-byte word at `offset`, in the machine's byte order, by `new` if it equals
    /// `current`. The operation is atomic among CPUs. The inner result contains the old word and is
    /// `Ok` if the word was replaced. The *address* that work requests use for the word is a
    /// multiple of 8; `offset` need not be a multiple of 8.
    ///
    /// # Errors
    /// If the memory is unmapped or not writable.
    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>, Unmapped>;
}

/// The error of an access to foreign memory that is unmapped, or whose protection forbids the
/// access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unmapped;

impl fmt::Display for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("registered memory was unmapped or protected by its owner")
    }
}

impl std::error::Error for Unmapped {}
