//! The state of the queue pairs of rails that the vQP left.
//!
//! Both ends bind the vQP to the same rails in the same order, so the ballot by which the vQP left
//! a rail identifies the rail's next queue pairs. Each end creates one queue pair for this ballot,
//! and only these two are connected to each other. Until then, no end proposes the rail. The new
//! queue pairs have new numbers, so late packets of the old ones match no queue pair.

use mitra_verbs::Time;

use super::rail_state::RailState;
use super::{Phase, RailNegotiation};
use crate::ballot::Ballot;

impl RailNegotiation {
    /// Allows moves that replace the queue pairs of the active rail. Both ends must fence.
    pub fn allow_replacing_active_qps(&mut self) {
        self.replaces_active_qps = true;
    }

    /// Whether operations may be posted on the active rail: this end does not fence it, and both
    /// ends have connected its queue pairs.
    pub fn may_post(&self) -> bool {
        let is_unfenced = match &self.phase {
            Phase::Active => true,
            Phase::Moving(m) => !m.is_fence_requested,
            Phase::Closed => false,
        };
        let missing = RailState::LOCAL_QP_MISSING | RailState::PEER_QP_MISSING;
        is_unfenced && !self.rail(self.active).intersects(missing)
    }

    /// The time at which unconnected new queue pairs of the active rail count as failed. Nothing is
    /// posted on them, so no retries show that the peer is gone.
    pub(super) fn connect_deadline(&self) -> Option<Time> {
        let is_waiting = self.is_active() && !self.may_post() && !self.has_active_qp_failed();
        is_waiting.then(|| self.move_pauses.last_move + self.peer_timeout / 2)
    }

    /// Whether this end must replace its queue pair of `rail` or connect it to the peer's.
    pub fn is_local_qp_missing(&self, rail: usize) -> bool {
        self.rail(rail).contains(RailState::LOCAL_QP_MISSING)
    }

    /// The ballot that identifies the next queue pairs of `rail`. By this ballot, the vQP last left
    /// the rail, or replaced the queue pairs of the active rail in the last move. `None` if the
    /// rail was never left, or if its next queue pairs must not be connected now: the vQP has
    /// closed, `rail` is active and a move is in progress, or `rail` is another rail and the last
    /// move is unconfirmed.
    pub fn left_by(&self, rail: usize) -> Option<Ballot> {
        let left = self.left_by[rail]?;
        let may_connect = match &self.phase {
            // The evidence of a move in progress must not change.
            _ if rail == self.active() => self.is_active() && left == self.current,
            Phase::Active | Phase::Moving(_) => self.unconfirmed.is_none(),
            Phase::Closed => false,
        };
        may_connect.then_some(left)
    }

    /// Whether the vQP left `rail` and the peer's new queue pair is not known to be connected.
    pub fn awaits_new_qps(&self, rail: usize) -> bool {
        self.left_by(rail).is_some() && self.rail(rail).contains(RailState::PEER_QP_MISSING)
    }

    /// Records that this end has connected its new queue pair.
    pub fn local_qp_connected(&mut self, rail: usize) {
        self.rail_mut(rail).remove(RailState::LOCAL_QP_MISSING);
    }

    /// Records that the peer has connected its new queue pair.
    pub fn peer_qp_connected(&mut self, now: Time, rail: usize) {
        self.rail_mut(rail).remove(RailState::PEER_QP_MISSING | RailState::REFUSED);
        self.retry_proposal(now);
    }
}
