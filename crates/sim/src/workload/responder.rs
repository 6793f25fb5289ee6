//! The responder: serves the peer's operations as a program would, by consuming, checking, resetting and
//! logging them.

use std::sync::Arc;

use mitra_verbs::{Buffer, Error, Mr, RecvWr};

use super::plan::{COUNTERS, STABLE, STABLE_ID, content, pattern};
use super::{Endpoint, EndpointCompletion, MemoryLayout, Op, OpKind, Plan, RECV_WR_FLAG, ReportedOutcome};

/// The log of one end's observations of its peer's operations.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ResponderLog {
    /// Flags and swapped words, in the order of consumption: the operation to which the address belongs, and
    /// the value.
    pub words: Vec<(usize, u64)>,
    /// Blocks, in the order in which their last word appeared: the operation, and whether the content was
    /// intact.
    pub blocks: Vec<(usize, bool)>,
    /// Received messages, in order.
    pub received: Vec<Received>,
    /// The number of receives that ended without a message.
    pub receives_failed: usize,
    /// The final counters.
    pub counters: [u64; COUNTERS],
    /// Blocks that changed after they were consumed.
    pub overwritten: Vec<usize>,
    /// Blocks that were never complete, but changed.
    pub partial: Vec<usize>,
    /// The number of bytes that changed although no operation writes them.
    pub strays: usize,
}

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Received {
    /// The operation, or `None` if the message is not in the plan.
    pub seq: Option<usize>,
    /// Whether content, length and immediate data were correct.
    pub intact: bool,
}

/// The byte that fills a consumed block.
const CONSUMED_FILL: u8 = 0xee;
/// The number of operations, from the oldest unconsumed one, that each turn scans.
const SCAN_WINDOW: usize = 96;

pub(super) struct Responder {
    plan: Plan,
    ops: Vec<Op>,
    layout: MemoryLayout,
    memory: Arc<Buffer>,
    local: Option<Mr>,
    /// Whether each operation's word or block was consumed.
    consumed: Vec<bool>,
    first_unconsumed: usize,
    unposted: Vec<usize>,
    posting_failed: bool,
    pub(super) responder_log: ResponderLog,
}

impl Responder {
    /// Returns the memory that serving a plan needs, in bytes from offset 0.
    pub(super) fn memory_len(plan: &Plan) -> usize {
        MemoryLayout::of(plan, &plan.ops()).end
    }

    pub(super) fn new(plan: &Plan, memory: Arc<Buffer>) -> Responder {
        let ops = plan.ops();
        let layout = MemoryLayout::of(plan, &ops);
        let mut read_area = vec![0; STABLE];
        pattern(STABLE_ID, 0, &mut read_area);
        memory.write_at(MemoryLayout::stable_at(plan.ops), &read_area);
        Responder {
            plan: plan.clone(),
            consumed: vec![false; ops.len()],
            ops,
            layout,
            memory,
            local: None,
            first_unconsumed: 0,
            unposted: (0..plan.receives).rev().collect(),
            posting_failed: false,
            responder_log: ResponderLog::default(),
        }
    }

    pub(super) fn connect(&mut self, local: Mr) {
        self.local = Some(local);
    }

    /// Posts free receive buffers, and returns how many.
    pub(super) fn post_receives(&mut self, endpoint: &mut impl Endpoint) -> usize {
        let Some(local) = self.local else { return 0 };
        let mut n = 0;
        while !self.posting_failed
            && let Some(&slot) = self.unposted.last()
        {
            let at = self.layout.receives_at + slot * self.layout.receive_len;
            let sge = local.sge(at as u64, self.layout.receive_len as u32);
            match endpoint.post_recv(RecvWr::new(RECV_WR_FLAG | slot as u64, sge)) {
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

    /// Handles the completion of a receive.
    pub(super) fn handle_completion(&mut self, handle_completion: EndpointCompletion) {
        let slot = (handle_completion.wr_id & !RECV_WR_FLAG) as usize;
        // A message that certainly arrived may have an unknown length.
        let has_length = handle_completion.outcome == ReportedOutcome::Success;
        if !has_length && handle_completion.outcome != ReportedOutcome::Executed {
            self.responder_log.receives_failed += 1;
            return;
        }
        let at = self.layout.receives_at + slot * self.layout.receive_len;
        let len = (handle_completion.byte_len as usize).min(self.layout.receive_len);
        let by_imm = handle_completion.imm.map(|imm| imm as usize).filter(|&seq| seq < self.ops.len());
        let received = match by_imm {
            Some(seq) if self.ops[seq].kind == OpKind::WriteImm => {
                let intact = self.consume_block(seq)
                    && (!has_length || handle_completion.byte_len as usize == self.ops[seq].len);
                Received { seq: Some(seq), intact }
            }
            _ => {
                let mut bytes = vec![0; len];
                self.memory.read_at(at, &mut bytes);
                let id = bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
                let seq = (id & 0xffff_ffff_ffff).wrapping_sub(1) as usize;
                let op = self.ops.get(seq).filter(|op| op.id == id && op.kind == OpKind::Send);
                let intact =
                    op.is_some_and(|op| bytes == content(op) && by_imm == op.with_imm.then_some(seq));
                Received { seq: op.map(|op| op.seq), intact }
            }
        };
        self.responder_log.received.push(received);
        // The buffer is free now, so later changes of it belong to another message.
        self.memory.write_at(at, &vec![CONSUMED_FILL; len.max(8)]);
        self.unposted.insert(0, slot);
    }

    /// Consumes operations that have arrived, and returns how many.
    pub(super) fn scan(&mut self) -> usize {
        while self.first_unconsumed < self.ops.len()
            && (self.consumed[self.first_unconsumed] || !self.is_polled(self.first_unconsumed))
        {
            self.first_unconsumed += 1;
        }
        let end = (self.first_unconsumed + SCAN_WINDOW).min(self.ops.len());
        (self.first_unconsumed..end).filter(|&seq| self.try_consume(seq)).count()
    }

    /// Returns whether the program polls memory for this operation.
    fn is_polled(&self, seq: usize) -> bool {
        match self.ops[seq].kind {
            OpKind::Write | OpKind::CompareSwap => true,
            OpKind::Block => self.plan.ordered,
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
            OpKind::Block if self.plan.ordered && self.memory.load(op.offset + op.len - 8) == op.id => {
                let intact = self.consume_block(seq);
                self.responder_log.blocks.push((seq, intact));
                true
            }
            _ => false,
        }
    }

    /// Reads a block and overwrites it. Returns whether the content was intact.
    fn consume_block(&mut self, seq: usize) -> bool {
        let op = self.ops[seq];
        let intact = self.bytes(op.offset, op.len) == content(&op);
        self.memory.write_at(op.offset, &vec![CONSUMED_FILL; op.len]);
        self.consumed[seq] = true;
        intact
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_at(offset, &mut bytes);
        bytes
    }

    /// Checks all memory a last time, when nothing can arrive any more.
    pub(super) fn sweep(&mut self) {
        for seq in 0..self.ops.len() {
            let op = self.ops[seq];
            self.try_consume(seq);
            if !matches!(op.kind, OpKind::Block | OpKind::WriteImm) {
                continue;
            }
            let bytes = self.bytes(op.offset, op.len);
            if self.consumed[seq] {
                if bytes.iter().any(|&b| b != CONSUMED_FILL) {
                    self.responder_log.overwritten.push(seq);
                }
            } else if op.kind == OpKind::Block && bytes == content(&op) {
                self.consume_block(seq);
                self.responder_log.blocks.push((seq, true));
            } else if bytes.iter().any(|&b| b != 0) {
                self.responder_log.partial.push(seq);
            }
        }
        for (number, counter) in self.responder_log.counters.iter_mut().enumerate() {
            *counter = self.memory.load(MemoryLayout::counter(self.layout.ops, number));
        }
        let mut read_area = vec![0; STABLE];
        pattern(STABLE_ID, 0, &mut read_area);
        let now = self.bytes(MemoryLayout::stable_at(self.layout.ops), STABLE);
        self.responder_log.strays = now.iter().zip(&read_area).filter(|(a, b)| a != b).count();
        // The words of operations of other kinds must stay 0.
        for op in self.ops.iter().filter(|o| !matches!(o.kind, OpKind::Write | OpKind::CompareSwap)) {
            self.responder_log.strays += usize::from(self.memory.load(MemoryLayout::slot(op.seq)) != 0);
        }
    }
}
