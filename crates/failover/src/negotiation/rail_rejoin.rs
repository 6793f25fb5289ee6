//! The state of rails that the vQP left, and the wait for a usable rail when the active rail has failed.
//!
//! Both ends bind the vQP to the same rails in the same order, so the ballot by which the vQP left a rail identifies the next queue pairs of
//! that rail: each end creates one queue pair for this ballot, and only these two are connected to each other. Neither end proposes the
//! rail before both are connected. The new queue pairs have new numbers, so late packets of the old ones match no queue pair.

use mitra_verbs::Time;

use super::{CloseReason, Phase, RailNegotiation};
use crate::ballot::Ballot;

impl RailNegotiation {
    /// The ballot by which the vQP last left `rail`. `None` if it never did, while the last move is unconfirmed, and after the vQP has closed.
    pub fn left_by(&self, rail: usize) -> Option<Ballot> {
        self.left_by[rail].filter(|_| self.unconfirmed.is_none() && self.phase != Phase::Closed)
    }

    /// Returns whether the active rail has failed and no move can begin yet.
    pub fn is_stranded(&self) -> bool {
        self.stranded_since.is_some()
    }

    /// Returns whether the vQP left `rail` and the peer's new queue pair of `rail` is not known to be connected.
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

    /// Starts to wait until a move can begin, or closes the vQP if every rail of this end is broken. A rail whose link is down is not broken:
    /// the link may come up before the queue pair has used up its retries.
    pub(super) fn wait_for_rail(&mut self, now: Time) {
        if self.all_rails() & !self.broken == 0 {
            return self.close(self.no_rail_reason());
        }
        self.next_send.get_or_insert(now + self.retry_interval);
        if self.is_active() {
            self.stranded_since.get_or_insert(now);
        }
    }

    /// Proposes a ballot if an earlier proposal was impossible or was refused. Called after a change that may make one possible.
    pub(super) fn retry_proposal(&mut self, now: Time) {
        if self.stranded_since.is_some() || self.is_refused() {
            self.propose(now);
        }
    }

    /// Returns whether the peer refused the rail that this end proposed in the move in progress.
    pub(super) fn is_refused(&self) -> bool {
        matches!(&self.phase, Phase::Moving(m) if m.proposed && self.refused & (1 << m.rail) != 0)
    }

    /// The reason for closing when no rail is left.
    pub(super) fn no_rail_reason(&self) -> CloseReason {
        if self.unconfirmed.is_some() { CloseReason::FailedDuringRecovery } else { CloseReason::NoRail }
    }
}
