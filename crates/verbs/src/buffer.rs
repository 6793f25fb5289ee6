use core::fmt;

use crate::atomic_words::{AtomicWords, WORD};
use crate::{ForeignMemory, Unmapped};

/// Memory that may be registered with NICs: its own, or lent by its owner.
///
/// Outsiders write registered memory at any time, so it is never lent as a `&[u8]`: it is read and written by copies.
/// All access is by aligned 8-byte words, relaxed, in ascending order; the last word of a copy is stored with release
/// and the first word of a read loaded with acquire ordering, so that who sees the last byte of a write sees all of
/// it. A copy of more than one word is not atomic: readers may see it torn, as with real DMA.
///
/// Lent memory may go at any time. Who may meet it uses the `try_` forms; the others are for a buffer's own memory,
/// which stays.
pub struct Buffer {
    place: Place,
    addr: u64,
    len: usize,
}

enum Place {
    Own(AtomicWords),
    Foreign(Box<dyn ForeignMemory>),
}

impl Buffer {
    /// A zeroed buffer of `len` bytes of its own.
    pub fn new(len: usize) -> Buffer {
        let words = AtomicWords::new(len);
        Buffer { addr: words.addr(), place: Place::Own(words), len }
    }

    /// The first `len` bytes of memory of another owner. Work requests name the first byte by `addr`, which need not
    /// be where it lies (`ibv_reg_mr_iova2`).
    pub fn from_foreign(memory: Box<dyn ForeignMemory>, addr: u64, len: usize) -> Buffer {
        Buffer { place: Place::Foreign(memory), addr, len }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address by which work requests name its first byte. Of own memory that is where it lies in this process,
    /// 8-byte aligned; lent memory may begin at any byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Errors
    /// Lent memory is gone.
    ///
    /// # Panics
    /// If the range does not lie within the buffer.
    pub fn try_read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        self.check(offset, out.len());
        match &self.place {
            Place::Own(words) => words.read(offset, out),
            Place::Foreign(memory) => memory.read(offset, out)?,
        }
        Ok(())
    }

    /// Copies bytes in, starting at `offset`; the last word last, with release ordering.
    ///
    /// # Errors
    /// Lent memory is gone or may not be written; a first part of the data may be there.
    ///
    /// # Panics
    /// If the range does not lie within the buffer.
    pub fn try_write_at(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
        self.check(offset, data.len());
        match &self.place {
            Place::Own(words) => words.write(offset, data),
            Place::Foreign(memory) => memory.write(offset, data)?,
        }
        Ok(())
    }

    /// Reads the 8-byte word at `offset`, with acquire ordering, in the machine's byte order.
    ///
    /// # Errors
    /// Lent memory is gone.
    ///
    /// # Panics
    /// If its address is not a multiple of 8 or the word does not lie within the buffer.
    pub fn try_load(&self, offset: usize) -> Result<u64, Unmapped> {
        self.check_word(offset);
        match &self.place {
            Place::Own(words) => Ok(words.load(offset)),
            Place::Foreign(memory) => {
                let mut word = [0; WORD];
                memory.read(offset, &mut word)?;
                Ok(u64::from_ne_bytes(word))
            }
        }
    }

    /// Replaces the 8-byte word at `offset` if it is `current`, atomically *among CPUs* (see [`Buffer::swap`]); the
    /// inner result is the old word.
    ///
    /// # Errors
    /// Lent memory is gone or may not be written.
    ///
    /// # Panics
    /// If its address is not a multiple of 8 or the word does not lie within the buffer.
    pub fn try_compare_exchange(
        &self,
        offset: usize,
        current: u64,
        new: u64,
    ) -> Result<Result<u64, u64>, Unmapped> {
        self.check_word(offset);
        match &self.place {
            Place::Own(words) => Ok(words.compare_exchange(offset, current, new)),
            Place::Foreign(memory) => memory.compare_exchange(offset, current, new),
        }
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Panics
    /// If the range does not lie within the buffer, or lent memory is gone.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) {
        there(self.try_read_at(offset, out));
    }

    /// Copies bytes in, starting at `offset`; the last word last, with release ordering.
    ///
    /// # Panics
    /// If the range does not lie within the buffer, or lent memory is gone.
    pub fn write_at(&self, offset: usize, data: &[u8]) {
        there(self.try_write_at(offset, data));
    }

    /// Reads the 8-byte word at `offset`, with acquire ordering, in the machine's byte order.
    ///
    /// # Panics
    /// As [`Buffer::try_load`], and if lent memory is gone.
    pub fn load(&self, offset: usize) -> u64 {
        there(self.try_load(offset))
    }

    /// Writes the 8-byte word at `offset`, with release ordering, in the machine's byte order.
    ///
    /// # Panics
    /// As [`Buffer::load`].
    pub fn store(&self, offset: usize, value: u64) {
        self.check_word(offset);
        match &self.place {
            Place::Own(words) => words.store(offset, value),
            Place::Foreign(memory) => there(memory.write(offset, &value.to_ne_bytes())),
        }
    }

    /// Replaces the 8-byte word at `offset` atomically *among CPUs* and gives the old one: a NIC's atomics do
    /// not take part unless the device reports [`crate::AtomicScope::Global`].
    ///
    /// # Panics
    /// As [`Buffer::load`].
    pub fn swap(&self, offset: usize, value: u64) -> u64 {
        self.check_word(offset);
        match &self.place {
            Place::Own(words) => words.swap(offset, value),
            Place::Foreign(_) => {
                let mut old = self.load(offset);
                while let Err(now) = self.compare_exchange(offset, old, value) {
                    old = now;
                }
                old
            }
        }
    }

    /// Replaces the 8-byte word at `offset` if it is `current`, atomically *among CPUs* (see [`Buffer::swap`]); fails
    /// with what it is.
    ///
    /// # Panics
    /// As [`Buffer::load`].
    pub fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<u64, u64> {
        there(self.try_compare_exchange(offset, current, new))
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

fn there<T>(result: Result<T, Unmapped>) -> T {
    result.unwrap_or_else(|gone| panic!("{gone}"))
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
    fn every_range_reads_back_and_keeps_its_neighbours() {
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
    fn words_are_bytes_in_machine_order() {
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
    fn a_range_past_the_end_is_refused() {
        Buffer::new(9).read_at(2, &mut [0; 8]);
    }

    #[test]
    #[should_panic(expected = "do not lie within")]
    fn the_padding_of_the_last_word_is_not_reachable() {
        Buffer::new(9).load(8);
    }

    /// The upper half is gone.
    struct HalfGone(Buffer);

    impl HalfGone {
        fn reach(&self, offset: usize, len: usize) -> Result<&Buffer, Unmapped> {
            if offset + len <= self.0.len() / 2 { Ok(&self.0) } else { Err(Unmapped) }
        }
    }

    impl ForeignMemory for HalfGone {
        fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
            self.reach(offset, out.len())?.try_read_at(offset, out)
        }

        fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
            self.reach(offset, data.len())?.try_write_at(offset, data)
        }

        fn compare_exchange(
            &self,
            offset: usize,
            current: u64,
            new: u64,
        ) -> Result<Result<u64, u64>, Unmapped> {
            self.reach(offset, 8)?.try_compare_exchange(offset, current, new)
        }
    }

    fn half_gone(addr: u64) -> Buffer {
        Buffer::from_foreign(Box::new(HalfGone(Buffer::new(32))), addr, 32)
    }

    #[test]
    fn lent_memory_is_as_own_until_it_goes() {
        let b = half_gone(0x7000);
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
    fn who_counts_on_memory_that_is_gone_is_told() {
        half_gone(0x7000).load(16);
    }

    #[test]
    #[should_panic(expected = "no 8-byte aligned address: 0x7004")]
    fn alignment_is_that_of_the_address() {
        half_gone(0x7004).load(0);
    }

    #[test]
    #[should_panic(expected = "do not lie within")]
    fn the_length_of_lent_memory_is_kept() {
        half_gone(0x7000).try_read_at(30, &mut [0; 3]).unwrap();
    }
}
