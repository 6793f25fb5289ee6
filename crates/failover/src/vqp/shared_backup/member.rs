//! One end of a queue pair with a shared backup, as a state machine without I/O.
//!
//! The backup is a virtual queue pair, so its messages arrive in order and exactly once, whichever
//! rails fail. The two ends therefore only tell each other what they have done, and neither asks
//! nor retries. The ballots of the backup number the *epochs*. Each time the backup moves, both
//! ends leave the queue pair of the earlier epoch, and make a new queue pair on the backup's new
//! rail.
//!
//! 1. An end that leaves a queue pair fences it, and sends the evidence of what the queue pair
//!    executed for the peer.
//! 2. An end decides its operations in flight on that queue pair after the fence, from the peer's
//!    evidence. Each end then sends a [`Body::Resumed`], and may post WRITEs and READs on the
//!    backup.
//! 3. The end with [`Role::Zero`] makes a queue pair and offers it. The other end makes a queue
//!    pair, connects it and answers with its own offer. The first end connects to that queue pair
//!    and confirms. An end posts on the new queue pair when the end knows that both queue pairs are
//!    connected. Its operations on the backup must have completed, so that the operations stay in
//!    order.

use mitra_verbs::{Psn, Qpn};

use super::message::{Body, OfferedQp};
use crate::ballot::Role;
use crate::evidence::Evidence;

/// The next action of the driver.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Fence the queue pair, collect its evidence, and call [`Member::fenced`].
    Fence,
    /// Decide the operations in flight from the peer's evidence, and call [`Member::decided`].
    Decide(Evidence),
    /// Destroy the old queue pair if there is one, make one on this rail, and call
    /// [`Member::created`].
    Create {
        /// The epoch of the queue pair.
        epoch: u16,
        /// The rail of the queue pair.
        rail: u8,
    },
    /// Connect the queue pair to the peer's queue pair, post the receives, bind the windows, and
    /// call [`Member::connected`].
    Connect(OfferedQp),
    /// Call [`Member::switched`] when no operation is in flight on the backup.
    Switch,
    /// Close, because the peer has closed.
    Close,
}

/// The queue pair of the current epoch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Own {
    rail: u8,
    is_connected: bool,
    /// Whether this end knows that the peer's queue pair is connected too.
    is_peer_connected: bool,
    /// Whether this end posts on the queue pair.
    is_used: bool,
}

/// The queue pair that this end is leaving.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Left {
    epoch: u16,
    is_fenced: bool,
    /// Whether operations may be in flight on the queue pair.
    is_used: bool,
}

/// The state of one end.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Member {
    role: Role,
    /// The epoch of the backup; `rail` is the backup's rail.
    epoch: u16,
    rail: u8,
    /// Whether this end knows its peer.
    is_started: bool,
    own: Option<Own>,
    left: Option<Left>,
    /// The peer's queue pair of the current epoch, until this end is connected to it.
    offered: Option<OfferedQp>,
    /// The evidence of the peer, with its epoch.
    evidence: Option<(u16, Evidence)>,
    is_closed: bool,
    is_peer_closed: bool,
    outbox: Vec<Body>,
}

impl Member {
    /// An end that does not know its peer yet. The backup is bound to `rail` in `epoch`.
    pub fn new(role: Role, epoch: u16, rail: u8) -> Member {
        Member {
            role,
            epoch,
            rail,
            is_started: false,
            own: None,
            left: None,
            offered: None,
            evidence: None,
            is_closed: false,
            is_peer_closed: false,
            outbox: Vec::new(),
        }
    }

    /// Records that this end knows its peer.
    pub fn start(&mut self) {
        self.is_started = true;
    }

    /// Takes the messages for the peer.
    pub fn take_outbox(&mut self) -> Vec<Body> {
        core::mem::take(&mut self.outbox)
    }

    /// Returns whether this end may post on the backup. The operations on an earlier queue pair
    /// must be decided. Once its own queue pair is ready, an end posts nothing more on the backup.
    pub fn may_use_backup(&self) -> bool {
        let is_ready = |own: &Own| own.is_connected && own.is_peer_connected;
        self.is_started
            && self.left.is_none()
            && !self.is_peer_closed
            && !self.own.as_ref().is_some_and(is_ready)
    }

    /// Returns whether this end has not left a queue pair of an earlier epoch yet.
    pub fn is_leaving(&self) -> bool {
        self.left.is_some()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns whether this end needs messages of its peer to go on.
    pub(crate) fn awaits_peer(&self) -> bool {
        self.is_started && !self.is_peer_closed && !self.is_calm()
    }

    /// Returns whether this end posts on its own queue pair and has no step to take.
    pub fn is_calm(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.is_used) && self.left.is_none() && !self.is_peer_closed
    }

    /// Records that the backup is bound to `rail` in `epoch`.
    pub fn on_epoch(&mut self, epoch: u16, rail: u8) {
        if epoch <= self.epoch {
            return;
        }
        let old = core::mem::replace(&mut self.epoch, epoch);
        self.rail = rail;
        self.offered = None;
        self.leave(old);
    }

    fn leave(&mut self, epoch: u16) {
        if let Some(own) = self.own.take() {
            self.left = Some(Left { epoch, is_fenced: false, is_used: own.is_used });
        }
    }

    /// Handles a message of the peer. Returns false if the peer must not send the message in this
    /// state.
    #[must_use]
    pub fn handle(&mut self, body: Body) -> bool {
        match body {
            _ if self.is_closed => true, // the peer did not know yet that this end has closed
            Body::Evidence { epoch, evidence } => {
                let is_expected =
                    epoch <= self.epoch && self.evidence.as_ref().is_none_or(|(last, _)| *last < epoch);
                if is_expected {
                    self.keep_evidence(epoch, evidence);
                }
                is_expected
            }
            Body::Offered { epoch, qp } => {
                if epoch > self.epoch || epoch == self.epoch && (qp.rail != self.rail || !self.awaits_offer())
                {
                    return false;
                }
                if epoch == self.epoch {
                    self.offered = Some(qp);
                }
                true // an offer of an earlier epoch is only late
            }
            Body::Confirmed { epoch } => match &mut self.own {
                Some(own) if epoch == self.epoch && own.is_connected && self.role == Role::One => {
                    own.is_peer_connected = true;
                    true
                }
                _ => epoch < self.epoch,
            },
            Body::Closed { evidence } => {
                if let Some((epoch, evidence)) = evidence.filter(|(epoch, _)| *epoch <= self.epoch) {
                    self.keep_evidence(epoch, evidence);
                    if epoch == self.epoch {
                        self.leave(epoch);
                    }
                }
                !core::mem::replace(&mut self.is_peer_closed, true)
            }
            // The driver handles these messages.
            Body::Resumed { .. } | Body::AskGrant { .. } | Body::Grant { .. } | Body::Placed { .. } => false,
        }
    }

    /// Keeps the peer's evidence, unless this end still needs the evidence of an earlier epoch. In
    /// that case this end had no queue pair in `epoch`, and does not need the new evidence.
    fn keep_evidence(&mut self, epoch: u16, evidence: Evidence) {
        let needed = self.left.as_ref().map(|left| left.epoch);
        if needed.is_none() || needed != self.evidence.as_ref().map(|(kept, _)| *kept) {
            self.evidence = Some((epoch, evidence));
        }
    }

    /// Returns whether the peer may offer its queue pair: as the first step, or as the answer to
    /// this end's offer.
    fn awaits_offer(&self) -> bool {
        let is_connected = self.own.as_ref().is_some_and(|own| own.is_connected);
        self.offered.is_none() && !is_connected && (self.role == Role::One || self.own.is_some())
    }

    /// The next action of the driver. `None` if the driver has to wait for the peer.
    pub fn next_step(&self) -> Option<Step> {
        if let Some(left) = &self.left {
            if !left.is_fenced {
                return Some(Step::Fence);
            }
            let evidence = self.evidence.as_ref().filter(|(epoch, _)| *epoch == left.epoch);
            let decide = evidence.map(|(_, evidence)| Step::Decide(evidence.clone()));
            return decide.or(self.is_peer_closed.then_some(Step::Close));
        }
        if self.is_peer_closed {
            return Some(Step::Close);
        }
        match &self.own {
            _ if !self.is_started => None,
            None => {
                let creates = self.role == Role::Zero || self.offered.is_some();
                creates.then_some(Step::Create { epoch: self.epoch, rail: self.rail })
            }
            Some(own) if !own.is_connected => self.offered.map(Step::Connect),
            Some(own) => (own.is_peer_connected && !own.is_used).then_some(Step::Switch),
        }
    }

    /// Records that the queue pair that this end leaves is fenced. `evidence` is what the queue
    /// pair executed for the peer. If this end has posted no operation there, nothing remains to be
    /// decided, and `partial_imm_bytes` is reported to the peer as by [`Member::decided`]. An
    /// earlier queue pair may have torn a WRITE with immediate.
    pub fn fenced(&mut self, evidence: Evidence, partial_imm_bytes: u32) {
        let Some(left) = &mut self.left else { return };
        left.is_fenced = true;
        let (epoch, is_used) = (left.epoch, left.is_used);
        self.outbox.push(Body::Evidence { epoch, evidence });
        if !is_used {
            self.decided(partial_imm_bytes);
        }
    }

    /// Records that the operations in flight are decided. The first `partial_imm_bytes` bytes of a
    /// torn WRITE with immediate are not sent again.
    pub fn decided(&mut self, partial_imm_bytes: u32) {
        if let Some(left) = self.left.take() {
            self.outbox.push(Body::Resumed { epoch: left.epoch, partial_imm_bytes });
        }
    }

    /// Records this end's new queue pair on the backup's rail.
    pub fn created(&mut self, qpn: Qpn, psn: Psn) {
        let rail = self.rail;
        self.own = Some(Own { rail, is_connected: false, is_peer_connected: false, is_used: false });
        if self.role == Role::Zero {
            self.outbox.push(Body::Offered { epoch: self.epoch, qp: OfferedQp { rail, qpn, psn } });
        }
    }

    /// Records that this end's queue pair, with this number and first PSN, is connected to the
    /// peer's queue pair and has its receives.
    pub fn connected(&mut self, qpn: Qpn, psn: Psn) {
        let Some(own) = &mut self.own else { return };
        own.is_connected = true;
        self.offered = None;
        let epoch = self.epoch;
        if self.role == Role::Zero {
            own.is_peer_connected = true; // the peer connects before it answers
            self.outbox.push(Body::Confirmed { epoch });
        } else {
            self.outbox.push(Body::Offered { epoch, qp: OfferedQp { rail: own.rail, qpn, psn } });
        }
    }

    /// Records that this end posts on its own queue pair from now on.
    pub fn switched(&mut self) {
        if let Some(own) = &mut self.own {
            own.is_used = true;
        }
    }

    /// Records that this end has closed. `evidence` is the epoch of the queue pair and its final
    /// evidence, or `None` if the peer already has the evidence.
    pub fn closed(&mut self, evidence: Option<(u16, Evidence)>) {
        (self.own, self.left, self.offered) = (None, None, None);
        (self.is_closed, self.is_started) = (true, false);
        if !self.is_peer_closed {
            self.outbox.push(Body::Closed { evidence });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An earlier queue pair tore a WRITE with immediate. This end then leaves a queue pair that it
    /// has not used. It must tell the peer how many bytes of the WRITE it will not send again.
    #[test]
    fn unused_queue_pair_is_decided_with_the_bytes_that_earlier_ones_placed() {
        let mut member = Member::new(Role::Zero, 1, 0);
        member.start();
        member.created(Qpn::new(7), Psn::new(9));
        member.on_epoch(2, 1);
        assert_eq!(member.next_step(), Some(Step::Fence));
        let _ = member.take_outbox();
        member.fenced(Evidence::default(), 512);
        let resumed = Body::Resumed { epoch: 1, partial_imm_bytes: 512 };
        assert!(member.take_outbox().contains(&resumed));
        assert_eq!(member.next_step(), Some(Step::Create { epoch: 2, rail: 1 }));
    }

    /// An end without heartbeats sends probes only while it awaits its peer.
    #[test]
    fn end_awaits_its_peer_until_it_uses_its_queue_pair_or_either_end_closes() {
        let mut member = Member::new(Role::Zero, 1, 0);
        assert!(!member.awaits_peer(), "not connected");
        member.start();
        assert!(member.awaits_peer());
        let mut closed = member.clone();
        closed.closed(None);
        assert!(!closed.awaits_peer());
        let mut left_by_peer = member.clone();
        assert!(left_by_peer.handle(Body::Closed { evidence: None }));
        assert!(!left_by_peer.awaits_peer());
        member.created(Qpn::new(7), Psn::new(9));
        member.connected(Qpn::new(7), Psn::new(9));
        assert!(member.awaits_peer(), "operations may be in flight on the backup");
        member.switched();
        assert!(!member.awaits_peer());
    }
}
