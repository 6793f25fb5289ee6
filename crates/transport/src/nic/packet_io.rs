//! The interface between NIC and driver. The driver passes received packets, the time and the link
//! state, and takes the packets to send.

use mitra_verbs::{AsyncEvent, Gid, QpState, Qpn, Time};
use mitra_wire::{Packet, opcode};

use crate::batch_writer::BatchWriter;
use crate::nic::shared_state::Route;
use crate::qp::Qp;
use crate::{IpPath, Memory, Nic, TxBatch};

/// The default partition key without its membership bit. It is the only entry of the P_Key table.
const DEFAULT_PKEY: u16 = 0x7fff;

/// A destination that takes no packets now.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BlockedDestination {
    pub(crate) address: Gid,
    takes_unacknowledged: bool,
    /// The slots of queue pairs whose next packet goes there, in sending order. They are in no
    /// other list of packets to send.
    pub(crate) waiting: Vec<u32>,
}

impl Nic {
    /// Executes a received packet whose ICRC the driver has verified.
    ///
    /// The packet may come from a hostile sender. The NIC counts and drops an invalid packet, or
    /// answers it with the NAK that the specification requires.
    pub fn handle_packet(
        &mut self,
        now: Time,
        source: impl Into<IpPath>,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        if self.accept_packet(packet) {
            let route = Route { source: source.into(), destination: self.shared.config.gid };
            self.dispatch(now, packet.dest_qp, route, packet, memory);
        }
    }

    /// Returns whether the driver must handle an acknowledgement before this packet if both have
    /// arrived. It must if the packet completes a receive of a queue pair that waits for the
    /// acknowledgement of a request: the program may rely on the completion of the request before
    /// the completion of the receive.
    ///
    /// The peer may have sent the packet first, because requests and acknowledgements have no
    /// common order on the wire.
    pub fn may_overtake_ack(&self, packet: &Packet<'_>) -> bool {
        opcode::completes_receive(packet.message.operation())
            && self.qps.get(packet.dest_qp).is_ok_and(Qp::is_ordered_ack_awaited)
    }

    /// Counts a packet. Returns false if the NIC drops it because of the link state or the
    /// partition key.
    pub(crate) fn accept_packet(&mut self, packet: &Packet<'_>) -> bool {
        let counters = &mut self.shared.counters;
        counters.packets_received += 1;
        if !self.link_up {
            counters.drop_link_down += 1;
            return false;
        }
        if packet.pkey & DEFAULT_PKEY != DEFAULT_PKEY {
            counters.drop_pkey += 1;
            return false;
        }
        true
    }

    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        qpn: Qpn,
        route: Route,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        let Ok(qp) = self.qps.get_mut(qpn) else {
            self.shared.counters.drop_no_qp += 1;
            return;
        };
        qp.handle_packet(&mut self.shared, now, route, packet, memory);
        self.reschedule(self.qps.slot(qpn));
    }

    /// Handles all expired timers: retransmission, RNR waits, deferred acknowledgements and paused
    /// READ responses.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(slot) = self.timers.take_due(now) {
            if let Some(qp) = self.qps.slot_mut(slot) {
                // The heap keeps the earliest deadline that was set. The queue pair may have a
                // later deadline now.
                if qp.deadline().is_some_and(|t| t <= now) {
                    let address = qp.next_destination().address;
                    let is_blocked = self.blocked.iter().any(|blocked| blocked.address == address);
                    qp.handle_timeout(&mut self.shared, now, is_blocked);
                }
                self.reschedule(slot);
            }
        }
    }

    /// Handles an idle poll, at which no packet has arrived and none is to be sent.
    ///
    /// Each pending acknowledgement becomes due, or is held back for up to `ack_delay` because its
    /// requester is expected to continue without an acknowledgement. [`Nic::poll_transmit`] sends
    /// the due acknowledgements.
    pub fn handle_idle(&mut self, now: Time) {
        while let Some(slot) = self.ack_pending.pop() {
            if let Some(qp) = self.qps.slot_mut(slot) {
                qp.in_ack_pending = false;
                if qp.handle_idle(&self.shared, now) && !std::mem::replace(&mut qp.in_ack_held, true) {
                    self.ack_held.push(slot);
                }
                self.reschedule(slot);
            }
        }
    }

    /// Handles a delivery of completions to the program, before the program sees them.
    ///
    /// The acknowledgements of messages that completed receives become due, so that they do not
    /// depend on the next action of the program. [`Nic::poll_transmit`] sends them. An
    /// acknowledgement that is expected to leave with the program's answer waits.
    pub fn handle_delivery(&mut self) {
        let mut index = 0;
        while let Some(&slot) = self.ack_pending.get(index) {
            if let Some(qp) = self.qps.slot_mut(slot) {
                if !qp.handle_delivery() {
                    index += 1;
                    continue;
                }
                qp.in_ack_pending = false;
            }
            self.ack_pending.swap_remove(index);
            self.reschedule(slot);
        }
    }

    /// Makes all pending acknowledgements due, including held acknowledgements. The driver calls
    /// the method before it sleeps, and then calls [`Nic::poll_transmit`], which sends the
    /// acknowledgements.
    pub fn flush_acks(&mut self) {
        while let Some(slot) = self.ack_pending.pop().or_else(|| self.ack_held.pop()) {
            if let Some(qp) = self.qps.slot_mut(slot) {
                (qp.in_ack_pending, qp.in_ack_held) = (false, false);
                qp.flush_acks();
                self.reschedule(slot);
            }
        }
    }

    /// Changes the link state and raises a port event. While the link is down, the NIC drops all
    /// packets in both directions.
    pub fn handle_link(&mut self, up: bool) {
        if self.link_up != up {
            self.link_up = up;
            self.shared.events.raise(if up { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
    }

    /// Clears `out` and fills it with datagrams for one destination. Returns false if there is
    /// nothing to send now.
    pub fn poll_transmit(&mut self, now: Time, memory: &mut dyn Memory, out: &mut TxBatch) -> bool {
        loop {
            self.fill_batch(now, memory, out);
            if self.link_up || out.is_empty() {
                return !out.is_empty();
            }
        }
    }

    fn fill_batch(&mut self, now: Time, memory: &mut dyn Memory, out: &mut TxBatch) {
        out.clear();
        let mut payload = 0;
        // Each queue pair has at most one turn per batch. A queue pair with more to send goes to
        // the end of `ready`.
        for _ in 0..self.ready.len() {
            let Some(slot) = self.ready.pop_front() else { break };
            let Some(qp) = self.qps.slot_mut(slot) else { continue };
            let destination = qp.next_destination();
            if let Some(blocked) = self.blocked.iter_mut().find(|b| b.address == destination.address)
                && (blocked.takes_unacknowledged, qp.is_unacknowledged()) != (true, true)
            {
                blocked.waiting.push(slot);
                qp.begin_blocked(now);
                if let Some(at) = qp.deadline() {
                    self.timers.set_earlier(slot, at);
                }
                continue;
            }
            if out.is_empty() {
                (out.destination, out.traffic_class) = (destination.address, destination.traffic_class);
            } else if (out.destination, out.traffic_class) != (destination.address, destination.traffic_class)
            {
                self.ready.push_front(slot);
                break;
            }
            qp.in_ready = false;
            if qp.piggyback_ack(&self.shared, now) && !std::mem::replace(&mut qp.in_ack_held, true) {
                self.ack_held.push(slot);
            }
            let datagrams_before = out.ends.len();
            let mut writer = BatchWriter::new(out);
            qp.transmit(&mut self.shared, now, memory, &mut writer);
            payload += writer.payload();
            if out.ends.len() == datagrams_before && qp.can_send(&self.shared) {
                // The next packet of the queue pair does not fit into the batch. The queue pair
                // stays at the front for the next batch.
                qp.in_ready = true;
                self.ready.push_front(slot);
                break;
            }
            self.reschedule(slot);
        }
        self.shared.counters.packets_sent += out.ends.len() as u64;
        self.shared.counters.bytes_sent += payload;
    }

    /// Sends nothing to a destination until [`Nic::unblock`], because the link to it is full. With
    /// `takes_unacknowledged`, the queue pairs that wait for no acknowledgement (UC and UD) send
    /// all the same, and the driver drops their packets: a destination that has stopped must not
    /// stop what a UD queue pair sends to others.
    ///
    /// The requests that wait count their retries, so a destination that stays blocked counts as
    /// one that does not answer. The driver repeats the call from time to time, which starts the
    /// timers of requests that were posted meanwhile.
    pub fn block(&mut self, now: Time, address: Gid, takes_unacknowledged: bool) {
        let Some(blocked) = self.blocked.iter_mut().find(|blocked| blocked.address == address) else {
            let waiting = Vec::new();
            return self.blocked.push(BlockedDestination { address, takes_unacknowledged, waiting });
        };
        let lets_go = takes_unacknowledged && !blocked.takes_unacknowledged;
        blocked.takes_unacknowledged = takes_unacknowledged;
        let (qps, timers, ready) = (&mut self.qps, &mut self.timers, &mut self.ready);
        blocked.waiting.retain(|&slot| {
            let Some(qp) = qps.slot_mut(slot) else { return false };
            // A queue pair may have been connected to another destination.
            if lets_go || qp.next_destination().address != address {
                ready.push_back(slot);
                return false;
            }
            qp.begin_blocked(now);
            if let Some(at) = qp.deadline() {
                timers.set_earlier(slot, at);
            }
            true
        });
    }

    /// Sends to a destination again. Queue pairs that have waited send before others.
    pub fn unblock(&mut self, now: Time, address: Gid) {
        let Some(index) = self.blocked.iter().position(|blocked| blocked.address == address) else { return };
        let BlockedDestination { waiting, .. } = self.blocked.swap_remove(index);
        for slot in waiting.into_iter().rev() {
            self.ready.push_front(slot);
            if let Some(qp) = self.qps.slot_mut(slot) {
                qp.end_blocked(now);
                if let Some(at) = qp.deadline() {
                    self.timers.set_earlier(slot, at);
                }
            }
        }
    }

    /// Returns the time at which the driver has to call [`Nic::handle_timeout`] next. That call may
    /// find nothing to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first()
    }

    /// Updates the NIC's lists and timers after a change to the queue pair in `slot`, and fails the
    /// queue pairs of completion queues that have overflowed.
    pub(crate) fn reschedule(&mut self, slot: u32) {
        if let Some(qp) = self.qps.slot_mut(slot) {
            if !qp.in_ready && qp.can_send(&self.shared) {
                qp.in_ready = true;
                self.ready.push_back(slot);
            }
            if !qp.in_ack_pending && qp.has_pending_ack() {
                qp.in_ack_pending = true;
                self.ack_pending.push(slot);
            }
            if let Some(at) = qp.deadline() {
                self.timers.set_earlier(slot, at);
            }
        }
        while let Some(cq) = self.shared.cqs.take_overflowed() {
            self.shared.events.raise(AsyncEvent::CqError(cq));
            // An overflow is rare, so a scan over all queue pairs is acceptable.
            for (_, qp) in self.qps.iter_mut() {
                // A queue pair in RESET has no work requests to complete.
                if qp.attrs.state != QpState::Reset && qp.completes_in(&self.shared, cq) {
                    qp.fail(&mut self.shared, None, None);
                }
            }
        }
    }
}
