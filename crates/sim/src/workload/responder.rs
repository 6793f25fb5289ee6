//! Serves a peer's operations as a program would: consumes, checks, resets, writes down.

use std::sync::Arc;

use mitra_verbs::{Buffer, Error, Mr, RecvWr};

use super::plan::{COUNTERS, STABLE, STABLE_ID, content, pattern};
use super::{Done, Ending, Endpoint, Kind, Layout, Op, Plan, RECEIVE};

/// What one end saw of its peer's operations.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Seen {
    /// Flags and swapped words, as they were consumed: operation by its place in memory, value.
    pub words: Vec<(usize, u64)>,
    /// Blocks, as their last word was found: operation, whether the content was whole.
    pub blocks: Vec<(usize, bool)>,
    /// What was received, in order.
    pub received: Vec<Received>,
    /// Receives that ended without a message.
    pub receives_failed: usize,
    /// The counters at the end.
    pub counters: [u64; COUNTERS],
    /// Blocks in which something was written after they were consumed.
    pub overwritten: Vec<usize>,
    /// Blocks that were never whole, but of which something was written.
    pub partial: Vec<usize>,
    /// Bytes that nobody should write, but somebody did.
    pub strays: usize,
}

/// A message that was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Received {
    /// Which operation of the peer's it was, from 0; none if it was no message of the plan.
    pub seq: Option<usize>,
    /// Whether content, length and immediate data were right.
    pub whole: bool,
}

/// What a consumed block is filled with.
const SCRIBBLE: u8 = 0xee;
/// How many operations beyond the oldest unconsumed one are looked at each turn.
const WINDOW: usize = 96;

pub(super) struct Responder {
    plan: Plan,
    ops: Vec<Op>,
    layout: Layout,
    memory: Arc<Buffer>,
    local: Option<Mr>,
    /// Whether each operation's word or block was consumed.
    consumed: Vec<bool>,
    oldest: usize,
    to_post: Vec<usize>,
    stopped: bool,
    pub(super) seen: Seen,
}

impl Responder {
    /// Bytes of memory that serving a plan needs, from offset 0 on.
    pub(super) fn memory_len(plan: &Plan) -> usize {
        Layout::of(plan, &plan.ops()).end
    }

    pub(super) fn new(plan: &Plan, memory: Arc<Buffer>) -> Responder {
        let ops = plan.ops();
        let layout = Layout::of(plan, &ops);
        let mut stable = vec![0; STABLE];
        pattern(STABLE_ID, 0, &mut stable);
        memory.write_at(Layout::stable_at(plan.ops), &stable);
        Responder {
            plan: plan.clone(),
            consumed: vec![false; ops.len()],
            ops,
            layout,
            memory,
            local: None,
            oldest: 0,
            to_post: (0..plan.receives).rev().collect(),
            stopped: false,
            seen: Seen::default(),
        }
    }

    pub(super) fn connect(&mut self, local: Mr) {
        self.local = Some(local);
    }

    /// Posts receives that are due; how many.
    pub(super) fn post_receives(&mut self, endpoint: &mut impl Endpoint) -> usize {
        let Some(local) = self.local else { return 0 };
        let mut n = 0;
        while !self.stopped
            && let Some(&place) = self.to_post.last()
        {
            let at = self.layout.receives_at + place * self.layout.receive_len;
            let sge = local.sge(at as u64, self.layout.receive_len as u32);
            match endpoint.post_recv(RecvWr::new(RECEIVE | place as u64, sge)) {
                Ok(()) => {
                    self.to_post.pop();
                    n += 1;
                }
                Err(e) => {
                    self.stopped = !matches!(e.error, Error::QueueFull { .. });
                    break;
                }
            }
        }
        n
    }

    /// A receive has ended.
    pub(super) fn done(&mut self, done: Done) {
        let place = (done.wr_id & !RECEIVE) as usize;
        // Of a message whose arrival is certain, only the length may be unknown.
        let sized = done.ending == Ending::Success;
        if !sized && done.ending != Ending::Executed {
            self.seen.receives_failed += 1;
            return;
        }
        let at = self.layout.receives_at + place * self.layout.receive_len;
        let len = (done.byte_len as usize).min(self.layout.receive_len);
        let by_imm = done.imm.map(|imm| imm as usize).filter(|&seq| seq < self.ops.len());
        let received = match by_imm {
            Some(seq) if self.ops[seq].kind == Kind::WriteImm => {
                let whole =
                    self.consume_block(seq) && (!sized || done.byte_len as usize == self.ops[seq].len);
                Received { seq: Some(seq), whole }
            }
            _ => {
                let mut bytes = vec![0; len];
                self.memory.read_at(at, &mut bytes);
                let id = bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b));
                let seq = (id & 0xffff_ffff_ffff).wrapping_sub(1) as usize;
                let op = self.ops.get(seq).filter(|op| op.id == id && op.kind == Kind::Send);
                let whole = op.is_some_and(|op| bytes == content(op) && by_imm == op.with_imm.then_some(seq));
                Received { seq: op.map(|op| op.seq), whole }
            }
        };
        self.seen.received.push(received);
        // The application has read it: what is written here from now on belongs to another message.
        self.memory.write_at(at, &vec![SCRIBBLE; len.max(8)]);
        self.to_post.insert(0, place);
    }

    /// Looks for what has arrived; how much.
    pub(super) fn scan(&mut self) -> usize {
        while self.oldest < self.ops.len() && (self.consumed[self.oldest] || !self.is_polled(self.oldest)) {
            self.oldest += 1;
        }
        let end = (self.oldest + WINDOW).min(self.ops.len());
        (self.oldest..end).filter(|&seq| self.look(seq)).count()
    }

    /// Whether the CPU polls memory for this operation.
    fn is_polled(&self, seq: usize) -> bool {
        match self.ops[seq].kind {
            Kind::Write | Kind::CompareSwap => true,
            Kind::Block => self.plan.ordered,
            _ => false,
        }
    }

    fn look(&mut self, seq: usize) -> bool {
        let op = self.ops[seq];
        match op.kind {
            Kind::Write | Kind::CompareSwap => {
                if self.memory.load(op.offset) == 0 {
                    return false;
                }
                let value = self.memory.swap(op.offset, 0);
                self.seen.words.push((seq, value));
                self.consumed[seq] = true;
                true
            }
            Kind::Block if self.plan.ordered && self.memory.load(op.offset + op.len - 8) == op.id => {
                let whole = self.consume_block(seq);
                self.seen.blocks.push((seq, whole));
                true
            }
            _ => false,
        }
    }

    /// Reads a block and scribbles over it; whether it was whole.
    fn consume_block(&mut self, seq: usize) -> bool {
        let op = self.ops[seq];
        let whole = self.bytes(op.offset, op.len) == content(&op);
        self.memory.write_at(op.offset, &vec![SCRIBBLE; op.len]);
        self.consumed[seq] = true;
        whole
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_at(offset, &mut bytes);
        bytes
    }

    /// The last look at everything, when nothing can arrive any more.
    pub(super) fn sweep(&mut self) {
        for seq in 0..self.ops.len() {
            let op = self.ops[seq];
            self.look(seq);
            if !matches!(op.kind, Kind::Block | Kind::WriteImm) {
                continue;
            }
            let bytes = self.bytes(op.offset, op.len);
            if self.consumed[seq] {
                if bytes.iter().any(|&b| b != SCRIBBLE) {
                    self.seen.overwritten.push(seq);
                }
            } else if op.kind == Kind::Block && bytes == content(&op) {
                self.consume_block(seq);
                self.seen.blocks.push((seq, true));
            } else if bytes.iter().any(|&b| b != 0) {
                self.seen.partial.push(seq);
            }
        }
        for (number, counter) in self.seen.counters.iter_mut().enumerate() {
            *counter = self.memory.load(Layout::counter(self.layout.ops, number));
        }
        let mut stable = vec![0; STABLE];
        pattern(STABLE_ID, 0, &mut stable);
        let now = self.bytes(Layout::stable_at(self.layout.ops), STABLE);
        self.seen.strays = now.iter().zip(&stable).filter(|(a, b)| a != b).count();
        // Words that belong to operations of other kinds are nobody's.
        for op in self.ops.iter().filter(|o| !matches!(o.kind, Kind::Write | Kind::CompareSwap)) {
            self.seen.strays += usize::from(self.memory.load(Layout::slot(op.seq)) != 0);
        }
    }
}
