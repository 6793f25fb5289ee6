//! The responder: consumes, checks, resets and logs the effects of the peer's operations, like a
//! program.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mitra_verbs::{Buffer, Error, Mr, RecvWr};

use super::plan::{COUNTERS, STABLE, STABLE_ID, content, cut, is_filled_with, pattern, read};
use super::{Endpoint, EndpointCompletion, MemoryLayout, Op, OpKind, Plan, RECV_WR_FLAG, ReportedOutcome};

/// The effects of its peer's operations that one end observed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ResponderLog {
    /// The consumed words of WRITEs and compare-and-swaps, in the order of consumption: the
    /// operation that the address of the word belongs to, and the value of the word.
    pub words: Vec<(usize, u64)>,
    /// The consumed blocks, in the order of consumption, and whether their content was correct.
    pub blocks: Vec<(usize, bool)>,
    /// The received messages, in the order of their completions.
    pub received: Vec<Received>,
    /// The number of receives that completed without a message.
    pub receives_failed: usize,
    /// The values of the counters at the end.
    pub counters: [u64; COUNTERS],
    /// The operations whose block changed after it was consumed.
    pub overwritten: Vec<usize>,
    /// The operations whose block changed but was never complete.
    pub partial: Vec<usize>,
    /// The number of changed bytes of the READ area, plus the number of changed words that no
    /// operation writes.
    pub strays: usize,
}

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Received {
    /// The operation, or `None` if the message is not in the plan.
    pub seq: Option<usize>,
    /// Whether the content, the length and the immediate data were correct.
    pub intact: bool,
}

/// The byte that fills consumed blocks and received messages.
const CONSUMED_FILL: u8 = 0xee;
/// The number of operations that each turn scans, beginning with the first unconsumed operation.
const SCAN_WINDOW: usize = 96;

/// The number of incomplete blocks that each turn consumes by word. Operations are executed in
/// posting order, so the first blocks suffice.
const BLOCKS_BY_WORD: usize = 3;

fn read_area() -> Vec<u8> {
    let mut bytes = vec![0; STABLE];
    pattern(STABLE_ID, 0, &mut bytes);
    bytes
}

struct BlockProgress {
    consumed: Vec<bool>,
    left: usize,
    intact: bool,
}

pub(super) struct Responder {
    plan: Plan,
    ops: Vec<Op>,
    layout: MemoryLayout,
    memory: Arc<Buffer>,
    pub(super) local: Option<Mr>,
    consumed: Vec<bool>,
    first_unconsumed: usize,
    /// The words of incomplete blocks that were consumed, by operation.
    partial_blocks: BTreeMap<usize, BlockProgress>,
    /// The receive buffers that are not posted. The last one is posted next.
    unposted: Vec<usize>,
    /// Set when a receive was refused although the queue had room. Nothing is posted afterwards.
    posting_failed: bool,
    /// The number of changes of the memory by NICs. Without this counter, each turn scans the
    /// memory.
    pub(super) changes: Option<Arc<AtomicU64>>,
    /// The number of changes at the last scan. `None` if that scan found something, or if what is
    /// scanned has changed since. The next turn then scans again.
    scanned: Option<u64>,
    pub(super) responder_log: ResponderLog,
}

impl Responder {
    pub(super) fn new(plan: &Plan, ops: Vec<Op>, memory: Arc<Buffer>) -> Responder {
        let layout = MemoryLayout::of(plan, &ops);
        memory.write_at(MemoryLayout::stable_at(plan.ops), &read_area());
        Responder {
            plan: plan.clone(),
            // A block without data has no effect to wait for.
            consumed: ops.iter().map(|op| op.kind == OpKind::Block && op.len == 0).collect(),
            ops,
            layout,
            memory,
            local: None,
            first_unconsumed: 0,
            partial_blocks: BTreeMap::new(),
            unposted: (0..plan.receives).rev().collect(),
            posting_failed: false,
            changes: None,
            scanned: None,
            responder_log: ResponderLog::default(),
        }
    }

    /// Posts the free receive buffers until the queue is full. Returns the number of posted
    /// buffers.
    pub(super) fn post_receives(&mut self, endpoint: &mut impl Endpoint) -> usize {
        let Some(local) = self.local else { return 0 };
        let mut n = 0;
        while !self.posting_failed
            && let Some(&slot) = self.unposted.last()
        {
            let at = self.layout.receives_at + slot * self.layout.receive_len;
            let sges = cut(&local, at, self.layout.receive_len, 1 + slot % self.plan.sges.max(1));
            match endpoint.post_recv(RecvWr { wr_id: RECV_WR_FLAG | slot as u64, sges }) {
                Ok(()) => {
                    self.unposted.pop();
                    n += 1;
                }
                Err(e) => {
                    self.posting_failed = !matches!(e.error, Error::QueueFull { .. });
                    break;
                }
            }
        }
        n
    }

    pub(super) fn handle_completion(&mut self, completion: EndpointCompletion) {
        self.scanned = None;
        let slot = (completion.wr_id & !RECV_WR_FLAG) as usize;
        // With the outcome `Executed`, the message has arrived but its length is unknown.
        let has_length = completion.outcome == ReportedOutcome::Success;
        if !has_length && completion.outcome != ReportedOutcome::Executed {
            self.responder_log.receives_failed += 1;
            return;
        }
        let at = self.layout.receives_at + slot * self.layout.receive_len;
        let len = (completion.byte_len as usize).min(self.layout.receive_len);
        let by_imm = completion.imm.map(|imm| imm as usize).filter(|&seq| seq < self.ops.len());
        let received = match by_imm {
            Some(seq) if self.ops[seq].kind == OpKind::WriteImm => {
                let intact = self.consume_block(seq)
                    && (!has_length || completion.byte_len as usize == self.ops[seq].len);
                Received { seq: Some(seq), intact }
            }
            _ => {
                let bytes = read(&self.memory, at, len);
                let id = bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
                // An empty message carries no id. Its immediate data identify the operation.
                let id = if len == 0 { by_imm.map_or(0, |seq| self.ops[seq].id) } else { id };
                let seq = (id & 0xffff_ffff_ffff).wrapping_sub(1) as usize;
                let op = self.ops.get(seq).filter(|op| op.id == id && op.kind == OpKind::Send);
                let intact =
                    op.is_some_and(|op| bytes == content(op) && by_imm == op.with_imm.then_some(seq));
                Received { seq: op.map(|op| op.seq), intact }
            }
        };
        self.responder_log.received.push(received);
        // The fill replaces the message. Otherwise a later receive whose data did not arrive would
        // look like this message.
        self.memory.write_at(at, &vec![CONSUMED_FILL; len.max(8)]);
        self.unposted.insert(0, slot);
    }

    pub(super) fn scan(&mut self) -> usize {
        let changes = self.changes.as_ref().map(|changes| changes.load(Ordering::Relaxed));
        if self.scanned.is_some() && self.scanned == changes {
            return 0;
        }
        let strays = self.responder_log.strays;
        let found = self.scan_memory();
        // A scan that finds nothing would find nothing again. The exception is a wrong block, which
        // each scan counts in `strays`.
        self.scanned = changes.filter(|_| found == 0 && self.responder_log.strays == strays);
        found
    }

    fn scan_memory(&mut self) -> usize {
        while self.first_unconsumed < self.ops.len()
            && (self.consumed[self.first_unconsumed] || !self.is_polled(self.first_unconsumed))
        {
            self.first_unconsumed += 1;
        }
        if self.plan.consumes_late {
            return 0;
        }
        let end = (self.first_unconsumed + SCAN_WINDOW).min(self.ops.len());
        let mut n = (self.first_unconsumed..end).filter(|&seq| self.try_consume(seq)).count();
        if self.plan.by_word || self.plan.imm_by_word {
            let blocks = (self.first_unconsumed..end).filter(|&seq| self.is_incomplete_block(seq));
            for seq in blocks.take(BLOCKS_BY_WORD).collect::<Vec<_>>() {
                n += self.consume_words(seq);
            }
        }
        n
    }

    fn is_polled(&self, seq: usize) -> bool {
        match self.ops[seq].kind {
            OpKind::Write | OpKind::CompareSwap => true,
            OpKind::Block => self.plan.ordered || self.plan.by_word,
            OpKind::WriteImm => self.plan.imm_by_word,
            _ => false,
        }
    }

    fn try_consume(&mut self, seq: usize) -> bool {
        let op = self.ops[seq];
        match op.kind {
            OpKind::Write | OpKind::CompareSwap => {
                if self.memory.load(op.offset) == 0 {
                    return false;
                }
                let value = self.memory.swap(op.offset, 0);
                self.responder_log.words.push((seq, value));
                self.consumed[seq] = true;
                true
            }
            OpKind::Block
                if self.plan.ordered
                    && op.len > 0
                    && !self.plan.by_word
                    && self.memory.load(op.offset + op.len - 8) == op.id =>
            {
                let intact = self.consume_block(seq);
                self.responder_log.blocks.push((seq, intact));
                true
            }
            _ => false,
        }
    }

    /// Reads and overwrites the unconsumed words of a block. Returns whether the content was
    /// correct.
    fn consume_block(&mut self, seq: usize) -> bool {
        let op = self.ops[seq];
        if self.partial_blocks.contains_key(&seq) {
            self.consume_words(seq);
        }
        let intact = match self.partial_blocks.remove(&seq) {
            Some(progress) => progress.intact && progress.left == 0,
            None => read(&self.memory, op.offset, op.len) == content(&op),
        };
        self.memory.write_at(op.offset, &vec![CONSUMED_FILL; op.len]);
        self.consumed[seq] = true;
        intact
    }

    /// Returns whether the words of an operation are consumed one by one, and some of these words
    /// are not consumed yet.
    fn is_incomplete_block(&self, seq: usize) -> bool {
        let is_by_word = match self.ops[seq].kind {
            OpKind::Block => self.plan.by_word,
            OpKind::WriteImm => self.plan.imm_by_word,
            _ => false,
        };
        is_by_word
            && !self.consumed[seq]
            && self.partial_blocks.get(&seq).is_none_or(|progress| progress.left > 0)
    }

    /// Consumes the words of a block that have arrived since the last call. Returns their number.
    fn consume_words(&mut self, seq: usize) -> usize {
        let op = self.ops[seq];
        let bytes = read(&self.memory, op.offset, op.len);
        if !self.partial_blocks.contains_key(&seq) && is_filled_with(0, &bytes) {
            return 0;
        }
        let words = op.len / 8;
        let progress = self.partial_blocks.entry(seq).or_insert_with(|| BlockProgress {
            consumed: vec![false; words],
            left: words,
            intact: true,
        });
        let want = content(&op);
        let before = progress.left;
        for (i, (found, want)) in bytes.chunks_exact(8).zip(want.chunks_exact(8)).enumerate() {
            let expected_now: &[u8] = if progress.consumed[i] { &[CONSUMED_FILL; 8] } else { &[0; 8] };
            if found == expected_now {
                continue;
            }
            self.memory.write_at(op.offset + i * 8, &[CONSUMED_FILL; 8]);
            progress.intact &= found == want;
            if core::mem::replace(&mut progress.consumed[i], true) {
                self.responder_log.overwritten.push(seq);
            } else {
                progress.left -= 1;
            }
        }
        let consumed = before - progress.left;
        if progress.left == 0 {
            if op.kind == OpKind::WriteImm {
                return consumed; // its notification consumes the block
            }
            self.responder_log.blocks.push((seq, progress.intact));
            self.consumed[seq] = true;
            self.partial_blocks.remove(&seq);
        } else if !progress.intact {
            // The block may stay incomplete for ever, so the wrong word is counted now.
            self.responder_log.strays += 1;
        }
        consumed
    }

    /// Returns whether memory shows the effect of an operation. Also returns true for operations
    /// whose effects memory does not show.
    pub(super) fn has_effect(&self, seq: usize) -> bool {
        let op = self.ops[seq];
        match op.kind {
            _ if self.consumed[seq] => true,
            OpKind::Write | OpKind::CompareSwap => self.memory.load(op.offset) == op.id,
            OpKind::Block => {
                let (bytes, want) = (read(&self.memory, op.offset, op.len), content(&op));
                let progress = self.partial_blocks.get(&seq);
                let consumed = |i: usize| progress.is_some_and(|p| p.consumed[i]);
                let mut words = bytes.chunks_exact(8).zip(want.chunks_exact(8)).enumerate();
                words.all(|(i, (found, want))| found == want || consumed(i))
            }
            _ => true,
        }
    }

    /// The caller makes sure that nothing is in flight any more.
    pub(super) fn sweep(&mut self) {
        for seq in 0..self.ops.len() {
            let op = self.ops[seq];
            self.try_consume(seq);
            let is_by_word = self.partial_blocks.contains_key(&seq) || self.is_incomplete_block(seq);
            if is_by_word && !self.consumed[seq] {
                self.consume_words(seq);
            }
            if !matches!(op.kind, OpKind::Block | OpKind::WriteImm) {
                continue;
            }
            let bytes = read(&self.memory, op.offset, op.len);
            if self.consumed[seq] {
                if !is_filled_with(CONSUMED_FILL, &bytes) {
                    self.responder_log.overwritten.push(seq);
                }
            } else if op.kind == OpKind::Block && bytes == content(&op) {
                self.consume_block(seq);
                self.responder_log.blocks.push((seq, true));
            } else if !is_filled_with(0, &bytes) {
                self.responder_log.partial.push(seq);
            }
        }
        for (number, counter) in self.responder_log.counters.iter_mut().enumerate() {
            *counter = self.memory.load(MemoryLayout::counter(self.layout.ops, number));
        }
        let found = read(&self.memory, MemoryLayout::stable_at(self.layout.ops), STABLE);
        self.responder_log.strays += found.iter().zip(&read_area()).filter(|(a, b)| a != b).count();
        // No operation writes the words of operations of other kinds, so these words must still be
        // 0.
        for op in self.ops.iter().filter(|o| !matches!(o.kind, OpKind::Write | OpKind::CompareSwap)) {
            self.responder_log.strays += usize::from(self.memory.load(MemoryLayout::slot(op.seq)) != 0);
        }
    }
}
