//! The state of a world: the clock, the event queue, the hosts, the NICs and the packets in flight.
//! One lock protects the whole state.

pub(crate) mod host;
mod packet_delivery;
mod rc_analysis;
mod starvation;

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_transport::fault::Faults;
use mitra_transport::{Nic, NicConfig, TxBatch};
use mitra_verbs::{AsyncEvent, Capabilities, Error, Gid, Mtu, QpAttr, QpState, Qpn, Result, Time};
use mitra_wire::ROCE_PORT;

use crate::absences::{Absences, Part};
use crate::coverage::CoverageObserver;
use crate::disturbances::Disturbances;
use crate::dma_pipeline::{DmaPipeline, Release};
use crate::event_queue::EventQueue;
use crate::failure_injection::FailureInjection;
use crate::nic::{NicState, NicStats};
use crate::packet_capture::Pcap;
use crate::rc_flow::RcFlow;
use crate::timeline::{NoteKind, Subject};
use crate::trace::Trace;
use crate::{Config, LinkConfig, Prng};
use host::{AppState, HostState};
pub(crate) use packet_delivery::{InFlightPacket, Queue, Unflushed};

/// The longest inline data that a NIC accepts, in bytes, like that of some hardware: several
/// packets at the smallest MTU.
pub const LONGEST_INLINE: u32 = 1024;

/// A scheduled event. A `usize` is the index of the NIC, host or application.
pub(crate) enum Event {
    PacketArrival(Box<InFlightPacket>),
    Transmit(usize),
    Timer(usize),
    /// A NIC runs an idle poll, in which it sends its pending ACKs or defers them.
    IdlePoll(usize),
    /// The first item of a NIC's DMA pipeline is due.
    Placement(usize),
    /// A NIC flushes a queue of a queue pair that was moved to ERR at this time.
    ErrorFlush(usize, (Qpn, Queue), Time),
    /// A NIC executes the packet that it had begun when the queue pair was moved to ERR at this
    /// time.
    LateExecution(usize, Box<InFlightPacket>, Time),
    AsyncReport(usize, AsyncEvent),
    /// The host of the second NIC refused a packet of the first NIC. The report of the refusal
    /// reaches the first NIC.
    Refusal(usize, usize),
    /// An application runs the turn with this number, unless the turn is stale.
    AppTurn(usize, u64),
    /// The pause of a host with this number ends.
    HostResume(usize, u64),
    /// The starvation of a NIC with this number ends.
    StarvationEnd(usize, u64),
    /// The failures of a [`host::PointProbe`] happen.
    Failures(Vec<FailureInjection>),
    /// A function that the test scheduled runs.
    Script(u64),
}

pub(crate) struct WorldState {
    pub(crate) seed: u64,
    pub(crate) now: Time,
    pub(crate) config: Config,
    /// The links of the rails that differ from `config.link`.
    pub(crate) rail_links: BTreeMap<u8, LinkConfig>,
    pub(crate) queue: EventQueue<Event>,
    pub(crate) trace: Trace,
    pub(crate) absences: Absences,
    pub(crate) disturbances: Disturbances,
    pub(crate) nics: Vec<NicState>,
    pub(crate) hosts: Vec<HostState>,
    pub(crate) apps: Vec<AppState>,
    pub(crate) routes: BTreeMap<(u8, Gid), usize>,
    /// The arrival time of the last packet that was sent in order, by sender and receiver.
    pub(crate) last_arrival: BTreeMap<(usize, usize), Time>,
    /// The packets in rings, by sender and receiver: the time at which the receiver reads each, and
    /// its bytes.
    pub(crate) rings: BTreeMap<(usize, usize), VecDeque<(Time, usize)>>,
    pub(crate) link_rng: Prng,
    pub(crate) nic_rng: Prng,
    pub(crate) host_rng: Prng,
    pub(crate) pcap: Option<Pcap>,
    pub(crate) observer: CoverageObserver,
    /// The reliable connections whose retransmissions are checked.
    pub(crate) rc_flows: Vec<RcFlow>,
    pub(crate) events: u64,
    /// The number of packets that have left a NIC and have not arrived.
    pub(crate) in_flight: usize,
}

pub(crate) type Shared = Arc<Mutex<WorldState>>;

/// Ignores poisoning, because the failure report prints the state after a panic.
pub(crate) fn lock(shared: &Shared) -> MutexGuard<'_, WorldState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorldState {
    pub(crate) fn new(seed: u64, config: Config, trace: Trace, pcap: Option<Pcap>) -> WorldState {
        WorldState {
            seed,
            now: Time::ZERO,
            config,
            rail_links: BTreeMap::new(),
            queue: EventQueue::new(Prng::stream(seed, "ties")),
            trace,
            absences: Absences::default(),
            disturbances: Disturbances::default(),
            nics: Vec::new(),
            hosts: Vec::new(),
            apps: Vec::new(),
            routes: BTreeMap::new(),
            last_arrival: BTreeMap::new(),
            rings: BTreeMap::new(),
            link_rng: Prng::stream(seed, "wire"),
            nic_rng: Prng::stream(seed, "nic"),
            host_rng: Prng::stream(seed, "host"),
            pcap,
            observer: CoverageObserver::default(),
            rc_flows: Vec::new(),
            events: 0,
            in_flight: 0,
        }
    }

    /// Adds a NIC and returns its index. If the host already has a NIC on the rail, the new NIC
    /// replaces that NIC.
    pub(crate) fn add_nic(
        &mut self,
        host: usize,
        rail: u8,
        capabilities: Capabilities,
        max_mtu: Option<Mtu>,
    ) -> usize {
        let number = self.nics.len();
        if let Some(old) = self.nics.iter_mut().find(|n| n.host == host && n.rail == rail && !n.replaced) {
            old.pipeline.discard_all();
            (old.detached, old.replaced) = (true, true);
        }
        let ip = IpAddr::V4(Ipv4Addr::new(10, rail, host as u8, 1));
        let gid = Gid::from(ip);
        let name = format!("{}{rail}", self.hosts[host].name);
        let mut config = NicConfig::new(&name, gid, self.nic_rng.key());
        config.limits.inline = LONGEST_INLINE;
        config.capabilities = capabilities;
        config.max_mtu = max_mtu.unwrap_or(config.max_mtu);
        config.tuning = self.config.tuning;
        let clock_origin = match self.config.nic.independent_clocks {
            true => core::time::Duration::from_nanos(self.nic_rng.below(1 << 50)),
            false => core::time::Duration::ZERO,
        };
        let mut faults = Faults::new(self.nic_rng.key());
        faults.set_noise_tx(self.link(rail).noise);
        let memory_rng = Prng::stream(self.seed, &format!("memory {number}"));
        self.trace.add_nic(&name);
        self.nics.push(NicState {
            host,
            rail,
            gid,
            address: SocketAddr::new(ip, ROCE_PORT),
            address_changes: 0,
            capabilities,
            nic: Nic::new(config),
            faults,
            stage_probes: Vec::new(),
            packet_probes: Vec::new(),
            secret_rng: Prng::stream(self.seed, &format!("secrets {number}")),
            pipeline: DmaPipeline::new(self.config.memory, memory_rng, capabilities.write_order),
            regions: Vec::new(),
            cqs: BTreeMap::new(),
            late_completions: None,
            completions_held_until: Time::ZERO,
            unflushed: BTreeMap::new(),
            flush_rng: Prng::stream(self.seed, &format!("error flushes {number}")),
            cq_events: Default::default(),
            async_events: Default::default(),
            detached: false,
            refuses: false,
            port_refusals: BTreeMap::new(),
            replaced: false,
            dead: false,
            hung: false,
            link_up: true,
            clock_origin,
            clock_jump: None,
            egress_free: Time::ZERO,
            cable_failures: 0,
            transmit_at: None,
            timer: None,
            idle_at: None,
            memory_at: None,
            starvation: None,
            starvations: 0,
            batch: TxBatch::new(),
            stats: NicStats::default(),
            name,
        });
        self.routes.insert((rail, gid), number);
        number
    }

    pub(crate) fn link(&self, rail: u8) -> &LinkConfig {
        self.rail_links.get(&rail).unwrap_or(&self.config.link)
    }

    /// Handles an event. [`crate::World`] handles turns of applications and scheduled functions.
    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::PacketArrival(flight) => {
                self.in_flight -= 1;
                self.arrive(*flight);
            }
            Event::Transmit(n) => self.transmit(n),
            Event::Timer(n) => self.timer(n),
            Event::IdlePoll(n) => {
                let is_due = self.nics[n].idle_at.take_if(|t| *t == self.now).is_some();
                if is_due && self.nics[n].is_running() && self.nics[n].starvation.is_none() {
                    let local = self.nics[n].local(self.now);
                    self.nics[n].nic.handle_idle(local);
                    self.ring_doorbell(n);
                    self.reschedule(n);
                }
            }
            Event::Placement(n) => {
                if self.nics[n].memory_at.take_if(|t| *t == self.now).is_some() {
                    self.nics[n].pipeline.advance(self.now);
                    self.wake_apps(self.nics[n].host);
                    self.reschedule(n);
                }
            }
            Event::ErrorFlush(n, queue, since) => {
                if self.nics[n].unflushed.get(&queue).is_some_and(|unflushed| unflushed.since == since) {
                    self.flush_after_error(n, queue);
                }
            }
            Event::LateExecution(n, packet, since) => {
                self.in_flight -= 1;
                self.execute_late(n, *packet, since);
            }
            Event::AsyncReport(n, event) => {
                self.nics[n].async_events.push_back(event);
                self.wake_apps(self.nics[n].host);
            }
            Event::Refusal(n, to) => self.arrive_refusal(n, to),
            Event::StarvationEnd(n, number) => {
                if self.nics[n].starvation.as_ref().is_some_and(|starvation| starvation.number == number) {
                    self.end_starvation(n);
                }
            }
            Event::Failures(injections) => self.inject_failures(injections),
            Event::HostResume(host, pause) => {
                if self.hosts[host].pauses == pause {
                    self.resume(host);
                }
            }
            Event::AppTurn(..) | Event::Script(_) => {}
        }
    }

    fn timer(&mut self, n: usize) {
        let nic = &mut self.nics[n];
        // At its end, a starvation sets the timer again.
        let is_due = nic.timer.take_if(|(_, at)| *at == self.now).is_some();
        if !is_due || !nic.is_running() || nic.starvation.is_some() {
            return;
        }
        let local = nic.local(self.now);
        if nic.nic.poll_timeout().is_some_and(|t| t <= local) {
            nic.nic.handle_timeout(local);
            self.ring_doorbell(n);
        }
        self.reschedule(n);
    }

    /// Collects a NIC's events, completions and released packets, and schedules its timer and its
    /// next placement. Must be called after every call to the NIC's transport.
    pub(crate) fn reschedule(&mut self, n: usize) {
        if !self.nics[n].is_running() {
            return;
        }
        self.collect_events(n);
        self.release_placed(n);
        let nic = &mut self.nics[n];
        let due = nic.nic.poll_timeout().map(|t| nic.global(t));
        // A timer that is set for an earlier time stays. When the timer fires, this function runs
        // again.
        if let Some(due) = due
            && nic.timer.is_none_or(|(set, _)| due < set)
        {
            let at = due.max(self.now) + self.config.nic.timer_lateness.sample(&mut self.nic_rng);
            nic.timer = Some((due, at));
            self.queue.push(at, Event::Timer(n));
        }
        if let Some(at) = nic.pipeline.next_at()
            && nic.memory_at.is_none_or(|t| t > at)
        {
            let at = at.max(self.now);
            nic.memory_at = Some(at);
            self.queue.push(at, Event::Placement(n));
        }
    }

    /// Takes the NIC's events. Appends its new completions to the DMA pipeline, so that they become
    /// visible after the data placed before them.
    fn collect_events(&mut self, n: usize) {
        let nic = &mut self.nics[n];
        let mut any = false;
        while let Some(event) = nic.nic.poll_async_event() {
            nic.async_events.push_back(event);
            self.trace.note(self.now, Subject::Nic(n), NoteKind::Event, format!("{event:?}"));
            any = true;
        }
        while let Some(cq) = nic.nic.poll_cq_event() {
            nic.cq_events.push_back(cq);
            any = true;
        }
        for (&cq, cq_view) in &mut nic.cqs {
            let written = nic.nic.cq_len(cq).unwrap_or(0);
            for _ in cq_view.written..written {
                nic.pipeline.push_release(self.now, Release::Completion(cq));
            }
            // `written` may have decreased, because resetting a queue pair removes its completions.
            cq_view.written = written;
            cq_view.visible = cq_view.visible.min(written);
        }
        if any {
            self.wake_apps(self.nics[n].host);
        }
    }

    /// Completes the due items of the DMA pipeline, and handles its releases.
    pub(crate) fn release_placed(&mut self, n: usize) {
        self.nics[n].pipeline.advance(self.now);
        for release in self.nics[n].pipeline.take_released() {
            match release {
                Release::Completion(cq) => {
                    self.nics[n].show_completion(cq);
                    self.trace.nic(self.now, "completes in", n, u64::from(cq.0), 0);
                    self.wake_apps(self.nics[n].host);
                }
                Release::Packet(destination, datagram) => self.depart(n, destination, datagram),
            }
        }
    }

    /// Completes all placements of a NIC, unless `revoke_waits` is off, so that the NIC does not
    /// write to revoked memory afterwards.
    pub(crate) fn revoke(&mut self, n: usize) {
        if self.config.memory.revoke_waits {
            self.nics[n].pipeline.flush();
        }
        self.ring_doorbell(n);
        self.reschedule(n);
    }

    /// Moves a queue pair to ERR. Returns whether the NIC flushes its queues later.
    pub(crate) fn begin_error(&mut self, n: usize, qp: Qpn) -> Result<bool> {
        let range = self.config.nic.error_flush_delay;
        let (now, nic) = (self.now, &mut self.nics[n]);
        let local = nic.local(now);
        if range.max.is_zero() {
            nic.nic.modify_qp(local, qp, &QpAttr::to(QpState::Err))?;
            return Ok(false);
        }
        let is_pending = nic.nic.begin_error(local, qp)?;
        if is_pending && !nic.unflushed.keys().any(|(of, _)| *of == qp) {
            for queue in [Queue::Send, Queue::Receive] {
                let flush_at = now + range.sample(&mut nic.flush_rng);
                nic.unflushed.insert((qp, queue), Unflushed { since: now, flush_at, has_begun: false });
                self.queue.push(flush_at, Event::ErrorFlush(n, (qp, queue), now));
            }
        }
        Ok(is_pending)
    }

    /// Flushes a queue of a queue pair that was moved to ERR, unless it is flushed. Earlier
    /// placements are complete before the completions of the flushed requests.
    pub(crate) fn flush_after_error(&mut self, n: usize, (qp, queue): (Qpn, Queue)) {
        if self.nics[n].unflushed.remove(&(qp, queue)).is_none() || !self.nics[n].is_running() {
            return;
        }
        if self.config.memory.revoke_waits {
            self.nics[n].pipeline.flush();
        }
        match queue {
            Queue::Send => self.nics[n].nic.flush_sends_of_error(qp),
            Queue::Receive => self.nics[n].nic.flush_receives_of_error(qp),
        }
        self.revoke(n);
    }

    /// Resets a NIC. If the NIC is alive, a random number of its pending placements complete first.
    /// The other placements are lost.
    pub(crate) fn reset_nic(&mut self, n: usize) -> Result<()> {
        let nic = &mut self.nics[n];
        if !nic.capabilities.reset {
            return Err(Error::Unsupported("reset"));
        }
        if !nic.detached {
            nic.detached = true;
            if !nic.dead {
                let keep = self.nic_rng.index(nic.pipeline.len() + 1);
                nic.stats.placement_bytes_lost += nic.pipeline.truncate(keep);
                nic.pipeline.flush();
                nic.flush_completions();
            }
            nic.pipeline.discard_all();
            nic.regions.clear();
            self.trace.note(self.now, Subject::Nic(n), NoteKind::Event, "is reset".to_owned());
            self.absences.set(self.now, Part::Nic(n), true);
            self.note_failure(n);
        }
        Ok(())
    }

    pub(crate) fn ring_doorbell(&mut self, n: usize) {
        if self.nics[n].transmit_at.is_none() {
            let at = self.now + self.config.nic.doorbell_delay.sample(&mut self.nic_rng);
            let at = at.max(self.nics[n].egress_free);
            self.nics[n].transmit_at = Some(at);
            self.queue.push(at, Event::Transmit(n));
        }
    }
}
