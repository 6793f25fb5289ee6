//! The closing of the vQP. An end that closes sends the evidence by which its peer decides the
//! operations in flight.
//!
//! An end that closes moves its queue pairs to ERR and drains them. The evidence that it then
//! collects is final, and its Closed messages contain it. The peer needs the evidence of the rail
//! to which it is bound, and this end may not know whether the peer has moved. There is therefore
//! one message for each binding that the peer may have, with the ballot of the binding. The peer
//! decides by the message of its own binding. If only a message of another binding has arrived, the
//! peer asks again, up to the peer timeout. An unreliable connection, or a vQP with a baseline
//! policy, decides nothing by evidence and closes by any Closed message.

use mitra_verbs::Time;
use smallvec::{SmallVec, smallvec};

use super::{Action, CloseReason, Phase, RailNegotiation};
use crate::ballot::Ballot;
use crate::control_message::Body;
use crate::evidence::Evidence;

/// The possible bindings of the peer, each with this end's evidence. Only the last binding may lack
/// evidence.
pub(super) type PeerBindings = SmallVec<[(Ballot, Option<Evidence>); 1]>;

/// The peer's Closed message for a binding that this end does not have.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct PendingClose {
    /// The ballot of the binding. This end may still move to it.
    ballot: Ballot,
    evidence: Option<Evidence>,
    /// The time at which this end next asks for the Closed message of its own binding.
    next_question: Time,
    /// The time at which this end closes without evidence.
    deadline: Time,
}

impl RailNegotiation {
    /// Makes any Closed message of the peer close the vQP at once, because the driver does not
    /// decide by evidence.
    pub fn close_without_evidence(&mut self) {
        self.needs_evidence = false;
    }

    /// Closes the vQP.
    pub fn close(&mut self, reason: CloseReason) {
        use CloseReason::{FailedDuringRecovery, NoRail, PeerClosed, PeerExited, PeerUnreachable};
        let is_silence = matches!(reason, PeerUnreachable | PeerExited | NoRail | FailedDuringRecovery);
        // A peer that has closed may be gone, so `PeerClosed` explains its silence.
        self.end(if is_silence && self.pending_close.is_some() { PeerClosed } else { reason }, None);
    }

    /// The ballot of the rail whose evidence the driver passes to [`RailNegotiation::closed`]. This
    /// is the active rail or, if this end has fenced it for a move, the new rail. `None` if the vQP
    /// is open, or if the peer closed it.
    pub fn final_ballot(&self) -> Option<Ballot> {
        self.peer_bindings.last().map(|&(ballot, _)| ballot)
    }

    /// Sends the Closed messages, after the driver has stopped all queue pairs. `evidence` contains
    /// the operations that this end executed for the peer on the rail of
    /// [`RailNegotiation::final_ballot`]. It is `None` if the evidence may be incomplete.
    pub fn closed(&mut self, evidence: Option<Evidence>) {
        let partial_imm_bytes = self.partial_imm_bytes;
        if let Some((_, last)) = self.peer_bindings.last_mut() {
            *last = evidence.map(|evidence| Evidence { partial_imm_bytes, ..evidence });
        }
        self.send_closed();
    }

    pub(super) fn send_closed(&mut self) {
        for (ballot, evidence) in self.peer_bindings.clone() {
            self.send(ballot, Body::Closed { evidence });
        }
    }

    pub(super) fn on_peer_closed(&mut self, now: Time, ballot: Ballot, evidence: Option<Evidence>) {
        if self.phase == Phase::Closed || ballot < self.current {
            return;
        }
        if ballot == self.current || !self.needs_evidence {
            return self.end_by_peer(evidence.filter(|_| ballot == self.current));
        }
        let (next_question, deadline) = match &self.pending_close {
            Some(pending) => (pending.next_question, pending.deadline),
            None => (now + self.retry_interval, now + self.peer_timeout),
        };
        self.pending_close = Some(Box::new(PendingClose { ballot, evidence, next_question, deadline }));
    }

    pub(super) fn next_close_question(&self) -> Option<Time> {
        self.pending_close.as_ref().map(|pending| pending.next_question.min(pending.deadline))
    }

    /// Asks for the Closed message of this end's binding, or closes the vQP without it.
    pub(super) fn drive_pending_close(&mut self, now: Time) {
        let Some(pending) = &mut self.pending_close else { return };
        if now >= pending.deadline {
            return self.end_by_peer(None);
        }
        if now >= pending.next_question {
            pending.next_question = now + self.retry_interval;
            // A closed end answers a heartbeat with its Closed messages.
            self.send(self.current, Body::Heartbeat { unusable: self.local_unusable() });
        }
    }

    /// Called when this end has moved. If the Closed message for the new binding has already
    /// arrived, closes the vQP and returns true.
    pub(super) fn closes_by_pending(&mut self) -> bool {
        let Some(pending) = self.pending_close.take_if(|pending| pending.ballot == self.current) else {
            return false;
        };
        self.end_by_peer(pending.evidence);
        true
    }

    /// `evidence` is the peer's, for this end's binding.
    fn end_by_peer(&mut self, evidence: Option<Evidence>) {
        if let Some(evidence) = &evidence
            && core::mem::take(&mut self.awaits_peer_moved)
        {
            self.actions.push(Action::PeerMoved { partial_imm_bytes: evidence.partial_imm_bytes });
        }
        self.end(CloseReason::PeerClosed, evidence);
    }

    fn end(&mut self, reason: CloseReason, peer_evidence: Option<Evidence>) {
        if self.phase == Phase::Closed {
            return;
        }
        if reason != CloseReason::PeerClosed {
            self.peer_bindings = self.possible_peer_bindings();
        }
        self.phase = Phase::Closed;
        (self.unconfirmed, self.stranded_since, self.pending_close) = (None, None, None);
        self.next_send = None;
        self.actions.push(Action::Close { reason, peer_evidence });
    }

    /// Usually the peer has this end's binding. If this end has given its evidence for a move, the
    /// peer may have moved already. If this end has moved, the peer may not have followed yet.
    fn possible_peer_bindings(&self) -> PeerBindings {
        match (&self.phase, &self.unconfirmed) {
            (Phase::Moving(m), _) if m.local_evidence.is_some() => {
                smallvec![(self.current, m.local_evidence.clone()), (m.ballot, None)]
            }
            (_, Some(last)) => {
                smallvec![(last.previous, Some(last.local_evidence.clone())), (self.current, None)]
            }
            _ => smallvec![(self.current, None)],
        }
    }
}
