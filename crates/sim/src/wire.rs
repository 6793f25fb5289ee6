//! Packets between NICs: they leave, are lost, doubled, changed and held back, and arrive.

use core::net::{IpAddr, SocketAddr};

use mitra_transport::fault::{Failure, TapResult, Verdict};
use mitra_verbs::{AsyncEvent, Gid, Time};
use mitra_wire::{ICRC_LEN, IcrcPath, Packet, ROCE_PORT};

use crate::fabric::{Core, Event};
use crate::nic::Strike;
use crate::pipeline::Release;

/// A packet between two NICs, sealed.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    from: usize,
    to: usize,
    datagram: Vec<u8>,
    /// How often either cable had failed when it left.
    cable_failures: u64,
    /// Whether it arrives all the same if either fails now.
    survives: bool,
    /// How often it was held back in a failed cable's switch.
    held: u8,
    /// Whether the receiver's faults have had their say.
    judged: bool,
}

/// How often a packet in a switch waits for a cable to come back.
const MAX_HELD: u8 = 3;

impl Core {
    /// Puts the NIC's next packets on its cable.
    pub(crate) fn pump(&mut self, n: usize) {
        let now = self.now;
        if self.nics[n].pump_at.take_if(|t| *t == now).is_none() || !self.nics[n].runs() {
            return;
        }
        let local = self.nics[n].local(now);
        let (nic, mut port, batch) = self.nics[n].with_memory(now);
        let more = nic.poll_transmit(local, &mut port, batch);
        let batch = core::mem::take(&mut self.nics[n].batch);
        // A fetch pushed out what waited: that goes first.
        self.release(n);
        let destination: IpAddr = batch.destination.into();
        let path = IcrcPath::new(self.nics[n].address, SocketAddr::new(destination, ROCE_PORT));
        for datagram in batch.datagrams() {
            let mut sealed = datagram.to_vec();
            path.seal(&mut sealed, 0);
            let nic = &mut self.nics[n];
            // An acknowledgement says that the data is in memory, if the device says that it does.
            let waits = nic.capabilities.ack_after_placement && !nic.pipeline.is_frozen();
            if waits && is_response(&sealed) && nic.pipeline.len() > 0 {
                nic.pipeline.then(now, Release::Packet(batch.destination, sealed));
            } else {
                self.depart(n, batch.destination, sealed);
            }
        }
        self.nics[n].batch = batch;
        if more {
            self.ring(n);
        }
        self.settle(n);
    }

    /// A packet leaves the NIC, if its faults let it.
    pub(crate) fn depart(&mut self, n: usize, destination: Gid, mut datagram: Vec<u8>) {
        if !self.nics[n].runs() {
            return;
        }
        let fate = self.judge(n, &datagram, false);
        match fate.verdict {
            Verdict::Pass => self.send(n, destination, datagram),
            Verdict::Drop => self.trace.packet(self.now, "loses", n, &datagram),
            Verdict::Duplicate => {
                self.send(n, destination, datagram.clone());
                self.send(n, destination, datagram);
            }
            Verdict::Delay(by) => self.send_late(n, destination, datagram, by),
            Verdict::Corrupt(bit) => {
                flip(&mut datagram, bit);
                self.trace.packet(self.now, "corrupts", n, &datagram);
                self.send(n, destination, datagram);
            }
        }
        self.strike(fate.strikes);
    }

    fn send(&mut self, n: usize, destination: Gid, datagram: Vec<u8>) {
        if datagram.len() > self.config.wire.longest {
            return self.trace.packet(self.now, "loses", n, &datagram);
        }
        if self.wire_rng.chance(self.config.wire.straggler_ppm) {
            let by = self.config.wire.straggle.sample(&mut self.wire_rng);
            return self.send_late(n, destination, datagram, by);
        }
        let Some((to, arrival)) = self.on_cable(n, destination, &datagram) else { return };
        // One path keeps its order.
        let last = self.last_arrival.entry((n, to)).or_default();
        let at = arrival.max(*last + core::time::Duration::from_nanos(1));
        *last = at;
        self.fly(n, to, at, datagram);
    }

    fn send_late(&mut self, n: usize, destination: Gid, datagram: Vec<u8>, by: core::time::Duration) {
        self.trace.packet(self.now, "delays", n, &datagram);
        if let Some((to, arrival)) = self.on_cable(n, destination, &datagram) {
            self.fly(n, to, arrival + by, datagram);
        }
    }

    /// Where the packet goes and when it could be there.
    fn on_cable(&mut self, n: usize, destination: Gid, datagram: &[u8]) -> Option<(usize, Time)> {
        let nic = &mut self.nics[n];
        nic.stats.sent += 1;
        let size = datagram.len() as u32 + 60;
        nic.egress_free = nic.egress_free.max(self.now) + self.config.wire.kib_time * size / 1024;
        let to = self.routes.get(&(nic.rail, destination)).copied();
        if let Some(pcap) = &mut self.pcap {
            let peer = SocketAddr::new(destination.into(), ROCE_PORT);
            pcap.write(self.now, nic.address, peer, datagram);
        }
        if to.is_none() {
            nic.stats.undeliverable += 1;
            self.trace.packet(self.now, "has no way for", n, datagram);
        }
        Some((to?, nic.egress_free + self.config.wire.latency.sample(&mut self.wire_rng)))
    }

    fn fly(&mut self, from: usize, to: usize, at: Time, datagram: Vec<u8>) {
        self.trace.packet(self.now, "sends", from, &datagram);
        let cable_failures = self.nics[from].cable_failures + self.nics[to].cable_failures;
        let survives = self.wire_rng.chance(self.config.wire.survivor_ppm);
        let flight = Flight { from, to, datagram, cable_failures, survives, held: 0, judged: false };
        self.arrive_at(at, flight);
    }

    fn arrive_at(&mut self, at: Time, flight: Flight) {
        self.in_flight += 1;
        self.queue.push(at, Event::Arrive(Box::new(flight)));
    }

    /// A packet reaches its NIC.
    pub(crate) fn arrive(&mut self, mut flight: Flight) {
        // By its address: there may be a new card by now.
        let place = (self.nics[flight.to].rail, self.nics[flight.to].gid);
        let (from, n) = (flight.from, self.routes.get(&place).copied().unwrap_or(flight.to));
        let failures = self.nics[from].cable_failures + self.nics[flight.to].cable_failures;
        let link_up = self.nics[n].faults.link_up();
        let was_on_it = failures != flight.cable_failures;
        if was_on_it || !link_up {
            // It was on a cable that failed: lost, or kept by a switch. Or it was sent to where no cable is.
            if !(was_on_it && flight.survives) || flight.held == MAX_HELD {
                return self.trace.packet(self.now, "lost at", n, &flight.datagram);
            }
            if flight.held == 0 || !link_up {
                let by = self.config.wire.straggle.sample(&mut self.wire_rng);
                flight.held += 1;
                return self.arrive_at(self.now + by, flight);
            }
        }
        if !self.nics[n].runs() {
            self.nics[n].stats.undeliverable += 1;
            return self.trace.packet(self.now, "deaf to", n, &flight.datagram);
        }
        let path = IcrcPath::new(self.nics[from].address, self.nics[n].address);
        // The fabric leaves the identification 0, so a verdict that solves for another is a corrupt packet.
        if !matches!(path.verify(&flight.datagram, 0), mitra_wire::Verdict::Good { solved: false, .. }) {
            self.nics[n].stats.icrc_errors += 1;
            return self.trace.packet(self.now, "refuses", n, &flight.datagram);
        }
        let mut fate = Judged::default();
        if !flight.judged {
            fate = self.judge(n, &flight.datagram, true);
            flight.judged = true;
        }
        match fate.verdict {
            Verdict::Pass => self.execute(n, &flight),
            Verdict::Drop | Verdict::Corrupt(_) => self.trace.packet(self.now, "drops", n, &flight.datagram),
            Verdict::Duplicate => {
                let by = self.config.wire.latency.sample(&mut self.wire_rng);
                self.arrive_at(self.now + by, flight.clone());
                self.execute(n, &flight);
            }
            Verdict::Delay(by) => {
                self.trace.packet(self.now, "holds", n, &flight.datagram);
                self.arrive_at(self.now + by, flight);
            }
        }
        self.strike(fate.strikes);
    }

    /// Hands a packet to the transport.
    fn execute(&mut self, n: usize, flight: &Flight) {
        let source = self.nics[flight.from].gid;
        let (now, local) = (self.now, self.nics[n].local(self.now));
        let covered = &flight.datagram[..flight.datagram.len() - ICRC_LEN];
        let Ok(packet) = Packet::parse(covered) else {
            self.nics[n].stats.malformed += 1;
            return self.trace.packet(now, "malformed", n, &flight.datagram);
        };
        self.trace.packet(now, "takes", n, &flight.datagram);
        self.nics[n].stats.received += 1;
        let before = self.nics[n].expected(packet.dest_qp);
        let (nic, mut port, _) = self.nics[n].with_memory(now);
        nic.handle_packet(local, source, &packet, &mut port);
        let mut strikes = Vec::new();
        if before != self.nics[n].expected(packet.dest_qp) {
            strikes = self.nics[n].executed(n, &packet);
        }
        self.ring(n);
        let idle = now + self.config.nic.idle.sample(&mut self.nic_rng);
        if self.nics[n].idle_at.is_none_or(|t| t < idle) {
            self.nics[n].idle_at = Some(idle);
            self.queue.push(idle, Event::Idle(n));
        }
        self.strike(strikes);
        self.settle(n);
    }

    /// What the NIC's faults and probes make of a packet.
    fn judge(&mut self, n: usize, datagram: &[u8], arriving: bool) -> Judged {
        let nic = &mut self.nics[n];
        let covered = &datagram[..datagram.len().saturating_sub(ICRC_LEN)];
        if !nic.watched() {
            return Judged::default();
        }
        let Ok(packet) = Packet::parse(covered) else { return Judged::default() };
        let tap = |faults: &mut mitra_transport::fault::Faults| match arriving {
            true => faults.receive(&packet),
            false => faults.transmit(&packet),
        };
        let TapResult { verdict, failure: failed } = tap(&mut nic.faults);
        let mut judged = Judged { verdict, strikes: Vec::new() };
        if failed.is_some() {
            judged.strikes.push(Strike::known(n));
        }
        for at in (0..nic.probes.len()).rev() {
            let probe = &mut nic.probes[at];
            let TapResult { verdict, failure: failed } = tap(&mut probe.faults);
            let Some(failed) = failed else { continue };
            if failed == Failure::NotPlaced {
                // Stage 8 begins: this NIC holds back until it has acknowledged.
                nic.faults.fail(Failure::NotPlaced);
                judged.strikes.push(Strike::known(n));
                continue;
            }
            match probe.hold {
                Some(by) => judged.verdict = Verdict::Delay(by),
                None if verdict == Verdict::Drop => judged.verdict = Verdict::Drop,
                None => {}
            }
            judged.strikes.extend(nic.probes.remove(at).targets);
        }
        judged
    }

    /// Carries out what has failed.
    pub(crate) fn strike(&mut self, strikes: Vec<Strike>) {
        for strike in strikes {
            let faults = &mut self.nics[strike.nic].faults;
            if let Some(failure) = strike.failure {
                faults.fail(failure);
            }
            if strike.let_go {
                faults.resume_placement();
            }
            self.follow(strike.nic);
        }
    }

    /// Makes the NIC what its faults say that it is.
    pub(crate) fn follow(&mut self, n: usize) {
        let nic = &mut self.nics[n];
        if nic.gone {
            return;
        }
        let (dma, access, up) = (nic.faults.dma_ok(), nic.faults.host_access_ok(), nic.faults.link_up());
        if !dma && !nic.dead {
            nic.dead = true;
            // What a fetch or an atomic has pushed into memory just now took the completions before it along.
            nic.land_completions();
            let lost = nic.pipeline.lose();
            nic.stats.placements_lost += lost;
            self.trace.note(self.now, format!("{:<4} dies, {lost} bytes are not placed", nic.name));
            self.report_fatal(n);
        } else if dma && !access && !nic.hung {
            nic.hung = true;
            self.trace.note(self.now, format!("{:<4} hangs", nic.name));
            self.report_fatal(n);
        }
        let nic = &mut self.nics[n];
        if dma {
            let frozen = !nic.faults.placement_ok();
            if frozen != nic.pipeline.is_frozen() {
                self.trace.note(
                    self.now,
                    format!(
                        "{:<4} {} placements",
                        nic.name,
                        if frozen { "holds back" } else { "lets go of" }
                    ),
                );
                if frozen { nic.pipeline.freeze() } else { nic.pipeline.thaw() }
            }
        }
        if up != nic.link_up {
            self.cable(n, up);
        }
        self.settle(n);
    }

    /// A cable fails or comes back; without a switch its other end sees it too.
    fn cable(&mut self, n: usize, up: bool) {
        let rail = self.nics[n].rail;
        for other in 0..self.nics.len() {
            let nic = &mut self.nics[other];
            let concerned = other == n || !self.config.wire.switched && nic.rail == rail && !nic.gone;
            if !concerned || nic.link_up == up {
                continue;
            }
            nic.link_up = up;
            if up {
                nic.faults.heal_link();
            } else {
                nic.faults.fail(Failure::LinkDown);
                nic.cable_failures += 1;
            }
            self.trace.note(self.now, format!("{:<4} link {}", nic.name, if up { "up" } else { "down" }));
            if nic.runs() {
                nic.nic.handle_link(up);
            }
            self.ring(other);
            self.settle(other);
        }
    }

    fn report_fatal(&mut self, n: usize) {
        if self.nic_rng.chance(self.config.nic.fatal_event_ppm) {
            let at = self.now + self.config.nic.fatal_event.sample(&mut self.nic_rng);
            self.queue.push(at, Event::Report(n, AsyncEvent::DeviceFatal));
        }
    }
}

/// What becomes of a packet, and what fails with it.
struct Judged {
    verdict: Verdict,
    strikes: Vec<Strike>,
}

impl Default for Judged {
    fn default() -> Judged {
        Judged { verdict: Verdict::Pass, strikes: Vec::new() }
    }
}

fn is_response(datagram: &[u8]) -> bool {
    // The opcodes of RC responses (IBTA table 38).
    datagram.first().is_some_and(|op| (0x0d..=0x12).contains(op))
}

fn flip(datagram: &mut [u8], bit: u32) {
    let bits = datagram.len() as u32 * 8;
    if bits > 0 {
        let bit = bit % bits;
        datagram[bit as usize / 8] ^= 1 << (bit % 8);
    }
}
