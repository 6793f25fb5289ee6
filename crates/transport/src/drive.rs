//! Driving the NIC: packets and time in, packets out.

use mitra_verbs::{AsyncEvent, Gid, QpState, Qpn, Time};
use mitra_wire::Packet;

use crate::emit::Out;
use crate::host::Route;
use crate::{Memory, Nic, TxBatch};

/// The default partition, without the membership bit: the only entry of the P_Key table.
const PKEY: u16 = 0x7fff;

impl Nic {
    /// Executes an arrived packet whose ICRC was good. Hostile until proven otherwise: what does not fit is counted
    /// and dropped, or answered with the NAK that the specification names.
    pub fn handle_packet(&mut self, now: Time, source: Gid, packet: &Packet<'_>, memory: &mut dyn Memory) {
        if self.admits(packet) {
            let route = Route { source, destination: self.host.config.gid };
            self.give(now, packet.dest_qp, route, packet, memory);
        }
    }

    /// Whether a packet is looked at.
    pub(crate) fn admits(&mut self, packet: &Packet<'_>) -> bool {
        let counters = &mut self.host.counters;
        counters.packets_received += 1;
        if !self.link_up {
            counters.drop_link_down += 1;
            return false;
        }
        if packet.pkey & PKEY != PKEY {
            counters.drop_pkey += 1;
            return false;
        }
        true
    }

    /// Gives a packet to a queue pair.
    pub(crate) fn give(
        &mut self,
        now: Time,
        qpn: Qpn,
        route: Route,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        let Ok(qp) = self.qps.get_mut(qpn) else {
            self.host.counters.drop_no_qp += 1;
            return;
        };
        qp.handle_packet(&mut self.host, now, route, packet, memory);
        self.settle(self.qps.slot(qpn));
    }

    /// Timers: retransmission, RNR, deferred acknowledgements.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(slot) = self.timers.take_due(now) {
            if let Some(qp) = self.qps.at_mut(slot) {
                // The deadline may have moved on since it was set.
                if qp.deadline().is_some_and(|t| t <= now) {
                    qp.handle_timeout(&mut self.host, now);
                }
                self.settle(slot);
            }
        }
    }

    /// Nothing arrived and nothing is to be sent: owed acknowledgements may leave now, or wait a little longer where
    /// the requester goes on without them.
    pub fn handle_idle(&mut self, now: Time) {
        while let Some(slot) = self.owing.pop() {
            if let Some(qp) = self.qps.at_mut(slot) {
                qp.owing = false;
                if qp.handle_idle(&self.host, now) && !std::mem::replace(&mut qp.patient, true) {
                    self.patient.push(slot);
                }
                self.settle(slot);
            }
        }
    }

    /// The driver goes to sleep: owed acknowledgements leave now.
    pub fn flush_acks(&mut self) {
        while let Some(slot) = self.owing.pop().or_else(|| self.patient.pop()) {
            if let Some(qp) = self.qps.at_mut(slot) {
                (qp.owing, qp.patient) = (false, false);
                qp.flush_acks();
                self.settle(slot);
            }
        }
    }

    /// The link went up or down. While it is down, what is sent is lost.
    pub fn handle_link(&mut self, up: bool) {
        if self.link_up != up {
            self.link_up = up;
            self.host.events.raise(if up { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
    }

    /// Fills `out` (cleared first) with datagrams for one destination; false if there is nothing to send now.
    pub fn poll_transmit(&mut self, now: Time, memory: &mut dyn Memory, out: &mut TxBatch) -> bool {
        loop {
            self.fill(now, memory, out);
            if self.link_up || out.is_empty() {
                return !out.is_empty();
            }
        }
    }

    fn fill(&mut self, now: Time, memory: &mut dyn Memory, out: &mut TxBatch) {
        out.clear();
        let mut payload = 0;
        // Each queue pair once at most: who has more to send goes to the end of the queue.
        for _ in 0..self.ready.len() {
            let Some(slot) = self.ready.pop_front() else { break };
            let Some(qp) = self.qps.at_mut(slot) else { continue };
            let destination = qp.next_destination();
            if out.is_empty() {
                out.destination = destination;
            } else if out.destination != destination {
                self.ready.push_front(slot);
                break;
            }
            qp.queued = false;
            if qp.take_along(&self.host, now) && !std::mem::replace(&mut qp.patient, true) {
                self.patient.push(slot);
            }
            let before = out.ends.len();
            let mut batch = Out::new(out);
            qp.transmit(&mut self.host, now, memory, &mut batch);
            payload += batch.payload();
            if out.ends.len() == before && qp.can_send(&self.host) {
                // Its packet does not fit any more: it keeps its place in the queue.
                qp.queued = true;
                self.ready.push_front(slot);
                break;
            }
            self.settle(slot);
        }
        self.host.counters.packets_sent += out.ends.len() as u64;
        self.host.counters.bytes_sent += payload;
    }

    /// When `handle_timeout` is due next; it may then find that there is nothing to do yet.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first()
    }

    /// After something happened to a queue pair: whether it wants to send, when it wants to be woken.
    pub(crate) fn settle(&mut self, slot: u32) {
        if let Some(qp) = self.qps.at_mut(slot) {
            if !qp.queued && qp.can_send(&self.host) {
                qp.queued = true;
                self.ready.push_back(slot);
            }
            if !qp.owing && qp.owes() {
                qp.owing = true;
                self.owing.push(slot);
            }
            if let Some(at) = qp.deadline() {
                self.timers.no_later(slot, at);
            }
        }
        while let Some(cq) = self.host.cqs.take_overflowed() {
            self.host.events.raise(AsyncEvent::CqError(cq));
            // Rare: a scan over all queue pairs is fine.
            for (_, qp) in self.qps.iter_mut() {
                let init = &qp.common.init;
                // One in RESET completes nothing.
                if (init.send_cq == cq || init.recv_cq == cq) && qp.common.state != QpState::Reset {
                    qp.fail(&mut self.host, None, None);
                }
            }
        }
    }
}
