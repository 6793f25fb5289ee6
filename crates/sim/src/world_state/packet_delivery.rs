//! The path of packets between NICs: transmission, faults on the way, and arrival.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use mitra_transport::fault::{Failure, Stage, TapResult, Verdict};
use mitra_verbs::{AsyncEvent, Gid, Time};
use mitra_wire::ring::record_len;
use mitra_wire::{ICRC_LEN, IcrcPath, Packet, ROCE_PORT};

use crate::absences::Part;
use crate::dma_pipeline::Release;
use crate::failure_injection::FailureInjection;
use crate::packet_kind::PacketFate;
use crate::timeline::{NoteKind, Subject};
use crate::world_state::{Event, WorldState};
use crate::{DurationRange, LinkConfig};

/// A queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Queue {
    Send,
    Receive,
}

impl Queue {
    /// The queue of the receiver to which a packet belongs.
    fn of(packet: &Packet<'_>) -> Queue {
        if packet.message.is_response() { Queue::Send } else { Queue::Receive }
    }
}

/// A queue of a queue pair in ERR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unflushed {
    /// The time of the change to ERR.
    pub(crate) since: Time,
    pub(crate) flush_at: Time,
    /// Whether the NIC has begun the packet that it still executes.
    pub(crate) has_begun: bool,
}

/// A packet between two NICs. `datagram` includes the ICRC.
#[derive(Clone, Debug)]
pub(crate) struct InFlightPacket {
    from: usize,
    pub(crate) to: usize,
    datagram: Vec<u8>,
    sent_at: Time,
    /// The sum of both NICs' `cable_failures` when the packet was sent.
    cable_failures: u64,
    /// Whether a switch keeps the packet if one of the cables fails while the packet is in flight.
    survives: bool,
    /// The number of times that a switch has held the packet because a cable had failed.
    holds: u8,
    faults_applied: bool,
    /// Whether the packet is in a ring, not on a cable.
    is_in_ring: bool,
}

impl InFlightPacket {
    pub(crate) fn covered(&self) -> &[u8] {
        covered(&self.datagram)
    }
}

pub(super) fn covered(datagram: &[u8]) -> &[u8] {
    &datagram[..datagram.len() - ICRC_LEN]
}

/// The opcode of datagrams, which carry control messages (IBTA table 38).
const UD_SEND_ONLY: u8 = 0x64;
/// The maximum number of times that a switch holds a packet while a cable is down.
const MAX_HOLDS: u8 = 3;
/// The longest time for which a full ring blocks its sender. A ring of `mitra_softnic` blocks until
/// it has room, and loses only what needs no acknowledgement.
const MAX_BLOCKED: Duration = Duration::from_millis(10);

impl WorldState {
    pub(crate) fn transmit(&mut self, n: usize) {
        let now = self.now;
        if self.nics[n].transmit_at.take_if(|t| *t == now).is_none() || !self.nics[n].is_running() {
            return;
        }
        if let Some(starvation) = &mut self.nics[n].starvation
            && !std::mem::take(&mut starvation.may_transmit)
        {
            return;
        }
        let local = self.nics[n].local(now);
        let (nic, mut memory, batch) = self.nics[n].with_memory(now);
        let more = nic.poll_transmit(local, &mut memory, batch);
        let batch = core::mem::take(&mut self.nics[n].batch);
        // If `poll_transmit` has fetched memory, earlier placements are complete. Their ACKs leave
        // before the new packets.
        self.release_placed(n);
        let destination: IpAddr = batch.destination.into();
        let path = IcrcPath::new(self.nics[n].address, SocketAddr::new(destination, ROCE_PORT));
        for datagram in batch.datagrams() {
            let mut sealed = datagram.to_vec();
            path.seal(&mut sealed, 0);
            self.analyse_sent(n, datagram);
            let nic = &mut self.nics[n];
            // With `ack_after_placement`, an ACK waits until the data is in memory.
            let wait_for_placement = nic.capabilities.ack_after_placement && !nic.pipeline.frozen;
            if wait_for_placement && is_response(&sealed) && nic.pipeline.len() > 0 {
                nic.pipeline.push_release(now, Release::Packet(batch.destination, sealed));
            } else {
                self.depart(n, batch.destination, sealed);
            }
        }
        self.nics[n].batch = batch;
        if more {
            self.ring_doorbell(n);
        }
        self.reschedule(n);
    }

    pub(crate) fn depart(&mut self, n: usize, destination: Gid, mut datagram: Vec<u8>) {
        if !self.nics[n].is_running() {
            return;
        }
        if datagram.first() == Some(&UD_SEND_ONLY)
            && let Ok(parsed) = Packet::parse(covered(&datagram))
        {
            self.cover_message(n, &parsed);
        }
        let effects = self.apply_faults(n, &datagram, false);
        match effects.verdict {
            Verdict::Pass => self.send(n, destination, datagram),
            Verdict::Drop => {
                self.note_loss("loses", n, &datagram);
                self.cover_lost_packet(n, false, effects.stage, covered(&datagram));
            }
            Verdict::Duplicate => {
                self.send(n, destination, datagram.clone());
                self.send(n, destination, datagram);
            }
            Verdict::Delay(by) => self.send_late(n, destination, datagram, by),
            Verdict::Corrupt(bit) => {
                flip_bit(&mut datagram, bit);
                self.note_loss("corrupts", n, &datagram);
                self.send(n, destination, datagram);
            }
        }
        self.inject_failures(effects.injections);
        self.observer.lost = None;
    }

    fn send(&mut self, n: usize, destination: Gid, datagram: Vec<u8>) {
        let link = *self.link(self.nics[n].rail);
        if datagram.len() > link.max_packet_bytes {
            return self.note_loss("loses", n, &datagram);
        }
        if self.link_rng.chance(link.straggler_ppm) {
            let by = link.straggler_delay.sample(&mut self.link_rng);
            return self.send_late(n, destination, datagram, by);
        }
        let Some((to, mut arrival)) = self.transmit_on_cable(n, destination, &datagram) else { return };
        if let Some(capacity) = link.ring_bytes {
            let Some(waited) = self.wait_for_room((n, to), capacity, datagram.len()) else {
                return self.note_loss("loses", n, &datagram);
            };
            arrival += waited;
        }
        // A packet does not overtake an earlier packet of the same path.
        let last = self.last_arrival.entry((n, to)).or_default();
        let at = arrival.max(*last + Duration::from_nanos(1));
        *last = at;
        if link.ring_bytes.is_some() {
            self.rings.entry((n, to)).or_default().push_back((at, record_len(datagram.len())));
        }
        self.launch(n, to, at, datagram);
    }

    /// Returns the time until a ring of `capacity` bytes has room for a datagram. `None` if that is
    /// longer than the sender waits.
    fn wait_for_room(&mut self, path: (usize, usize), capacity: usize, len: usize) -> Option<Duration> {
        let ring = self.rings.entry(path).or_default();
        while ring.pop_front_if(|&mut (read_at, _)| read_at <= self.now).is_some() {}
        let mut used = record_len(len) + ring.iter().map(|(_, size)| size).sum::<usize>();
        let mut room_at = self.now;
        for &(read_at, size) in ring.iter() {
            if used <= capacity {
                break;
            }
            (room_at, used) = (read_at, used - size);
        }
        let waited = room_at.saturating_since(self.now);
        (used <= capacity && waited <= MAX_BLOCKED).then_some(waited)
    }

    fn send_late(&mut self, n: usize, destination: Gid, datagram: Vec<u8>, by: Duration) {
        self.note_loss("delays", n, &datagram);
        if let Some((to, arrival)) = self.transmit_on_cable(n, destination, &datagram) {
            self.disturbances.on_loss(self.nics[n].rail, arrival + by);
            self.launch(n, to, arrival + by, datagram);
        }
    }

    /// Counts and captures a packet, and occupies the sender's cable for its transmission. Returns
    /// the destination NIC and the earliest arrival time. Returns `None` if no NIC has the
    /// destination address.
    fn transmit_on_cable(&mut self, n: usize, destination: Gid, datagram: &[u8]) -> Option<(usize, Time)> {
        let link = *self.link(self.nics[n].rail);
        let nic = &mut self.nics[n];
        nic.stats.sent += 1;
        let size = datagram.len() as u32 + 60;
        nic.egress_free = nic.egress_free.max(self.now) + link.kib_time * size / 1024;
        let to = self.routes.get(&(nic.rail, destination)).copied();
        if let Some(pcap) = &mut self.pcap {
            let peer = SocketAddr::new(destination.into(), ROCE_PORT);
            pcap.write(self.now, nic.address, peer, datagram);
        }
        if to.is_none() {
            nic.stats.undeliverable += 1;
            self.note_loss("has no way for", n, datagram);
        }
        Some((to?, self.nics[n].egress_free + link.latency.sample(&mut self.link_rng)))
    }

    fn launch(&mut self, from: usize, to: usize, at: Time, datagram: Vec<u8>) {
        self.trace.packet(self.now, "sends", from, &datagram);
        let cable_failures = self.nics[from].cable_failures + self.nics[to].cable_failures;
        let survivor_ppm = self.link(self.nics[from].rail).survivor_ppm;
        let survives = self.link_rng.chance(survivor_ppm);
        let packet = InFlightPacket {
            from,
            to,
            datagram,
            sent_at: self.now,
            cable_failures,
            survives,
            holds: 0,
            faults_applied: false,
            is_in_ring: self.link(self.nics[from].rail).ring_bytes.is_some(),
        };
        self.arrive_at(at, packet);
    }

    fn sample_link(&mut self, rail: u8, range: impl FnOnce(&LinkConfig) -> DurationRange) -> Duration {
        let range = range(self.link(rail));
        range.sample(&mut self.link_rng)
    }

    fn arrive_at(&mut self, at: Time, packet: InFlightPacket) {
        self.in_flight += 1;
        self.queue.push(at, Event::PacketArrival(Box::new(packet)));
    }

    pub(crate) fn arrive(&mut self, mut packet: InFlightPacket) {
        // Another NIC may have replaced the destination since the packet was sent.
        let port = (self.nics[packet.to].rail, self.nics[packet.to].gid);
        let (from, n) = (packet.from, self.routes.get(&port).copied().unwrap_or(packet.to));
        let failures = self.nics[from].cable_failures + self.nics[packet.to].cable_failures;
        let link_up = self.nics[n].faults.link_up();
        if packet.is_in_ring && n != packet.to {
            return self.note_loss("lost at", n, &packet.datagram);
        }
        let cable_failed = failures != packet.cable_failures && !packet.is_in_ring;
        if cable_failed || !link_up {
            // A cable failed while the packet was in flight, or the receiver's cable is down. The
            // packet is lost, unless the failure happened in flight and a switch kept the packet.
            if !(cable_failed && packet.survives) || packet.holds == MAX_HOLDS {
                return self.note_loss("lost at", n, &packet.datagram);
            }
            if packet.holds == 0 || !link_up {
                let by = self.sample_link(port.0, |link| link.straggler_delay);
                packet.holds += 1;
                self.disturbances.on_loss(port.0, self.now + by);
                return self.arrive_at(self.now + by, packet);
            }
        }
        match &mut self.nics[n].starvation {
            Some(starvation) => {
                starvation.unread.push_back(packet);
                self.in_flight += 1;
            }
            None => self.read(n, packet),
        }
    }

    /// The NIC takes a packet that has arrived.
    pub(crate) fn read(&mut self, n: usize, mut packet: InFlightPacket) {
        let (from, rail) = (packet.from, self.nics[n].rail);
        if !self.nics[n].is_running() {
            if self.nics[n].refuses {
                let by = self.sample_link(rail, |link| link.latency);
                self.queue.push(self.now + by, Event::Refusal(from, n));
            }
            self.nics[n].stats.undeliverable += 1;
            return self.note_loss("deaf to", n, &packet.datagram);
        }
        let path = IcrcPath::new(self.nics[from].address, self.nics[n].address);
        // The simulator sends all packets with IP identification 0. An ICRC that is valid only for
        // another identification therefore belongs to a corrupt packet.
        if !matches!(path.verify(&packet.datagram, 0), mitra_wire::Verdict::Good { solved: false, .. }) {
            self.nics[n].stats.icrc_errors += 1;
            return self.note_loss("refuses", n, &packet.datagram);
        }
        let effects = match core::mem::replace(&mut packet.faults_applied, true) {
            false => self.apply_faults(n, &packet.datagram, true),
            true => FaultEffects::NONE,
        };
        match effects.verdict {
            Verdict::Pass => self.take(n, packet),
            Verdict::Drop | Verdict::Corrupt(_) => {
                self.note_loss("drops", n, &packet.datagram);
                self.cover_lost_packet(n, true, effects.stage, packet.covered());
            }
            Verdict::Duplicate => {
                let by = self.sample_link(rail, |link| link.latency);
                self.arrive_at(self.now + by, packet.clone());
                self.take(n, packet);
            }
            Verdict::Delay(by) => {
                self.note_loss("holds", n, &packet.datagram);
                self.disturbances.on_loss(rail, self.now + by);
                self.arrive_at(self.now + by, packet);
            }
        }
        self.inject_failures(effects.injections);
        self.observer.lost = None;
    }

    /// Handles the arrival of a host's report that it has refused a packet to the NIC `to`.
    pub(crate) fn arrive_refusal(&mut self, n: usize, to: usize) {
        let destination = self.nics[to].gid;
        let nic = &mut self.nics[n];
        if nic.is_running() && nic.link_up {
            *nic.port_refusals.entry(destination).or_default() += 1;
        }
    }

    /// Executes a packet, unless its queue pair is in ERR and not flushed yet. Then one packet that
    /// was on its way at the change to ERR is executed later, and the others are dropped.
    fn take(&mut self, n: usize, packet: InFlightPacket) {
        let Ok(parsed) = Packet::parse(packet.covered()) else {
            self.nics[n].stats.malformed += 1;
            return self.trace.packet(self.now, "malformed", n, &packet.datagram);
        };
        let nic = &mut self.nics[n];
        let key = (parsed.dest_qp, Queue::of(&parsed));
        let Some(unflushed) = nic.unflushed.get_mut(&key) else { return self.execute(n, &packet) };
        if unflushed.has_begun {
            return self.note_loss("drops", n, &packet.datagram);
        }
        let Unflushed { since, flush_at, .. } = *unflushed;
        if packet.sent_at >= since {
            self.flush_after_error(n, key);
            return self.execute(n, &packet);
        }
        unflushed.has_begun = true;
        let left = DurationRange { min: Duration::ZERO, max: flush_at.saturating_since(self.now) };
        let at = self.now + left.sample(&mut nic.flush_rng);
        self.in_flight += 1;
        self.queue.push(at, Event::LateExecution(n, Box::new(packet), since));
    }

    /// Executes the packet that a NIC had begun when the queue pair was moved to ERR at `since`,
    /// unless the queue pair was flushed, reset or destroyed in the meantime.
    pub(crate) fn execute_late(&mut self, n: usize, packet: InFlightPacket, since: Time) {
        let is_running = self.nics[n].is_running();
        let unflushed = &self.nics[n].unflushed;
        let key = Packet::parse(packet.covered()).map(|parsed| (parsed.dest_qp, Queue::of(&parsed))).ok();
        match key.filter(|key| is_running && unflushed.get(key).is_some_and(|queue| queue.since == since)) {
            Some(key) => {
                self.execute(n, &packet);
                self.flush_after_error(n, key);
                self.reschedule(n);
            }
            None => self.note_loss("drops", n, &packet.datagram),
        }
    }

    fn execute(&mut self, n: usize, packet: &InFlightPacket) {
        let source = self.nics[packet.from].gid;
        let (now, local) = (self.now, self.nics[n].local(self.now));
        let Ok(parsed) = Packet::parse(packet.covered()) else { return };
        self.trace.packet(now, "takes", n, &packet.datagram);
        self.cover_message(n, &parsed);
        self.analyse_received(n, &parsed);
        self.nics[n].stats.received += 1;
        let before = self.nics[n].expected_psn(parsed.dest_qp);
        let (nic, mut memory, _) = self.nics[n].with_memory(now);
        nic.handle_packet(local, source, &parsed, &mut memory);
        let mut injections = Vec::new();
        if before != self.nics[n].expected_psn(parsed.dest_qp) {
            injections = self.nics[n].executed(n, &parsed);
        }
        self.ring_doorbell(n);
        self.schedule_idle_poll(n);
        self.inject_failures(injections);
        self.reschedule(n);
    }

    pub(crate) fn schedule_idle_poll(&mut self, n: usize) {
        let idle = self.now + self.config.nic.idle_delay.sample(&mut self.nic_rng);
        if self.nics[n].idle_at.is_none_or(|t| t < idle) {
            self.nics[n].idle_at = Some(idle);
            self.queue.push(idle, Event::IdlePoll(n));
        }
    }

    /// Records in the trace that a packet is lost, late or corrupted at a NIC.
    fn note_loss(&mut self, action: &'static str, n: usize, datagram: &[u8]) {
        self.disturbances.on_loss(self.nics[n].rail, self.now);
        self.trace.packet(self.now, action, n, datagram);
    }

    /// Records that a NIC or its link no longer works, or is changed.
    pub(crate) fn note_failure(&mut self, n: usize) {
        self.disturbances.on_failure(self.nics[n].rail, self.now);
    }

    /// Reports a packet to the NIC's faults and probes. Removes the probes that fire.
    fn apply_faults(&mut self, n: usize, datagram: &[u8], arriving: bool) -> FaultEffects {
        let nic = &mut self.nics[n];
        if !nic.is_observed() {
            return FaultEffects::NONE;
        }
        let Ok(parsed) = Packet::parse(covered(datagram)) else { return FaultEffects::NONE };
        let tap = |faults: &mut mitra_transport::fault::Faults| match arriving {
            true => faults.receive(&parsed),
            false => faults.transmit(&parsed),
        };
        let TapResult { verdict, failure: failed } = tap(&mut nic.faults);
        let mut effects = FaultEffects { verdict, stage: None, injections: Vec::new() };
        if failed.is_some() {
            effects.injections.push(FailureInjection::already_recorded(n));
        }
        for i in (0..nic.stage_probes.len()).rev() {
            let probe = &mut nic.stage_probes[i];
            if !probe.observes(&parsed) {
                continue;
            }
            let TapResult { verdict, failure: failed } = tap(&mut probe.faults);
            let Some(failed) = failed else { continue };
            if failed == Failure::NotPlaced {
                // Stage 8 (`Stage::NotPlaced`) begins: the NIC holds back placements until the ACK
                // is sent.
                nic.faults.fail(Failure::NotPlaced);
                effects.injections.push(FailureInjection::already_recorded(n));
                continue;
            }
            match probe.hold {
                Some(by) => effects.verdict = Verdict::Delay(by),
                None if verdict == Verdict::Drop => effects.verdict = Verdict::Drop,
                None => {}
            }
            effects.stage = Some(probe.stage);
            effects.injections.extend(nic.stage_probes.remove(i).targets);
        }
        for i in (0..nic.packet_probes.len()).rev() {
            if !nic.packet_probes[i].counts(&parsed, arriving) {
                continue;
            }
            let probe = nic.packet_probes.remove(i);
            match probe.fate {
                PacketFate::Passes => {}
                PacketFate::Lost => effects.verdict = Verdict::Drop,
                PacketFate::Held(by) => effects.verdict = Verdict::Delay(by),
            }
            effects.injections.extend(probe.targets);
        }
        effects
    }

    pub(crate) fn inject_failures(&mut self, injections: Vec<FailureInjection>) {
        for injection in injections {
            if let Some(failure) = injection.failure {
                self.cover_failure(injection.nic, failure);
                self.nics[injection.nic].faults.fail(failure);
            }
            if injection.release_placements {
                self.nics[injection.nic].faults.resume_placement();
            }
            self.update_health(injection.nic);
        }
    }

    /// Applies the failures that a NIC's `faults` have recorded and that have not yet taken effect:
    /// death, hanging, held-back placements, and the state of the link.
    pub(crate) fn update_health(&mut self, n: usize) {
        let nic = &mut self.nics[n];
        if nic.detached {
            return;
        }
        let (dma, access, up) = (nic.faults.dma_ok(), nic.faults.host_access_ok(), nic.faults.link_up());
        if !dma && !nic.dead {
            nic.dead = true;
            // Completions that a fetch or an atomic has just released stay visible to the host.
            nic.flush_completions();
            let lost = nic.pipeline.discard_all();
            nic.stats.placement_bytes_lost += lost;
            let text = format!("dies, {lost} bytes are not placed");
            self.trace.note(self.now, Subject::Nic(n), NoteKind::Fault, text);
            self.absences.set(self.now, Part::Nic(n), true);
            self.note_failure(n);
            self.report_fatal(n);
        } else if dma && !access && !nic.hung {
            nic.hung = true;
            self.trace.note(self.now, Subject::Nic(n), NoteKind::Fault, "hangs".to_owned());
            self.absences.set(self.now, Part::Nic(n), true);
            self.note_failure(n);
            self.report_fatal(n);
        }
        let nic = &mut self.nics[n];
        if dma {
            let frozen = !nic.faults.placement_ok();
            if frozen != nic.pipeline.frozen {
                let (kind, verb) = match frozen {
                    true => (NoteKind::Fault, "holds back"),
                    false => (NoteKind::Recovery, "lets go of"),
                };
                self.trace.note(self.now, Subject::Nic(n), kind, format!("{verb} placements"));
                if frozen {
                    nic.pipeline.freeze()
                } else {
                    nic.pipeline.frozen = false
                }
                self.note_failure(n);
            }
        }
        if up != self.nics[n].link_up {
            self.set_cable(n, up);
        }
        self.reschedule(n);
    }

    /// Without a switch, the links of all NICs on the rail follow.
    fn set_cable(&mut self, n: usize, up: bool) {
        let rail = self.nics[n].rail;
        let switched = self.link(rail).switched;
        for other in 0..self.nics.len() {
            let nic = &mut self.nics[other];
            let is_affected = other == n || !switched && nic.rail == rail && !nic.detached;
            if !is_affected || nic.link_up == up {
                continue;
            }
            nic.link_up = up;
            self.rc_flows.iter_mut().for_each(|flow| flow.on_link(self.now, crate::NicId(other), up));
            if up {
                nic.faults.heal_link();
            } else {
                nic.faults.fail(Failure::LinkDown);
                nic.cable_failures += 1;
            }
            let (kind, text) =
                if up { (NoteKind::Recovery, "link up") } else { (NoteKind::Fault, "link down") };
            self.trace.note(self.now, Subject::Nic(other), kind, text.to_owned());
            let is_absent = !up || nic.dead || nic.hung || nic.detached;
            self.absences.set(self.now, Part::Nic(other), is_absent);
            if nic.is_running() {
                nic.nic.handle_link(up);
            }
            self.note_failure(other);
            self.ring_doorbell(other);
            self.reschedule(other);
        }
    }

    fn report_fatal(&mut self, n: usize) {
        if self.nic_rng.chance(self.config.nic.fatal_event_ppm) {
            let at = self.now + self.config.nic.fatal_event_delay.sample(&mut self.nic_rng);
            self.queue.push(at, Event::AsyncReport(n, AsyncEvent::DeviceFatal));
        }
    }
}

struct FaultEffects {
    verdict: Verdict,
    /// The stage that the packet has reached, if a fault was placed there.
    stage: Option<Stage>,
    injections: Vec<FailureInjection>,
}

impl FaultEffects {
    const NONE: FaultEffects = FaultEffects { verdict: Verdict::Pass, stage: None, injections: Vec::new() };
}

fn is_response(datagram: &[u8]) -> bool {
    // The opcodes of RC responses (IBTA table 38).
    datagram.first().is_some_and(|op| (0x0d..=0x12).contains(op))
}

fn flip_bit(datagram: &mut [u8], bit: u32) {
    let bits = datagram.len() as u32 * 8;
    if bits > 0 {
        let bit = bit % bits;
        datagram[bit as usize / 8] ^= 1 << (bit % 8);
    }
}
