//! Durable completions. On a rail whose peer's NIC acknowledges data before the data is in memory,
//! an operation completes when the rail has completed it *and* the peer's processor has seen its
//! effect ([`Placed`]). Until then the operation is in flight, so a failover decides it.

use super::{Ledger, State};
use crate::completion::Outcome;
use crate::evidence::{Kind, Placed};
use mitra_mutants::Mutant;
use mitra_verbs::SendFlags;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Durable {
    /// Whether completions wait for the peer's confirmation.
    pub(super) is_on: bool,
    /// The rail has completed every operation before this sequence number.
    acknowledged: u64,
    placed: Placed,
}

impl Ledger {
    /// Sets whether completions of the next epoch wait for the peer's confirmation. Called when the
    /// vQP connects, before an operation is posted.
    pub fn set_durable(&mut self, is_on: bool) {
        self.durable = Durable { is_on, ..Durable::default() };
    }

    /// Whether an operation that the rail has completed waits for the peer's confirmation.
    pub fn awaits_placement(&self) -> bool {
        self.durable.acknowledged > self.first_seq
            && self.ops.front().is_some_and(|op| op.state == State::InFlight)
    }

    /// Returns the oldest operation if a message in flight may wait for a receive of the peer. The
    /// peer's NIC answers such a message with RNR NAKs. A message counts only if it or an operation
    /// behind it is signalled, because otherwise no completion would report its end.
    pub fn awaited_receive(&self) -> Option<u64> {
        let in_flight = |op: &super::Op| op.state == State::InFlight;
        let is_signaled = |op| in_flight(op) && op.wr.flags.contains(SendFlags::SIGNALED);
        let last = self.ops.iter().rposition(is_signaled)?;
        let is_awaited = self.ops.iter().take(last + 1).any(|op| in_flight(op) && op.kind.is_two_sided());
        is_awaited.then_some(self.first_seq)
    }

    /// Records what the peer has confirmed in the current epoch, and completes the operations that
    /// waited for it.
    pub fn confirm(&mut self, placed: Placed) {
        let known = &mut self.durable.placed;
        (known.log, known.received) = (known.log.max(placed.log), known.received.max(placed.received));
        self.complete_placed();
    }

    /// Records that the rail has completed the operations before `seq`, and completes the confirmed
    /// ones.
    pub(super) fn acknowledge_before(&mut self, seq: u64) {
        self.durable.acknowledged = self.durable.acknowledged.max(seq);
        self.complete_placed();
    }

    /// The number of operations in flight that the rail has completed; they are the oldest.
    pub(super) fn acknowledged_in_flight(&self) -> usize {
        let acknowledged = |op: &&super::Op| {
            op.state == State::InFlight && op.wr.wr_id < self.durable.acknowledged && !op.executed_locally
        };
        self.ops.iter().filter(acknowledged).count()
    }

    /// Completes operations up to the first that the rail has not completed or the peer has not
    /// confirmed.
    fn complete_placed(&mut self) {
        let Placed { log, received } = self.durable.placed;
        // `completed` counts the two-sided operations that have left the ledger.
        let mut receives_left = received.saturating_sub(self.completed.two_sided);
        for op in &mut self.ops {
            // A failover has decided the operation.
            if matches!(op.state, State::Done(_)) && op.resolution == super::Resolution::Recovered {
                continue;
            }
            if op.state == State::Pending || op.wr.wr_id >= self.durable.acknowledged {
                return;
            }
            let is_received =
                !op.kind.is_two_sided() || receives_left > 0 || Mutant::ReceiveNotConfirmed.is_on();
            let is_logged = !op.kind.is_logged() || log.is_some_and(|log| log >= op.wr.wr_id);
            if !is_received || !is_logged {
                return;
            }
            receives_left -= u64::from(op.kind.is_two_sided() && !Mutant::AnotherReceiveConfirms.is_on());
            if op.state == State::InFlight && (op.kind != Kind::Local || op.executed_locally) {
                op.state = State::Done(Outcome::Success);
            }
        }
    }
}
