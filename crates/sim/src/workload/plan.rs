//! What will be posted, from a seed: both ends know it, and so does the judge.

use mitra_verbs::SendFlags;

use crate::Prng;

/// The kinds of operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Kind {
    /// WRITE of one word, a flag that its reader consumes.
    Write,
    /// WRITE of several packets, whose reader waits for the last word.
    Block,
    /// WRITE with immediate data.
    WriteImm,
    /// SEND.
    Send,
    /// READ.
    Read,
    /// Fetch-and-add.
    FetchAdd,
    /// Compare-and-swap.
    CompareSwap,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] =
        [Kind::Write, Kind::Block, Kind::WriteImm, Kind::Send, Kind::Read, Kind::FetchAdd, Kind::CompareSwap];

    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Write => "WRITE",
            Kind::Block => "WRITE (block)",
            Kind::WriteImm => "WRITE_IMM",
            Kind::Send => "SEND",
            Kind::Read => "READ",
            Kind::FetchAdd => "FAA",
            Kind::CompareSwap => "CAS",
        }
    }

    /// Whether it consumes a receive at the peer.
    pub const fn is_received(self) -> bool {
        matches!(self, Kind::Send | Kind::WriteImm)
    }
}

/// What to post: how many operations of which kinds, how large, how many at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Chooses the operations.
    pub seed: u64,
    /// Tells plans that meet in one memory apart: a part of every operation's id.
    pub tag: u16,
    /// How many.
    pub ops: usize,
    /// How often each kind comes, in the order of [`Kind::ALL`], relative to each other.
    pub mix: [u32; 7],
    /// The most bytes of an operation; at least 64.
    pub max_len: usize,
    /// The most in flight. Half as many may go unsignalled in a row.
    pub depth: usize,
    /// How many in a million are unsignalled.
    pub unsignalled_ppm: u32,
    /// How many in a million wait for earlier READs and atomics.
    pub fence_ppm: u32,
    /// Receives that are kept posted.
    pub receives: usize,
    /// Whether the reader of a block may believe its last word, as it may where placements keep their order. If
    /// not, blocks are judged only at the end.
    pub ordered: bool,
}

impl Plan {
    /// A bit of everything, small.
    pub fn new(seed: u64, ops: usize) -> Plan {
        Plan {
            seed,
            tag: 1,
            ops,
            mix: [3, 2, 2, 3, 3, 2, 2],
            max_len: 6000,
            depth: 32,
            unsignalled_ppm: 200_000,
            fence_ppm: 50_000,
            receives: 32,
            ordered: true,
        }
    }

    /// The same with only these kinds.
    pub fn only(mut self, kinds: &[Kind]) -> Plan {
        for (weight, kind) in self.mix.iter_mut().zip(Kind::ALL) {
            *weight = u32::from(kinds.contains(&kind));
        }
        self
    }

    /// The operations, in posting order.
    pub fn ops(&self) -> Vec<Op> {
        let rng = &mut Prng::stream(self.seed, "plan");
        let total: u32 = self.mix.iter().sum();
        let mut unsignalled = 0;
        let mut block_end = Layout::blocks_at(self.ops);
        let ops = (0..self.ops).map(|seq| {
            let mut draw = rng.below(u64::from(total.max(1))) as u32;
            let at = self.mix.iter().position(|&w| {
                let hit = draw < w;
                draw = draw.saturating_sub(w);
                hit
            });
            let kind = Kind::ALL[at.unwrap_or(0)];
            // Small ones are as frequent as large ones.
            let most = (self.max_len.max(64) as u64) >> rng.below(6);
            let len = rng.between(16, most.max(16)) as usize;
            let (offset, len) = match kind {
                Kind::Write | Kind::CompareSwap => (Layout::slot(seq), 8),
                Kind::FetchAdd => (Layout::counter(self.ops, rng.index(COUNTERS)), 8),
                Kind::Read => {
                    let len = len.min(STABLE);
                    (Layout::stable_at(self.ops) + rng.index(STABLE - len + 1), len)
                }
                Kind::Send => (0, len),
                Kind::Block | Kind::WriteImm => {
                    let len = len.next_multiple_of(8);
                    block_end += len;
                    (block_end - len, len)
                }
            };
            let mut flags = SendFlags::empty();
            let last = seq + 1 == self.ops;
            if !last && unsignalled < self.depth / 2 && rng.chance(self.unsignalled_ppm) {
                unsignalled += 1;
            } else {
                unsignalled = 0;
                flags |= SendFlags::SIGNALED;
            }
            if rng.chance(self.fence_ppm) {
                flags |= SendFlags::FENCE;
            }
            let inline = len <= 32 && matches!(kind, Kind::Write | Kind::Send) && rng.below(2) == 0;
            let with_imm = kind == Kind::WriteImm || kind == Kind::Send && rng.below(3) == 0;
            Op {
                id: u64::from(self.tag) << 48 | (seq as u64 + 1),
                seq,
                kind,
                offset,
                len,
                flags,
                inline,
                with_imm,
            }
        });
        ops.collect()
    }

    /// Bytes of a receive buffer, or of the place where an operation's local bytes are.
    pub(crate) fn stage_len(&self) -> usize {
        self.max_len.max(64).next_multiple_of(8)
    }
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// Its name: unique, never 0.
    pub id: u64,
    /// Its place in the order of posting, from 0.
    pub seq: usize,
    /// What it is.
    pub kind: Kind,
    /// Where in the peer's memory it works.
    pub offset: usize,
    /// How many bytes.
    pub len: usize,
    /// How it is posted.
    pub flags: SendFlags,
    /// Whether its bytes are in the request.
    pub inline: bool,
    /// Whether it carries its sequence number as immediate data.
    pub with_imm: bool,
}

/// Counters that FAAs step.
pub(crate) const COUNTERS: usize = 4;
/// Bytes that READs read and nobody writes.
pub(crate) const STABLE: usize = 16 * 1024;
/// The id under whose pattern these bytes stand.
pub(crate) const STABLE_ID: u64 = 0x5ab1e;

/// Where things are in the memory of the end that serves a plan: a word for each operation, counters, the stable
/// bytes, a place for each block, then receive buffers. All of it is the peer's; behind it is what this end needs for
/// its own operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) ops: usize,
    pub(crate) receives_at: usize,
    pub(crate) receive_len: usize,
    pub(crate) end: usize,
}

impl Layout {
    pub(crate) fn of(plan: &Plan, ops: &[Op]) -> Layout {
        let blocks = ops.iter().filter(|o| matches!(o.kind, Kind::Block | Kind::WriteImm));
        let receives_at = Layout::blocks_at(plan.ops) + blocks.map(|o| o.len).sum::<usize>();
        let receive_len = plan.stage_len();
        let end = receives_at + plan.receives * receive_len;
        Layout { ops: plan.ops, receives_at, receive_len, end }
    }

    pub(crate) fn slot(seq: usize) -> usize {
        seq * 8
    }

    pub(crate) fn counter(ops: usize, number: usize) -> usize {
        (ops + number) * 8
    }

    pub(crate) fn stable_at(ops: usize) -> usize {
        (ops + COUNTERS) * 8
    }

    pub(crate) fn blocks_at(ops: usize) -> usize {
        Layout::stable_at(ops) + STABLE
    }
}

/// The word at a position of an operation's content.
pub(crate) fn word(id: u64, position: usize) -> u64 {
    let x =
        id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (position as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 32) | 1
}

/// Fills `out` with the content that starts at byte `from` of the pattern of `id`.
pub(crate) fn pattern(id: u64, from: usize, out: &mut [u8]) {
    let mut at = from;
    let mut rest = out;
    while !rest.is_empty() {
        let bytes = word(id, at / 8).to_le_bytes();
        let n = (8 - at % 8).min(rest.len());
        let (head, tail) = rest.split_at_mut(n);
        head.copy_from_slice(&bytes[at % 8..at % 8 + n]);
        rest = tail;
        at += n;
    }
}

/// What an operation writes or sends: its pattern, and its id in front (SEND) or at the end (blocks), or nothing but
/// its id.
pub(crate) fn content(op: &Op) -> Vec<u8> {
    let mut out = vec![0; op.len];
    let id = op.id.to_ne_bytes();
    match op.kind {
        Kind::Send => {
            pattern(op.id, 0, &mut out);
            out[..8].copy_from_slice(&id);
        }
        Kind::Block | Kind::WriteImm => {
            pattern(op.id, 0, &mut out);
            out[op.len - 8..].copy_from_slice(&id);
        }
        _ => out[..8].copy_from_slice(&id),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_repeat_and_hold_all_kinds() {
        let plan = Plan::new(5, 300);
        let ops = plan.ops();
        assert_eq!(ops, plan.ops());
        for kind in Kind::ALL {
            assert!(ops.iter().any(|o| o.kind == kind), "{kind:?}");
        }
        assert!(ops.last().unwrap().flags.contains(SendFlags::SIGNALED));
        let most = ops.split(|o| o.flags.contains(SendFlags::SIGNALED)).map(<[Op]>::len).max();
        assert!(most <= Some(plan.depth / 2));
        assert!(Plan::new(5, 50).only(&[Kind::Read]).ops().iter().all(|o| o.kind == Kind::Read));
    }

    #[test]
    fn places_do_not_overlap_and_words_are_aligned() {
        let plan = Plan::new(9, 200);
        let ops = plan.ops();
        let layout = Layout::of(&plan, &ops);
        let mut used = vec![false; layout.end];
        for op in &ops {
            assert!(op.offset + op.len <= layout.receives_at.max(op.len));
            match op.kind {
                Kind::Read => {
                    assert!(
                        op.offset >= Layout::stable_at(200) && op.offset + op.len <= Layout::blocks_at(200)
                    );
                }
                Kind::Send => {}
                Kind::FetchAdd => assert!(op.offset >= 1600 && op.offset < 1600 + 8 * COUNTERS),
                _ => {
                    assert!(op.offset % 8 == 0 && op.len % 8 == 0);
                    assert!(!used[op.offset..op.offset + op.len].contains(&true), "{op:?}");
                    used[op.offset..op.offset + op.len].fill(true);
                }
            }
        }
    }

    #[test]
    fn patterns_can_be_read_from_anywhere() {
        let mut whole = [0; 100];
        pattern(7, 0, &mut whole);
        for from in 0..60 {
            let mut part = [0; 33];
            pattern(7, from, &mut part);
            assert_eq!(part, whole[from..from + 33]);
        }
        let mut other = [0; 100];
        pattern(8, 0, &mut other);
        assert!(whole.iter().zip(other).filter(|(a, b)| *a == b).count() < 10);
    }
}
