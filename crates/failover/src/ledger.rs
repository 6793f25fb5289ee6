//! The operations of a vQP's send queue in posting order: which of them were posted, which ended, and how.
//!
//! The ledger is a state machine without I/O. Its operations keep the addresses and keys that the application used; the driver translates
//! them to those of the active rail when it posts them.

use std::collections::VecDeque;

use mitra_verbs::{Mtu, Psn, SendFlags, SendOp, SendWr, WcStatus};

use crate::completion::{Completion, Outcome, Resolution, UnresolvedError};
use crate::config::WritePolicy;
use crate::evidence::{Completed, Kind};

mod replay_decision;
#[cfg(test)]
mod tests;

pub use replay_decision::{RecoveryInput, RecoveryStats};

/// The most packets in flight: half of the PSN's duplicate region, so that a comparison modulo 2^24 is never ambiguous.
const MAX_PACKETS: u32 = 1 << 22;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    /// The operation waits to be posted.
    Pending,
    /// The operation is posted on the active rail.
    InFlight,
    /// The operation has ended. It leaves the ledger after all operations before it.
    Done(Outcome),
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Op {
    /// The application's request, except that `wr_id` is the sequence number and SIGNALED tells whether the rail signals it.
    wr: SendWr,
    app_wr_id: u64,
    app_signaled: bool,
    write_policy: WritePolicy,
    kind: Kind,
    /// The PSN of the first packet, valid while the operation is in flight.
    first_psn: Psn,
    packets: u32,
    state: State,
    resolution: Resolution,
    byte_len: u32,
    /// The number of bytes at the front that earlier rails executed. They are cut off `wr`.
    skipped: u64,
    /// Whether an earlier rail executed part of the operation, or may have: its outcome can never be `Flushed`.
    maybe_executed: bool,
}

impl Op {
    /// Returns the outcome if the operation is never sent again: `error` if some of it may have been executed.
    fn outcome_if_not_sent(&self, error: UnresolvedError) -> Outcome {
        if self.maybe_executed { Outcome::Unresolved(error) } else { Outcome::Failed(WcStatus::Flushed) }
    }
}

/// The next operation for the driver to post.
#[derive(Debug)]
pub struct Posting<'a> {
    /// The request with the application's addresses and keys. Its `wr_id` is the sequence number.
    pub wr: &'a SendWr,
    /// The sequence number for the completion log entry to post behind the request, if there is to be one.
    pub log_seq: Option<u64>,
}

/// The operations of one send queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ledger {
    ops: VecDeque<Op>,
    /// The sequence number of `ops[0]`.
    first_seq: u64,
    /// The number of operations at the front of `ops` that are not pending.
    cursor: usize,
    depth: usize,
    /// The most READs and atomics in flight.
    rd_atomic: u32,
    /// Whether the vQP keeps a completion log.
    log: bool,
    mtu: Mtu,
    /// The PSN of the next packet on the active rail.
    next_psn: Psn,
    /// READs and atomics in flight.
    fetches_in_flight: u32,
    packets_in_flight: u32,
    /// Operations posted since the last signalled one.
    unsignaled: u32,
    /// The operations that completed in this epoch.
    completed: Completed,
    /// Whether an operation ended in an error, after which nothing is posted until the application resumes.
    halted: bool,
}

impl Ledger {
    /// Makes an empty ledger for a rail whose first packet has the PSN `psn`.
    pub fn new(depth: u32, rd_atomic: u8, log: bool, mtu: Mtu, psn: Psn) -> Ledger {
        Ledger {
            ops: VecDeque::with_capacity(depth as usize),
            first_seq: 0,
            cursor: 0,
            depth: depth as usize,
            rd_atomic: u32::from(rd_atomic),
            log,
            mtu,
            next_psn: psn,
            fetches_in_flight: 0,
            packets_in_flight: 0,
            unsignaled: 0,
            completed: Completed::default(),
            halted: false,
        }
    }

    /// Returns whether another operation fits.
    pub fn has_room(&self) -> bool {
        self.ops.len() < self.depth
    }

    /// The number of operations that have not left the ledger.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns whether an error stopped the queue.
    pub fn is_halted(&self) -> bool {
        self.halted
    }

    /// Lets operations be posted again after an error.
    pub fn resume(&mut self) {
        self.halted = false;
    }

    /// The sequence number of the oldest operation in the ledger.
    pub fn first_seq(&self) -> u64 {
        self.first_seq
    }

    /// The sequence number of the next operation to be pushed.
    pub fn next_seq(&self) -> u64 {
        self.first_seq + self.ops.len() as u64
    }

    /// The progress of the queue: the oldest operation, and the bytes of it that earlier rails executed.
    pub fn progress(&self) -> (u64, u64) {
        (self.first_seq, self.ops.front().map_or(0, |op| op.skipped))
    }

    /// Removes the operations from this sequence number on. None of them has been posted.
    pub fn truncate(&mut self, from: u64) {
        let keep = from.saturating_sub(self.first_seq) as usize;
        debug_assert!(self.ops.iter().skip(keep).all(|op| op.state == State::Pending));
        self.ops.truncate(keep);
    }

    /// Appends an operation and returns its sequence number. The caller has checked [`Ledger::has_room`] and [`Ledger::is_halted`].
    ///
    /// # Errors
    /// Returns the request if vQPs do not support its kind.
    pub fn push(&mut self, mut wr: SendWr, write_policy: WritePolicy) -> Result<u64, SendWr> {
        let kind = match wr.op {
            SendOp::Send | SendOp::SendWithImm(_) => Kind::Send,
            SendOp::Write(_) => Kind::Write,
            SendOp::WriteWithImm(..) => Kind::WriteImm,
            SendOp::Read(_) => Kind::Read,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Kind::Atomic,
            SendOp::SendWithInvalidate(_) | SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => {
                return Err(wr);
            }
        };
        let seq = self.next_seq();
        let app_wr_id = core::mem::replace(&mut wr.wr_id, seq);
        let app_signaled = wr.flags.contains(SendFlags::SIGNALED);
        let packets = self.packets(&wr);
        self.ops.push_back(Op {
            wr,
            app_wr_id,
            app_signaled,
            write_policy,
            kind,
            first_psn: Psn::default(),
            packets,
            state: State::Pending,
            resolution: Resolution::Direct,
            byte_len: 0,
            skipped: 0,
            maybe_executed: false,
        });
        Ok(seq)
    }

    fn packets(&self, wr: &SendWr) -> u32 {
        if wr.op.is_atomic() { 1 } else { self.mtu.packets(wr.data.len()).min(1 << 23) as u32 }
    }

    /// Returns the next operation to post, if the limits allow one, and marks it as in flight.
    pub fn next_posting(&mut self) -> Option<Posting<'_>> {
        while self.ops.get(self.cursor).is_some_and(|op| op.state != State::Pending) {
            self.cursor += 1;
        }
        let max_unsignaled = self.depth as u32 / 4;
        let op = self.ops.get_mut(self.cursor)?;
        let fetch = op.wr.op.is_read_or_atomic();
        if fetch && self.fetches_in_flight >= self.rd_atomic {
            return None;
        }
        if self.packets_in_flight > 0 && self.packets_in_flight + op.packets > MAX_PACKETS {
            return None;
        }
        // Every READ and atomic is signalled: the count of those in flight bounds the results that the responder must save. Other
        // operations are signalled often enough that unsignalled ones never fill the rail's queue.
        self.unsignaled += 1;
        let signal = op.app_signaled
            || fetch
            || self.unsignaled > max_unsignaled
            || op.resolution == Resolution::Replayed;
        op.wr.flags.set(SendFlags::SIGNALED, signal);
        if signal {
            self.unsignaled = 0;
        }
        let log_seq = (self.log && op.kind.is_logged()).then_some(op.wr.wr_id);
        let packets_with_log = op.packets + u32::from(log_seq.is_some());
        op.first_psn = self.next_psn;
        op.state = State::InFlight;
        self.next_psn = self.next_psn.add(packets_with_log);
        self.fetches_in_flight += u32::from(fetch);
        self.packets_in_flight += op.packets;
        self.cursor += 1;
        Some(Posting { wr: &op.wr, log_seq })
    }

    /// Records the rail's successful completion of an operation and of all before it. Returns false if the operation is not in flight.
    pub fn complete(&mut self, seq: u64, byte_len: u32) -> bool {
        let Some(index) = seq.checked_sub(self.first_seq).map(|i| i as usize) else { return false };
        if self.ops.get(index).is_none_or(|op| op.state != State::InFlight) {
            return false;
        }
        self.ops[index].byte_len = byte_len;
        // Earlier completions marked everything before the last operation that is done, so only the tail of this range is in flight.
        for i in (0..=index).rev() {
            match self.ops[i].state {
                State::InFlight => self.ops[i].state = State::Done(Outcome::Success),
                State::Done(_) if self.ops[i].resolution != Resolution::Recovered => break,
                _ => {}
            }
        }
        true
    }

    /// Records that an operation failed for a reason of its own, not of the rail, and halts the queue.
    ///
    /// A request that the responder refuses is not executed, nor is anything behind it. After an error of the requester, whose memory
    /// refused a response, the operations behind it may have been executed: they end in `undecided`.
    pub fn fail(&mut self, seq: u64, status: WcStatus, undecided: UnresolvedError) {
        let Some(index) = seq.checked_sub(self.first_seq).map(|i| i as usize) else { return };
        let refused = matches!(
            status,
            WcStatus::RemoteAccess
                | WcStatus::RemoteInvalidRequest
                | WcStatus::RemoteOperation
                | WcStatus::RnrRetryExceeded
        );
        for i in 0..self.ops.len() {
            let op = &mut self.ops[i];
            match op.state {
                State::Done(_) => {}
                // RC responds in order, so the error completion implies success of everything before it.
                _ if i < index => op.state = State::Done(Outcome::Success),
                _ if i == index => op.state = State::Done(Outcome::Failed(status)),
                State::InFlight if !refused => op.state = State::Done(Outcome::Unresolved(undecided)),
                _ => op.state = State::Done(op.outcome_if_not_sent(undecided)),
            }
        }
        self.cursor = self.ops.len();
        self.halted = true;
    }

    /// Records that an operation could not be posted, which says nothing about those before it. The vQP must close now.
    pub fn fail_unpostable(&mut self, seq: u64, status: WcStatus) {
        self.finish(seq, Outcome::Failed(status));
        self.unpost_behind(seq);
    }

    /// Marks the operations behind `seq` as pending again: the queue pair refused the rest of a list of requests. The vQP must close now.
    pub fn unpost_behind(&mut self, seq: u64) {
        let first = (seq + 1).saturating_sub(self.first_seq) as usize;
        for op in self.ops.iter_mut().skip(first).filter(|op| op.state == State::InFlight) {
            op.state = State::Pending;
        }
    }

    /// Records that a recovered value could not be stored in local memory. The vQP must close now.
    pub fn lose_value(&mut self, seq: u64) {
        self.finish(seq, Outcome::Unresolved(UnresolvedError::ValueLost));
    }

    fn finish(&mut self, seq: u64, outcome: Outcome) {
        let op = seq.checked_sub(self.first_seq).and_then(|i| self.ops.get_mut(i as usize));
        if let Some(op) = op {
            op.state = State::Done(outcome);
        }
    }

    /// Ends every operation because the vQP closed: those in flight with `error`, the pending ones as flushed.
    pub fn abandon(&mut self, error: UnresolvedError) {
        for op in &mut self.ops {
            match op.state {
                State::InFlight => op.state = State::Done(Outcome::Unresolved(error)),
                State::Pending => op.state = State::Done(op.outcome_if_not_sent(error)),
                State::Done(_) => {}
            }
        }
        self.cursor = self.ops.len();
        self.halted = true;
    }

    /// Returns whether the oldest operation has ended.
    #[inline]
    pub fn has_done(&self) -> bool {
        self.ops.front().is_some_and(|op| matches!(op.state, State::Done(_)))
    }

    /// The number of operations behind the last posted one: an upper bound of those that [`Ledger::next_posting`] returns.
    #[inline]
    pub fn unposted(&self) -> usize {
        self.ops.len().saturating_sub(self.cursor)
    }

    /// Removes ended operations from the front and returns the next completion for the application.
    pub fn pop(&mut self) -> Option<Completion> {
        loop {
            let State::Done(outcome) = self.ops.front()?.state else { return None };
            let op = self.ops.pop_front()?;
            if self.ops.is_empty() {
                self.ops.clear(); // restarts at the first slot of the ring, which is still in the cache
            }
            self.first_seq += 1;
            self.cursor = self.cursor.saturating_sub(1);
            self.retire(&op, outcome);
            if op.app_signaled || outcome != Outcome::Success {
                return Some(Completion {
                    wr_id: op.app_wr_id,
                    seq: op.wr.wr_id,
                    opcode: op.wr.op.wc_opcode(),
                    outcome,
                    resolution: op.resolution,
                    byte_len: op.byte_len,
                    imm: None,
                    invalidated: None,
                    solicited: false,
                });
            }
        }
    }

    /// Updates the counts for an operation that leaves the ledger: its result is host-visible.
    fn retire(&mut self, op: &Op, outcome: Outcome) {
        if op.resolution == Resolution::Recovered {
            return; // the restart on the new rail has reset the counts
        }
        self.packets_in_flight = self.packets_in_flight.saturating_sub(op.packets);
        if op.wr.op.is_read_or_atomic() {
            self.fetches_in_flight = self.fetches_in_flight.saturating_sub(1);
        }
        if outcome == Outcome::Success {
            if op.kind.is_two_sided() {
                self.completed.two_sided += 1;
                self.completed.last_two_sided = Some(op.wr.wr_id);
            }
            if let Some((seq, _)) = self.completed.maybe_logged.take() {
                self.completed.logged = Some(seq);
            }
            if self.log && op.kind.is_logged() {
                self.completed.maybe_logged = Some((op.wr.wr_id, op.first_psn.add(op.packets)));
            }
        }
    }
}
