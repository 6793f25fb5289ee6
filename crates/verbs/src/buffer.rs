use core::fmt;

use crate::atomic_words::{AtomicWords, WORD};
use crate::{ForeignMemory, Unmapped};

/// Memory that can be registered with NICs: memory of its own, or [`ForeignMemory`].
///
/// Peers may write to registered memory at any time, so a buffer never exposes it as a `&[u8]`.
/// Methods copy bytes out of the memory and into it. A copy accesses aligned 8-byte words in
/// ascending order. A write stores its last word with release ordering, and a read loads its first
/// word with acquire ordering and ends with an acquire fence; all other accesses are relaxed. A
/// reader that finds the last byte of a write in one read therefore finds the other bytes of the
/// write in a second read. A copy of more than one word is not atomic. A concurrent reader may see
/// it torn, as with the DMA of a hardware NIC.
///
/// Foreign memory may be unmapped at any time. Code that may access foreign memory uses the `try_`
/// methods. The other methods panic if foreign memory is unmapped.
pub struct Buffer {
    storage: Storage,
    addr: u64,
    len: usize,
}

enum Storage {
    Own(AtomicWords),
    Foreign(Box<dyn ForeignMemory>),
}

impl Buffer {
    /// Creates a zeroed buffer of `len` bytes.
    pub fn new(len: usize) -> Buffer {
        let words = AtomicWords::new(len);
        Buffer { addr: words.addr(), storage: Storage::Own(words), len }
    }

    /// Creates a buffer of the first `len` bytes of foreign memory. In work requests, the first
    /// byte has the address `addr`, which may differ from its address in the process
    /// (`ibv_reg_mr_iova2`).
    pub fn from_foreign(memory: Box<dyn ForeignMemory>, addr: u64, len: usize) -> Buffer {
        Buffer { storage: Storage::Foreign(memory), addr, len }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address that work requests use for the first byte. If the buffer itself
    /// allocated the memory, it is the address in this process and a multiple of 8. For foreign
    /// memory, it is the address that [`Buffer::from_foreign`] was given.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the address of the first byte in this process, for a NIC that accesses the memory
    /// without this type. `None` if the memory has none ([`ForeignMemory::process_addr`]).
    pub fn process_addr(&self) -> Option<usize> {
        match &self.storage {
            Storage::Own(words) => Some(words.expose_addr()),
            Storage::Foreign(memory) => memory.process_addr(),
        }
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Errors
    /// [`Unmapped`] if foreign memory is unmapped or not readable.
    ///
    /// # Panics
    /// If the range does not lie within the buffer.
    pub fn try_read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        self.check(offset, out.len());
        match &self.storage {
            Storage::Own(words) => words.read(offset, out),
            Storage::Foreign(memory) => memory.read(offset, out)?,
        }
        Ok(())
    }

    /// Copies bytes in, starting at `offset`. The last word is stored last, with release ordering.
    ///
    /// # Errors
    /// [`Unmapped`] if foreign memory is unmapped or not writable. The first bytes of `data` may
    /// have been written.
    ///
    /// # Panics
    /// If the range does not lie within the buffer.
    pub fn try_write_at(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
        self.check(offset, data.len());
        match &self.storage {
            Storage::Own(words) => words.write(offset, data),
            Storage::Foreign(memory) => memory.write(offset, data)?,
        }
        Ok(())
    }

    /// Reads the 8-byte word at `offset`, with acquire ordering, in the machine's byte order.
    ///
    /// # Errors
    /// [`Unmapped`] if foreign memory is unmapped or not readable.
    ///
    /// # Panics
    /// If the word is not 8-byte aligned or does not lie within the buffer.
    pub fn try_load(&self, offset: usize) -> Result<u64, Unmapped> {
        self.check_word(offset);
        match &self.storage {
            Storage::Own(words) => Ok(words.load(offset)),
            Storage::Foreign(memory) => {
                let mut word = [0; WORD];
                memory.read(offset, &mut word)?;
                Ok(u64::from_ne_bytes(word))
            }
        }
    }

    /// Replaces the 8-byte word at `offset` by `new` if it equals `current`, atomically *among
    /// CPUs* (see [`Buffer::swap`]). The inner result contains the old word and is `Ok` if the word
    /// was replaced.
    ///
    /// # Errors
    /// [`Unmapped`] if foreign memory is unmapped or not writable.
    ///
    /// # Panics
    /// If the word is not 8-byte aligned or does not lie within the buffer.
    pub fn try_compare_exchange(
        &self,
        offset: usize,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, Unmapped> {
        self.check_word(offset);
        match &self.storage {
            Storage::Own(words) => Ok(words.compare_exchange(offset, current, new)),
            Storage::Foreign(memory) => memory.compare_exchange(offset, current, new),
        }
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Panics
    /// If the range does not lie within the buffer, or foreign memory is unmapped.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) {
        expect_mapped(self.try_read_at(offset, out));
    }

    /// Copies bytes in, starting at `offset`. The last word is stored last, with release ordering.
    ///
    /// # Panics
    /// If the range does not lie within the buffer, or foreign memory is unmapped.
    pub fn write_at(&self, offset: usize, data: &[u8]) {
        expect_mapped(self.try_write_at(offset, data));
    }

    /// Reads the 8-byte word at `offset`, with acquire ordering, in the machine's byte order.
    ///
    /// # Panics
    /// As [`Buffer::try_load`], and if foreign memory is unmapped.
    pub fn load(&self, offset: usize) -> u64 {
        expect_mapped(self.try_load(offset))
    }

    /// Writes the 8-byte word at `offset`, with release ordering, in the machine's byte order.
    ///
    /// # Panics
    /// As [`Buffer::load`].
    pub fn store(&self, offset: usize, value: u64) {
        self.check_word(offset);
        match &self.storage {
            Storage::Own(words) => words.store(offset, value),
            Storage::Foreign(memory) => expect_mapped(memory.write(offset, &value.to_ne_bytes())),
        }
    }

    /// Replaces the 8-byte word at `offset` and returns the old word. The operation is atomic
    /// *among CPUs*. It is atomic with respect to the atomics of a NIC only if the device reports
    /// [`crate::AtomicScope::Global`].
    ///
    /// # Panics
    /// As [`Buffer::load`].
    pub fn swap(&self, offset: usize, value: u64) -> u64 {
        self.check_word(offset);
        match &self.storage {
            Storage::Own(words) => words.swap(offset, value),
            Storage::Foreign(_) => {
                let mut old = self.load(offset);
                while let Err(actual) = self.compare_exchange(offset, old, value) {
                    old = actual;
                }
                old
            }
        }
    }

    /// Replaces the 8-byte word at `offset` by `new` if it equals `current`, atomically *among
    /// CPUs* (see [`Buffer::swap`]), and returns the old word.
    ///
    /// # Errors
    /// The word, if it does not equal `current`.
    ///
    /// # Panics
    /// As [`Buffer::load`].
    pub fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<u64, u64> {
        expect_mapped(self.try_compare_exchange(offset, current, new))
    }

    fn check_word(&self, offset: usize) {
        let addr = self.addr.wrapping_add(offset as u64);
        assert!(
            addr.is_multiple_of(WORD as u64),
            "the word at {offset} has no 8-byte aligned address: {addr:#x}"
        );
        self.check(offset, WORD);
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} bytes at {offset} do not lie within a buffer of {} bytes",
            self.len
        );
    }
}

fn expect_mapped<T>(result: Result<T, Unmapped>) -> T {
    result.unwrap_or_else(|unmapped| panic!("{unmapped}"))
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_change_no_byte_outside_their_range() {
        for offset in 0..20 {
            for len in 0..40 {
                let b = Buffer::new(64);
                b.write_at(0, &[0xee; 64]);
                let data: Vec<u8> = (1..=len as u8).collect();
                b.write_at(offset, &data);
                let mut out = vec![0; len];
                b.read_at(offset, &mut out);
                assert_eq!(out, data, "offset {offset} len {len}");
                let mut all = [0; 64];
                b.read_at(0, &mut all);
                assert!(all[..offset].iter().chain(&all[offset + len..]).all(|&x| x == 0xee));
            }
        }
    }

    #[test]
    fn word_access_uses_machine_byte_order() {
        let b = Buffer::new(16);
        b.store(8, 0x0102_0304_0506_0708);
        let mut out = [0; 8];
        b.read_at(8, &mut out);
        assert_eq!(u64::from_ne_bytes(out), 0x0102_0304_0506_0708);
        assert_eq!(b.swap(8, 5), 0x0102_0304_0506_0708);
        assert_eq!(b.load(8), 5);
        assert_eq!(b.compare_exchange(8, 4, 6), Err(5));
        assert_eq!(b.compare_exchange(8, 5, 6), Ok(5));
        assert_eq!(b.load(8), 6);
    }

    #[test]
    #[should_panic(expected = "do not lie within")]
    fn range_beyond_the_end_panics() {
        Buffer::new(9).read_at(2, &mut [0; 8]);
    }

    #[test]
    #[should_panic(expected = "do not lie within")]
    fn padding_of_last_word_is_not_accessible() {
        Buffer::new(9).load(8);
    }

    /// Foreign memory whose upper half is unmapped.
    struct HalfUnmapped(Buffer);

    impl HalfUnmapped {
        fn mapped_range(&self, offset: usize, len: usize) -> Result<&Buffer, Unmapped> {
            if offset + len <= self.0.len() / 2 { Ok(&self.0) } else { Err(Unmapped) }
        }
    }

    impl ForeignMemory for HalfUnmapped {
        fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
            self.mapped_range(offset, out.len())?.try_read_at(offset, out)
        }

        fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
            self.mapped_range(offset, data.len())?.try_write_at(offset, data)
        }

        fn compare_exchange(
            &self,
            offset: usize,
            current: u64,
            new: u64,
        ) -> Result<Result<u64, u64>, Unmapped> {
            self.mapped_range(offset, 8)?.try_compare_exchange(offset, current, new)
        }
    }

    fn half_unmapped(addr: u64) -> Buffer {
        Buffer::from_foreign(Box::new(HalfUnmapped(Buffer::new(32))), addr, 32)
    }

    #[test]
    fn foreign_memory_works_like_own_memory_while_mapped() {
        let b = half_unmapped(0x7000);
        assert_eq!((b.addr(), b.len()), (0x7000, 32));
        b.write_at(3, &[1, 2, 3]);
        let mut out = [0; 5];
        b.read_at(2, &mut out);
        assert_eq!(out, [0, 1, 2, 3, 0]);
        b.store(8, 4);
        assert_eq!(b.swap(8, 5), 4);
        assert_eq!(b.compare_exchange(8, 4, 6), Err(5));
        assert_eq!(b.try_compare_exchange(8, 5, 6), Ok(Ok(5)));
        assert_eq!(b.try_load(8), Ok(6));

        assert_eq!(b.try_read_at(15, &mut [0; 2]), Err(Unmapped));
        assert_eq!(b.try_write_at(16, &[1]), Err(Unmapped));
        assert_eq!(b.try_load(16), Err(Unmapped));
        assert_eq!(b.try_compare_exchange(24, 0, 1), Err(Unmapped));
    }

    #[test]
    #[should_panic(expected = "unmapped or protected by its owner")]
    fn load_of_unmapped_memory_panics() {
        half_unmapped(0x7000).load(16);
    }

    #[test]
    #[should_panic(expected = "no 8-byte aligned address: 0x7004")]
    fn alignment_is_checked_at_the_address() {
        half_unmapped(0x7004).load(0);
    }

    #[test]
    #[should_panic(expected = "do not lie within")]
    fn range_beyond_foreign_memory_panics() {
        half_unmapped(0x7000).try_read_at(30, &mut [0; 3]).unwrap();
    }
}
