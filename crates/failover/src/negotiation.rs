//! The rail negotiation: the two ends of a vQP promise a ballot, fence, exchange evidence, move and
//! confirm.
//!
//! The negotiation is a state machine without I/O. An end accepts a ballot only if it is above the
//! last ballot that the end promised, and answers at once with the same Propose message. An end
//! sends its evidence only after its fence. If the old rail may still work, the proposer fences it
//! only after the peer has accepted: if the peer cannot use the proposed rail, the vQP stays on the
//! old one. When each end has the other end's evidence, both ends have fenced. Nothing more is
//! executed on the old rail then, so the evidence cannot change. Messages may be lost, duplicated,
//! delayed and reordered. They are therefore idempotent, contain their ballot, and are sent again
//! until they are answered.

use core::time::Duration;

use mitra_mutants::Mutant;
use mitra_verbs::Time;
use smallvec::SmallVec;

use crate::ballot::{Ballot, Role};
pub use crate::close_reason::CloseReason;
use crate::config::MAX_RAILS;
use crate::control_message::{Body, Message};
use crate::evidence::Evidence;
use crate::home_rail::Home;
use closing::{PeerBindings, PendingClose};
use failback::Preference;
use home_preference::KnownHomes;
use move_pauses::MovePauses;
use rail_state::RailState;

mod closing;
#[cfg(test)]
mod closing_tests;
mod failback;
#[cfg(test)]
mod failure_tests;
#[cfg(test)]
mod flap_tests;
mod home_preference;
#[cfg(test)]
mod home_tests;
mod messages;
mod move_pauses;
mod rail_choice;
mod rail_rejoin;
mod rail_state;
#[cfg(test)]
mod tests;

/// The maximum number of messages per peer timeout, for Resumes that stay unanswered longer than
/// the peer timeout, and for proposals to a peer that refuses. Each proposal uses up an epoch.
const ATTEMPTS_PER_TIMEOUT: u32 = 32;

/// What the driver must do.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Stop posting, fence the rail, collect the evidence, and call [`RailNegotiation::fenced`].
    Fence {
        /// The old rail.
        rail: u8,
    },
    /// Send the message on every usable rail.
    Send(Message),
    /// Decide the operations in flight from the peer's evidence, call [`RailNegotiation::moved`],
    /// and replay. Both ends have fenced.
    Decide {
        /// The new rail.
        rail: u8,
        /// The peer's record of the operations that it executed for this end.
        peer_evidence: Evidence,
    },
    /// The peer has moved. Earlier rails placed the first bytes of a torn WRITE with immediate of
    /// the peer. Add their number to the length of the next receive.
    PeerMoved {
        /// 0 if there is no such WRITE.
        partial_imm_bytes: u32,
    },
    /// Continue on the old, unfenced rail, because the peer can use no other rail.
    Stay,
    /// Stop and drain all queue pairs, and call [`RailNegotiation::closed`].
    Close {
        /// The reason.
        reason: CloseReason,
        /// The peer's final record of the operations that it executed for this end on the active
        /// rail. `None` if this end closed the vQP or the record is unknown.
        peer_evidence: Option<Evidence>,
    },
}

/// The failure of a rail at this end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RailFailure {
    /// The peer answers on another rail, and not on the active one.
    Silent,
    /// The port is down. It may come up before the queue pair has used up its retries.
    LinkDown,
    /// The current queue pair has failed.
    QpFailed,
    /// The NIC does not answer.
    NicDead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Active,
    Moving(Move),
    Closed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Move {
    ballot: Ballot,
    rail: u8,
    /// The home after the move. `None` if no end is known to share atomics.
    home: Option<Home>,
    /// The home that this end names in its messages: the home after the move if the peer has
    /// accepted, or else the newest known one.
    named_home: Option<Home>,
    proposed: bool,
    /// Whether the move leads to the preferred rail although, as far as this end knows, the active
    /// one works.
    is_failback: bool,
    /// Whether [`Action::Fence`] was requested.
    is_fence_requested: bool,
    ballot_adopted_at: Time,
    /// `None` until this end has fenced the old rail.
    local_evidence: Option<Evidence>,
    /// `None` until the peer's evidence for `ballot` has arrived.
    peer_evidence: Option<Evidence>,
    started_at: Time,
}

/// The last move, until the peer has confirmed it. It has the evidence to answer repeated requests.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct UnconfirmedMove {
    ballot: Ballot,
    /// The ballot of the old rail.
    previous: Ballot,
    rail: u8,
    home: Option<Home>,
    local_evidence: Evidence,
    /// Until this time, Resume is sent at every retry interval, and less often later.
    fast_retry_until: Time,
    evidence_resent_at: Option<Time>,
}

/// One end's state of the negotiation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RailNegotiation {
    role: Role,
    rail_count: u8,
    active: u8,
    current: Ballot,
    promised: Ballot,
    /// The highest epoch that the peer's refusals named.
    peer_epoch: u16,
    rails: [RailState; MAX_RAILS],
    homes: KnownHomes,
    /// Whether a move may replace the queue pairs of the active rail and stay on it.
    replaces_active_qps: bool,
    /// Whether the driver decides operations by the peer's evidence.
    needs_evidence: bool,
    /// By rail, the ballot by which the vQP last left it.
    left_by: [Option<Ballot>; MAX_RAILS],
    /// The time at which this end proposes refused rails again, and the pause from then to the next
    /// such proposal.
    refused_until: Option<(Time, Duration)>,
    /// The time at which the active rail failed while no move could begin: the last move is
    /// unconfirmed, no other rail is usable, or the pause after the last move is not over.
    stranded_since: Option<Time>,
    move_pauses: MovePauses,
    preference: Option<Preference>,
    /// The last ballot that this end declined, which it must not accept later: the proposer may
    /// have sent its evidence for the ballot before it proposed another one.
    declined: Option<Ballot>,
    phase: Phase,
    unconfirmed: Option<UnconfirmedMove>,
    /// The value in this end's Resume of the last move.
    partial_imm_bytes: u32,
    /// Whether the peer's `partial_imm_bytes` of the last move is unknown.
    awaits_peer_moved: bool,
    retry_interval: Duration,
    peer_timeout: Duration,
    /// The time at which unanswered messages are sent again.
    next_send: Option<Time>,
    /// Empty while the vQP is open, and after the peer has closed it.
    peer_bindings: PeerBindings,
    /// Set while this end waits for the evidence of a peer that has closed.
    pending_close: Option<Box<PendingClose>>,
    actions: SmallVec<[Action; 4]>,
}

impl RailNegotiation {
    /// Creates the state of a vQP that is bound to rail 0 by [`Ballot::FIRST`].
    ///
    /// # Panics
    /// If `rails` is 0 or more than [`MAX_RAILS`].
    pub fn new(
        role: Role,
        rails: usize,
        retry_interval: Duration,
        peer_timeout: Duration,
    ) -> RailNegotiation {
        assert!((1..=MAX_RAILS).contains(&rails), "a vQP has 1 to {MAX_RAILS} rails");
        RailNegotiation {
            role,
            rail_count: rails as u8,
            active: 0,
            current: Ballot::FIRST,
            promised: Ballot::FIRST,
            peer_epoch: Ballot::FIRST.epoch,
            rails: [RailState::empty(); MAX_RAILS],
            homes: KnownHomes::default(),
            replaces_active_qps: false,
            needs_evidence: true,
            left_by: [None; MAX_RAILS],
            refused_until: None,
            stranded_since: None,
            move_pauses: MovePauses::default(),
            preference: None,
            declined: None,
            phase: Phase::Active,
            unconfirmed: None,
            partial_imm_bytes: 0,
            awaits_peer_moved: false,
            retry_interval,
            peer_timeout,
            next_send: None,
            peer_bindings: PeerBindings::new(),
            pending_close: None,
            actions: SmallVec::new(),
        }
    }

    /// Begins with this epoch instead of the first one. Both ends must do so, before any message.
    pub fn begin_at(&mut self, epoch: u16) {
        let ballot = Ballot { epoch, ..Ballot::FIRST };
        (self.current, self.promised, self.peer_epoch) = (ballot, ballot, epoch);
    }

    /// The active rail. During a move, the old rail.
    pub fn active(&self) -> usize {
        usize::from(self.active)
    }

    /// The rail to which the vQP moves, or the active rail if no move is in progress.
    pub fn destination(&self) -> usize {
        let Phase::Moving(m) = &self.phase else { return self.active() };
        m.rail.into()
    }

    /// The highest promised ballot.
    pub fn promised(&self) -> Ballot {
        self.promised
    }

    /// The ballot that bound the vQP to the active rail.
    pub fn ballot(&self) -> Ballot {
        self.current
    }

    /// The ballot of the move in progress.
    pub fn move_ballot(&self) -> Option<Ballot> {
        if let Phase::Moving(m) = &self.phase { Some(m.ballot) } else { None }
    }

    /// Whether the vQP is open and no move is in progress.
    pub fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// Whether no move is in progress and the peer has confirmed the last one.
    pub fn is_move_confirmed(&self) -> bool {
        self.is_active() && self.unconfirmed.is_none()
    }

    /// Whether this end has neither the peer's Resume of the last move nor the peer's evidence for
    /// the next one. Until one of the two arrives, the length of a WRITE with immediate may be
    /// unknown.
    pub fn awaits_peer_moved(&self) -> bool {
        self.awaits_peer_moved
    }

    /// The time of the next call of [`RailNegotiation::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.next_send, self.connect_deadline(), self.next_close_question()].into_iter().flatten().min()
    }

    /// The number of actions that [`RailNegotiation::poll_action`] returns next.
    pub fn queued_actions(&self) -> usize {
        self.actions.len()
    }

    /// The next action for the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        (!self.actions.is_empty()).then(|| self.actions.remove(0))
    }

    /// Records the failure of a rail at this end, which the driver may report repeatedly.
    pub fn rail_failed(&mut self, now: Time, rail: usize, failure: RailFailure) {
        self.rail_mut(rail).insert(match failure {
            RailFailure::Silent => RailState::empty(),
            RailFailure::LinkDown => RailState::DOWN,
            RailFailure::QpFailed => RailState::QP_FAILED,
            RailFailure::NicDead => RailState::DOWN | RailState::DEAD | RailState::QP_FAILED,
        });
        match &self.phase {
            Phase::Active if rail == self.active() || self.stranded_since.is_some() => {
                self.propose(now);
            }
            // If the new rail fails, another move follows. The vQP closes only if the NICs of all
            // rails are dead.
            Phase::Moving(_) if self.are_all_nics_dead() => {
                self.close(CloseReason::FailedDuringRecovery);
            }
            Phase::Moving(_) if self.has_active_qp_failed() => self.request_fence(),
            Phase::Closed | Phase::Active | Phase::Moving(_) => {}
        }
    }

    /// Records that this end's device of a rail works again.
    pub fn rail_recovered(&mut self, now: Time, rail: usize) {
        self.rail_mut(rail).remove(RailState::DOWN);
        if !Mutant::HealedNicStaysDead.is_on() {
            self.rail_mut(rail).remove(RailState::DEAD);
        }
        if rail != self.active() {
            self.rail_mut(rail).remove(RailState::QP_FAILED);
        } else if self.is_active() && !self.has_active_qp_failed() {
            self.stranded_since = None; // the vQP stays on the rail
        }
        self.retry_proposal(now);
    }

    /// Records that the old rail is fenced. `evidence` contains the operations that this end
    /// executed for the peer.
    pub fn fenced(&mut self, now: Time, evidence: Evidence) {
        let partial_imm_bytes = self.partial_imm_bytes;
        if let Phase::Moving(m) = &mut self.phase
            && m.local_evidence.is_none()
        {
            let partial_imm_bytes = if Mutant::LengthOfLostResume.is_on() { 0 } else { partial_imm_bytes };
            m.local_evidence = Some(Evidence { partial_imm_bytes, ..evidence });
            self.send_progress(now);
            self.decide_if_ready();
        }
    }

    /// Records that the driver could not fence the old NIC.
    pub fn fence_failed(&mut self) {
        self.close(CloseReason::Unfenced);
    }

    /// Records that the driver has decided the operations in flight and may post on the new rail.
    /// The driver does not send the first `partial_imm_bytes` bytes of a torn WRITE with immediate
    /// again.
    pub fn moved(&mut self, now: Time, partial_imm_bytes: u32) {
        let Phase::Moving(m) = &self.phase else { return };
        let (ballot, rail, home, is_failback) = (m.ballot, m.rail, m.home, m.is_failback);
        let local_evidence = m.local_evidence.clone().unwrap_or_default();
        let (old, previous) = (self.active, self.current);
        self.rail_mut(rail).remove(RailState::PEER_QP_MISSING);
        self.rail_mut(old).insert(RailState::LOCAL_QP_MISSING | RailState::PEER_QP_MISSING);
        self.rail_mut(old).remove(RailState::QP_FAILED); // the queue pair is replaced, even if it failed after its fence had begun
        self.left_by[usize::from(old)] = Some(ballot);
        self.active = rail;
        self.current = ballot;
        self.homes.on_moved(home);
        (self.partial_imm_bytes, self.awaits_peer_moved) = (partial_imm_bytes, true);
        self.move_pauses.on_move(now, self.peer_timeout, is_failback);
        // A refused rail may work when the next move begins. If not, the peer refuses it again.
        self.forget_refusals();
        self.phase = Phase::Active;
        self.unconfirmed = Some(UnconfirmedMove {
            ballot,
            previous,
            rail,
            home,
            local_evidence,
            fast_retry_until: now + self.peer_timeout,
            evidence_resent_at: None,
        });
        self.next_send = Some(now + self.retry_interval);
        self.send_resume(false);
        if self.closes_by_pending() {
            return;
        }
        if self.has_active_failed() {
            self.propose(now);
        }
    }

    /// Sends unanswered messages again, and closes the vQP if a failover is not possible within the
    /// peer timeout. Does nothing before [`RailNegotiation::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Time) {
        self.drive_pending_close(now);
        if self.connect_deadline().is_some_and(|t| t <= now) {
            self.rail_mut(self.active).insert(RailState::QP_FAILED);
            return self.propose(now);
        }
        if self.next_send.is_none_or(|t| t > now) {
            return;
        }
        let refused = self.is_refused();
        let proposes_again = (refused || self.is_stranded()) && self.forgets_refusals(now);
        match &self.phase {
            Phase::Moving(m) if now.saturating_since(m.started_at) >= self.peer_timeout => {
                self.close(if refused { CloseReason::NoRail } else { CloseReason::PeerUnreachable });
            }
            // The peer may be able to use the refused rails now, but accepts only a new ballot.
            Phase::Moving(_) if proposes_again => self.propose(now),
            Phase::Moving(_) => self.send_progress(now),
            Phase::Active => {
                let failed_since = self.stranded_since.filter(|_| self.has_active_qp_failed());
                if failed_since.is_some_and(|since| now.saturating_since(since) >= self.peer_timeout) {
                    return self.close(self.no_rail_reason());
                }
                let awaits_peer = self.stranded_since.is_some() || self.awaits_peer_moved;
                self.next_send = awaits_peer.then_some(now + self.retry_interval);
                if self.is_stranded() && self.unconfirmed.is_none() {
                    return self.propose(now);
                }
                if !self.awaits_peer_moved {
                    return;
                }
                // No other move can begin before the peer's Resume arrives. All links may be down
                // for longer than the peer timeout, so this end never stops sending its own Resume,
                // but lowers the rate after the peer timeout.
                if self.unconfirmed.as_ref().is_some_and(|unconfirmed| unconfirmed.fast_retry_until <= now) {
                    self.next_send = Some(now + self.peer_timeout / ATTEMPTS_PER_TIMEOUT);
                }
                self.send_resume(false);
            }
            Phase::Closed => self.next_send = None,
        }
    }

    /// Promises `ballot`, which binds the vQP to `rail`, and tells the peer. Starts a move unless
    /// one is in progress. `home` is the home that the peer named if the peer proposes.
    fn adopt_ballot(&mut self, now: Time, ballot: Ballot, rail: u8, proposed: bool, home: Option<Home>) {
        self.promised = ballot;
        let known = if proposed { self.homes.newest() } else { self.homes.newest_of_own_and(home) };
        let home = known.map(|known| known.moved_to(rail));
        let named_home = if proposed { known } else { home };
        let is_failback = !proposed && self.is_failback_due(now, rail);
        match &mut self.phase {
            Phase::Moving(m) => {
                // This end's evidence is valid for the new ballot too. The peer must send its
                // evidence again with the new ballot. If this end decided by the peer's evidence
                // for the old ballot, it would first move the home to the rail of the old ballot,
                // which the vQP does not take. The next move would then take the home away from a
                // rail on which the peer may have posted.
                self.actions.retain(|action| {
                    !matches!(
                        action,
                        Action::Decide { .. } | Action::Send(Message { body: Body::Evidence { .. }, .. })
                    )
                });
                // Both ends may propose the preferred rail at the same time.
                let is_failback = is_failback || !proposed && m.is_failback && m.rail == rail;
                (m.ballot, m.rail, m.proposed, m.is_failback) = (ballot, rail, proposed, is_failback);
                (m.ballot_adopted_at, m.peer_evidence) = (now, None);
                (m.home, m.named_home) = (home, named_home);
            }
            _ => {
                self.stranded_since = None;
                self.phase = Phase::Moving(Move {
                    ballot,
                    rail,
                    home,
                    named_home,
                    proposed,
                    is_failback,
                    is_fence_requested: false,
                    ballot_adopted_at: now,
                    local_evidence: None,
                    peer_evidence: None,
                    started_at: now,
                });
            }
        }
        // The message goes out before the fence, so that both ends fence at the same time.
        self.send_progress(now);
        if !proposed || self.has_active_qp_failed() {
            self.request_fence();
        }
    }

    fn request_fence(&mut self) {
        if let Phase::Moving(m) = &mut self.phase
            && !core::mem::replace(&mut m.is_fence_requested, true)
        {
            // The queue pair is replaced after the fence, so its failure does not matter. The
            // driver reports a dead NIC again.
            self.rail_mut(self.active).remove(RailState::QP_FAILED);
            self.actions.push(Action::Fence { rail: self.active });
        }
    }

    fn decide_if_ready(&mut self) {
        if let Phase::Moving(Move { local_evidence: Some(_), peer_evidence: Some(evidence), rail, .. }) =
            &self.phase
        {
            self.actions.push(Action::Decide { rail: *rail, peer_evidence: evidence.clone() });
        }
    }
}
