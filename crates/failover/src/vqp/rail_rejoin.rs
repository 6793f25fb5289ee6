//! Replaces the queue pairs of rails that the vQP left, so that a later failover can use these
//! rails. The negotiation's `rail_rejoin` module determines which two queue pairs are to be
//! connected, and this module creates and connects them.
//!
//! A port that is up does not prove that the path works. The two ends therefore exchange the
//! parameters of their new queue pairs over the rail itself, until each end knows that the other
//! end's queue pair is connected. From then on the rail is a standby rail.

use mitra_mutants::Mutant;
use mitra_verbs::Time;

use crate::ballot::Ballot;
use crate::control_message::{Body, Message, NewQp};
use crate::negotiation::RailNegotiation;
use crate::vqp::datapath::Datapath;
use crate::vqp::recovery::Recovery;

#[derive(Debug, Default)]
pub(super) struct RailRejoin {
    next_probe: Time,
}

impl RailRejoin {
    /// `None` if no rail is to be probed.
    pub(super) fn next_probe(&self, recovery: &Recovery, dp: &Datapath) -> Option<Time> {
        let negotiation = recovery.negotiation()?;
        (0..dp.rails.len()).any(|rail| is_probed(rail, negotiation, dp)).then_some(self.next_probe)
    }

    /// Probes the rails that the vQP left, if a probe is due. On each of these rails whose device
    /// is up, creates the new queue pair and asks the peer for the parameters of the peer's queue
    /// pair.
    pub(super) fn probe(&mut self, now: Time, recovery: &mut Recovery, dp: &mut Datapath) {
        let Some(negotiation) = recovery.negotiation() else { return };
        let probed = (0..dp.rails.len()).filter(|&rail| is_probed(rail, negotiation, dp));
        let probed = probed.fold(0_u8, |rails, rail| rails | 1 << rail);
        let active = negotiation.active();
        let is_replaced = |left_by| dp.rails.get(active).is_replacement_for(left_by);
        let waits = probed & 1 << active == 0 || negotiation.left_by(active).is_none_or(is_replaced);
        if probed == 0 || waits && now < self.next_probe {
            return;
        }
        self.next_probe = now + dp.detector().heartbeat_interval;
        for rail in (0..dp.rails.len()).filter(|rail| probed & (1 << rail) != 0) {
            if let Some(left_by) = self.replace_qp(rail, recovery, dp) {
                send_new_qp(rail, left_by, true, recovery, dp);
            }
        }
    }

    /// Handles the peer's message about its new queue pair, which arrived on `rail`.
    pub(super) fn on_new_qp(
        &mut self,
        now: Time,
        rail: usize,
        ballot: Ballot,
        peer_qp: NewQp,
        recovery: &mut Recovery,
        dp: &mut Datapath,
    ) {
        if usize::from(peer_qp.rail) != rail || dp.rails.is_down(rail) {
            return;
        }
        let left_by = self.replace_qp(rail, recovery, dp);
        if left_by.is_none() || left_by != Some(ballot) && !Mutant::NewQpOfAnotherBallot.is_on() {
            return;
        }
        if !dp.rails.get(rail).is_replacement_connected() {
            let is_active = rail == recovery.active_rail();
            let peer = (peer_qp.qpn, peer_qp.psn);
            if dp.home.connect_replacement(&dp.domain, &mut dp.rails, (rail, is_active), peer).is_err() {
                return; // maintenance handles a failed NIC or a moved home rail
            }
            dp.on_qp_connected(rail);
        }
        if rail == recovery.active_rail() && !dp.windows.is_in_step(rail) {
            return; // the answer would let the peer post too early; the peer asks again
        }
        if let Some(negotiation) = recovery.negotiation_mut() {
            negotiation.local_qp_connected(rail);
            if peer_qp.connected {
                negotiation.peer_qp_connected(now, rail);
            }
        }
        if rail == recovery.active_rail() {
            recovery.post_recvs(dp, rail);
        }
        if peer_qp.asks {
            send_new_qp(rail, ballot, !peer_qp.connected, recovery, dp);
        }
        recovery.settle(dp);
    }

    /// Creates the new queue pair of a rail, unless it exists. Returns the ballot by which the vQP
    /// left the rail. `None` if the rail has no new queue pair: the vQP has not left the rail, the
    /// NIC refused, or the vQP does not fence. Without a fence, the old queue pair may still
    /// execute requests and must not be replaced.
    fn replace_qp(&self, rail: usize, recovery: &Recovery, dp: &mut Datapath) -> Option<Ballot> {
        let left_by = recovery.negotiation()?.left_by(rail)?;
        if !dp.config().requires_fence() {
            return None;
        }
        if !dp.rails.get(rail).is_replacement_for(left_by) {
            let old = dp.rails.get(rail).qpn();
            // An error may be a temporary lack of resources. The next probe tries again.
            dp.rails.replace_qp(rail, left_by).ok()?;
            let _ = dp.domain.take_qp_error(rail, old); // discards the events of the old queue pair
        }
        Some(left_by)
    }
}

/// Returns whether the vQP left `rail`, the new queue pairs there are not connected, and the device
/// is up at this end.
fn is_probed(rail: usize, negotiation: &RailNegotiation, dp: &Datapath) -> bool {
    negotiation.awaits_new_qps(rail) && !dp.rails.is_down(rail)
}

/// Sends the parameters of this end's new queue pair on the rail itself. `asks` requests an answer.
fn send_new_qp(rail: usize, ballot: Ballot, asks: bool, recovery: &Recovery, dp: &Datapath) {
    let Some(control) = &recovery.control else { return };
    let this = dp.rails.get(rail);
    let qp = NewQp {
        rail: rail as u8,
        connected: !control.negotiation.is_local_qp_missing(rail),
        asks,
        qpn: this.qpn(),
        psn: this.first_psn(),
    };
    let message = Message { ballot, body: Body::NewQp(qp) };
    this.send_control(&control.encode(&message), message.body.wakes());
}
