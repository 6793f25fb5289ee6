//! The messages that a directory sends unasked: questions, probes of the rails, and announcements.

use std::time::Duration;

use super::{ANY_QPN, Answer, Destination, Directory, IN_USE, Outgoing, contains};
use crate::rails::rendezvous::{Reach, ReachKind};

/// The time between two questions while the answer is awaited.
pub(super) const ASK_INTERVAL: Duration = Duration::from_millis(20);
/// The time between two questions to a device that has answered, or that does not answer.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two probes of the rails to a device.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// The number of questions on rail 0 for each question to the multicast group on the other rails.
const QUESTIONS_PER_GROUP: u32 = 4;
/// The time between two announcements of a queue pair that sends to multicast groups.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(100);

impl Directory {
    pub(in crate::rails::datagrams) fn poll_transmit(&mut self, now: Duration) -> Vec<Outgoing> {
        let mut out = Vec::new();
        if now < self.next_transmit {
            return out;
        }
        self.next_transmit = now + REFRESH_INTERVAL;
        self.ask(now, &mut out);
        self.probe(now, &mut out);
        self.announce(now, &mut out);
        out
    }

    /// Asks for the numbers of the queue pairs to which datagrams are sent.
    fn ask(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
        let Directory { own, own_qps, peers, renamed, destinations, next_transmit, .. } = self;
        for (destination, resolution) in destinations.iter_mut() {
            if now > resolution.used + IN_USE {
                continue;
            }
            if now >= resolution.next_ask {
                let is_awaited = resolution.answer == Answer::Awaited;
                let Destination { gid, qpn, own: from } = *destination;
                let kind = ReachKind::Ask { device: gid, qpn };
                let message = Reach { kind, device: own.clone(), qp: own_qps.numbers(from) };
                let peer = peers.get(renamed.get(&gid).unwrap_or(&gid));
                let address = |rail: usize| match peer {
                    Some(peer) => peer.address.gids.get(rail).copied(),
                    None => (rail == 0).then_some(gid),
                };
                // A device that is no longer heard may have other addresses, so the group is asked
                // too.
                let ask_group = peer.is_none_or(|peer| !peer.is_alive(now))
                    && if contains(own.up, 0) {
                        resolution.questions % QUESTIONS_PER_GROUP == QUESTIONS_PER_GROUP - 1
                    } else {
                        resolution.questions.is_multiple_of(QUESTIONS_PER_GROUP)
                    };
                for rail in (0..own.gids.len()).filter(|rail| contains(own.up, *rail)) {
                    if let Some(to) = address(rail) {
                        out.push(Outgoing { rail, to: Some(to), message: message.clone() });
                    }
                    if ask_group && rail > 0 {
                        out.push(Outgoing { rail, to: None, message: message.clone() });
                    }
                }
                resolution.questions = resolution.questions.wrapping_add(1);
                resolution.next_ask = now + if is_awaited { ASK_INTERVAL } else { REFRESH_INTERVAL };
            }
            *next_transmit = (*next_transmit).min(resolution.next_ask);
        }
    }

    /// Asks, on all rails, the devices to which datagrams are sent whether they can be reached.
    /// Tells devices of changed ports.
    fn probe(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
        let Directory { own, peers, next_transmit, .. } = self;
        for (gid, peer) in peers.iter_mut() {
            let is_in_use = peer.is_in_use(now);
            if !is_in_use && peer.tells_left == 0 {
                continue;
            }
            if now >= peer.next_probe {
                peer.tells_left = peer.tells_left.saturating_sub(1);
                let kind =
                    if is_in_use { ReachKind::Ask { device: *gid, qpn: ANY_QPN } } else { ReachKind::Tell };
                let rails = own.gids.len().min(peer.address.gids.len());
                for rail in (0..rails).filter(|rail| contains(own.up, *rail)) {
                    peer.misses[rail] += u32::from(is_in_use);
                    let message = Reach { kind, device: own.clone(), qp: None };
                    out.push(Outgoing { rail, to: Some(peer.address.gids[rail]), message });
                }
                peer.next_probe = now + if peer.tells_left > 0 { ASK_INTERVAL } else { PROBE_INTERVAL };
            }
            *next_transmit = (*next_transmit).min(peer.next_probe);
        }
    }

    /// Announces the queue pairs that send to multicast groups. The receivers of their datagrams
    /// are unknown, so the announcements go to the multicast group of the rendezvous.
    fn announce(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
        let rail = self.own.first_up();
        if rail == 0 {
            self.announced.clear();
        }
        for (qpn, next) in &mut self.announced {
            if now >= *next {
                let qp = self.own_qps.numbers(*qpn);
                let message = Reach { kind: ReachKind::Tell, device: self.own.clone(), qp };
                out.push(Outgoing { rail, to: None, message });
                *next = now + ANNOUNCE_INTERVAL;
            }
            self.next_transmit = self.next_transmit.min(*next);
        }
    }
}
