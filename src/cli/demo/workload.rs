//! What the client posts, drawn from a seed: every process knows it without being told.
//!
//! Each WRITE and CAS has a place of its own in the server's memory, where it leaves a word that no other operation
//! leaves: the server's processor consumes that word (logs it, sets it back to 0), so an operation that is executed
//! twice is seen twice.

use mitra_verbs::Mtu;
use serde::{Deserialize, Serialize};

/// Payload bytes per packet: small, so that many operations take several packets.
pub(super) const MTU: Mtu = Mtu::M1024;
/// The longest WRITE, READ and SEND.
pub(super) const LONGEST: usize = 8 * 1024;
/// Bytes of the region that READs read.
pub(super) const PATTERN_LEN: usize = 64 * 1024;
/// Where the fetch-and-adds count.
pub(super) const COUNTER: u64 = 0;

/// The kinds of operation, as `--json` names them.
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

    /// Its place in [`Kind::ALL`].
    pub(super) fn index(self) -> usize {
        self as usize
    }

    /// Its name in `--json`.
    pub(super) fn name(self) -> &'static str {
        ["write", "read", "send", "cas", "faa"][self.index()]
    }
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    /// Bytes of payload, a multiple of 8.
    pub(super) len: u32,
    /// Where in the server's memory (READ: in the pattern; SEND: nowhere).
    pub(super) at: u64,
}

impl Op {
    /// Where the word lies that it leaves for the server's processor, if it leaves one.
    pub(super) fn word(&self) -> Option<u64> {
        match self.kind {
            Kind::Write => Some(self.at + u64::from(self.len) - 8),
            Kind::Cas => Some(self.at),
            Kind::Read | Kind::Send | Kind::Faa => None,
        }
    }

    /// Packets of its request that do not end it.
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
    /// Bytes that the server's memory needs.
    pub(super) memory_len: u64,
    tag: u64,
}

impl Workload {
    /// `count` operations.
    pub(super) fn new(seed: u64, count: usize) -> Workload {
        let mut dice = Dice(seed);
        let tag = (dice.next() | 1 << 63) & !u64::from(u32::MAX);
        let mut memory_len = COUNTER + 8;
        let ops = (0..count)
            .map(|_| {
                let (kind, len) = match dice.below(16) {
                    0..4 => (Kind::Write, 8),
                    4..6 => (Kind::Write, dice.words(MTU.bytes() + 8, LONGEST)),
                    6..9 => (Kind::Read, dice.words(8, LONGEST)),
                    9..11 => (Kind::Send, dice.words(8, 512)),
                    11 => (Kind::Send, dice.words(MTU.bytes() + 8, 4 * MTU.bytes())),
                    12..14 => (Kind::Cas, 8),
                    _ => (Kind::Faa, 8),
                };
                let at = match kind {
                    Kind::Write | Kind::Cas => {
                        let at = memory_len;
                        memory_len += u64::from(len);
                        at
                    }
                    Kind::Read => u64::from(dice.words(0, PATTERN_LEN - len as usize)),
                    Kind::Send => 0,
                    Kind::Faa => COUNTER,
                };
                Op { kind, len, at }
            })
            .collect();
        Workload { ops, memory_len, tag }
    }

    /// What operation `n` leaves: not 0, and no other round's.
    pub(super) fn id(&self, n: usize) -> u64 {
        self.tag | (n as u64 + 1)
    }

    /// The operation that leaves `id`.
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        let n = (id ^ self.tag).checked_sub(1)? as usize;
        (n < self.ops.len()).then_some(n)
    }

    /// The first operation of this kind from `from` on, around the end if need be.
    pub(super) fn of_kind(&self, kind: Kind, from: usize) -> Option<usize> {
        let count = self.ops.len();
        (0..count).map(|i| (from + i) % count).find(|&n| self.ops[n].kind == kind)
    }
}

/// The payload that ends in `id`, the last word last, so that who sees it sees all.
pub(super) fn fill(id: u64, out: &mut [u8]) {
    let last = out.len() / 8 - 1;
    for (i, word) in out.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&if i == last { id } else { mix(id ^ (i as u64) << 32) }.to_ne_bytes());
    }
}

/// Whether this is what [`fill`] makes.
pub(super) fn is_whole(id: u64, bytes: &[u8]) -> bool {
    let mut want = vec![0; bytes.len()];
    fill(id, &mut want);
    want == bytes
}

/// The content of the region that READs read, at a multiple of 8.
pub(super) fn pattern(at: u64) -> u64 {
    mix(0x7061_7474_6572_6e00 ^ at)
}

/// The finalizer of SplitMix64.
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// SplitMix64: good enough to mix a workload, and the same everywhere.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A multiple of 8 from `least` to `most`, both multiples of 8.
    fn words(&mut self, least: usize, most: usize) -> u32 {
        (least + 8 * self.below(((most - least) / 8 + 1) as u64) as usize) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_overlap_and_all_kinds_are_there() {
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
    fn ids_lead_back_to_their_operations_only() {
        let (w, other) = (Workload::new(1, 50), Workload::new(2, 50));
        for n in 0..50 {
            assert_eq!(w.find(w.id(n)), Some(n));
            assert_eq!(w.find(other.id(n)), None);
        }
        assert_eq!((w.find(0), w.find(w.tag), w.find(w.id(50))), (None, None, None));
    }

    #[test]
    fn a_payload_is_whole_or_not() {
        let mut bytes = [0; 64];
        fill(9, &mut bytes);
        assert!(is_whole(9, &bytes));
        bytes[3] ^= 1;
        assert!(!is_whole(9, &bytes));
    }
}
