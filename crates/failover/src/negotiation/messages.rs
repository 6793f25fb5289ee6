//! The messages of a move.

use mitra_mutants::Mutant;
use mitra_verbs::Time;

use super::rail_state::RailState;
use super::{Action, Phase, RailNegotiation};
use crate::ballot::Ballot;
use crate::control_message::{Body, Message};
use crate::evidence::Evidence;
use crate::home_rail::Home;

impl RailNegotiation {
    /// Handles a message of the peer.
    pub fn handle(&mut self, now: Time, message: Message) {
        let ballot = message.ballot;
        match message.body {
            Body::Closed { evidence } => self.on_peer_closed(now, ballot, evidence),
            // The first Closed message may have been lost.
            _ if self.phase == Phase::Closed => self.send_closed(),
            Body::Heartbeat { unusable } => self.on_peer_unusable(now, unusable),
            // The driver handles these.
            Body::NewQp(_) | Body::Address(_) | Body::AddressKnown { .. } => {}
            Body::AskPlaced | Body::Placed(_) | Body::Question { .. } | Body::Answer { .. } => {}
            Body::Propose { home, .. } if ballot.proposer == self.role => self.on_acceptance(ballot, home),
            Body::Propose { rail, home } => self.on_propose(now, ballot, rail, home),
            Body::Evidence { rail, home, evidence } => self.on_evidence(now, ballot, (rail, home), evidence),
            Body::Resume { has_peer_resume, partial_imm_bytes } => {
                self.on_resume(now, ballot, has_peer_resume, partial_imm_bytes);
            }
            Body::Refuse { unusable, promised_epoch, home } => {
                self.on_refusal(now, ballot, unusable, promised_epoch, home);
            }
        }
    }

    fn on_propose(&mut self, now: Time, ballot: Ballot, rail: u8, home: Option<Home>) {
        if let Some(unconfirmed) = &mut self.unconfirmed
            && unconfirmed.ballot == ballot
        {
            // The peer lacks this end's evidence. If both ends have moved, each end would take the
            // other's answer for a request and answer it, so the rate limit keeps them from
            // answering each other forever.
            let resent = unconfirmed.evidence_resent_at;
            let is_recent = resent.is_some_and(|t| now.saturating_since(t) < self.retry_interval / 2);
            if is_recent || Mutant::EvidenceSentOnce.is_on() {
                return;
            }
            unconfirmed.evidence_resent_at = Some(now);
            let evidence = unconfirmed.local_evidence.clone();
            let body = Body::Evidence { rail: unconfirmed.rail, home: unconfirmed.home, evidence };
            return self.send(ballot, body);
        }
        if self.declined == Some(ballot) && !Mutant::RefusalNotRepeated.is_on() {
            return self.refuse(ballot);
        }
        if ballot == self.promised {
            return; // the ballot of the move in progress, or of the last move
        }
        if ballot < self.promised && !Mutant::LowerBallotAccepted.is_on() {
            // The proposer does not know the higher ballot.
            return self.refuse(ballot);
        }
        // Nothing need be resent for the last move: a peer proposes only after its last move was
        // confirmed, so it has this end's Resume. The peer's own Resume may have been lost. If this
        // end accepts the proposal, the peer's evidence repeats the content of the Resume. If this
        // end declines, it goes on asking for the Resume.
        self.unconfirmed = None;
        let is_usable = rail < self.rail_count && self.is_locally_usable(rail);
        if !is_usable || self.has_newer_home(rail, home) {
            self.promised = ballot;
            self.declined = Some(ballot);
            return self.refuse(ballot);
        }
        self.adopt_ballot(now, ballot, rail, false, home);
    }

    /// The peer has accepted this end's proposal and fences too.
    fn on_acceptance(&mut self, ballot: Ballot, home: Option<Home>) {
        if ballot == self.promised {
            self.on_accepted_home(home);
            self.request_fence();
        }
    }

    fn on_evidence(
        &mut self,
        now: Time,
        ballot: Ballot,
        (rail, home): (u8, Option<Home>),
        evidence: Evidence,
    ) {
        self.on_propose(now, ballot, rail, home);
        if let Phase::Moving(m) = &mut self.phase
            && m.ballot == ballot
            && m.rail == rail
            && m.peer_evidence.is_none()
        {
            if core::mem::take(&mut self.awaits_peer_moved) {
                // The peer's Resume of the last move was lost. Its evidence repeats
                // `partial_imm_bytes`.
                self.actions.push(Action::PeerMoved { partial_imm_bytes: evidence.partial_imm_bytes });
            }
            m.peer_evidence = Some(evidence);
            self.on_accepted_home(home);
            self.request_fence(); // the peer has accepted this end's proposal
            self.decide_if_ready();
        }
    }

    /// Proposes a ballot above all that the peer promised. The peer never accepts the refused
    /// ballot, even if the rail has become usable. Each refusal names all rails that the peer
    /// cannot use, so only the last refusal counts.
    fn on_refusal(
        &mut self,
        now: Time,
        ballot: Ballot,
        unusable: u8,
        promised_epoch: u16,
        home: Option<Home>,
    ) {
        if let Phase::Moving(m) = &self.phase
            && m.proposed
            && m.ballot == ballot
        {
            self.set_rails_with(RailState::REFUSED, unusable);
            self.homes.on_peer_home(home);
            self.peer_epoch = self.peer_epoch.max(promised_epoch);
            self.propose_again(now);
        }
    }

    fn on_resume(&mut self, now: Time, ballot: Ballot, has_peer_resume: bool, partial_imm_bytes: u32) {
        let is_present = self.current == ballot || Mutant::EarlierResumeTaken.is_on();
        if self.is_active() && self.awaits_peer_moved && is_present {
            self.unconfirmed = None;
            self.next_send = None;
            self.awaits_peer_moved = false;
            self.actions.push(Action::PeerMoved { partial_imm_bytes });
            self.retry_proposal(now);
        }
        if self.is_active() && self.current == ballot && !has_peer_resume {
            self.send_resume(true);
        }
    }

    /// Sends the message of the current step of the move and schedules its retry.
    pub(super) fn send_progress(&mut self, now: Time) {
        let Phase::Moving(m) = &self.phase else { return };
        self.next_send = Some(now + self.retry_interval);
        let (ballot, rail, home) = (m.ballot, m.rail, m.named_home);
        let body = match &m.local_evidence {
            Some(evidence) => Body::Evidence { rail, home, evidence: evidence.clone() },
            // If this end is not the proposer, the message is an acceptance.
            None => Body::Propose { rail, home },
        };
        self.send(ballot, body);
    }

    pub(super) fn send_resume(&mut self, has_peer_resume: bool) {
        let body = Body::Resume { has_peer_resume, partial_imm_bytes: self.partial_imm_bytes };
        self.send(self.current, body);
    }

    pub(super) fn refuse(&mut self, ballot: Ballot) {
        let promised_epoch = self.promised.epoch;
        let (unusable, home) = (self.local_unusable(), self.homes.own);
        self.send(ballot, Body::Refuse { unusable, promised_epoch, home });
    }

    pub(super) fn send(&mut self, ballot: Ballot, body: Body) {
        self.actions.push(Action::Send(Message { ballot, body }));
    }
}
