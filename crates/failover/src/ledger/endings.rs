//! The end of operations without a failover: the rail completes or refuses them, or the vQP closes.

use mitra_mutants::Mutant;
use mitra_verbs::{SendOp, WcStatus};

use super::{Ledger, State};
use crate::close_reason::CloseReason;
use crate::completion::{Outcome, Resolution, UnresolvedError};
use crate::config::Service;
use crate::evidence::Kind;

/// The error if a NIC can be neither fenced nor reset.
const UNFENCED: UnresolvedError = UnresolvedError::Undecided(CloseReason::Unfenced);

impl Ledger {
    /// Records that the NIC of the active rail has executed a local operation, and returns it. All
    /// operations before it have then completed. [`Ledger::complete`] completes the operation
    /// itself. Returns `None` for any other operation.
    #[inline]
    pub fn execute_locally(&mut self, seq: u64) -> Option<SendOp> {
        let index = self.index_in_flight(seq)?;
        let op = &mut self.ops[index];
        if op.kind != Kind::Local || core::mem::replace(&mut op.executed_locally, true) {
            return None;
        }
        let executed = op.wr.op;
        if self.durable.is_on {
            self.acknowledge_before(seq);
        } else {
            self.complete_before(index);
        }
        Some(executed)
    }

    fn complete_before(&mut self, index: usize) {
        for op in self.ops.iter_mut().take(index).filter(|op| op.state == State::InFlight) {
            op.state = State::Done(Outcome::Success);
        }
    }

    /// Records the rail's successful completion of an operation, which implies the completion of
    /// all operations before it. With durable completions, the operations then wait for
    /// [`Ledger::confirm`]. Returns false if the operation is not in flight.
    pub fn complete(&mut self, seq: u64, byte_len: u32) -> bool {
        let Some(index) = self.index_in_flight(seq) else { return false };
        self.ended += 1;
        self.ops[index].byte_len = byte_len;
        if self.durable.is_on {
            self.acknowledge_before(seq + 1);
            return true;
        }
        // The loop stops at the first operation that this rail completed earlier, because
        // everything before it is marked. It passes operations that a failover completed
        // (`Recovered`), which say nothing about the operations before them.
        for i in (0..=index).rev() {
            match self.ops[i].state {
                State::InFlight => self.ops[i].state = State::Done(Outcome::Success),
                State::Done(_) if self.ops[i].resolution != Resolution::Recovered => break,
                _ => {}
            }
        }
        true
    }

    /// Records that the responder or the local NIC refused an operation in flight, which stopped
    /// the queue pair. The operations before it have succeeded. The next decision ends the refused
    /// operation with this status and flushes the later operations with the same `wr_id`, which
    /// names a user of the queue. The queue is not halted.
    pub fn refuse(&mut self, seq: u64, status: WcStatus) {
        let Some(index) = self.index_in_flight(seq).filter(|_| self.refused.is_none()) else { return };
        self.refused = Some((seq, status));
        if self.durable.is_on && !Mutant::MemberRefusalConfirmsEarlier.is_on() {
            self.acknowledge_before(seq); // the peer may not have seen them
        } else {
            self.complete_before(index);
        }
    }

    /// Records that an operation failed although the rail works, and halts the queue.
    ///
    /// If the responder refused the request, it executed no later one, and of this one at most the
    /// packets before the refused packet. A READ is an exception: the NIC repeats a READ whose
    /// response is lost, and the responder may refuse the repetition because a later operation has
    /// ended access to the memory. If the error is local, for example because a response could not
    /// be stored, later operations may have been executed too. Later operations in flight then end
    /// in `undecided`. An unreliable connection sends nothing behind a request that fails.
    pub fn fail(&mut self, seq: u64, status: WcStatus, undecided: UnresolvedError) {
        let Some(index) = seq.checked_sub(self.first_seq).map(|i| i as usize) else { return };
        let is_read = self.ops.get(index).is_some_and(|op| op.kind == Kind::Read);
        let is_refused = matches!(
            status,
            WcStatus::RemoteAccess
                | WcStatus::RemoteInvalidRequest
                | WcStatus::RemoteOperation
                | WcStatus::RnrRetryExceeded
        );
        let refused = is_refused && (!is_read || Mutant::RefusedReadFlushes.is_on());
        for i in 0..self.ops.len() {
            let op = &mut self.ops[i];
            match op.state {
                State::Done(_) => {}
                State::InFlight
                    if i < index && self.durable.is_on && !Mutant::RefusalConfirmsEarlier.is_on() =>
                {
                    op.state = State::Done(Outcome::Unresolved(undecided)); // the peer has not confirmed it
                }
                // RC responds in order, so an error completion implies the success of everything
                // before it.
                _ if i < index => op.state = State::Done(Outcome::Success),
                _ if i == index => op.state = State::Done(Outcome::Failed(status)),
                State::InFlight if !refused && self.service.is_reliable() => {
                    op.state = State::Done(Outcome::Unresolved(undecided))
                }
                _ => op.state = State::Done(op.outcome_if_not_sent(undecided)),
            }
        }
        self.is_ended_by_error = self.service.is_reliable();
        self.cursor = self.ops.len();
        self.halt();
    }

    /// Ends an operation in flight with an error and halts the queue. Pending operations behind it
    /// are flushed, and other operations in flight stay.
    pub fn end(&mut self, seq: u64, outcome: Outcome) {
        self.finish(seq, outcome);
        for op in self.ops.iter_mut().filter(|op| op.wr.wr_id > seq && op.state == State::Pending) {
            op.state = State::Done(op.outcome_if_not_sent(UnresolvedError::Indeterminate));
        }
        self.halt();
    }

    /// Whether an earlier operation has ended in an error since [`Ledger::resume`].
    pub fn is_behind_error(&self, seq: u64) -> bool {
        self.halted_at.is_some_and(|failed| failed < seq)
    }

    /// Halts the queue at the first operation that ended in an error. Later operations that
    /// succeeded were executed while a READ before them was still to be repeated. They end in an
    /// error too, because a NIC also reports no success behind a failed operation.
    pub(super) fn halt(&mut self) {
        let next_seq = self.next_seq();
        let mut behind = self.ops.iter_mut().skip_while(|op| !op.has_failed());
        let failed = behind.next().map_or(next_seq, |op| op.wr.wr_id);
        self.halted_at = Some(self.halted_at.map_or(failed, |halted| halted.min(failed)));
        for op in behind.filter(|op| op.state == State::Done(Outcome::Success)) {
            op.state = State::Done(Outcome::Unresolved(UnresolvedError::ExecutedBehindError));
        }
    }

    /// Records that an operation could not be posted, and marks later operations as pending again.
    /// The caller must close the vQP.
    pub fn fail_unpostable(&mut self, seq: u64, status: WcStatus) {
        self.finish(seq, Outcome::Failed(status));
        self.unpost_after(seq);
    }

    /// Marks the operations after `seq` as pending again, because the queue pair refused the rest
    /// of a list. The caller must close the vQP.
    pub fn unpost_after(&mut self, seq: u64) {
        let first = (seq + 1).saturating_sub(self.first_seq) as usize;
        for op in self.ops.iter_mut().skip(first).filter(|op| op.state == State::InFlight) {
            op.state = State::Pending;
        }
    }

    /// Records that the value of a recovered atomic could not be stored. The caller must close the
    /// vQP.
    pub fn lose_value(&mut self, seq: u64) {
        self.finish(seq, Outcome::Unresolved(UnresolvedError::ValueLost));
    }

    fn finish(&mut self, seq: u64, outcome: Outcome) {
        if let Some(index) = self.index(seq) {
            self.ops[index].state = State::Done(outcome);
        }
    }

    /// Ends every operation because the vQP has closed. Operations in flight end in `error`.
    /// Pending operations end in `Flushed`, or in `error` if an earlier rail may have executed a
    /// part of them. If the peer of an unreliable connection has closed, messages to it are lost
    /// without an error.
    pub fn abandon(&mut self, error: UnresolvedError) {
        let is_lost = self.service == Service::Unreliable
            && error == UnresolvedError::Undecided(CloseReason::PeerClosed);
        for op in &mut self.ops {
            match op.state {
                State::InFlight | State::Pending if is_lost && op.kind.is_message() => {
                    op.state = State::Done(Outcome::Success);
                }
                // All queue pairs are in ERR, so it does not matter that the other NICs have not
                // executed the operation.
                State::InFlight if op.executed_locally && error != UNFENCED => {
                    op.state = State::Done(Outcome::Success);
                }
                State::InFlight => op.state = State::Done(Outcome::Unresolved(error)),
                State::Pending => op.state = State::Done(op.outcome_if_not_sent(error)),
                State::Done(_) => {}
            }
        }
        self.cursor = self.ops.len();
        self.halt();
    }
}
