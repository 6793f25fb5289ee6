//! Rails that the vQP left and that work again, and the wait for one when no other is usable.
//!
//! Both ends bind the same rails in the same order, so the ballot by which the vQP left a rail identifies that rail's next queue pairs: each
//! end makes one per ballot, and only these two are ever connected. Neither end proposes the rail before both are connected. A late packet
//! of the old queue pairs finds no queue pair with its number.

use mitra_verbs::Time;

use super::{CloseReason, Phase, RailNegotiation};
use crate::ballot::Ballot;

impl RailNegotiation {
    /// The ballot by which the vQP left `rail` last, once the peer has confirmed the move and the old queue pair is no longer needed.
    pub fn left_by(&self, rail: usize) -> Option<Ballot> {
        self.left_by[rail].filter(|_| self.unconfirmed.is_none() && self.phase != Phase::Closed)
    }

    /// Returns whether the active rail has failed and no move can begin yet.
    pub fn is_stranded(&self) -> bool {
        self.stranded_since.is_some()
    }

    /// Returns whether the vQP left `rail` and the two new queue pairs are not known to be connected.
    pub fn awaits_new_qps(&self, rail: usize) -> bool {
        self.left_by(rail).is_some() && self.peer_qp_missing & (1 << rail) != 0
    }

    /// Records that this end's new queue pair of `rail` is connected to the peer's.
    pub fn local_qp_connected(&mut self, rail: usize) {
        self.local_qp_missing &= !(1 << rail);
    }

    /// Records that the peer's new queue pair of `rail` is connected to this end's.
    pub fn peer_qp_connected(&mut self, now: Time, rail: usize) {
        self.peer_qp_missing &= !(1 << rail);
        self.refused &= !(1 << rail);
        self.retry_proposal(now);
    }

    /// Waits until a move can begin, or closes the vQP if every rail of this end is broken. A link that is down does not close it: the
    /// link may come up before the queue pair has used up its retries.
    pub(super) fn wait_for_rail(&mut self, now: Time) {
        if self.all_rails() & !self.broken == 0 {
            return self.close(self.no_rail_reason());
        }
        self.next_send.get_or_insert(now + self.retry_interval);
        if self.is_active() {
            self.stranded_since.get_or_insert(now);
        }
    }

    /// Proposes again after a change that may make a waiting move possible.
    pub(super) fn retry_proposal(&mut self, now: Time) {
        if self.stranded_since.is_some() || self.is_refused() {
            self.propose(now);
        }
    }

    /// Returns whether the peer declined this end's ballot and there was no other rail to propose.
    pub(super) fn is_refused(&self) -> bool {
        matches!(&self.phase, Phase::Moving(m) if m.proposed && self.refused & (1 << m.rail) != 0)
    }

    /// The close reason if no rail is left.
    pub(super) fn no_rail_reason(&self) -> CloseReason {
        if self.unconfirmed.is_some() { CloseReason::FailedDuringRecovery } else { CloseReason::NoRail }
    }
}
