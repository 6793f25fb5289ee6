//! The end of the vQP, and the evidence with which an end that closes lets its peer decide the operations in flight.
//!
//! An end that closes moves its queue pairs to ERR and drains them. The evidence that it then collects is final, and its Closed messages contain
//! it. The peer needs the evidence of the rail to which it is bound, and this end may not know whether the peer has moved. So there is one
//! message for each binding that the peer may have, and the ballot of a message is that of the binding.

use smallvec::{SmallVec, smallvec};

use super::{Action, CloseReason, Phase, RailNegotiation};
use crate::ballot::Ballot;
use crate::control_message::Body;
use crate::evidence::Evidence;

/// The bindings that the peer may have, each with this end's evidence. Only the last one may lack it.
pub(super) type PeerBindings = SmallVec<[(Ballot, Option<Evidence>); 1]>;

impl RailNegotiation {
    /// Closes the vQP.
    pub fn close(&mut self, reason: CloseReason) {
        self.end(reason, None);
    }

    /// The ballot of the rail about which [`RailNegotiation::closed`] expects evidence: the active rail or, if that is fenced, the new rail
    /// of the move. `None` if the vQP is open, or if the peer closed it.
    pub fn final_ballot(&self) -> Option<Ballot> {
        self.peer_bindings.last().map(|&(ballot, _)| ballot)
    }

    /// Records that the driver has stopped all queue pairs, and sends the Closed messages. `evidence` is the record of the operations that this
    /// end executed for the peer on the rail of [`RailNegotiation::final_ballot`]. `None` if it is not known to be complete.
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

    /// Handles the peer's Closed message.
    pub(super) fn on_peer_closed(&mut self, ballot: Ballot, evidence: Option<Evidence>) {
        if self.phase == Phase::Closed || ballot < self.current {
            return;
        }
        let evidence = evidence.filter(|_| ballot == self.current);
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
        (self.unconfirmed, self.stranded_since) = (None, None);
        self.next_send = None;
        self.actions.push(Action::Close { reason, peer_evidence });
    }

    /// The peer is bound as this end is, unless it has moved by this end's evidence, or has not yet moved as this end has.
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
