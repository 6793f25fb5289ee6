//! The counts of the packets that a vQP has sent and received, over all rails.
//!
//! The PSNs of the rails' queue pairs differ, and begin anew at each move. The counts continue
//! across a move, so an application can add them to PSNs of its own.

use mitra_verbs::{Psn, QpState, QpStatus};

use crate::ledger::Ledger;
use crate::rail::Rail;
use crate::vqp::rail_set::RailSet;

/// The number of packets of requests, modulo 2^24 as PSNs are. See
/// [`VirtualQp::packet_counts`](crate::VirtualQp::packet_counts).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketCounts {
    /// The packets that this end has sent.
    pub sent: u32,
    /// The packets of the peer that have arrived.
    pub received: u32,
}

/// Counts the packets of the rails that the vQP has left. Counts of received packets are modulo
/// 2^24, because a NIC says no more.
#[derive(Debug, Default)]
pub(super) struct PacketCounter {
    /// The first PSN of this end on the active rail.
    first_psn: Psn,
    /// The packets of requests that precede the first packet on the active rail.
    sent_before: u64,
    /// The packets of requests that were posted before the last move, any of which may have been
    /// sent. The count does not fall below this number while requests are replayed.
    posted_before: u64,
    /// The packets that had arrived before the last move.
    received_before: Psn,
    /// The packets that had arrived when the active rail was fenced.
    received_at_fence: Psn,
    /// The packets that had arrived on the active rail at the last call of
    /// [`PacketCounter::counts`].
    told: u32,
}

impl PacketCounter {
    /// Begins the connection, without packets.
    pub(super) fn begin(&mut self, first_psn: Psn) {
        *self = PacketCounter { first_psn, ..PacketCounter::default() };
    }

    /// Records the PSN that the fenced `rail` expected next. Without it, the last known number
    /// stands.
    pub(super) fn on_fenced(&mut self, expected: Option<Psn>, rail: &Rail) {
        let arrived = expected.zip(rail.peer_psn()).map(|(expected, first)| expected.distance(first));
        self.received_at_fence = self.received_before.add(arrived.unwrap_or(self.told));
    }

    /// Records that the vQP leaves the fenced rail, where it had posted `posted` packets. Of these,
    /// `replayed` are posted again. On the new rail, `first_psn` is this end's first PSN.
    pub(super) fn on_move(&mut self, posted: u64, replayed: u32, first_psn: Psn) {
        self.first_psn = first_psn;
        self.posted_before = self.sent_before + posted;
        self.sent_before = self.posted_before.saturating_sub(replayed.into());
        (self.received_before, self.told) = (self.received_at_fence, 0);
    }

    /// Returns the counts of a vQP whose active rail is `active`. Late in a move, the peer may
    /// already send on the rail `receiving` instead.
    pub(super) fn counts(
        &mut self,
        rails: &RailSet,
        active: usize,
        receiving: usize,
        ledger: &Ledger,
    ) -> PacketCounts {
        // After a move to the same rail, the new queue pair may not be created yet.
        let active_qp = Some(rails.get(active)).filter(|rail| rail.first_psn() == self.first_psn);
        let status = active_qp.map(query);
        let on_active = match &status {
            None => 0,
            Some(Some(status)) => sent(ledger.packets_posted(), ledger.next_psn(), status.sq_psn),
            Some(None) => ledger.packets_posted(), // a NIC that does not answer may have sent all of them
        };
        let received = if receiving == active {
            if let (Some(rail), Some(Some(status))) = (active_qp, &status) {
                self.told = arrived(rail, status);
            }
            self.received_before.add(self.told)
        } else {
            let rail = rails.get(receiving);
            self.received_at_fence.add(query(rail).map_or(0, |status| arrived(rail, &status)))
        };
        PacketCounts { sent: Psn::new(self.sent(on_active) as u32).value(), received: received.value() }
    }

    fn sent(&self, on_active: u64) -> u64 {
        (self.sent_before + on_active).max(self.posted_before)
    }
}

fn query(rail: &Rail) -> Option<QpStatus> {
    rail.provider().query_qp(rail.qpn()).ok()
}

/// Returns how many of the posted packets were sent, if `unsent` is the PSN of the first that was
/// not. Fewer than 2^23 packets are unsent.
fn sent(posted: u64, next_psn: Psn, unsent: Psn) -> u64 {
    posted.saturating_sub(next_psn.distance(unsent).into())
}

/// Returns the packets that have arrived on a rail. A queue pair that was never in RTR expects no
/// PSN.
fn arrived(rail: &Rail, status: &QpStatus) -> u32 {
    let is_connected = !matches!(status.state, QpState::Reset | QpState::Init);
    rail.peer_psn().filter(|_| is_connected).map_or(0, |first| status.rq_psn.distance(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 20 packets, the old rail did not execute 6, which are sent again.
    #[test]
    fn replayed_packets_are_counted_once() {
        let mut counter = PacketCounter::default();
        assert_eq!([0, 3, 1 << 25].map(|on_active| counter.sent(on_active)), [0, 3, 1 << 25]);
        counter.on_move(20, 6, Psn::new(77));
        assert_eq!(
            [0, 5, 6, 7, 1 << 25].map(|on_active| counter.sent(on_active)),
            [20, 20, 20, 21, 14 + (1 << 25)]
        );
        counter.on_move(10, 3, Psn::new(5));
        assert_eq!([0, 3, 4].map(|on_active| counter.sent(on_active)), [24, 24, 25]);
    }

    #[test]
    fn packets_that_wait_on_the_nic_are_not_sent() {
        assert_eq!(sent(20, Psn::new(4), Psn::new(4)), 20);
        assert_eq!(sent(20, Psn::new(4), Psn::new(0xff_fffe)), 14);
        assert_eq!(sent(0, Psn::new(0x12_3456), Psn::new(0)), 0, "a queue pair in RTR has no such PSN");
        assert_eq!(sent((1 << 24) + 20, Psn::new(4), Psn::new(3)), (1 << 24) + 19);
    }
}
