//! The layout of tagged words: ⟨payload, owner, sequence⟩.

use crate::announcement::MAX_SEQUENCE;

const OWNER_BITS: u32 = 8;

/// The layout of the words of one kind of cell: from the most significant bit, the payload, the
/// owner's number (8 bits) and the sequence number (`sequence_bits`). The payload has the rest of
/// the 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TagLayout {
    sequence_bits: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Tagged {
    pub(crate) payload: u64,
    /// 0 in a word that no owner has changed yet.
    pub(crate) owner: u8,
    pub(crate) sequence: u64,
}

impl TagLayout {
    pub(crate) const fn new(sequence_bits: u32) -> TagLayout {
        assert!(sequence_bits + OWNER_BITS < 64 && (1 << sequence_bits) - 1 <= MAX_SEQUENCE);
        TagLayout { sequence_bits }
    }

    pub(crate) const fn max_sequence(self) -> u64 {
        (1 << self.sequence_bits) - 1
    }

    /// Packs a word. The parts fit: the callers choose the payload's type, and check the sequence
    /// number.
    pub(crate) const fn pack(self, tagged: Tagged) -> u64 {
        tagged.payload << (self.sequence_bits + OWNER_BITS)
            | (tagged.owner as u64) << self.sequence_bits
            | tagged.sequence
    }

    pub(crate) const fn unpack(self, word: u64) -> Tagged {
        Tagged {
            payload: word >> (self.sequence_bits + OWNER_BITS),
            owner: (word >> self.sequence_bits) as u8,
            sequence: word & self.max_sequence(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        for bits in [24, 55] {
            let layout = TagLayout::new(bits);
            let payload = u64::MAX >> (bits + OWNER_BITS);
            let max = layout.max_sequence();
            for tagged in [
                Tagged { payload, owner: 0, sequence: 0 },
                Tagged { payload: 0, owner: 255, sequence: 0 },
                Tagged { payload: 0, owner: 0, sequence: max },
                Tagged { payload, owner: 255, sequence: max },
            ] {
                assert_eq!(layout.unpack(layout.pack(tagged)), tagged);
            }
            assert_eq!(layout.pack(Tagged { payload, owner: 255, sequence: max }), u64::MAX);
        }
    }
}
