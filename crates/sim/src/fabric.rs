//! The world behind its one lock: clock, queue of events, NICs and what passes between them.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mitra_transport::fault::Faults;
use mitra_transport::{Nic, NicConfig, TxBatch};
use mitra_verbs::{AsyncEvent, Buffer, Capabilities, Error, Gid, Result, Time};
use mitra_wire::ROCE_PORT;

use crate::nic::{NicState, NicStats};
use crate::pcap::Pcap;
use crate::pipeline::{Pipeline, Release};
use crate::queue::Queue;
use crate::wire::Flight;
use crate::{Config, Prng, Trace};

/// Something that will happen.
pub(crate) enum Event {
    /// A packet reaches a NIC.
    Arrive(Box<Flight>),
    /// A NIC looks at what there is to send.
    Pump(usize),
    /// A NIC's timers are due.
    Timer(usize),
    /// A NIC has nothing else to do.
    Idle(usize),
    /// A NIC's writes reach memory.
    Memory(usize),
    /// A NIC's event reaches its host.
    Report(usize, AsyncEvent),
    /// An application's turn.
    Step(usize, u64),
    /// A host wakes.
    Resume(usize, u64),
    /// Something that a test scheduled.
    Script(u64),
}

/// A host: its name, whether it sleeps, and where its memory lies.
pub(crate) struct HostState {
    pub(crate) name: String,
    pub(crate) paused: bool,
    /// Counts pauses, so that an old alarm does not end a new one.
    pub(crate) pauses: u64,
    /// Counts the calls that did something: an application that makes none is idle.
    pub(crate) activity: u64,
    /// Of buffers by identity: the address that all NICs of this host name them by. A weak pointer keeps the
    /// identity from being used again.
    addresses: BTreeMap<usize, (Weak<Buffer>, u64)>,
    next_address: u64,
}

impl HostState {
    pub(crate) fn new(name: &str, number: usize) -> HostState {
        HostState {
            name: name.to_owned(),
            paused: false,
            pauses: 0,
            activity: 0,
            addresses: BTreeMap::new(),
            next_address: 0x7000_0000_0000 + ((number as u64) << 36),
        }
    }

    /// Where a buffer lies: counted, not where it really lies, so that runs repeat.
    pub(crate) fn address_of(&mut self, buffer: &Arc<Buffer>) -> u64 {
        let next = &mut self.next_address;
        let entry = self.addresses.entry(Arc::as_ptr(buffer).addr()).or_insert_with(|| {
            let address = *next;
            *next += (buffer.len() as u64).next_multiple_of(4096) + 4096;
            (Arc::downgrade(buffer), address)
        });
        entry.1
    }
}

/// An application's place in time.
pub(crate) struct AppState {
    pub(crate) host: usize,
    /// The turn that is scheduled; an event for another one is stale.
    pub(crate) turn: u64,
    pub(crate) next_at: Time,
    /// How long to the next turn, if it stays idle.
    pub(crate) patience: core::time::Duration,
    pub(crate) exited: bool,
}

/// Everything behind the lock.
pub(crate) struct Core {
    pub(crate) seed: u64,
    pub(crate) now: Time,
    pub(crate) config: Config,
    pub(crate) queue: Queue<Event>,
    pub(crate) trace: Trace,
    pub(crate) nics: Vec<NicState>,
    pub(crate) hosts: Vec<HostState>,
    pub(crate) apps: Vec<AppState>,
    pub(crate) routes: BTreeMap<(u8, Gid), usize>,
    /// Of the packets from one NIC to another, the last one's arrival.
    pub(crate) last_arrival: BTreeMap<(usize, usize), Time>,
    pub(crate) wire_rng: Prng,
    pub(crate) nic_rng: Prng,
    pub(crate) host_rng: Prng,
    pub(crate) pcap: Option<Pcap>,
    pub(crate) events: u64,
    /// Packets between NICs.
    pub(crate) in_flight: usize,
}

/// The world's one lock.
pub(crate) type Shared = Arc<Mutex<Core>>;

/// Takes the lock. A panic elsewhere does not make the state unreadable: it is about to be printed.
pub(crate) fn lock(shared: &Shared) -> MutexGuard<'_, Core> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub(crate) fn new(seed: u64, config: Config, trace: Trace, pcap: Option<Pcap>) -> Core {
        Core {
            seed,
            now: Time::ZERO,
            config,
            queue: Queue::new(Prng::stream(seed, "ties")),
            trace,
            nics: Vec::new(),
            hosts: Vec::new(),
            apps: Vec::new(),
            routes: BTreeMap::new(),
            last_arrival: BTreeMap::new(),
            wire_rng: Prng::stream(seed, "wire"),
            nic_rng: Prng::stream(seed, "nic"),
            host_rng: Prng::stream(seed, "host"),
            pcap,
            events: 0,
            in_flight: 0,
        }
    }

    /// Makes a NIC of a host on a rail. One that has the same place is replaced.
    pub(crate) fn add_nic(&mut self, host: usize, rail: u8, capabilities: Capabilities) -> usize {
        let number = self.nics.len();
        if let Some(old) = self.nics.iter_mut().find(|n| n.host == host && n.rail == rail && !n.retired) {
            old.pipeline.lose();
            (old.gone, old.retired) = (true, true);
        }
        let ip = IpAddr::V4(Ipv4Addr::new(10, rail, host as u8, 1));
        let gid = Gid::from(ip);
        let name = format!("{}{rail}", self.hosts[host].name);
        let mut config = NicConfig::new(&name, gid, self.nic_rng.key());
        config.capabilities = capabilities;
        config.tuning = self.config.tuning;
        let origin = match self.config.nic.own_clocks {
            true => core::time::Duration::from_nanos(self.nic_rng.below(1 << 50)),
            false => core::time::Duration::ZERO,
        };
        let mut faults = Faults::new(self.nic_rng.key());
        faults.set_noise_tx(self.config.wire.noise);
        let memory_rng = Prng::stream(self.seed, &format!("memory {number}"));
        self.trace.name(number, &name);
        self.nics.push(NicState {
            host,
            rail,
            gid,
            address: SocketAddr::new(ip, ROCE_PORT),
            capabilities,
            nic: Nic::new(config),
            faults,
            probes: Vec::new(),
            pipeline: Pipeline::new(self.config.memory, memory_rng, capabilities.write_order),
            regions: Vec::new(),
            cqs: BTreeMap::new(),
            cq_events: Default::default(),
            async_events: Default::default(),
            gone: false,
            retired: false,
            dead: false,
            hung: false,
            link_up: true,
            origin,
            sleep: None,
            egress_free: Time::ZERO,
            cable_failures: 0,
            pump_at: None,
            timer: None,
            idle_at: None,
            memory_at: None,
            batch: TxBatch::new(),
            stats: NicStats::default(),
            name,
        });
        self.routes.insert((rail, gid), number);
        number
    }

    /// Does what is due. The applications' and the scripts' turns are the world's to take.
    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(flight) => {
                self.in_flight -= 1;
                self.arrive(*flight);
            }
            Event::Pump(n) => self.pump(n),
            Event::Timer(n) => self.timer(n),
            Event::Idle(n) => {
                if self.nics[n].idle_at.take_if(|t| *t == self.now).is_some() && self.nics[n].runs() {
                    let local = self.nics[n].local(self.now);
                    self.nics[n].nic.handle_idle(local);
                    self.ring(n);
                    self.settle(n);
                }
            }
            Event::Memory(n) => {
                if self.nics[n].memory_at.take_if(|t| *t == self.now).is_some() {
                    self.nics[n].pipeline.advance(self.now);
                    self.wake(self.nics[n].host);
                    self.settle(n);
                }
            }
            Event::Report(n, event) => {
                self.nics[n].async_events.push_back(event);
                self.wake(self.nics[n].host);
            }
            Event::Resume(host, pause) => {
                if self.hosts[host].pauses == pause {
                    self.resume(host);
                }
            }
            Event::Step(..) | Event::Script(_) => {}
        }
    }

    fn timer(&mut self, n: usize) {
        let nic = &mut self.nics[n];
        if nic.timer.take_if(|(_, at)| *at == self.now).is_none() || !nic.runs() {
            return;
        }
        let local = nic.local(self.now);
        if nic.nic.poll_timeout().is_some_and(|t| t <= local) {
            nic.nic.handle_timeout(local);
            self.ring(n);
        }
        self.settle(n);
    }

    /// After anything that may have moved a NIC: carries out what it asks for, and schedules what comes next.
    pub(crate) fn settle(&mut self, n: usize) {
        if !self.nics[n].runs() {
            return;
        }
        self.collect(n);
        self.release(n);
        let nic = &mut self.nics[n];
        let due = nic.nic.poll_timeout().map(|t| nic.global(t));
        // A timer that is set already and would fire earlier looks again then.
        if let Some(due) = due
            && nic.timer.is_none_or(|(set, _)| due < set)
        {
            let at = due.max(self.now) + self.config.nic.lateness.sample(&mut self.nic_rng);
            nic.timer = Some((due, at));
            self.queue.push(at, Event::Timer(n));
        }
        if let Some(at) = nic.pipeline.next_at()
            && nic.memory_at.is_none_or(|t| t > at)
        {
            let at = at.max(self.now);
            nic.memory_at = Some(at);
            self.queue.push(at, Event::Memory(n));
        }
    }

    /// Takes the NIC's events; puts its new completions behind the data that they are about.
    fn collect(&mut self, n: usize) {
        let nic = &mut self.nics[n];
        let mut news = false;
        while let Some(event) = nic.nic.poll_async_event() {
            nic.async_events.push_back(event);
            self.trace.note(self.now, format!("{:<4} {event:?}", nic.name));
            news = true;
        }
        while let Some(cq) = nic.nic.poll_cq_event() {
            nic.cq_events.push_back(cq);
            news = true;
        }
        for (&cq, view) in &mut nic.cqs {
            let written = nic.nic.cq_len(cq).unwrap_or(0);
            for _ in view.written..written {
                nic.pipeline.then(self.now, Release::Completion(cq));
            }
            // A queue pair's completions may have been taken back when it was reset.
            view.written = written;
            view.visible = view.visible.min(written);
        }
        if news {
            self.wake(self.nics[n].host);
        }
    }

    /// What has reached memory, and what waited for it.
    pub(crate) fn release(&mut self, n: usize) {
        self.nics[n].pipeline.advance(self.now);
        for release in self.nics[n].pipeline.take_released() {
            match release {
                Release::Completion(cq) => {
                    let nic = &mut self.nics[n];
                    if let Some(view) = nic.cqs.get_mut(&cq) {
                        view.visible = (view.visible + 1).min(view.written);
                    }
                    self.trace.nic(self.now, "completes in", n, u64::from(cq.0), 0);
                    self.wake(self.nics[n].host);
                }
                Release::Packet(destination, datagram) => self.depart(n, destination, datagram),
            }
        }
    }

    /// Everything that a NIC may still touch is touched now; on return it is over.
    pub(crate) fn revoke(&mut self, n: usize) {
        if self.config.memory.honest_revoke {
            self.nics[n].pipeline.flush();
        }
        self.ring(n);
        self.settle(n);
    }

    /// Stops a NIC for good, in the middle of what it was doing.
    pub(crate) fn reset_nic(&mut self, n: usize) -> Result<()> {
        let nic = &mut self.nics[n];
        if !nic.capabilities.reset {
            return Err(Error::Unsupported("reset"));
        }
        if !nic.gone {
            nic.gone = true;
            if !nic.dead {
                let keep = self.nic_rng.index(nic.pipeline.len() + 1);
                nic.stats.placements_lost += nic.pipeline.truncate(keep);
                nic.pipeline.flush();
                nic.land_completions();
            }
            nic.pipeline.lose();
            nic.regions.clear();
            self.trace.note(self.now, format!("{:<4} is reset", nic.name));
        }
        Ok(())
    }

    /// The NIC shall look soon at what there is to send.
    pub(crate) fn ring(&mut self, n: usize) {
        if self.nics[n].pump_at.is_none() {
            let at = self.now + self.config.nic.doorbell.sample(&mut self.nic_rng);
            let at = at.max(self.nics[n].egress_free);
            self.nics[n].pump_at = Some(at);
            self.queue.push(at, Event::Pump(n));
        }
    }

    /// Something happened that the applications of a host may want to see.
    pub(crate) fn wake(&mut self, host: usize) {
        for app in 0..self.apps.len() {
            if self.apps[app].host != host || self.apps[app].exited || self.hosts[host].paused {
                continue;
            }
            let at = self.now + self.config.host.step.sample(&mut self.host_rng);
            if at < self.apps[app].next_at {
                self.plan(app, at);
            }
        }
    }

    /// The application's next turn comes then.
    pub(crate) fn plan(&mut self, app: usize, at: Time) {
        let state = &mut self.apps[app];
        state.turn += 1;
        state.next_at = at;
        self.queue.push(at, Event::Step(app, state.turn));
    }

    /// The host's applications stop; its NICs go on.
    pub(crate) fn pause(&mut self, host: usize, until: Option<Time>) {
        let state = &mut self.hosts[host];
        state.paused = true;
        state.pauses += 1;
        self.trace.note(self.now, format!("{} pauses", state.name));
        if let Some(until) = until {
            self.queue.push(until, Event::Resume(host, state.pauses));
        }
    }

    pub(crate) fn resume(&mut self, host: usize) {
        if !core::mem::take(&mut self.hosts[host].paused) {
            return;
        }
        self.trace.note(self.now, format!("{} wakes", self.hosts[host].name));
        for app in 0..self.apps.len() {
            if self.apps[app].host == host && !self.apps[app].exited {
                let at = self.now + self.config.host.step.sample(&mut self.host_rng);
                self.plan(app, at);
            }
        }
    }
}
