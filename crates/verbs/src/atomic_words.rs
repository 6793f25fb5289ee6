//! Memory that consists of atomic 8-byte words, so that all threads can access it at any time.

use crate::atomics::{AtomicU64, Ordering, fence};

pub(crate) const WORD: usize = size_of::<u64>();

/// A block of memory that consists of atomic 8-byte words. Accesses outside the block panic or
/// reach the padding of the last word, so callers check ranges.
pub(crate) struct AtomicWords(Box<[AtomicU64]>);

impl AtomicWords {
    /// Allocates zeroed words for `len` bytes.
    pub(crate) fn new(len: usize) -> AtomicWords {
        AtomicWords((0..len.div_ceil(WORD)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn addr(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }

    /// Returns the address of the first word, and lets pointers be made from it.
    pub(crate) fn expose_addr(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// Copies the bytes from `offset` on to `out`. The first word is loaded with acquire ordering,
    /// and loads after the call are ordered behind all loads of the copy.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        if out.is_empty() {
            return;
        }
        let mut word = offset / WORD;
        let byte_in_word = offset % WORD;
        let mut rest = out;
        let first = self.0[word].load(Ordering::Acquire).to_le_bytes();
        let n = rest.len().min(WORD - byte_in_word);
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(&first[byte_in_word..byte_in_word + n]);
        rest = tail;
        word += 1;
        let whole = rest.len() / WORD;
        let (body, tail) = rest.split_at_mut(whole * WORD);
        for (to, from) in body.chunks_exact_mut(WORD).zip(&self.0[word..word + whole]) {
            to.copy_from_slice(&from.load(Ordering::Relaxed).to_le_bytes());
        }
        if !tail.is_empty() {
            let last = self.0[word + whole].load(Ordering::Relaxed).to_le_bytes();
            tail.copy_from_slice(&last[..tail.len()]);
        }
        // The last word of a write, which is stored with release ordering, may be any of the words
        // that were loaded.
        fence(Ordering::Acquire);
    }

    /// Copies `data` to the memory, from `offset` on. The last word is stored last, with release
    /// ordering.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        let mut word = offset / WORD;
        let byte_in_word = offset % WORD;
        let mut rest = data;
        if byte_in_word != 0 {
            let n = rest.len().min(WORD - byte_in_word);
            self.store_part_of_word(word, byte_in_word, &rest[..n]);
            rest = &rest[n..];
            word += 1;
        }
        let mut chunks = rest.chunks_exact(WORD);
        let whole = chunks.len();
        let tail_len = rest.len() - whole * WORD;
        if whole > 0 {
            let (body, last) = self.0[word..word + whole].split_at(whole - 1);
            for (to, from) in body.iter().zip(&mut chunks) {
                to.store(word_of(from), Ordering::Relaxed);
            }
            if let Some(from) = chunks.next() {
                last[0].store(word_of(from), Ordering::Release);
            }
        }
        if tail_len > 0 {
            self.store_part_of_word(word + whole, 0, &rest[whole * WORD..]);
        }
    }

    /// Loads the word at `offset`, in the machine's byte order.
    pub(crate) fn load(&self, offset: usize) -> u64 {
        from_stored(self.0[offset / WORD].load(Ordering::Acquire))
    }

    pub(crate) fn store(&self, offset: usize, value: u64) {
        self.0[offset / WORD].store(to_stored(value), Ordering::Release);
    }

    pub(crate) fn swap(&self, offset: usize, value: u64) -> u64 {
        from_stored(self.0[offset / WORD].swap(to_stored(value), Ordering::AcqRel))
    }

    pub(crate) fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.0[offset / WORD]
            .compare_exchange(to_stored(current), to_stored(new), Ordering::AcqRel, Ordering::Acquire)
            .map(from_stored)
            .map_err(from_stored)
    }

    /// Stores `data` in one word, from byte `byte_in_word` on. The method uses compare-and-swap,
    /// because another thread may write the other bytes of the word at the same time.
    fn store_part_of_word(&self, word: usize, byte_in_word: usize, data: &[u8]) {
        fence(Ordering::Release);
        let (mut bytes, mut mask) = ([0; WORD], [0; WORD]);
        bytes[byte_in_word..byte_in_word + data.len()].copy_from_slice(data);
        mask[byte_in_word..byte_in_word + data.len()].fill(0xff);
        let (new, mask) = (u64::from_le_bytes(bytes), u64::from_le_bytes(mask));
        let word = &self.0[word];
        let mut old = word.load(Ordering::Relaxed);
        while let Err(actual) =
            word.compare_exchange_weak(old, (old & !mask) | new, Ordering::Release, Ordering::Relaxed)
        {
            old = actual;
        }
    }
}

fn word_of(chunk: &[u8]) -> u64 {
    u64::from_le_bytes(chunk.try_into().expect("chunks_exact gives whole words"))
}

/// Converts a value in the machine's byte order to the stored word. The byte of a stored word at
/// the lowest offset is always the least significant one, as `read` and `write` assume.
fn to_stored(value: u64) -> u64 {
    u64::from_le_bytes(value.to_ne_bytes())
}

fn from_stored(word: u64) -> u64 {
    u64::from_ne_bytes(word.to_le_bytes())
}
