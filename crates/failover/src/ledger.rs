//! The send side's book: every operation in posting order, what was posted where, and what completes when.
//!
//! A state machine without I/O. Operations keep the names (keys, addresses) that the application gave; the driver
//! translates them for the rail when it posts them.

use std::collections::VecDeque;

use mitra_verbs::{Data, Mtu, Psn, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus};

use crate::config::{Policy, WritePolicy};
use crate::decide::{self, Case, Plan};
use crate::evidence::{Completed, Contradiction, Evidence, InFlight, Kind, Verdict, judge};
use crate::outcome::{Completion, Outcome, Resolution, UnresolvedError};

/// The most packets in flight: half of the PSN's duplicate region, so that serial comparison never wraps.
const MAX_PACKETS: u32 = 1 << 22;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    /// To be posted.
    Held,
    /// Posted on the active rail.
    InFlight,
    /// CloseReason; waits for those before it.
    Done(Outcome),
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Op {
    /// As the application posted it, but `wr_id` is the sequence number and SIGNALED says whether the rail shall complete it.
    wr: SendWr,
    app_wr_id: u64,
    app_signaled: bool,
    writes: WritePolicy,
    kind: Kind,
    first: Psn,
    packets: u32,
    state: State,
    resolution: Resolution,
    byte_len: u32,
    /// Bytes at its front that were executed on earlier rails, and are cut off.
    skipped: u64,
    /// It was or may have been partly executed on an earlier rail: it can never be called flushed.
    touched: bool,
}

impl Op {
    /// What it ends in if it is not sent (again).
    fn unsent(&self, otherwise: UnresolvedError) -> Outcome {
        if self.touched { Outcome::Unresolved(otherwise) } else { Outcome::Failed(WcStatus::Flushed) }
    }
}

/// What the driver needs to post the next operation.
#[derive(Debug)]
pub struct Posting<'a> {
    /// The request, in the application's names; its `wr_id` is the sequence number.
    pub wr: &'a SendWr,
    /// Write a completion log entry behind it, with this sequence number.
    pub log: Option<u64>,
}

/// A value to put into the local memory of an operation that was recovered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Recovered {
    /// The operation's sequence number.
    pub seq: u64,
    /// Where the application wanted it.
    pub at: Sge,
    /// The value.
    pub value: u64,
}

/// What a decision led to, for the report.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RecoveryStats {
    /// Operations in flight on the old rail.
    pub in_flight: u32,
    /// Of them, executed before the failure.
    pub executed: u32,
    /// Of them, partly executed.
    pub torn: u32,
    /// Of them, such that no evidence tells.
    pub ambiguous: u32,
    /// Sent again, wholly or in part.
    pub replayed: u32,
    /// CloseReason in a named error or were flushed.
    pub failed: u32,
    /// Payload bytes of what was in flight.
    pub bytes_in_flight: u64,
    /// Payload bytes sent again (READ: fetched again).
    pub bytes_replayed: u64,
    /// Payload bytes that the next operation to be received, a torn WRITE with immediate, left on all earlier rails.
    pub imm_bytes_kept: u32,
}

/// The book.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ledger {
    ops: VecDeque<Op>,
    /// Sequence number of `ops[0]`.
    base: u64,
    /// How many of `ops`, from the front, are not Held any more.
    cursor: usize,
    depth: usize,
    rd_atomic: u32,
    log: bool,
    mtu: Mtu,
    next_psn: Psn,
    fetches_out: u32,
    packets_out: u32,
    unsignaled: u32,
    done: Completed,
    /// An operation ended in an error: nothing more is posted until the application resumes.
    halted: bool,
}

impl Ledger {
    /// An empty book for a rail whose next PSN is `psn`.
    pub fn new(depth: u32, rd_atomic: u8, log: bool, mtu: Mtu, psn: Psn) -> Ledger {
        Ledger {
            ops: VecDeque::with_capacity(depth as usize),
            base: 0,
            cursor: 0,
            depth: depth as usize,
            rd_atomic: u32::from(rd_atomic),
            log,
            mtu,
            next_psn: psn,
            fetches_out: 0,
            packets_out: 0,
            unsignaled: 0,
            done: Completed::default(),
            halted: false,
        }
    }

    /// Whether another operation fits.
    pub fn has_room(&self) -> bool {
        self.ops.len() < self.depth
    }

    /// Operations that have not completed.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether an error stopped the queue.
    pub fn is_halted(&self) -> bool {
        self.halted
    }

    /// The application has decided: what it posts from now on is sent.
    pub fn resume(&mut self) {
        self.halted = false;
    }

    /// Sequence number of the oldest operation that has not left.
    pub fn first_seq(&self) -> u64 {
        self.base
    }

    /// Sequence number that the next operation gets.
    pub fn next_seq(&self) -> u64 {
        self.base + self.ops.len() as u64
    }

    /// How far it has come: the oldest operation that has not left, and the bytes of it that earlier rails have carried.
    pub fn progress(&self) -> (u64, u64) {
        (self.base, self.ops.front().map_or(0, |op| op.skipped))
    }

    /// Takes back what was entered from this sequence number on: nothing of it was posted yet.
    pub fn take_back(&mut self, from: u64) {
        let stay = from.saturating_sub(self.base) as usize;
        debug_assert!(self.ops.iter().skip(stay).all(|op| op.state == State::Held));
        self.ops.truncate(stay);
    }

    /// Enters an operation. The caller has checked [`Ledger::has_room`] and that it is not halted.
    ///
    /// Gives the request back if vQPs do not carry its kind.
    pub fn push(&mut self, mut wr: SendWr, writes: WritePolicy) -> Result<u64, SendWr> {
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
            writes,
            kind,
            first: Psn::default(),
            packets,
            state: State::Held,
            resolution: Resolution::Direct,
            byte_len: 0,
            skipped: 0,
            touched: false,
        });
        Ok(seq)
    }

    fn packets(&self, wr: &SendWr) -> u32 {
        if wr.op.is_atomic() { 1 } else { self.mtu.packets(wr.data.len()).min(1 << 23) as u32 }
    }

    /// The next operation to post, if the limits allow; it counts as posted.
    pub fn next_posting(&mut self) -> Option<Posting<'_>> {
        while self.ops.get(self.cursor).is_some_and(|op| op.state != State::Held) {
            self.cursor += 1;
        }
        let last_chance = self.depth as u32 / 4;
        let op = self.ops.get_mut(self.cursor)?;
        let fetch = op.wr.op.is_read_or_atomic();
        if fetch && self.fetches_out >= self.rd_atomic {
            return None;
        }
        if self.packets_out > 0 && self.packets_out + op.packets > MAX_PACKETS {
            return None;
        }
        // READs and atomics complete one by one, so that saved results stay valid; the others often enough that
        // the rail's queue never fills with operations that nobody will complete.
        self.unsignaled += 1;
        let signal = op.app_signaled
            || fetch
            || self.unsignaled > last_chance
            || op.resolution == Resolution::Replayed;
        op.wr.flags.set(SendFlags::SIGNALED, signal);
        if signal {
            self.unsignaled = 0;
        }
        let log = (self.log && op.kind.logged()).then_some(op.wr.wr_id);
        let with_log = op.packets + u32::from(log.is_some());
        op.first = self.next_psn;
        op.state = State::InFlight;
        self.next_psn = self.next_psn.add(with_log);
        self.fetches_out += u32::from(fetch);
        self.packets_out += op.packets;
        self.cursor += 1;
        Some(Posting { wr: &op.wr, log })
    }

    /// The rail completed the operation with this sequence number, and with it all before it. False for a
    /// completion that belongs to nothing in flight.
    pub fn succeeded(&mut self, seq: u64, byte_len: u32) -> bool {
        let Some(index) = seq.checked_sub(self.base).map(|i| i as usize) else { return false };
        if self.ops.get(index).is_none_or(|op| op.state != State::InFlight) {
            return false;
        }
        self.ops[index].byte_len = byte_len;
        // Only the tail of this range can be in flight: what lies before was marked by earlier completions.
        for i in (0..=index).rev() {
            match self.ops[i].state {
                State::InFlight => self.ops[i].state = State::Done(Outcome::Success),
                State::Done(_) if self.ops[i].resolution != Resolution::Recovered => break,
                _ => {}
            }
        }
        true
    }

    /// The rail failed the operation for a reason of its own (not of the rail): the queue ends here.
    ///
    /// What the responder refuses it does not execute, nor anything behind it. An error of this end's own (its memory refused
    /// a response) says nothing of what was sent behind: that ends in `undecided`.
    pub fn failed(&mut self, seq: u64, status: WcStatus, undecided: UnresolvedError) {
        let Some(index) = seq.checked_sub(self.base).map(|i| i as usize) else { return };
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
                // A failed request completes those before it: RC answers in order.
                _ if i < index => op.state = State::Done(Outcome::Success),
                _ if i == index => op.state = State::Done(Outcome::Failed(status)),
                State::InFlight if !refused => op.state = State::Done(Outcome::Unresolved(undecided)),
                _ => op.state = State::Done(op.unsent(undecided)),
            }
        }
        self.cursor = self.ops.len();
        self.halted = true;
    }

    /// The operation could not be posted, which says nothing about those before it. The vQP must end now.
    pub fn unpostable(&mut self, seq: u64, status: WcStatus) {
        self.finish(seq, Outcome::Failed(status));
        self.unposted_behind(seq);
    }

    /// A list of requests was refused behind this operation: what counts as posted was not. The vQP must end now.
    pub fn unposted_behind(&mut self, seq: u64) {
        let first = (seq + 1).saturating_sub(self.base) as usize;
        for op in self.ops.iter_mut().skip(first).filter(|op| op.state == State::InFlight) {
            op.state = State::Held;
        }
    }

    /// The operation's recovered value could not be put where it belongs. The vQP must end now.
    pub fn value_lost(&mut self, seq: u64) {
        self.finish(seq, Outcome::Unresolved(UnresolvedError::ValueLost));
    }

    fn finish(&mut self, seq: u64, outcome: Outcome) {
        let op = seq.checked_sub(self.base).and_then(|i| self.ops.get_mut(i as usize));
        if let Some(op) = op {
            op.state = State::Done(outcome);
        }
    }

    /// The vQP ended: what was posted is undecided, what was not is flushed.
    pub fn abandon(&mut self, error: UnresolvedError) {
        for op in &mut self.ops {
            match op.state {
                State::InFlight => op.state = State::Done(Outcome::Unresolved(error)),
                State::Held => op.state = State::Done(op.unsent(error)),
                State::Done(_) => {}
            }
        }
        self.cursor = self.ops.len();
        self.halted = true;
    }

    /// Whether the oldest operation has ended.
    #[inline]
    pub fn has_done(&self) -> bool {
        self.ops.front().is_some_and(|op| matches!(op.state, State::Done(_)))
    }

    /// Operations to post, if the limits allow; at most.
    #[inline]
    pub fn to_post(&self) -> usize {
        self.ops.len().saturating_sub(self.cursor)
    }

    /// The next completion to hand to the application, in posting order.
    pub fn pop(&mut self) -> Option<Completion> {
        loop {
            let State::Done(outcome) = self.ops.front()?.state else { return None };
            let op = self.ops.pop_front()?;
            if self.ops.is_empty() {
                self.ops.clear(); // begins again at its first place, which is still in the cache
            }
            self.base += 1;
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

    /// Book-keeping of an operation that leaves: it is host-visible now.
    fn retire(&mut self, op: &Op, outcome: Outcome) {
        if op.resolution == Resolution::Recovered {
            return; // counted when it was decided
        }
        self.packets_out = self.packets_out.saturating_sub(op.packets);
        if op.wr.op.is_read_or_atomic() {
            self.fetches_out = self.fetches_out.saturating_sub(1);
        }
        if outcome == Outcome::Success {
            if op.kind.two_sided() {
                self.done.two_sided += 1;
                self.done.last_two_sided = Some(op.wr.wr_id);
            }
            if let Some((seq, _)) = self.done.maybe_logged.take() {
                self.done.logged = Some(seq);
            }
            if self.log && op.kind.logged() {
                self.done.maybe_logged = Some((op.wr.wr_id, op.first.add(op.packets)));
            }
        }
    }

    /// What was in flight on the old rail, in posting order, beginning with the first that has not completed.
    fn in_flight(&self) -> Vec<(usize, InFlight)> {
        let posted = self.ops.iter().enumerate().filter(|(_, op)| op.state == State::InFlight);
        posted
            .map(|(i, op)| {
                (i, InFlight { seq: op.wr.wr_id, kind: op.kind, first: op.first, packets: op.packets })
            })
            .collect()
    }

    /// Decides every operation in flight from the peer's evidence, and prepares the replay on a rail whose next
    /// PSN is `psn`. Values of recovered atomics are left in `values`. The caller has popped what had completed.
    ///
    /// # Errors
    /// A contradiction, and nothing is changed.
    pub fn decide(
        &mut self,
        policy: Policy,
        theirs: &Evidence,
        local_placed: bool,
        placed_acks: bool,
        psn: Psn,
        values: &mut Vec<Recovered>,
    ) -> Result<RecoveryStats, Contradiction> {
        let in_flight = self.in_flight();
        let ops: Vec<InFlight> = in_flight.iter().map(|(_, op)| *op).collect();
        let (verdicts, plans) = match policy {
            Policy::Exact => {
                let verdicts = judge(&ops, self.done, theirs, self.log, placed_acks)?;
                let cases: Vec<Case> = in_flight
                    .iter()
                    .zip(&verdicts)
                    .map(|(&(i, op), &verdict)| {
                        let fence = self.ops[i].wr.flags.contains(SendFlags::FENCE);
                        Case { op, verdict, fence, writes: self.ops[i].writes }
                    })
                    .collect();
                (verdicts, decide::exact(&cases, &theirs.saved, local_placed))
            }
            _ => {
                let kinds: Vec<Kind> = ops.iter().map(|op| op.kind).collect();
                (Vec::new(), decide::baseline(policy, &kinds))
            }
        };
        let mut tally = self.tally(&in_flight, &verdicts, &plans);
        let halted =
            plans.iter().any(|p| matches!(p, Plan::End(Outcome::Failed(_) | Outcome::Unresolved(_))));
        for (n, (&(i, _), plan)) in in_flight.iter().zip(&plans).enumerate() {
            let began = matches!(verdicts.get(n), Some(Verdict::Torn(_) | Verdict::Ambiguous));
            let op = &mut self.ops[i];
            op.touched |= began && matches!(op.kind, Kind::Write | Kind::WriteImm);
            self.apply(i, *plan, values);
        }
        if halted {
            self.halted = true;
            for op in self.ops.iter_mut().filter(|op| op.state == State::Held) {
                op.state = State::Done(op.unsent(UnresolvedError::Indeterminate));
                op.resolution = Resolution::Recovered;
            }
        }
        // What the peer receives first on the new rail. If its first part went over earlier rails, however many, the
        // receive counts that too.
        let first = self.ops.iter().find(|op| op.state == State::Held && op.kind.two_sided());
        tally.imm_bytes_kept = first.map_or(0, |op| op.skipped as u32);
        self.restart(psn);
        Ok(tally)
    }

    fn tally(&self, in_flight: &[(usize, InFlight)], verdicts: &[Verdict], plans: &[Plan]) -> RecoveryStats {
        let count = |wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|v| wanted(v)).count() as u32;
        let mut tally = RecoveryStats {
            in_flight: in_flight.len() as u32,
            executed: count(|v| *v == Verdict::Executed),
            torn: count(|v| matches!(v, Verdict::Torn(_))),
            ambiguous: count(|v| *v == Verdict::Ambiguous),
            ..RecoveryStats::default()
        };
        for (&(i, _), plan) in in_flight.iter().zip(plans) {
            let bytes = self.ops[i].wr.data.len();
            tally.bytes_in_flight += bytes;
            match *plan {
                Plan::Replay { skip_packets } => {
                    let kept = (u64::from(skip_packets) * self.mtu.bytes() as u64).min(bytes);
                    tally.replayed += 1;
                    tally.bytes_replayed += bytes - kept;
                }
                Plan::End(Outcome::Success) | Plan::Value(_) => {}
                Plan::End(_) => tally.failed += 1,
            }
        }
        tally
    }

    fn apply(&mut self, index: usize, plan: Plan, values: &mut Vec<Recovered>) {
        let mtu = self.mtu.bytes() as u64;
        let op = &mut self.ops[index];
        match plan {
            Plan::Replay { skip_packets } => {
                if skip_packets > 0 {
                    let bytes = u64::from(skip_packets) * mtu;
                    skip(&mut op.wr, bytes);
                    op.skipped += bytes;
                }
                op.state = State::Held;
                op.resolution = Resolution::Replayed;
            }
            Plan::Value(value) => {
                if let Data::Sges(list) = &op.wr.data
                    && let Some(&at) = list.first()
                {
                    values.push(Recovered { seq: op.wr.wr_id, at, value });
                }
                op.byte_len = 8;
                (op.state, op.resolution) = (State::Done(Outcome::Success), Resolution::Recovered);
            }
            Plan::End(outcome) => {
                if op.kind == Kind::Read {
                    op.byte_len = op.wr.data.len() as u32;
                }
                let flushed = outcome == Outcome::Failed(WcStatus::Flushed);
                let outcome = if flushed { op.unsent(UnresolvedError::Indeterminate) } else { outcome };
                (op.state, op.resolution) = (State::Done(outcome), Resolution::Recovered);
            }
        }
    }

    /// Begins a new epoch on a rail.
    fn restart(&mut self, psn: Psn) {
        self.next_psn = psn;
        self.done = Completed::default();
        (self.fetches_out, self.packets_out, self.unsignaled) = (0, 0, 0);
        for i in 0..self.ops.len() {
            if self.ops[i].state == State::Held {
                self.ops[i].packets = self.packets(&self.ops[i].wr);
            }
        }
        self.cursor = 0;
    }
}

/// Cuts the first `bytes` off a WRITE.
fn skip(wr: &mut SendWr, bytes: u64) {
    match &mut wr.op {
        SendOp::Write(r) | SendOp::WriteWithImm(r, _) => r.addr = r.addr.wrapping_add(bytes),
        _ => return,
    }
    match &mut wr.data {
        Data::Inline(data) => {
            data.drain(..(bytes as usize).min(data.len()));
        }
        Data::Sges(list) => {
            let mut left = bytes;
            let mut rest = SgeList::new();
            for sge in list.iter() {
                let cut = left.min(u64::from(sge.len));
                left -= cut;
                if cut < u64::from(sge.len) {
                    rest.push(Sge { addr: sge.addr + cut, len: sge.len - cut as u32, key: sge.key });
                }
            }
            *list = rest;
        }
    }
}
