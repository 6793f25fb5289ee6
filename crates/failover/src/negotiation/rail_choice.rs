//! The choice of the rail to propose, and the wait for a usable rail.

use core::time::Duration;

use mitra_mutants::Mutant;
use mitra_verbs::Time;

use crate::ballot::Ballot;

use super::rail_state::RailState;
use super::{ATTEMPTS_PER_TIMEOUT, Action, CloseReason, Phase, RailNegotiation};

/// The longest pause between two moves is the peer timeout divided by this number, so no pause
/// closes a vQP.
const MIN_PAUSES_PER_TIMEOUT: u32 = 8;

impl RailNegotiation {
    /// Whether the active rail has failed and no move can begin yet.
    pub fn is_stranded(&self) -> bool {
        self.stranded_since.is_some()
    }

    /// The rails to which this end accepts no move: bit i is rail i.
    pub fn local_unusable(&self) -> u8 {
        (0..self.rail_count).fold(0, |set, rail| set | u8::from(!self.is_locally_usable(rail)) << rail)
    }

    /// Whether this end accepts a move to `rail`. The active rail is usable if its queue pair can
    /// be replaced.
    pub(super) fn is_locally_usable(&self, rail: u8) -> bool {
        if rail == self.active {
            return self.replaces_active_qps && !self.rail(rail).contains(RailState::DOWN);
        }
        !self.rail(rail).intersects(RailState::FAILED | RailState::LOCAL_QP_MISSING)
    }

    /// Starts a move, or proposes a higher ballot in the move in progress. If no move can begin or
    /// no rail can be proposed, waits or stays on the old rail.
    pub(super) fn propose(&mut self, now: Time) {
        self.homes.consider_newest(now);
        match self.candidate(now).filter(|_| self.may_begin_move(now)) {
            Some(rail) => self.propose_rail(now, rail),
            None => self.wait_for_rail(now),
        }
    }

    /// Proposes another rail after a refusal. The refusal ends a failback if the active rail works.
    pub(super) fn propose_again(&mut self, now: Time) {
        let is_failback = matches!(&self.phase, Phase::Moving(m) if m.is_failback && !m.is_fence_requested);
        if is_failback && !self.has_active_failed() {
            self.wait_for_rail(now);
        } else {
            self.propose(now);
        }
    }

    pub(super) fn propose_rail(&mut self, now: Time, rail: u8) {
        let highest = Ballot { epoch: self.promised.epoch.max(self.peer_epoch), ..self.promised };
        let Some(ballot) = highest.next(self.role) else {
            return self.close(CloseReason::EpochsUsedUp);
        };
        self.adopt_ballot(now, ballot, rail, true, None);
    }

    /// Whether a move may begin or continue. While the last move is unconfirmed, the peer may still
    /// be moving to the rail that has now failed.
    pub(super) fn may_begin_move(&self, now: Time) -> bool {
        (self.unconfirmed.is_none() || Mutant::MoveBeforeConfirmation.is_on())
            && (!self.is_active() || now >= self.pause_end())
    }

    pub(super) fn pause_end(&self) -> Time {
        self.move_pauses.next_move(self.retry_interval, self.peer_timeout / MIN_PAUSES_PER_TIMEOUT)
    }

    /// Returns the next rail that both ends can use, as far as this end knows. The active rail
    /// comes last, and only if its queue pairs must be replaced.
    fn candidate(&self, now: Time) -> Option<u8> {
        if let Some(home) = self.awaited_home(now) {
            return Some(home).filter(|&home| self.is_usable(home));
        }
        let mut others = (1..self.rail_count).map(|i| (self.active + i) % self.rail_count);
        let other = others.find(|&rail| self.is_usable(rail));
        let is_fenced = matches!(&self.phase, Phase::Moving(m) if m.is_fence_requested);
        let is_failed = is_fenced || self.has_active_qp_failed();
        other.or_else(|| Some(self.active).filter(|&rail| is_failed && self.is_usable(rail)))
    }

    /// Whether both ends can use `rail`, as far as this end knows.
    pub(super) fn is_usable(&self, rail: u8) -> bool {
        let at_peer = RailState::REFUSED | RailState::PEER_UNUSABLE;
        let excluding = if rail == self.active { at_peer } else { at_peer | RailState::PEER_QP_MISSING };
        rail < self.rail_count && self.is_locally_usable(rail) && !self.rail(rail).intersects(excluding)
    }

    /// Waits until a move can begin. In a move whose old rail is not fenced, the vQP stays on that
    /// rail. The vQP closes only if every NIC of this end is dead, because a port that is down may
    /// come up.
    fn wait_for_rail(&mut self, now: Time) {
        if self.are_all_nics_dead() {
            return self.close(self.no_rail_reason());
        }
        if let Phase::Moving(m) = &self.phase
            && !m.is_fence_requested
        {
            self.phase = Phase::Active;
            self.next_send = self.awaits_peer_moved.then_some(now + self.retry_interval);
            self.actions.push(Action::Stay);
        }
        if self.is_active() && !self.has_active_failed() {
            return self.forget_refusals(); // the active rail may still work
        }
        self.next_send.get_or_insert(now + self.retry_interval);
        if self.is_active() {
            self.stranded_since.get_or_insert(now);
        }
    }

    /// Repeats a proposal that was impossible or refused. Called after a change that may make the
    /// proposal possible.
    pub(super) fn retry_proposal(&mut self, now: Time) {
        if self.stranded_since.is_some() || self.is_refused() {
            self.propose(now);
        }
    }

    pub(super) fn on_peer_unusable(&mut self, now: Time, unusable: u8) {
        let before = self.rails_with(RailState::PEER_UNUSABLE);
        self.set_rails_with(RailState::PEER_UNUSABLE, unusable);
        if before & !unusable != 0 {
            self.set_rails_with(RailState::REFUSED, self.rails_with(RailState::REFUSED) & unusable);
            self.retry_proposal(now);
        }
    }

    /// Whether the peer refused the rail that this end proposed in the move in progress.
    pub(super) fn is_refused(&self) -> bool {
        matches!(&self.phase, Phase::Moving(m) if m.proposed && self.rail(m.rail).contains(RailState::REFUSED))
    }

    /// Returns whether the time has come to propose refused rails again. If so, forgets the
    /// refusals, because the peer may be able to use these rails now. Each such proposal uses up an
    /// epoch, so the pauses between them double.
    pub(super) fn forgets_refusals(&mut self, now: Time) -> bool {
        let first_pause = self.peer_timeout / ATTEMPTS_PER_TIMEOUT;
        let (due, pause) = *self.refused_until.get_or_insert((now + first_pause, first_pause * 2));
        if now < due {
            return false;
        }
        self.refused_until =
            Some((now + pause, (pause * 2).min(self.peer_timeout.max(Duration::from_secs(60)))));
        self.set_rails_with(RailState::REFUSED | RailState::PEER_UNUSABLE, 0);
        true
    }

    pub(super) fn forget_refusals(&mut self) {
        self.set_rails_with(RailState::REFUSED, 0);
        self.refused_until = None;
    }

    pub(super) fn no_rail_reason(&self) -> CloseReason {
        if self.unconfirmed.is_some() { CloseReason::FailedDuringRecovery } else { CloseReason::NoRail }
    }
}
