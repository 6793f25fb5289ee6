use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Memory that may be registered with NICs.
///
/// Outsiders write registered memory at any time, so it is never lent as a `&[u8]`: it is read and written by
/// copies. All access is by aligned 8-byte words, relaxed, in ascending order; the last word of a copy is
/// stored with release and the first word of a read loaded with acquire ordering, so that who sees the last byte of a write
/// sees all of it. A copy of more than one word is not atomic: readers may see it torn, as with real DMA.
pub struct Buffer {
    words: Box<[AtomicU64]>,
    len: usize,
}

const WORD: usize = size_of::<u64>();

impl Buffer {
    /// A zeroed buffer of `len` bytes.
    pub fn new(len: usize) -> Buffer {
        Buffer { words: (0..len.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect(), len }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it lies in this process; 8-byte aligned.
    pub fn addr(&self) -> u64 {
        self.words.as_ptr().addr() as u64
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Panics
    /// If the range does not lie within the buffer.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        if out.is_empty() {
            return;
        }
        let mut word = offset / WORD;
        let lead = offset % WORD;
        let mut rest = out;
        let first = self.words[word].load(Ordering::Acquire).to_le_bytes();
        let n = rest.len().min(WORD - lead);
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(&first[lead..lead + n]);
        rest = tail;
        word += 1;
        let whole = rest.len() / WORD;
        let (body, tail) = rest.split_at_mut(whole * WORD);
        for (to, from) in body.chunks_exact_mut(WORD).zip(&self.words[word..word + whole]) {
            to.copy_from_slice(&from.load(Ordering::Relaxed).to_le_bytes());
        }
        if !tail.is_empty() {
            let last = self.words[word + whole].load(Ordering::Relaxed).to_le_bytes();
            tail.copy_from_slice(&last[..tail.len()]);
        }
    }

    /// Copies bytes in, starting at `offset`; the last word last, with release ordering.
    ///
    /// # Panics
    /// If the range does not lie within the buffer.
    pub fn write_at(&self, offset: usize, data: &[u8]) {
        self.check(offset, data.len());
        let mut word = offset / WORD;
        let lead = offset % WORD;
        let mut rest = data;
        if lead != 0 {
            let n = rest.len().min(WORD - lead);
            self.merge(word, lead, &rest[..n]);
            rest = &rest[n..];
            word += 1;
        }
        let mut chunks = rest.chunks_exact(WORD);
        let whole = chunks.len();
        let tail_len = rest.len() - whole * WORD;
        if whole > 0 {
            let (body, last) = self.words[word..word + whole].split_at(whole - 1);
            for (to, from) in body.iter().zip(&mut chunks) {
                to.store(word_of(from), Ordering::Relaxed);
            }
            if let Some(from) = chunks.next() {
                last[0].store(word_of(from), Ordering::Release);
            }
        }
        if tail_len > 0 {
            self.merge(word + whole, 0, &rest[whole * WORD..]);
        }
    }

    /// Reads the 8-byte word at `offset`, with acquire ordering, in the machine's byte order.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or the word does not lie within the buffer.
    pub fn load(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.word(offset).load(Ordering::Acquire).to_le_bytes())
    }

    /// Writes the 8-byte word at `offset`, with release ordering, in the machine's byte order.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or the word does not lie within the buffer.
    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(u64::from_le_bytes(value.to_ne_bytes()), Ordering::Release);
    }

    /// Replaces the 8-byte word at `offset` atomically *among CPUs* and gives the old one: a NIC's atomics do
    /// not take part unless the device reports [`crate::AtomicScope::Global`].
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or the word does not lie within the buffer.
    pub fn swap(&self, offset: usize, value: u64) -> u64 {
        let old = self.word(offset).swap(u64::from_le_bytes(value.to_ne_bytes()), Ordering::AcqRel);
        u64::from_ne_bytes(old.to_le_bytes())
    }

    /// Replaces the 8-byte word at `offset` if it is `current`, atomically *among CPUs* (see [`Buffer::swap`]); fails
    /// with what it is.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or the word does not lie within the buffer.
    pub fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<u64, u64> {
        let stored = |value: u64| u64::from_le_bytes(value.to_ne_bytes());
        let seen = |value: u64| u64::from_ne_bytes(value.to_le_bytes());
        self.word(offset)
            .compare_exchange(stored(current), stored(new), Ordering::AcqRel, Ordering::Acquire)
            .map(seen)
            .map_err(seen)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(WORD), "offset {offset} is not a multiple of 8");
        self.check(offset, WORD);
        &self.words[offset / WORD]
    }

    /// Stores some bytes of one word and keeps its neighbours: others may be writing those at the same time.
    fn merge(&self, word: usize, lead: usize, data: &[u8]) {
        fence(Ordering::Release);
        let (mut bytes, mut mask) = ([0; WORD], [0; WORD]);
        bytes[lead..lead + data.len()].copy_from_slice(data);
        mask[lead..lead + data.len()].fill(0xff);
        let (new, mask) = (u64::from_le_bytes(bytes), u64::from_le_bytes(mask));
        let cell = &self.words[word];
        let mut old = cell.load(Ordering::Relaxed);
        while let Err(now) =
            cell.compare_exchange_weak(old, (old & !mask) | new, Ordering::Release, Ordering::Relaxed)
        {
            old = now;
        }
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} bytes at {offset} do not lie within a buffer of {} bytes",
            self.len
        );
    }
}

fn word_of(chunk: &[u8]) -> u64 {
    u64::from_le_bytes(chunk.try_into().expect("chunks_exact gives whole words"))
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
}
