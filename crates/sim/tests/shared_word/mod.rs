//! A server with one word, and clients that increment it by atomics, each over a vQP of its own.
#![allow(dead_code)] // each test binary uses a part of this module

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{CloseReason, Completion, Config, Domain, Outcome, Secret, VirtualMr, VirtualQp};
use mitra_sim::{AppContext, HostId, Prng, SimNic, World, check_liveness};
use mitra_verbs::{
    Access, Buffer, Capabilities, Data, LocalAckTimeout, Provider, RemoteAddr, SendOp, SendWr, Time, WcStatus,
};

/// The maximum number of atomics that a client has in flight.
const DEPTH: u64 = 8;
pub const PEER_TIMEOUT: Duration = Duration::from_millis(400);

/// The configuration of all vQPs, unless a test changes it.
pub fn config() -> Config {
    let mut config = Config { send_wrs: 16, recv_wrs: 4, peer_timeout: PEER_TIMEOUT, ..Config::default() };
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(9);
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 8;
    config
}

/// How often a program polls.
#[derive(Clone, Copy, Default)]
pub struct Pace {
    /// The time between two polls. 0 for a program that polls in each turn.
    pub interval: Duration,
    next: Time,
}

impl Pace {
    pub fn every(interval: Duration) -> Pace {
        Pace { interval, next: Time::ZERO }
    }

    /// Returns whether the program polls in this turn.
    fn is_due(&mut self, ctx: &mut AppContext<'_>) -> bool {
        let now = ctx.now();
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.interval;
        } else {
            ctx.sleep(self.next.saturating_since(now));
        }
        is_due
    }
}

/// One client: increments the word by FAA or by CAS.
pub struct Client {
    pub vqp: VirtualQp,
    results: Arc<Buffer>,
    mr: VirtualMr,
    word: RemoteAddr,
    by_cas: bool,
    pub pace: Pace,
    /// The longest pause after a completion.
    pub longest_pause: Duration,
    pub target: u64,
    posted: u64,
    in_flight: u64,
    /// The value that the next CAS expects.
    pub expected: u64,
    /// The values that the successful increments found.
    pub found: Vec<u64>,
    /// The number of atomics that may or may not have incremented the word, and of those that have and whose value is lost.
    pub undecided: u64,
}

impl Client {
    pub fn is_done(&self) -> bool {
        self.in_flight == 0
            && (self.found.len() as u64 + self.undecided >= self.target || self.vqp.close_reason().is_some())
    }

    fn step(&mut self, ctx: &mut AppContext<'_>) {
        if !self.pace.is_due(ctx) {
            return;
        }
        let mut completions = Vec::new();
        self.vqp.poll(&mut completions);
        let had_completions = !completions.is_empty();
        for completion in completions {
            self.complete(&completion);
        }
        let limit = if self.by_cas { 1 } else { 1 + ctx.rng().below(DEPTH) };
        // A post may find a failed NIC, so that the vQP halts.
        while self.vqp.close_reason().is_none()
            && !self.vqp.is_halted()
            && self.in_flight < limit
            && self.found.len() as u64 + self.undecided + self.in_flight < self.target
        {
            self.post();
        }
        if had_completions && ctx.rng().below(4) == 0 {
            let pause = ctx.rng().below(self.longest_pause.as_nanos() as u64);
            ctx.sleep(Duration::from_nanos(pause));
        }
    }

    fn post(&mut self) {
        let remote = self.word;
        let op = match self.by_cas {
            true => SendOp::CompareSwap { remote, compare: self.expected, swap: self.expected + 1 },
            false => SendOp::FetchAdd { remote, add: 1 },
        };
        let slot = self.posted % DEPTH * 8;
        self.vqp
            .post_send(SendWr::new(self.posted, op, Data::sge(self.mr.sge(slot, 8))))
            .expect("the queue has room");
        self.posted += 1;
        self.in_flight += 1;
    }

    fn complete(&mut self, completion: &Completion) {
        self.in_flight -= 1;
        let old = self.results.load((completion.wr_id % DEPTH * 8) as usize);
        match completion.outcome {
            Outcome::Success if self.by_cas && old != self.expected => self.expected = old,
            Outcome::Success => {
                self.found.push(old);
                self.expected = old + 1;
            }
            Outcome::Unresolved(_) => {
                self.undecided += 1;
                self.vqp.resume();
            }
            // An atomic behind an undecided one, which was not executed.
            Outcome::Failed(WcStatus::Flushed) => self.vqp.resume(),
            Outcome::Failed(status) => panic!("an atomic failed: {status}"),
        }
    }
}

/// The parts of a world with several clients.
pub struct Shape {
    /// The number of hosts on which clients may run.
    pub clients: usize,
    /// The capabilities of the NICs of each rail.
    pub rails: Vec<Capabilities>,
    /// Whether the server's vQPs share atomics.
    pub shares: bool,
    pub server_pace: Pace,
}

/// The world, the server and the clients.
pub struct Setup {
    pub world: World,
    pub hosts: Vec<HostId>,
    /// The NICs of the server and then of each client, by rail.
    pub nics: Vec<Vec<Arc<SimNic>>>,
    pub domain: Arc<Domain>,
    pub word: Arc<Buffer>,
    pub mr: VirtualMr,
    pub server: Rc<RefCell<Vec<VirtualQp>>>,
    pub clients: Vec<Rc<RefCell<Client>>>,
    pub config: Config,
}

/// Opens the domain of a host.
pub fn domain(nics: &[Arc<SimNic>]) -> Arc<Domain> {
    Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())
        .expect("the NICs have room")
}

impl Setup {
    /// A world of three clients, whose NICs are all alike.
    pub fn new(seed: u64, rails: u8, world: mitra_sim::Config, shares: bool) -> Setup {
        let rails = vec![world.capabilities; rails.into()];
        Setup::with_shape(seed, world, Shape { clients: 3, rails, shares, server_pace: Pace::default() })
    }

    pub fn with_shape(seed: u64, world: mitra_sim::Config, shape: Shape) -> Setup {
        let mut world = World::with_config(seed, world);
        let (mut hosts, mut nics) = (Vec::new(), Vec::new());
        for host in 0..=shape.clients {
            hosts.push(world.add_host(&format!("h{host}")));
            let rails = (0u8..).zip(&shape.rails);
            nics.push(
                rails.map(|(rail, nic)| world.add_nic_with(hosts[host], rail, *nic)).collect::<Vec<_>>(),
            );
        }
        let domain = domain(&nics[0]);
        if shape.shares {
            domain.share_atomics().expect("no vQP is connected");
        }
        let word = Arc::new(Buffer::new(8));
        let mr = domain.register(&word, Access::LOCAL_WRITE | Access::REMOTE).expect("the NICs have room");
        let server = Rc::<RefCell<Vec<VirtualQp>>>::default();
        let mut config = config();
        config.completion_log = seed.is_multiple_of(2);
        let (vqps, mut pace) = (Rc::clone(&server), shape.server_pace);
        world.add_app(hosts[0], move |ctx: &mut AppContext<'_>| {
            if pace.is_due(ctx) {
                vqps.borrow_mut().iter_mut().for_each(|vqp| vqp.progress());
            }
        });
        Setup { world, hosts, nics, domain, word, mr, server, clients: Vec::new(), config }
    }

    pub fn vqp(&self, domain: &Arc<Domain>, secret: u64) -> VirtualQp {
        let builder = VirtualQp::builder(domain).config(self.config).secret(Secret::fixed([secret, secret]));
        builder.build().expect("the NICs have room")
    }

    /// Connects the next client and starts its program.
    pub fn add_client(&mut self, by_cas: bool, target: u64) {
        let n = self.clients.len() + 1;
        let domain = domain(&self.nics[n]);
        let [mut a, mut b] = [self.vqp(&self.domain, 2 * n as u64), self.vqp(&domain, 2 * n as u64 + 1)];
        let (info_a, info_b) = (a.local_info().expect("is open"), b.local_info().expect("is open"));
        a.connect(&info_b).expect("the ends match");
        b.connect(&info_a).expect("the ends match");
        b.import(&self.mr.remote()).expect("is connected");
        let results = Arc::new(Buffer::new(8 * DEPTH as usize));
        let mr = domain.register(&results, Access::LOCAL_WRITE).expect("the NICs have room");
        let client = Rc::new(RefCell::new(Client {
            vqp: b,
            results,
            mr,
            word: self.mr.remote().at(0),
            by_cas,
            pace: Pace::default(),
            longest_pause: Duration::from_micros(60),
            target,
            posted: 0,
            in_flight: 0,
            expected: 0,
            found: Vec::new(),
            undecided: 0,
        }));
        self.server.borrow_mut().push(a);
        self.clients.push(Rc::clone(&client));
        self.world.add_app(self.hosts[n], move |ctx: &mut AppContext<'_>| client.borrow_mut().step(ctx));
    }

    pub fn run(&mut self, time: Duration) -> bool {
        let clients = self.clients.clone();
        self.world.run_until(move |_| clients.iter().all(|client| client.borrow().is_done()), time).is_ok()
    }

    /// Runs until all vQPs are on one rail, at both ends.
    pub fn run_until_together(&mut self) -> bool {
        let (server, clients) = (Rc::clone(&self.server), self.clients.clone());
        let are_together = move |_: &World| {
            let server = server.borrow();
            let home = server[0].active_rail();
            server.iter().all(|vqp| vqp.active_rail() == home)
                && clients.iter().all(|client| client.borrow().vqp.active_rail() == home)
        };
        self.world.run_until(are_together, PEER_TIMEOUT * 2).is_ok()
    }

    /// Returns the active rails of the server's ends, and of the clients'.
    pub fn rails(&self) -> [Vec<usize>; 2] {
        let server = self.server.borrow().iter().map(VirtualQp::active_rail).collect();
        [server, self.clients.iter().map(|client| client.borrow().vqp.active_rail()).collect()]
    }

    pub fn close_reasons(&self) -> Vec<Option<CloseReason>> {
        self.clients.iter().map(|client| client.borrow().vqp.close_reason()).collect()
    }

    /// Checks that each increment found another value, and that the word counts each. Returns the error as text.
    pub fn check(&mut self) -> Result<(), String> {
        self.world.stop_noise();
        self.world.run_until_quiet().map_err(|stalled| stalled.to_string())?;
        let (mut found, mut increments, mut undecided) = (BTreeSet::<u64>::new(), 0, 0);
        for client in &self.clients {
            let client = client.borrow();
            found.extend(client.found.iter().copied());
            increments += client.found.len() as u64;
            undecided += client.undecided;
        }
        let word = self.word.load(0);
        for (n, (server, client)) in self.server.borrow().iter().zip(&self.clients).enumerate() {
            let hosts = [self.hosts[0], self.hosts[n + 1]];
            check_liveness(&self.world, hosts, [server, &client.borrow().vqp])?;
        }
        if found.len() as u64 != increments {
            return Err(format!("{increments} increments found only {} values", found.len()));
        }
        if !(increments..=increments + undecided).contains(&word) {
            return Err(format!(
                "the word is {word} after {increments} increments and {undecided} undecided ones"
            ));
        }
        Ok(())
    }
}

/// Draws a time below a random power of two, in nanoseconds.
pub fn time_below(rng: &mut Prng, from: u64, to: u64) -> Duration {
    let bits = rng.between(from, to);
    Duration::from_nanos(rng.below(1 << bits))
}
