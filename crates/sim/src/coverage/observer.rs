//! Records the operations in flight when a failure takes effect, from the state of NICs, queue
//! pairs and packets.

use core::time::Duration;
use std::collections::BTreeMap;

use mitra_failover::rail_negotiation::MessageKind;
use mitra_transport::PendingSend;
use mitra_transport::fault::{Failure, Stage};
use mitra_verbs::{Psn, Qpn};
use mitra_wire::{Packet, Transport};

use super::{Coverage, CoverageCell, Operation, RecoveryPoint};
use crate::world_state::{Event, WorldState};

#[derive(Default)]
pub(crate) struct CoverageObserver {
    pub(crate) coverage: Coverage,
    hosts: BTreeMap<usize, HostProgress>,
    /// The operations that were in flight when the recovery began, with their stages.
    at_begin: Vec<(Stage, Operation)>,
    /// The failures of a fault take effect now. This packet is lost because of that fault.
    pub(crate) lost: Option<LostPacket>,
}

#[derive(Clone, Copy, Default)]
struct HostProgress {
    point: RecoveryPoint,
    /// The rail that the host's program uses. A fence on another rail belongs to no recovery.
    active_rail: Option<usize>,
    /// The epoch of the last completed failover.
    epoch: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct LostPacket {
    nic: usize,
    is_arriving: bool,
    qp: Qpn,
    psn: Psn,
    is_request: bool,
    stage: Stage,
}

impl CoverageObserver {
    pub(crate) fn point(&self, host: usize) -> RecoveryPoint {
        self.hosts.get(&host).map_or(RecoveryPoint::None, |host| host.point)
    }

    fn host(&mut self, host: usize) -> &mut HostProgress {
        self.hosts.entry(host).or_default()
    }

    fn is_recovering(&self) -> bool {
        self.hosts.values().any(|host| host.point != RecoveryPoint::None)
    }

    fn begin(&mut self, met: Vec<(Stage, Operation)>) {
        if !met.is_empty() {
            self.at_begin = met;
        }
    }
}

impl WorldState {
    /// Must be called before the failure takes effect.
    pub(crate) fn cover_failure(&mut self, nic: usize, failure: Failure) {
        let state = &self.nics[nic];
        let is_new = match failure {
            Failure::LinkDown => state.link_up && !state.dead,
            Failure::NicDead => !state.dead,
            Failure::NicHung => !state.dead && !state.hung,
            Failure::NotPlaced => false,
        };
        if !is_new || state.detached {
            return;
        }
        let met = self.operations_at(nic);
        let mut points: Vec<_> = self.observer.hosts.values().map(|host| host.point).collect();
        points.retain(|&point| point != RecoveryPoint::None);
        points.dedup();
        if points.is_empty() {
            for &(stage, operation) in &met {
                let cell = CoverageCell { stage, failure, operation, point: RecoveryPoint::None };
                self.observer.coverage.count(cell);
            }
            self.observer.begin(met);
            return;
        }
        for point in points {
            for &(stage, operation) in &self.observer.at_begin {
                self.observer.coverage.count(CoverageCell { stage, failure, operation, point });
            }
        }
    }

    /// Records that the program of a NIC's host takes a queue pair out of service.
    pub(crate) fn cover_fence(&mut self, nic: usize) {
        let (host, rail) = (self.nics[nic].host, usize::from(self.nics[nic].rail));
        let is_active = self.observer.host(host).active_rail == Some(rail);
        if !is_active || !matches!(self.observer.point(host), RecoveryPoint::None | RecoveryPoint::Proposed) {
            return;
        }
        if !self.observer.is_recovering() {
            // The recovery began without a failure of a NIC, or some time after a failure.
            let met = self.operations_at(nic);
            self.observer.begin(met);
        }
        self.reach_point(host, RecoveryPoint::Fenced);
    }

    pub(crate) fn cover_message(&mut self, nic: usize, packet: &Packet<'_>) {
        if !matches!(packet.transport, Transport::Ud(_)) {
            return;
        }
        let point = match MessageKind::of_datagram(packet.payload) {
            Some(MessageKind::Propose) => RecoveryPoint::Proposed,
            Some(MessageKind::Evidence) => RecoveryPoint::Evidence,
            Some(MessageKind::Resume) => RecoveryPoint::Resumed,
            _ => return,
        };
        let host = self.nics[nic].host;
        let epoch = MessageKind::epoch_of_datagram(packet.payload);
        if epoch.is_some_and(|epoch| u64::from(epoch) <= self.observer.host(host).epoch) {
            return; // a late copy of a message of a recovery that is over
        }
        // A late copy of the last Resume begins no recovery.
        if point != RecoveryPoint::Resumed || self.observer.point(host) != RecoveryPoint::None {
            self.reach_point(host, point);
        }
    }

    /// Records the last step of a host in a recovery, and schedules the failures that are placed at
    /// this step.
    fn reach_point(&mut self, host: usize, point: RecoveryPoint) {
        self.observer.host(host).point = point;
        let probe = &mut self.hosts[host].point_probe;
        let Some(placed) = probe.as_mut().filter(|probe| probe.point == point) else { return };
        placed.left -= 1;
        if placed.left == 0
            && let Some(placed) = probe.take()
        {
            // The step is a call or a packet at the current time, so the failures come 1 ns later.
            self.queue.push(self.now + Duration::from_nanos(1), Event::Failures(placed.targets));
        }
    }

    /// Records what a program reports about its connection. A recovery is over when a failover with
    /// a later epoch has completed, or when the connection is closed.
    pub(crate) fn cover_program(&mut self, host: usize, active_rail: usize, epoch: u64, is_closed: bool) {
        let progress = self.observer.host(host);
        progress.active_rail = Some(active_rail);
        let is_over = is_closed || epoch > progress.epoch;
        progress.epoch = progress.epoch.max(epoch);
        if is_over && progress.point != RecoveryPoint::None {
            progress.point = RecoveryPoint::None;
            if !self.observer.is_recovering() {
                self.observer.at_begin.clear();
            }
        }
    }

    /// Records a packet that is lost at a NIC. `stage` is the stage that the packet has reached, if
    /// a fault was placed there. Without a placed fault, the packet counts as lost on the wire,
    /// even at the NIC at which it arrives.
    pub(crate) fn cover_lost_packet(
        &mut self,
        nic: usize,
        is_arriving: bool,
        stage: Option<Stage>,
        covered: &[u8],
    ) {
        let Ok(packet) = Packet::parse(covered) else { return };
        let is_request = packet.message.is_request();
        let reached = if is_request { Stage::RequestOnWire } else { Stage::AckOnWire };
        self.observer.lost = Some(LostPacket {
            nic,
            is_arriving,
            qp: packet.dest_qp,
            psn: packet.psn,
            is_request,
            stage: stage.unwrap_or(reached),
        });
    }

    /// Returns the operations in flight between a NIC and the other NICs of its rail, with their
    /// stages.
    fn operations_at(&self, nic: usize) -> Vec<(Stage, Operation)> {
        let responses = self.responses_in_flight();
        let mut found = Vec::new();
        for requester in (0..self.nics.len()).filter(|&n| self.nics[n].rail == self.nics[nic].rail) {
            for send in self.nics[requester].nic.pending_sends() {
                self.add_operation(nic, requester, &send, &responses, &mut found);
            }
        }
        found
    }

    /// Returns the responses in flight: the destination, and the PSN that the response answers.
    fn responses_in_flight(&self) -> Vec<(usize, Qpn, Psn)> {
        let packets = self.queue.iter().filter_map(|event| match event {
            Event::PacketArrival(packet) => Some(packet),
            _ => None,
        });
        let responses = packets.filter_map(|packet| {
            let parsed = Packet::parse(packet.covered()).ok()?;
            let is_response =
                matches!(parsed.transport, Transport::Rc | Transport::Xrc(_)) && !parsed.message.is_request();
            is_response.then_some((packet.to, parsed.dest_qp, parsed.psn))
        });
        responses.collect()
    }

    fn add_operation(
        &self,
        failing: usize,
        requester: usize,
        send: &PendingSend,
        responses: &[(usize, Qpn, Psn)],
        found: &mut Vec<(Stage, Operation)>,
    ) {
        let state = &self.nics[requester];
        let (Some(operation), Ok(status)) = (Operation::of(&send.op), state.nic.query_qp(send.qp)) else {
            return;
        };
        let (Some(gid), Some(peer_qp)) = (status.attr.dest_gid, status.attr.dest_qpn) else { return };
        let Some(&responder) = self.routes.get(&(state.rail, gid)) else { return };
        if failing != requester && failing != responder {
            return;
        }
        let Some((first, last)) = send.psns else {
            found.push((Stage::Posted, operation));
            return;
        };
        let Ok(peer) = self.nics[responder].nic.query_qp(peer_qp) else { return };
        // The response to a READ begins at its first PSN. An acknowledgement of the last PSN
        // answers a WRITE or SEND.
        let answer = if operation == Operation::Read { first } else { last };
        let lost = self.observer.lost.filter(|lost| {
            let [from, to] = if lost.is_request { [requester, responder] } else { [responder, requester] };
            let qp = if lost.is_request { peer_qp } else { send.qp };
            let is_early = !lost.is_request || is_at_or_after(last, lost.psn);
            (lost.nic, lost.qp) == (if lost.is_arriving { to } else { from }, qp)
                && is_at_or_after(lost.psn, if lost.is_request { first } else { answer })
                && is_early
        });
        let is_answered = || {
            let of_it = |&(to, qp, psn): &(usize, Qpn, Psn)| {
                (to, qp) == (requester, send.qp) && is_at_or_after(psn, answer)
            };
            responses.iter().any(of_it)
        };
        let stage = match lost {
            Some(lost) => lost.stage,
            None if is_at_or_after(first, peer.rq_psn) => Stage::RequestOnWire,
            // A READ may have several request packets. Each packet is executed as a whole.
            None if is_at_or_after(last, peer.rq_psn) && operation != Operation::Read => {
                Stage::PartlyExecuted
            }
            None if is_answered() => Stage::AckOnWire,
            None => Stage::Executed,
        };
        found.push((stage, operation));
        if stage == Stage::AckOnWire
            && operation != Operation::Read
            && self.nics[responder].pipeline.len() > 0
        {
            found.push((Stage::NotPlaced, operation));
        }
    }
}

/// Returns whether `psn` is in the half of all PSNs that begins with `other`.
fn is_at_or_after(psn: Psn, other: Psn) -> bool {
    psn.distance(other) < 1 << 23
}
