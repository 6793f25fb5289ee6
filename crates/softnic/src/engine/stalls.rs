//! Peers whose rings are full. What waits for one peer delays no other, and nothing is lost: the
//! transport sends nothing more to the peer, and the datagrams that it has produced already wait
//! here. The receiver wakes this NIC when its ring has room.

use core::time::Duration;
use std::collections::VecDeque;

use mitra_transport::TxBatch;
use mitra_transport::fault::TapResult;
use mitra_verbs::Time;

use super::Engine;

/// The time between two looks at a full ring if no wake-up arrives.
const STALL_CHECK: Duration = Duration::from_millis(1);
/// A receiver that has not taken what waits for it within this time has stopped. What needs no
/// acknowledgement is then lost, because a UD queue pair sends to other peers, too.
const STOPPED_AFTER: Duration = Duration::from_millis(50);

/// The datagrams that wait for rings with room.
#[derive(Default)]
pub(crate) struct Stalls {
    /// Has at most one entry for each peer.
    waiting: VecDeque<Stall>,
    /// When the stall began whose datagrams are the batch of the transmit queue.
    resumed: Option<Time>,
    /// A batch whose memory can be used again.
    spare: Option<TxBatch>,
}

struct Stall {
    batch: TxBatch,
    /// The index of the first datagram that is not sent, and what fault injection has decided about
    /// it.
    next: usize,
    tap: Option<TapResult>,
    begun: Time,
}

impl Stalls {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns when to look at the full rings again. Stopped receivers wake this NIC themselves.
    pub(super) fn next_check(&self, last: Time) -> Option<Time> {
        let has_stopped = |stall: &Stall| last - stall.begun >= STOPPED_AFTER;
        let interval = if self.waiting.iter().all(has_stopped) { STOPPED_AFTER } else { STALL_CHECK };
        (!self.waiting.is_empty()).then_some(last + interval)
    }
}

impl Engine {
    /// Sets the datagrams of the transmit queue aside, because the ring of their peer is full.
    pub(super) fn stall(&mut self, now: Time) {
        let queue = &mut self.tx_queue;
        let (peer, next, tap) = (queue.batch.destination, std::mem::take(&mut queue.next), queue.tap.take());
        let batch = std::mem::replace(&mut queue.batch, queue.stalls.spare.take().unwrap_or_default());
        self.driver_counters.tx_blocked += u64::from(queue.stalls.resumed.is_none());
        let begun = queue.stalls.resumed.take().unwrap_or(now);
        queue.stalls.waiting.push_back(Stall { batch, next, tap, begun });
        self.nic.block(now, peer, now - begun >= STOPPED_AFTER);
    }

    /// Drops the new batch of the transmit queue if it is for a peer whose earlier datagrams wait:
    /// the peer has stopped, and nothing in the batch waits for an acknowledgement.
    pub(super) fn drop_for_stopped_peer(&mut self) {
        let queue = &mut self.tx_queue;
        let peer = queue.batch.destination;
        if queue.stalls.waiting.iter().any(|stall| stall.batch.destination == peer) {
            self.driver_counters.tx_ring_full += queue.batch.ends.len() as u64;
            queue.batch.clear();
        }
    }

    /// Makes the datagrams of the peer that has waited longest the batch of the transmit queue,
    /// which is empty.
    pub(super) fn resume_stalled(&mut self) {
        let queue = &mut self.tx_queue;
        let Some(Stall { batch, next, tap, begun }) = queue.stalls.waiting.pop_front() else { return };
        queue.stalls.resumed = Some(begun);
        queue.stalls.spare = Some(std::mem::replace(&mut queue.batch, batch));
        (queue.next, queue.tap) = (next, tap);
    }

    /// Lets the transport send to the peer again whose waiting datagrams have been sent.
    pub(super) fn end_stall(&mut self, now: Time) {
        if self.tx_queue.stalls.resumed.take().is_some() {
            self.nic.unblock(now, self.tx_queue.batch.destination);
        }
    }
}
