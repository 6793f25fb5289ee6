//! The operations that the client posts, drawn from a seed that both sides know.
//!
//! Each WRITE and CAS has a separate place in the server's memory and leaves a unique word there.
//! The server's processor consumes that word: it logs the word and resets it to 0. An operation
//! that is executed twice is therefore logged twice.

use mitra_prng::{Prng, mix};
use mitra_verbs::Mtu;
use serde::{Deserialize, Serialize};

/// The path MTU. It is small, so that many operations take several packets.
pub(super) const MTU: Mtu = Mtu::M1024;
/// The largest WRITE, READ or SEND in bytes.
pub(super) const MAX_LEN: usize = 8 * 1024;
/// The length of the region that READs read, in bytes.
pub(super) const PATTERN_LEN: usize = 64 * 1024;
/// The offset of the counter that the FAAs increment.
pub(super) const COUNTER: u64 = 0;

/// The kinds of operation, by their names in `--json`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Write,
    Read,
    Send,
    Cas,
    Faa,
}

impl Kind {
    pub(super) const ALL: [Kind; 5] = [Kind::Write, Kind::Read, Kind::Send, Kind::Cas, Kind::Faa];

    pub(super) fn index(self) -> usize {
        self as usize
    }

    /// Returns the name in `--json`.
    pub(super) fn name(self) -> &'static str {
        ["write", "read", "send", "cas", "faa"][self.index()]
    }
}

/// Returns the name of a kind in the terms of the IBTA specification.
pub(super) fn verb_name(kind: Kind) -> &'static str {
    ["WRITE", "READ", "SEND", "CAS", "FAA"][kind.index()]
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    /// The payload in bytes, a multiple of 8.
    pub(super) len: u32,
    /// The offset in the server's memory, for a READ the offset in the pattern, for a SEND 0.
    pub(super) at: u64,
}

impl Op {
    /// Returns the offset of the word that the operation leaves for the server's processor, if it
    /// leaves one.
    pub(super) fn word(&self) -> Option<u64> {
        match self.kind {
            Kind::Write => Some(self.at + u64::from(self.len) - 8),
            Kind::Cas => Some(self.at),
            Kind::Read | Kind::Send | Kind::Faa => None,
        }
    }

    /// Returns the number of FIRST and MIDDLE packets of the request.
    pub(super) fn leading_packets(&self) -> u32 {
        match self.kind {
            Kind::Write | Kind::Send => MTU.packets(self.len.into()) as u32 - 1,
            Kind::Read | Kind::Cas | Kind::Faa => 0,
        }
    }
}

/// The operations of one round, in posting order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Workload {
    pub(super) ops: Vec<Op>,
    /// The length of the server's memory in bytes.
    pub(super) memory_len: u64,
    tag: u64,
}

impl Workload {
    /// Draws `count` operations from a seed.
    pub(super) fn new(seed: u64, count: usize) -> Workload {
        let mut rng = Prng::new(seed);
        let tag = (rng.bits() | 1 << 63) & !u64::from(u32::MAX);
        let mut memory_len = COUNTER + 8;
        let ops = (0..count)
            .map(|_| {
                let (kind, len) = match rng.below(16) {
                    0..4 => (Kind::Write, 8),
                    4..6 => (Kind::Write, words(&mut rng, MTU.bytes() + 8, MAX_LEN)),
                    6..9 => (Kind::Read, words(&mut rng, 8, MAX_LEN)),
                    9..11 => (Kind::Send, words(&mut rng, 8, 512)),
                    11 => (Kind::Send, words(&mut rng, MTU.bytes() + 8, 4 * MTU.bytes())),
                    12..14 => (Kind::Cas, 8),
                    _ => (Kind::Faa, 8),
                };
                let at = match kind {
                    Kind::Write | Kind::Cas => {
                        let at = memory_len;
                        memory_len += u64::from(len);
                        at
                    }
                    Kind::Read => u64::from(words(&mut rng, 0, PATTERN_LEN - len as usize)),
                    Kind::Send => 0,
                    Kind::Faa => COUNTER,
                };
                Op { kind, len, at }
            })
            .collect();
        Workload { ops, memory_len, tag }
    }

    /// Returns the id of operation `n`: the word that it leaves in memory or at the end of its
    /// message. It is not 0, and it differs from the ids of other operations and, with high
    /// probability, of other rounds.
    pub(super) fn id(&self, n: usize) -> u64 {
        self.tag | (n as u64 + 1)
    }

    /// Returns the operation with this id. `None` if no operation of the round has it.
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        let n = (id ^ self.tag).checked_sub(1)? as usize;
        (n < self.ops.len()).then_some(n)
    }

    /// Returns the first operation of this kind at or after `from`, wrapping around at the end.
    pub(super) fn of_kind(&self, kind: Kind, from: usize) -> Option<usize> {
        let count = self.ops.len();
        (0..count).map(|i| (from + i) % count).find(|&n| self.ops[n].kind == kind)
    }
}

/// Fills a payload that ends in `id`. The last word is written last, so a processor that sees `id`
/// sees the whole payload.
pub(super) fn fill(id: u64, out: &mut [u8]) {
    let last = out.len() / 8 - 1;
    for (i, word) in out.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&if i == last { id } else { mix(id ^ (i as u64) << 32) }.to_ne_bytes());
    }
}

/// Returns whether `bytes` is the payload of [`fill`].
pub(super) fn is_intact(id: u64, bytes: &[u8]) -> bool {
    let mut expected = vec![0; bytes.len()];
    fill(id, &mut expected);
    expected == bytes
}

/// Returns the word at offset `at` of the region that READs read. `at` is a multiple of 8.
pub(super) fn pattern(at: u64) -> u64 {
    mix(0x7061_7474_6572_6e00 ^ at)
}

/// Draws a multiple of 8 from `least` to `most`, which are multiples of 8.
fn words(rng: &mut Prng, least: usize, most: usize) -> u32 {
    (least + 8 * rng.index((most - least) / 8 + 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_overlap_and_all_kinds_occur() {
        let w = Workload::new(7, 400);
        let mut next = COUNTER + 8;
        for op in w.ops.iter().filter(|op| op.word().is_some()) {
            assert_eq!(op.at, next);
            next += u64::from(op.len);
        }
        assert_eq!(next, w.memory_len);
        for kind in Kind::ALL {
            assert!(w.of_kind(kind, 399).is_some(), "{kind:?}");
        }
        assert!(w.ops.iter().filter(|op| op.kind == Kind::Write).any(|op| op.leading_packets() > 0));
        let reads = w.ops.iter().filter(|op| op.kind == Kind::Read);
        assert!(reads.map(|op| op.at as usize + op.len as usize).all(|end| end <= PATTERN_LEN));
    }

    #[test]
    fn ids_identify_their_operations() {
        let (w, other) = (Workload::new(1, 50), Workload::new(2, 50));
        for n in 0..50 {
            assert_eq!(w.find(w.id(n)), Some(n));
            assert_eq!(w.find(other.id(n)), None);
        }
        assert_eq!((w.find(0), w.find(w.tag), w.find(w.id(50))), (None, None, None));
    }

    #[test]
    fn is_intact_detects_a_changed_byte() {
        let mut bytes = [0; 64];
        fill(9, &mut bytes);
        assert!(is_intact(9, &bytes));
        bytes[3] ^= 1;
        assert!(!is_intact(9, &bytes));
    }
}
