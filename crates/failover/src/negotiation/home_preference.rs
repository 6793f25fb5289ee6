//! The agreement of both ends on one home rail, if their vQPs share atomics.
//!
//! vQPs that share atomics must all use one rail, the *home*, because atomics of different NICs
//! need not be atomic to each other. A vQP that proposes another rail as the home raises the home's
//! generation.
//!
//! If a vQP proposed a rail other than the home, the home and all other vQPs would move to that
//! rail. A vQP that was fenced because the home has moved therefore waits until it can follow. If
//! the newest known home has failed, is down, was refused or stays unusable for long, the vQP
//! proposes another rail as the home of the next generation. The vQPs may then find a rail that all
//! peers can use. An end declines a proposal that names an older home than its own, and answers
//! with its own. The peer's vQP then proposes that home, so both ends have the same one.

use mitra_verbs::Time;

use super::rail_state::RailState;
use super::{Phase, RailNegotiation};
use crate::control_message::Body;
use crate::home_rail::Home;

/// The longest wait for an unusable home is the peer timeout divided by this number.
const WAITS_PER_TIMEOUT: u32 = 4;
/// A home that was refused, or that is down at an end that does not share atomics, stays for this
/// many retry intervals. Other vQPs can thus execute some operations on it.
const MIN_STAY_RETRIES: u32 = 4;
/// The maximum by which a generation of the peer may exceed the known ones, so that the peer cannot
/// use up the generations.
const MAX_STEP: u64 = 1 << 32;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct KnownHomes {
    /// The home of this end's domain. `None` if its vQPs do not share atomics.
    pub(super) own: Option<Home>,
    /// The newest home that the peer has named.
    peer: Option<Home>,
    /// The home when the vQP was bound to the active rail. `None` if no end shared atomics then.
    bound: Option<Home>,
    /// The newest home that this end has considered for a move, and the time at which it first did.
    considered: Option<(Home, Time)>,
}

impl KnownHomes {
    pub(super) fn newest(&self) -> Option<Home> {
        self.own.max(self.peer)
    }

    /// The newer of this end's home and a home that the peer names.
    pub(super) fn newest_of_own_and(&self, named: Option<Home>) -> Option<Home> {
        self.own.max(self.believed(named))
    }

    /// Limits the generation of a home that the peer names to [`MAX_STEP`] above the known ones.
    fn believed(&self, named: Option<Home>) -> Option<Home> {
        let known = self.newest().map_or(0, |home| home.generation);
        named.map(|home| Home { generation: home.generation.min(known.saturating_add(MAX_STEP)), ..home })
    }

    /// Records the home that the peer names in a refusal.
    pub(super) fn on_peer_home(&mut self, named: Option<Home>) {
        self.peer = self.peer.max(self.believed(named));
    }

    pub(super) fn consider_newest(&mut self, now: Time) {
        self.considered = self.newest().map(|newest| match self.considered {
            Some((home, since)) if home == newest => (home, since),
            _ => (newest, now),
        });
    }

    pub(super) fn on_moved(&mut self, home: Option<Home>) {
        self.bound = home;
        self.peer = self.peer.max(home);
    }
}

impl RailNegotiation {
    /// Sets the home of this end's domain. `is_bound` says whether the active rail's queue pair is
    /// bound.
    pub fn set_home(&mut self, home: Home, is_bound: bool) {
        self.homes.own = Some(home);
        if is_bound && home.rail == self.active {
            self.homes.bound = self.homes.bound.max(Some(home));
        }
    }

    /// Proposes the home of this end's domain. Requires that this home is newer than the home of
    /// the move, and that this end has not sent its evidence for the move.
    pub fn home_is_newer(&mut self, now: Time, home: Home) {
        self.homes.own = Some(home);
        if let Phase::Moving(m) = &mut self.phase {
            // The old evidence must not lead to a decision. If the home comes back before another
            // ballot is proposed, the peer's next evidence does.
            m.peer_evidence = None;
            self.propose(now);
        }
    }

    /// Repeats the step of a move that the driver could not take: it had not bound the vQP to the
    /// new rail, because queue pairs of other vQPs on the old home were still stopping.
    pub fn home_may_be_free(&mut self) {
        let Phase::Moving(m) = &self.phase else { return };
        let Some(evidence) = m.local_evidence.clone() else { return };
        let body = Body::Evidence { rail: m.rail, home: m.named_home, evidence };
        self.send(m.ballot, body);
        self.decide_if_ready();
    }

    /// The home of the move in progress, with generation 0 if no end is known to share atomics.
    pub fn home_of_move(&self) -> Option<Home> {
        let Phase::Moving(m) = &self.phase else { return None };
        Some(m.home.unwrap_or(Home { generation: 0, rail: m.rail }))
    }

    /// Whether the peer has accepted the move in progress. True without a move.
    pub fn has_peer_accepted(&self) -> bool {
        !matches!(&self.phase, Phase::Moving(m) if m.proposed && m.peer_evidence.is_none())
    }

    /// Returns the home rail if no other rail may be proposed. The home rail may be the active
    /// rail, if the home has moved away and back.
    pub(super) fn awaited_home(&self, now: Time) -> Option<u8> {
        let home = self.homes.newest().filter(|_| self.homes.newest() > self.homes.bound)?;
        let waits_since = match &self.phase {
            Phase::Moving(m) => Some(m.started_at),
            _ => self.stranded_since,
        };
        let wait = self.peer_timeout / WAITS_PER_TIMEOUT;
        let is_wait_over = waits_since.is_some_and(|since| now.saturating_since(since) >= wait);
        let state = self.rail(home.rail);
        let (is_down, is_refused) = (state.contains(RailState::DOWN), state.contains(RailState::REFUSED));
        let min_stay = self.retry_interval * MIN_STAY_RETRIES;
        let has_stayed =
            self.homes.considered.is_none_or(|(_, since)| now.saturating_since(since) >= min_stay);
        // If the rail is down at the end that shares atomics, no vQP can use it.
        let may_move =
            is_wait_over || is_down && self.homes.own.is_some() || (is_down || is_refused) && has_stayed;
        (!may_move).then_some(home.rail)
    }

    /// Whether this end declines a move to `rail`: its home is another rail that may be usable,
    /// this vQP has not moved there yet, and the home `named` by the peer is older. A vQP that is
    /// already at the home accepts, because its peer proposes to leave the home only if the peer's
    /// queue pair has failed.
    pub(super) fn has_newer_home(&self, rail: u8, named: Option<Home>) -> bool {
        let Some(home) = self.homes.own else { return false };
        let is_newer = Some(home) > self.homes.bound && home > named.unwrap_or_default();
        is_newer && home.rail != rail && !self.rail(home.rail).contains(RailState::DOWN)
    }

    /// Updates the home of the move by the home that the peer names when it accepts.
    pub(super) fn on_accepted_home(&mut self, named: Option<Home>) {
        let named = self.homes.believed(named);
        if let Phase::Moving(m) = &mut self.phase {
            m.home = m.home.max(named.map(|home| home.moved_to(m.rail)));
            m.named_home = m.home;
        }
    }
}
