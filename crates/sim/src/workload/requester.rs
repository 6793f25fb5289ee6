//! The requester: posts operations, owns their local buffers, and checks the data, and
//! records the values, that they return.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_verbs::{Buffer, Data, Error, Mr, RemoteAddr, SendFlags, SendOp, SendWr};

use super::plan::{STABLE_ID, content, cut, is_filled_with, pattern, read};
use super::{Endpoint, EndpointCompletion, MemoryLayout, Op, OpKind, Plan, ReportedOutcome};

/// The log of one end's operations and of their completions.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequesterLog {
    /// The records of the posted operations, in posting order.
    pub records: Vec<Record>,
    /// The `wr_id`s of completions that came before the completion of an earlier signalled
    /// operation, or without an operation in flight.
    pub out_of_order: Vec<u64>,
    /// The ids of operations whose local buffer changed after they had ended.
    pub late_changes: Vec<u64>,
    /// The error after which the requester stopped posting. A full queue does not stop it.
    pub refused: Option<String>,
}

/// The result of an operation at the requester.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Record {
    /// The reported outcome, or `None` while the operation is pending.
    pub outcome: Option<ReportedOutcome>,
    /// The value that a successful atomic, or a successful READ of a counter, returned.
    pub value: Option<u64>,
    /// Whether a successful READ returned wrong bytes.
    pub wrong_content: bool,
}

/// The byte that fills free local buffers.
const POISON: u8 = 0xdb;

pub(super) struct Requester {
    pub(super) ops: Vec<Op>,
    pub(super) next: usize,
    memory: Arc<Buffer>,
    /// The region of `memory`, and the address of the start of the peer's memory.
    pub(super) regions: Option<(Mr, RemoteAddr)>,
    /// The offset of the local buffers in `memory`.
    staging_offset: usize,
    slot_len: usize,
    /// The number of poisoned bytes at the start of each slot. Posting an operation poisons at
    /// least the operation's part of the slot.
    poisoned: Vec<usize>,
    /// The free slots, each with the operation that used it last.
    free_slots: VecDeque<(usize, Option<usize>)>,
    /// The operations in flight, oldest first, each with its slot.
    pub(super) in_flight: VecDeque<(usize, usize)>,
    depth: usize,
    /// The number of operations at the end of the plan that are not posted until they are released.
    pub(super) held_back: usize,
    pub(super) requester_log: RequesterLog,
}

impl Requester {
    pub(super) fn memory_len(plan: &Plan) -> usize {
        2 * plan.depth * plan.buffer_len()
    }

    pub(super) fn new(plan: &Plan, memory: Arc<Buffer>, staging_offset: usize) -> Requester {
        let slots = 2 * plan.depth;
        Requester {
            ops: plan.ops(),
            next: 0,
            memory,
            regions: None,
            staging_offset,
            slot_len: plan.buffer_len(),
            poisoned: vec![0; slots],
            free_slots: (0..slots).map(|p| (p, None)).collect(),
            in_flight: VecDeque::new(),
            depth: plan.depth,
            held_back: 0,
            requester_log: RequesterLog::default(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.in_flight.is_empty()
            && (self.next == self.ops.len() - self.held_back || self.requester_log.refused.is_some())
    }

    pub(super) fn describe(&self, positions: core::ops::Range<usize>) -> String {
        let operations = self.ops[positions.clone()].iter().zip(&self.requester_log.records[positions]);
        let words = operations.map(|(op, record)| {
            let fence = if op.flags.contains(SendFlags::FENCE) { ", fence" } else { "" };
            let outcome = record.outcome.map(|outcome| format!(": {outcome:?}")).unwrap_or_default();
            format!("{} {:?} ({} bytes{fence}){outcome}", op.seq, op.kind, op.len)
        });
        words.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn delivered_messages(&self) -> usize {
        let records = self.ops.iter().zip(&self.requester_log.records);
        let executed = [Some(ReportedOutcome::Success), Some(ReportedOutcome::Executed)];
        records.filter(|(op, r)| op.kind.is_received() && executed.contains(&r.outcome)).count()
    }

    /// Posts at most `limit` operations, and returns the number of posted operations.
    pub(super) fn post(&mut self, endpoint: &mut impl Endpoint, limit: usize) -> usize {
        let Some((local, remote)) = self.regions else { return 0 };
        let mut n = 0;
        while n < limit
            && self.next < self.ops.len() - self.held_back
            && self.in_flight.len() < self.depth
            && self.requester_log.refused.is_none()
        {
            let op = self.ops[self.next];
            let Some((slot, previous)) = self.free_slots.pop_front() else { break };
            self.check_poison(slot, previous);
            let offset = self.slot_offset(slot);
            if let Some(more) = op.len.checked_sub(self.poisoned[slot]) {
                self.memory.write_at(offset + self.poisoned[slot], &vec![POISON; more]);
                self.poisoned[slot] = op.len;
            }
            let bytes = content(&op);
            if matches!(op.kind, OpKind::Write | OpKind::Block | OpKind::WriteImm | OpKind::Send) {
                self.memory.write_at(offset, &bytes);
            }
            let data = match op.inline {
                true => Data::inline(&bytes),
                false => Data::Sges(cut(&local, offset, op.len, op.sges)),
            };
            let target = RemoteAddr { addr: remote.addr + op.offset as u64, rkey: remote.rkey };
            let send = match op.kind {
                OpKind::Write | OpKind::Block => SendOp::Write(target),
                OpKind::WriteImm => SendOp::WriteWithImm(target, op.seq as u32),
                OpKind::Send if op.with_imm => SendOp::SendWithImm(op.seq as u32),
                OpKind::Send => SendOp::Send,
                OpKind::Read => SendOp::Read(target),
                OpKind::FetchAdd => SendOp::FetchAdd { remote: target, add: 1 },
                OpKind::CompareSwap => SendOp::CompareSwap { remote: target, compare: 0, swap: op.id },
            };
            match endpoint.post(SendWr::new(op.id, send, data).with_flags(op.flags)) {
                Ok(()) => {
                    self.requester_log.records.push(Record::default());
                    self.in_flight.push_back((self.next, slot));
                    self.next += 1;
                    n += 1;
                }
                Err(e) => {
                    self.poison(slot, op.len);
                    self.free_slots.push_front((slot, Some(op.seq)));
                    if !matches!(e.error, Error::QueueFull { .. }) {
                        self.requester_log.refused = Some(format!("operation {}: {e}", op.seq));
                    }
                    break;
                }
            }
        }
        n
    }

    /// Ends the completed operation, and the unsignalled operations that were posted before that
    /// operation.
    pub(super) fn handle_completion(&mut self, completion: EndpointCompletion) {
        let Some(offset) = self.in_flight.iter().position(|&(op, _)| self.ops[op].id == completion.wr_id)
        else {
            self.requester_log.out_of_order.push(completion.wr_id);
            return;
        };
        let signalled = |&(op, _): &(usize, usize)| self.ops[op].flags.contains(SendFlags::SIGNALED);
        if self.in_flight.iter().take(offset).any(signalled) {
            self.requester_log.out_of_order.push(completion.wr_id);
            if let Some((op, slot)) = self.in_flight.remove(offset) {
                self.finish(op, slot, completion.outcome);
            }
            return;
        }
        // An unsignalled operation that fails has a completion. So the unsignalled operations
        // without a completion have succeeded.
        for _ in 0..=offset {
            let Some((op, slot)) = self.in_flight.pop_front() else { return };
            let is_completed = self.ops[op].id == completion.wr_id;
            let outcome = if is_completed { completion.outcome } else { ReportedOutcome::Success };
            self.finish(op, slot, outcome);
        }
    }

    /// Ends the unsignalled operations that no later completion will end, because posting has
    /// stopped. The caller checks that the endpoint has no outstanding operations.
    pub(super) fn finish_unsignalled(&mut self) {
        let unsignalled = |&(op, _): &(usize, usize)| !self.ops[op].flags.contains(SendFlags::SIGNALED);
        if self.requester_log.refused.is_some() && self.in_flight.iter().all(unsignalled) {
            while let Some((op, slot)) = self.in_flight.pop_front() {
                self.finish(op, slot, ReportedOutcome::Success);
            }
        }
    }

    fn finish(&mut self, number: usize, slot: usize, outcome: ReportedOutcome) {
        let op = self.ops[number];
        let offset = self.slot_offset(slot);
        let record = &mut self.requester_log.records[number];
        record.outcome = Some(outcome);
        if outcome == ReportedOutcome::Success {
            match op.kind {
                OpKind::FetchAdd | OpKind::CompareSwap => record.value = Some(self.memory.load(offset)),
                OpKind::Read => {
                    let mut want = vec![0; op.len];
                    let mut got = read(&self.memory, offset, op.len);
                    // A READ of a block finds only zeros, because a later operation writes the
                    // block.
                    if op.reads_counter(self.ops.len()) {
                        record.value = Some(self.memory.load(offset));
                        let words = got.len().min(8);
                        got.drain(..words);
                        want.truncate(got.len());
                        pattern(STABLE_ID, 0, &mut want);
                    } else if op.offset < MemoryLayout::blocks_at(self.ops.len()) {
                        pattern(STABLE_ID, op.offset - MemoryLayout::stable_at(self.ops.len()), &mut want);
                    }
                    record.wrong_content = got != want;
                }
                _ => {}
            }
        }
        // An operation that has ended must not access its local buffer. If the poison has changed
        // when the slot is used again, the operation accessed the buffer.
        self.poison(slot, op.len);
        self.free_slots.push_back((slot, Some(number)));
    }

    fn poison(&self, slot: usize, len: usize) {
        self.memory.write_at(self.slot_offset(slot), &vec![POISON; len]);
    }

    fn slot_offset(&self, slot: usize) -> usize {
        self.staging_offset + slot * self.slot_len
    }

    fn check_poison(&mut self, slot: usize, previous: Option<usize>) {
        let Some(previous) = previous else { return };
        let op = self.ops[previous];
        if !is_filled_with(POISON, &read(&self.memory, self.slot_offset(slot), op.len)) {
            self.requester_log.late_changes.push(op.id);
            self.poison(slot, op.len);
        }
    }

    pub(super) fn sweep(&mut self) {
        for (slot, previous) in self.free_slots.clone() {
            self.check_poison(slot, previous);
        }
    }
}
