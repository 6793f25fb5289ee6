//! A rail that was left is made ready to be moved to again. What names its next queue pairs is in `agreement::failback`; here they
//! are made and connected.
//!
//! A port that is up again proves nothing: the two ends ask each other over the rail itself, until each has heard that the
//! other's new queue pair is connected. Nothing moves then; the rail is there when the one in use fails.

use mitra_verbs::Time;

use crate::ballot::Ballot;
use crate::message::{Body, Message, Path};
use crate::vqp::{VirtualQp, mix};

impl VirtualQp {
    /// Makes the queue pairs of rails that were left and seem to be well, and asks the peer for its own.
    pub(crate) fn renew_rails(&mut self, now: Time) {
        let Some(peer) = &self.peer else { return };
        let waiting = (0..self.rails.len()).filter(|&rail| peer.agreement.is_waiting(rail));
        let waiting = waiting.fold(0_u8, |rails, rail| rails | 1 << rail) & !self.down;
        if waiting == 0 || now < self.next_probe {
            return;
        }
        self.next_probe = now + self.config.detector.heartbeat_interval;
        for rail in (0..self.rails.len()).filter(|rail| waiting & (1 << rail) != 0) {
            if let Some(left) = self.renewed(rail) {
                self.send_path(rail, left, true);
            }
        }
    }

    /// What the peer says of its new queue pair, by the rail that it is of.
    pub(crate) fn on_path(&mut self, now: Time, rail: usize, ballot: Ballot, path: Path) {
        if usize::from(path.rail) != rail
            || self.down & (1 << rail) != 0
            || self.renewed(rail) != Some(ballot)
        {
            return;
        }
        if !self.is_connected(rail)
            && (self.rails[rail].reconnect(path.qpn, path.psn, &self.config).is_err()
                || !self.is_connected(rail))
        {
            return; // the NIC has failed, which its event says
        }
        if let Some(peer) = &mut self.peer {
            peer.agreement.renewed(rail);
            if path.connected {
                peer.agreement.peer_renewed(now, rail);
            }
        }
        if path.asks {
            self.send_path(rail, ballot, !path.connected);
        }
        self.run_actions();
    }

    /// The ballot that a rail was left by, if this end has its next queue pair or can make it now. Where nothing is fenced, what
    /// was left may still execute: it is not touched.
    fn renewed(&mut self, rail: usize) -> Option<Ballot> {
        let left = self.peer.as_ref()?.agreement.left(rail).filter(|_| self.fences())?;
        let found = &mut self.rails[rail];
        if found.renewal.is_none_or(|renewal| renewal.left != left) {
            let secret = mix(self.secret, u64::from(left.epoch) << 8 | rail as u64);
            let (old, keep) = (found.qpn, found.qpn == self.qpn);
            // A NIC that has no room now may have some when it is asked again.
            found.renew(&self.config, left, secret, keep).ok()?;
            let _ = self.domain.take_qp_error(rail, old); // nobody is to hear of it
        }
        Some(left)
    }

    fn is_connected(&self, rail: usize) -> bool {
        self.rails[rail].renewal.is_some_and(|renewal| renewal.connected)
    }

    fn send_path(&self, rail: usize, ballot: Ballot, asks: bool) {
        let Some(peer) = &self.peer else { return };
        let (found, connected) = (&self.rails[rail], self.is_connected(rail));
        let path = Path { rail: rail as u8, connected, asks, qpn: found.qpn, psn: found.first_psn };
        let message = Message { ballot, body: Body::Path(path) };
        found.send_control(&message.encode(peer.role, peer.cookie));
    }
}
