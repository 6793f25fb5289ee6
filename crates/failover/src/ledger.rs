//! The ledger: the operations of a vQP's send queue in posting order, each with its state.
//!
//! The ledger is a state machine without I/O. It stores the addresses and keys that the application
//! used, and the driver translates them to the active rail when it posts an operation.

use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::{Mtu, Psn, SendFlags, SendWr, WcStatus};

use crate::completion::{Completion, Outcome, Resolution, UnresolvedError};
use crate::completion_log::SEQ_BITS;
use crate::config::{Service, WritePolicy};
use crate::evidence::{Completed, Kind};

mod drain;
mod durable;
mod endings;
#[cfg(test)]
mod new_posting_tests;
mod replay_decision;
#[cfg(test)]
mod tests;

use drain::Drain;
use durable::Durable;
pub use replay_decision::{RecoveredValue, RecoveryInput, RecoveryStats};

/// The maximum number of packets in flight: a quarter of the PSN space, so that comparisons of PSNs
/// modulo 2^24 are unambiguous. A single operation may exceed this number.
const MAX_PACKETS: u32 = 1 << 22;

/// The number of sequence numbers that an entry of the completion log can have.
pub(crate) const MAX_OPERATIONS: u64 = 1 << SEQ_BITS;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    Pending,
    InFlight,
    /// The operation has ended. It stays until all operations before it are removed.
    Done(Outcome),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Op {
    /// The application's request with three changes: `wr_id` is the sequence number, the SIGNALED
    /// flag is the flag for the rail, and the `skipped` bytes are removed.
    wr: SendWr,
    app_wr_id: u64,
    app_signaled: bool,
    write_policy: WritePolicy,
    kind: Kind,
    /// The PSN of the first packet when the operation was last posted. Not valid before it is
    /// posted.
    first_psn: Psn,
    /// Without the packet of the log entry.
    packets: u32,
    /// Whether a log entry followed the operation when it was last posted. Not valid before it is
    /// posted.
    logged: bool,
    state: State,
    resolution: Resolution,
    /// As the completion reports it.
    byte_len: u32,
    /// The number of bytes at the start of a WRITE that earlier rails executed.
    skipped: u64,
    /// Whether an earlier rail may have executed a part of the operation. If so, the outcome must
    /// not be `Flushed`.
    maybe_executed: bool,
    /// Whether the NIC of the active rail has executed this local operation. The operation
    /// completes when the NICs of the other rails have executed it too.
    executed_locally: bool,
    is_cancelled: bool,
}

impl Op {
    fn has_failed(&self) -> bool {
        matches!(self.state, State::Done(Outcome::Failed(_) | Outcome::Unresolved(_)))
    }

    /// The outcome of an operation that is not sent again: `error` if a part of it may have been
    /// executed, or else `Flushed`.
    fn outcome_if_not_sent(&self, error: UnresolvedError) -> Outcome {
        if self.maybe_executed && !Mutant::EarlierPartForgotten.is_on() {
            Outcome::Unresolved(error)
        } else {
            Outcome::Failed(WcStatus::Flushed)
        }
    }
}

/// What the ledger stores with a request.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    app_wr_id: u64,
    app_signaled: bool,
    kind: Kind,
    packets: u32,
    first_psn: Psn,
}

/// The next operation for the driver to post.
#[derive(Debug)]
pub struct Posting<'a> {
    /// Has the application's addresses and keys, and the sequence number as `wr_id`.
    pub wr: &'a SendWr,
    /// The sequence number of the completion log entry to post behind the request, if there is one.
    pub log_seq: Option<u64>,
}

/// The operations of one send queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ledger {
    ops: VecDeque<Op>,
    first_seq: u64,
    /// All operations of `ops` before this index are posted or have ended.
    cursor: usize,
    service: Service,
    depth: usize,
    /// An operation is posted only if fewer operations than this are before it in `ops`.
    max_posted: usize,
    /// The limit of `fetches_in_flight`.
    rd_atomic: u32,
    log: bool,
    /// The number of WRITEs per log entry
    /// ([`CompletionLogConfig::interval`](crate::CompletionLogConfig::interval)).
    log_interval: u32,
    /// WRITEs posted since the last log entry.
    unlogged: u32,
    mtu: Mtu,
    next_psn: Psn,
    /// The packets before `next_psn` on the rail, with those of log entries.
    packets_posted: u64,
    /// READs and atomics in flight.
    fetches_in_flight: u32,
    /// Packets in flight, without the packets of log entries.
    packets_in_flight: u32,
    /// Operations posted since the last signalled one.
    unsignaled: u32,
    /// Operations that a rail has completed, or that were removed, since the ledger began.
    ended: u64,
    completed: Completed,
    durable: Durable,
    drain: Drain,
    /// The sequence number and the error of the operation in flight that [`Ledger::refuse`]
    /// recorded.
    refused: Option<(u64, WcStatus)>,
    /// Whether an error has ended all operations, executed or not. The peer's evidence may then
    /// contain some of them.
    is_ended_by_error: bool,
    /// The sequence number of the first operation that ended in an error since [`Ledger::resume`].
    /// While there is one, the application posts nothing.
    halted_at: Option<u64>,
}

impl Ledger {
    /// `psn` is the PSN of the first packet on the rail.
    pub fn new(depth: u32, rd_atomic: u8, log: bool, mtu: Mtu, psn: Psn) -> Ledger {
        Ledger {
            ops: VecDeque::new(),
            first_seq: 0,
            cursor: 0,
            service: Service::Reliable,
            depth: depth as usize,
            max_posted: depth as usize,
            rd_atomic: u32::from(rd_atomic),
            log,
            log_interval: 1,
            unlogged: 0,
            mtu,
            next_psn: psn,
            packets_posted: 0,
            fetches_in_flight: 0,
            packets_in_flight: 0,
            unsignaled: 0,
            ended: 0,
            completed: Completed::default(),
            durable: Durable::default(),
            drain: Drain::default(),
            refused: None,
            is_ended_by_error: false,
            halted_at: None,
        }
    }

    /// Sets how many operations a rail's queue pair holds, if fewer than the depth. Must be called
    /// before any operation is posted.
    pub fn with_max_posted(self, max_posted: u32) -> Ledger {
        Ledger { max_posted: self.depth.min(max_posted as usize), ..self }
    }

    /// Sets the number of WRITEs per log entry. Must be called before any operation is posted.
    pub fn with_log_interval(self, log_interval: u32) -> Ledger {
        Ledger { log_interval, ..self }
    }

    /// Sets the transport service of the rails. Must be called before any operation is posted.
    pub fn with_service(self, service: Service) -> Ledger {
        Ledger { service, ..self }
    }

    /// Whether another operation fits.
    pub fn has_room(&self) -> bool {
        self.ops.len() < self.depth
    }

    /// Whether a sequence number is left for the next operation. An entry of the completion log has
    /// 48 bits for it.
    pub fn has_number(&self) -> bool {
        self.next_seq() < MAX_OPERATIONS || Mutant::NumbersUnbounded.is_on()
    }

    /// Begins with this sequence number, before any operation is pushed.
    pub fn begin_at(&mut self, seq: u64) {
        debug_assert!(self.ops.is_empty());
        self.first_seq = seq;
    }

    /// The packets of the operations that were posted on the rail, with those of log entries.
    pub fn packets_posted(&self) -> u64 {
        self.packets_posted
    }

    /// The PSN behind the operations that are posted on the rail.
    pub fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// The number of operations in the ledger.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether the ledger has no operation.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Whether an operation that ended in an error has halted the queue.
    pub fn is_halted(&self) -> bool {
        self.halted_at.is_some()
    }

    /// Allows operations to be posted again after an error.
    pub fn resume(&mut self) {
        self.halted_at = None;
    }

    /// The sequence number of the oldest operation in the ledger.
    pub fn first_seq(&self) -> u64 {
        self.first_seq
    }

    /// The sequence number of the next operation to be pushed.
    pub fn next_seq(&self) -> u64 {
        self.first_seq + self.ops.len() as u64
    }

    /// Removes the operations from `from` on. None of them has been posted.
    pub fn truncate(&mut self, from: u64) {
        let keep = from.saturating_sub(self.first_seq) as usize;
        debug_assert!(self.ops.iter().skip(keep).all(|op| op.state == State::Pending));
        self.ops.truncate(keep);
    }

    /// Appends an operation and returns its sequence number. Requires [`Ledger::has_room`], and
    /// that the queue is not halted.
    #[inline]
    pub fn push(&mut self, mut wr: SendWr, write_policy: WritePolicy) -> u64 {
        let entry = self.entry(&wr);
        let seq = self.next_seq();
        wr.wr_id = seq;
        self.append(wr, write_policy, entry, State::Pending);
        seq
    }

    /// Counts a request as in flight before it is appended, and sets its number and its flags for
    /// the rail. The driver posts the request and then calls [`Ledger::push_posted`], so that the
    /// request is copied to the ledger while its packets are on their way. Returns `None` if the
    /// request must be appended first: an earlier operation is pending, a limit is reached, or the
    /// vQP keeps a completion log. Requires [`Ledger::has_room`], and that the queue is not halted.
    #[inline]
    pub fn admit_new(&mut self, wr: &mut SendWr) -> Option<Entry> {
        let waits = self.unposted() > 0 || self.cursor >= self.max_posted || self.awaits_local_op();
        if waits || self.log || self.drain != Drain::Off {
            return None;
        }
        let entry = self.entry(wr);
        let (signal, first_psn) = self.admit(entry.kind, entry.packets, entry.app_signaled)?;
        wr.wr_id = self.next_seq();
        wr.flags.set(SendFlags::SIGNALED, signal);
        Some(Entry { first_psn, ..entry })
    }

    /// Appends a request that [`Ledger::admit_new`] admitted and the driver posted.
    #[inline]
    pub fn push_posted(&mut self, wr: SendWr, write_policy: WritePolicy, entry: Entry) {
        self.append(wr, write_policy, entry, State::InFlight);
        self.cursor = self.ops.len();
    }

    #[inline]
    fn entry(&self, wr: &SendWr) -> Entry {
        let kind = Kind::of(&wr.op);
        Entry {
            app_wr_id: wr.wr_id,
            app_signaled: wr.flags.contains(SendFlags::SIGNALED),
            kind,
            packets: self.packets(kind, wr.data.len()),
            first_psn: Psn::default(),
        }
    }

    #[inline]
    fn append(&mut self, wr: SendWr, write_policy: WritePolicy, entry: Entry, state: State) {
        let Entry { app_wr_id, app_signaled, kind, packets, first_psn } = entry;
        self.ops.push_back(Op {
            wr,
            app_wr_id,
            app_signaled,
            write_policy,
            kind,
            first_psn,
            packets,
            logged: false,
            state,
            resolution: Resolution::Direct,
            byte_len: 0,
            skipped: 0,
            maybe_executed: false,
            executed_locally: false,
            is_cancelled: false,
        });
    }

    fn packets(&self, kind: Kind, len: u64) -> u32 {
        match kind {
            Kind::Local => 0,
            Kind::Atomic => 1,
            _ => self.mtu.packets(len).min(1 << 23) as u32,
        }
    }

    /// Whether the next pending operation was in flight on an earlier rail.
    pub fn next_is_replay(&self) -> bool {
        let next = self.ops.iter().skip(self.cursor).find(|op| op.state == State::Pending);
        next.is_some_and(|op| op.resolution == Resolution::Replayed)
    }

    /// Marks the next pending operation as in flight and returns it. `None` if no operation is
    /// pending or a limit is reached.
    pub fn next_posting(&mut self) -> Option<Posting<'_>> {
        while self.ops.get(self.cursor)?.state != State::Pending {
            self.cursor += 1;
        }
        if self.cursor >= self.max_posted || self.awaits_local_op() {
            return None;
        }
        let op = &self.ops[self.cursor];
        if !self.drain.may_post(op) {
            return None;
        }
        let (kind, must_signal) = (op.kind, op.app_signaled || op.resolution == Resolution::Replayed);
        let (signal, first_psn) = self.admit(kind, op.packets, must_signal)?;
        let logged =
            self.log && kind.is_logged() && (kind == Kind::Atomic || self.unlogged + 1 >= self.log_interval);
        if logged {
            self.unlogged = 0;
            self.advance_psn(1); // the packet of the entry
        } else if self.log {
            self.unlogged += u32::from(kind.is_logged());
        }
        let op = &mut self.ops[self.cursor];
        op.wr.flags.set(SendFlags::SIGNALED, signal);
        (op.first_psn, op.logged, op.state) = (first_psn, logged, State::InFlight);
        self.cursor += 1;
        Some(Posting { wr: &op.wr, log_seq: logged.then_some(op.wr.wr_id) })
    }

    /// Counts an operation as in flight, unless a limit is reached. Returns whether the request is
    /// signalled on the rail, and its first PSN.
    #[inline]
    fn admit(&mut self, kind: Kind, packets: u32, must_signal: bool) -> Option<(bool, Psn)> {
        let fetch = kind.is_read_or_atomic();
        if fetch && self.fetches_in_flight >= self.rd_atomic + u32::from(Mutant::OneFetchTooMany.is_on()) {
            return None;
        }
        let has_room = self.packets_in_flight + packets <= MAX_PACKETS || Mutant::PacketsUnbounded.is_on();
        if self.packets_in_flight > 0 && !has_room {
            return None;
        }
        // The limit `rd_atomic` needs an exact count, so every READ and atomic is signalled. Other
        // operations are signalled often enough that unsignalled ones never fill the rail's queue.
        self.unsignaled += 1;
        let max_unsignaled = self.max_posted as u32 / 4;
        let signal = must_signal || fetch || kind == Kind::Local || self.unsignaled > max_unsignaled;
        if signal {
            self.unsignaled = 0;
        }
        let first_psn = self.next_psn;
        let packets = if Mutant::ReadCountsOnePacket.is_on() && kind == Kind::Read { 1 } else { packets };
        self.advance_psn(packets);
        self.fetches_in_flight += u32::from(fetch);
        self.packets_in_flight += packets;
        Some((signal, first_psn))
    }

    #[inline]
    fn advance_psn(&mut self, packets: u32) {
        self.next_psn = self.next_psn.add(packets);
        self.packets_posted += u64::from(packets);
    }

    /// Whether the rail owes a completion of an operation in flight. Operations behind the last
    /// signalled one have none.
    #[inline]
    pub fn awaits_completion(&self) -> bool {
        let posted = self.ops.iter().take(self.cursor).rev();
        let mut in_flight = posted.filter(|op| op.state == State::InFlight);
        in_flight.any(|op| op.wr.flags.contains(SendFlags::SIGNALED))
    }

    /// A number that changes with each completion of the rail.
    #[inline]
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// An upper bound on the bytes of the operations in flight.
    #[inline]
    pub fn bytes_in_flight(&self) -> u64 {
        u64::from(self.packets_in_flight) * self.mtu.bytes() as u64
    }

    /// Whether an operation is posted and has not ended.
    pub fn has_in_flight(&self) -> bool {
        self.ops.iter().any(|op| op.state == State::InFlight)
    }

    /// The next pending operation, even if the limits on operations in flight forbid to post it.
    pub fn next_pending(&self) -> Option<(&SendWr, WritePolicy)> {
        let next = self.ops.iter().skip(self.cursor).find(|op| op.state == State::Pending)?;
        Some((&next.wr, next.write_policy))
    }

    /// Marks an operation in flight as pending again, because it was not executed. Later operations
    /// stay in flight.
    pub fn unpost(&mut self, seq: u64) {
        let Some(index) = self.index_in_flight(seq) else { return };
        let op = &mut self.ops[index];
        op.state = State::Pending;
        let fetches = u32::from(op.wr.op.is_read_or_atomic());
        self.fetches_in_flight = self.fetches_in_flight.saturating_sub(fetches);
        self.packets_in_flight = self.packets_in_flight.saturating_sub(op.packets);
        self.cursor = self.cursor.min(index);
    }

    /// Ends the operations whose application `wr_id` is `user` without sending them again. On the
    /// queue pair of a shared backup, the `wr_id` names one of its users. Operations in flight end
    /// at the next decision.
    pub fn cancel(&mut self, user: u64) {
        for op in self.ops.iter_mut().filter(|op| op.app_wr_id == user) {
            op.is_cancelled = true;
            if op.state == State::Pending {
                op.state = State::Done(op.outcome_if_not_sent(UnresolvedError::Indeterminate));
            }
        }
    }

    /// Begins an epoch with no operation in flight. `psn` is the PSN of the first packet.
    pub fn begin_epoch(&mut self, psn: Psn) {
        debug_assert!(self.ops.iter().all(|op| op.state != State::InFlight));
        self.restart(psn);
    }

    /// Whether the last posted operation is a local one in flight. Until that operation ends, no
    /// operation is posted behind it: a later message may tell the peer the key of a window, and
    /// the peer must be able to use this key on every rail.
    fn awaits_local_op(&self) -> bool {
        let last = self.cursor.checked_sub(1).and_then(|i| self.ops.get(i));
        last.is_some_and(|op| op.kind == Kind::Local && op.state == State::InFlight)
    }

    /// Whether the operation is posted on the active rail and has not ended.
    pub fn is_in_flight(&self, seq: u64) -> bool {
        self.index_in_flight(seq).is_some()
    }

    fn index(&self, seq: u64) -> Option<usize> {
        let index = seq.checked_sub(self.first_seq)? as usize;
        (index < self.ops.len()).then_some(index)
    }

    fn index_in_flight(&self, seq: u64) -> Option<usize> {
        self.index(seq).filter(|&index| self.ops[index].state == State::InFlight)
    }

    /// Whether the operation is a local one.
    pub fn is_local(&self, seq: u64) -> bool {
        self.index(seq).is_some_and(|index| self.ops[index].kind == Kind::Local)
    }

    /// Whether the oldest operation has ended.
    #[inline]
    pub fn has_done(&self) -> bool {
        self.ops.front().is_some_and(|op| matches!(op.state, State::Done(_)))
    }

    /// An upper bound on the number of pending operations.
    #[inline]
    pub fn unposted(&self) -> usize {
        self.ops.len().saturating_sub(self.cursor)
    }

    /// Removes ended operations from the front until one has a completion for the application, and
    /// returns that completion.
    pub fn pop(&mut self) -> Option<Completion> {
        loop {
            let op = self.ops.front()?;
            let State::Done(outcome) = op.state else { return None };
            let completion = (op.app_signaled || outcome != Outcome::Success).then(|| Completion {
                wr_id: op.app_wr_id,
                seq: op.wr.wr_id,
                opcode: op.wr.op.wc_opcode(),
                outcome,
                resolution: op.resolution,
                byte_len: op.byte_len,
                imm: None,
                invalidated: None,
                solicited: false,
                srq: None,
            });
            self.remove_first(outcome);
            if completion.is_some() {
                return completion;
            }
        }
    }

    /// Removes the first operation, which has ended, and counts it.
    fn remove_first(&mut self, outcome: Outcome) {
        let Some(op) = self.ops.front() else { return };
        // The restart on the new rail has already reset the counts to which a recovered operation
        // contributed.
        if op.resolution != Resolution::Recovered {
            self.packets_in_flight = self.packets_in_flight.saturating_sub(op.packets);
            if op.kind.is_read_or_atomic() {
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
                if op.logged {
                    self.completed.maybe_logged = Some((op.wr.wr_id, op.first_psn.add(op.packets)));
                }
            }
        }
        self.ops.pop_front();
        if self.ops.is_empty() {
            // `clear` moves the head of the empty ring to slot 0, so a short queue reuses a few
            // cached slots.
            self.ops.clear();
        }
        self.first_seq += 1;
        self.ended += 1;
        self.cursor = self.cursor.saturating_sub(1);
    }
}
