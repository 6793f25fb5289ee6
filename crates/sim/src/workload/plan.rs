//! The operations of a workload, drawn from a seed. The requester, the responder and the verdict
//! derive the same operations from the same plan.

use mitra_verbs::{Buffer, Mr, SendFlags, SgeList};

use crate::Prng;

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum OpKind {
    /// A WRITE of one 8-byte word. The responder consumes the word as a flag.
    Write,
    /// A WRITE of up to [`Plan::max_len`] bytes. The responder polls its last word.
    Block,
    /// A WRITE with immediate data.
    WriteImm,
    /// A SEND, with or without immediate data.
    Send,
    /// A READ.
    Read,
    /// A fetch-and-add of 1 to a counter.
    FetchAdd,
    /// A compare-and-swap of a word from 0 to the operation's id.
    CompareSwap,
}

impl OpKind {
    /// All kinds.
    pub const ALL: [OpKind; 7] = [
        OpKind::Write,
        OpKind::Block,
        OpKind::WriteImm,
        OpKind::Send,
        OpKind::Read,
        OpKind::FetchAdd,
        OpKind::CompareSwap,
    ];

    /// Returns the name that tables show.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Write => "WRITE",
            OpKind::Block => "WRITE (block)",
            OpKind::WriteImm => "WRITE_IMM",
            OpKind::Send => "SEND",
            OpKind::Read => "READ",
            OpKind::FetchAdd => "FAA",
            OpKind::CompareSwap => "CAS",
        }
    }

    /// Returns whether operations of this kind consume a receive.
    pub const fn is_received(self) -> bool {
        matches!(self, OpKind::Send | OpKind::WriteImm)
    }
}

/// The parameters of a workload, which determine its operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The seed of the operations.
    pub seed: u64,
    /// A part of the id of each operation. Plans of one connection have different tags.
    pub tag: u16,
    /// The number of operations.
    pub ops: usize,
    /// The relative frequency of each kind, in the order of [`OpKind::ALL`].
    pub mix: [u32; 7],
    /// An upper bound on the size of an operation, in bytes. Values below 64 mean 64.
    pub max_len: usize,
    /// The maximum number of operations in flight. At most half of this number are unsignalled in a
    /// row.
    pub depth: usize,
    /// How many operations per million are unsignalled.
    pub unsignalled_ppm: u32,
    /// How many operations per million have the FENCE flag.
    pub fence_ppm: u32,
    /// The number of receive buffers that the responder keeps posted.
    pub receives: usize,
    /// Whether the last word of a block is written last, as with
    /// [`mitra_verbs::Capabilities::write_order`]. If not, the responder checks blocks only in the
    /// final check.
    pub ordered: bool,
    /// How many READs per million read memory that the next operation, a fenced WRITE, overwrites.
    /// Such a READ must return the memory as it was before.
    pub overwritten_read_ppm: u32,
    /// How many READs per million read the last counter and the READ area behind it. The next
    /// operation is a fenced fetch-and-add to that counter. The fetch-and-add needs no data of the
    /// requester, so the NIC may send it while the NIC still places the data of the READ.
    pub counted_read_ppm: u32,
    /// How many SENDs with immediate data, WRITEs with immediate data and READs per million have no
    /// data.
    pub empty_ppm: u32,
    /// Whether the responder consumes each word of a block as soon as the word arrives. A word that
    /// is written again is then noticed even if the block is not complete.
    pub by_word: bool,
    /// Whether the responder also consumes the words of a WRITE with immediate data before it
    /// receives the notification.
    pub imm_by_word: bool,
    /// How many WRITEs of blocks per million have no data, and therefore no effect.
    pub empty_block_ppm: u32,
    /// The longest data that WRITEs and SENDs may carry inline. `None` means 32 bytes, and no
    /// inline data for blocks and WRITEs with immediate data.
    pub inline_limit: Option<usize>,
    /// The maximum number of pieces of local memory that an operation or a receive names, at
    /// least 1.
    pub sges: usize,
    /// Whether the responder consumes the data of WRITEs only in the final check, so that it does
    /// not notice a WRITE that is executed again. Programs that declare their WRITEs repeatable
    /// behave like this.
    pub consumes_late: bool,
}

impl Plan {
    /// Creates a plan with operations of all kinds and default sizes.
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
            overwritten_read_ppm: 0,
            counted_read_ppm: 0,
            empty_ppm: 0,
            by_word: false,
            imm_by_word: false,
            empty_block_ppm: 0,
            inline_limit: None,
            sges: 1,
            consumes_late: false,
        }
    }

    /// Draws a plan with operations of all kinds, with random sizes and depth.
    pub fn draw(rng: &mut Prng, tag: u16, ordered: bool, ops: usize) -> Plan {
        Plan {
            tag,
            ordered,
            depth: rng.between(1, 64) as usize,
            receives: rng.between(1, 64) as usize,
            max_len: 64 << rng.below(9),
            ..Plan::new(rng.bits(), ops)
        }
    }

    /// Restricts the plan to these kinds, with equal frequency.
    pub fn only(mut self, kinds: &[OpKind]) -> Plan {
        for (weight, kind) in self.mix.iter_mut().zip(OpKind::ALL) {
            *weight = u32::from(kinds.contains(&kind));
        }
        self
    }

    /// Returns the operations, in posting order.
    pub fn ops(&self) -> Vec<Op> {
        let rng = &mut Prng::stream(self.seed, "plan");
        let total: u32 = self.mix.iter().sum();
        let mut unsignalled = 0;
        let mut block_end = MemoryLayout::blocks_at(self.ops);
        // The size of the operation after an overwritten READ, which overwrites the memory that the
        // READ reads.
        let mut overwriter_len = None;
        let mut is_counted = false;
        let ops = (0..self.ops).map(|seq| {
            let overwriter = overwriter_len.take();
            let counts_read = core::mem::take(&mut is_counted);
            let mut draw = rng.below(u64::from(total.max(1))) as u32;
            let kind_index = self.mix.iter().position(|&w| {
                let hit = draw < w;
                draw = draw.saturating_sub(w);
                hit
            });
            let drawn_kind = OpKind::ALL[kind_index.unwrap_or(0)];
            let kind = match overwriter {
                _ if counts_read => OpKind::FetchAdd,
                Some(_) => OpKind::Block,
                None => drawn_kind,
            };
            // The power of two is drawn uniformly, so that small and large operations are equally
            // frequent.
            let limit = (self.max_len.max(64) as u64) >> rng.below(6);
            let len = overwriter.unwrap_or(rng.between(16, limit.max(16)) as usize);
            let last = seq + 1 == self.ops;
            let (offset, mut len) = match kind {
                OpKind::Read if !last && rng.chance(self.overwritten_read_ppm) => {
                    let len = len.max(16).next_multiple_of(8);
                    overwriter_len = Some(len);
                    (block_end, len)
                }
                OpKind::Read if !last && rng.chance(self.counted_read_ppm) => {
                    is_counted = true;
                    (MemoryLayout::counter(self.ops, COUNTERS - 1), len.clamp(16, STABLE))
                }
                OpKind::Write | OpKind::CompareSwap => (MemoryLayout::slot(seq), 8),
                OpKind::FetchAdd if counts_read => (MemoryLayout::counter(self.ops, COUNTERS - 1), 8),
                OpKind::FetchAdd => (MemoryLayout::counter(self.ops, rng.index(COUNTERS)), 8),
                OpKind::Read => {
                    let len = len.min(STABLE);
                    (MemoryLayout::stable_at(self.ops) + rng.index(STABLE - len + 1), len)
                }
                OpKind::Send => (0, len),
                OpKind::Block | OpKind::WriteImm => {
                    let len = len.next_multiple_of(8);
                    block_end += len;
                    (block_end - len, len)
                }
            };
            let mut flags = SendFlags::empty();
            if !last && unsignalled < self.depth / 2 && rng.chance(self.unsignalled_ppm) {
                unsignalled += 1;
            } else {
                unsignalled = 0;
                flags |= SendFlags::SIGNALED;
            }
            if overwriter.is_some() || counts_read || rng.chance(self.fence_ppm) {
                flags |= SendFlags::FENCE;
            }
            let may_be_inline = match self.inline_limit {
                None => len <= 32 && matches!(kind, OpKind::Write | OpKind::Send),
                Some(limit) => {
                    len <= limit && !matches!(kind, OpKind::Read | OpKind::FetchAdd | OpKind::CompareSwap)
                }
            };
            let inline = may_be_inline && rng.below(2) == 0;
            let with_imm = kind == OpKind::WriteImm || kind == OpKind::Send && rng.below(3) == 0;
            let can_be_empty = with_imm || kind == OpKind::Read && overwriter_len.is_none() && !is_counted;
            if can_be_empty && rng.chance(self.empty_ppm) {
                if kind == OpKind::WriteImm {
                    block_end -= len;
                }
                len = 0;
            }
            if kind == OpKind::Block && overwriter.is_none() && rng.chance(self.empty_block_ppm) {
                block_end -= len;
                len = 0;
            }
            let is_atomic = matches!(kind, OpKind::FetchAdd | OpKind::CompareSwap);
            let sges = if self.sges > 1 && !is_atomic { 1 + rng.index(self.sges) } else { 1 };
            Op {
                id: u64::from(self.tag) << 48 | (seq as u64 + 1),
                seq,
                kind,
                offset,
                len,
                flags,
                inline,
                sges,
                with_imm,
            }
        });
        ops.collect()
    }

    /// Returns the size of a receive buffer, and of the local buffer of an operation, in bytes.
    pub(crate) fn buffer_len(&self) -> usize {
        self.max_len.max(64).next_multiple_of(8)
    }
}

/// An operation of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// The id, which is unique in the connection and not 0. It is the `wr_id` of the operation.
    pub id: u64,
    /// The position in posting order, from 0.
    pub seq: usize,
    /// The kind.
    pub kind: OpKind,
    /// The offset of the target in the responder's memory. 0 for a SEND.
    pub offset: usize,
    /// The size, in bytes.
    pub len: usize,
    /// The flags of the work request.
    pub flags: SendFlags,
    /// Whether the data is inline.
    pub inline: bool,
    /// The maximum number of pieces of local memory that the work request names.
    pub sges: usize,
    /// Whether the operation carries `seq` as immediate data.
    pub with_imm: bool,
}

impl Op {
    pub(crate) fn has_effect(&self) -> bool {
        self.kind != OpKind::Read && (self.kind != OpKind::Block || self.len > 0)
    }

    /// Returns whether the operation is a READ of the last counter. `ops` is the number of
    /// operations of its plan.
    pub(crate) fn reads_counter(&self, ops: usize) -> bool {
        self.kind == OpKind::Read && self.offset == MemoryLayout::counter(ops, COUNTERS - 1)
    }
}

/// Cuts `len` bytes at `offset` of a region into at most `pieces` pieces of about the same length.
pub(crate) fn cut(mr: &Mr, offset: usize, len: usize, pieces: usize) -> SgeList {
    let piece = len.div_ceil(pieces.max(1)).max(1);
    let mut sges = SgeList::new();
    for at in (0..len.max(1)).step_by(piece) {
        sges.push(mr.sge((offset + at) as u64, piece.min(len - at) as u32));
    }
    sges
}

/// The number of counters. Each fetch-and-add increments one of them.
pub(crate) const COUNTERS: usize = 4;
/// The size in bytes of the READ area, which READs read and no operation writes.
pub(crate) const STABLE: usize = 16 * 1024;
pub(crate) const STABLE_ID: u64 = 0x5ab1e;

/// The memory of the end that serves a plan: a word for each operation, the counters, the READ
/// area, an area for each block and each WRITE with immediate data, and the receive buffers. The
/// local buffers for the end's own operations follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemoryLayout {
    pub(crate) ops: usize,
    pub(crate) receives_at: usize,
    pub(crate) receive_len: usize,
    pub(crate) end: usize,
}

impl MemoryLayout {
    pub(crate) fn of(plan: &Plan, ops: &[Op]) -> MemoryLayout {
        let blocks = ops.iter().filter(|o| matches!(o.kind, OpKind::Block | OpKind::WriteImm));
        let receives_at = MemoryLayout::blocks_at(plan.ops) + blocks.map(|o| o.len).sum::<usize>();
        let receive_len = plan.buffer_len();
        let end = receives_at + plan.receives * receive_len;
        MemoryLayout { ops: plan.ops, receives_at, receive_len, end }
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
        MemoryLayout::stable_at(ops) + STABLE
    }
}

/// Returns one 8-byte word of the pattern of `id`. `position` counts words.
pub(crate) fn word(id: u64, position: usize) -> u64 {
    let x =
        id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (position as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 32) | 1
}

/// Fills `out` with the bytes of the pattern of `id` that begin at byte `from`.
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

pub(crate) fn read(memory: &Buffer, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read_at(offset, &mut bytes);
    bytes
}

pub(crate) fn is_filled_with(value: u8, bytes: &[u8]) -> bool {
    // A fold over a chunk, unlike a search that ends early, compiles to vector instructions.
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |differences, byte| differences | (byte ^ value)) == 0)
}

/// Returns the data of an operation. The data of a SEND are the pattern of the id, with the id in
/// the first 8 bytes. A block or a WRITE with immediate data has the id in the last 8 bytes
/// instead. The other kinds have the id, followed by zeros.
pub(crate) fn content(op: &Op) -> Vec<u8> {
    let mut out = vec![0; op.len];
    if matches!(op.kind, OpKind::Send | OpKind::Block | OpKind::WriteImm) {
        pattern(op.id, 0, &mut out);
    }
    let n = op.len.min(8);
    let at = if matches!(op.kind, OpKind::Block | OpKind::WriteImm) { op.len - n } else { 0 };
    out[at..at + n].copy_from_slice(&op.id.to_ne_bytes()[..n]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_is_deterministic_and_has_all_kinds() {
        let plan = Plan::new(5, 300);
        let ops = plan.ops();
        assert_eq!(ops, plan.ops());
        for kind in OpKind::ALL {
            assert!(ops.iter().any(|o| o.kind == kind), "{kind:?}");
        }
        assert!(ops.last().unwrap().flags.contains(SendFlags::SIGNALED));
        let limit = ops.split(|o| o.flags.contains(SendFlags::SIGNALED)).map(<[Op]>::len).max();
        assert!(limit <= Some(plan.depth / 2));
        assert!(Plan::new(5, 50).only(&[OpKind::Read]).ops().iter().all(|o| o.kind == OpKind::Read));
    }

    #[test]
    fn targets_do_not_overlap_and_are_aligned() {
        let plan = Plan::new(9, 200);
        let ops = plan.ops();
        let layout = MemoryLayout::of(&plan, &ops);
        let mut used = vec![false; layout.end];
        for op in &ops {
            assert!(op.offset + op.len <= layout.receives_at.max(op.len));
            match op.kind {
                OpKind::Read => {
                    assert!(
                        op.offset >= MemoryLayout::stable_at(200)
                            && op.offset + op.len <= MemoryLayout::blocks_at(200)
                    );
                }
                OpKind::Send => {}
                OpKind::FetchAdd => assert!(op.offset >= 1600 && op.offset < 1600 + 8 * COUNTERS),
                _ => {
                    assert!(op.offset % 8 == 0 && op.len % 8 == 0);
                    assert!(!used[op.offset..op.offset + op.len].contains(&true), "{op:?}");
                    used[op.offset..op.offset + op.len].fill(true);
                }
            }
        }
    }

    #[test]
    fn one_other_byte_is_found() {
        let mut bytes = [7; 600];
        assert!(is_filled_with(7, &bytes) && is_filled_with(7, &[]));
        for i in [0, 255, 256, 599] {
            bytes[i] = 6;
            assert!(!is_filled_with(7, &bytes));
            bytes[i] = 7;
        }
    }

    #[test]
    fn pattern_is_consistent_from_any_offset() {
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
