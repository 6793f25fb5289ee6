//! Several clients use one word of a server by atomics, each over a vQP of its own. The NICs' atomics are atomic per NIC only, so
//! all vQPs must be on one rail at a time ([`Domain::share_atomics`]).

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{
    CloseReason, Completion, Config, Domain, Outcome, Policy, Secret, VirtualMr, VirtualQp,
};
use mitra_sim::{AppContext, Failure, HostId, Prng, SimNic, World, check_liveness, reproduce_command, seeds};
use mitra_verbs::{
    Access, AtomicScope, Buffer, Data, Error, LocalAckTimeout, Provider, RemoteAddr, SendOp, SendWr, WcStatus,
};

const CLIENTS: usize = 3;
/// The number of successful increments that each client makes.
const INCREMENTS: u64 = 100;
/// The maximum number of atomics that a client has in flight.
const DEPTH: u64 = 8;
const PEER_TIMEOUT: Duration = Duration::from_millis(400);
/// How long both ends must have been able to use a preferred rail.
const FAILBACK_DELAY: Duration = Duration::from_millis(2);

fn config() -> Config {
    let mut config = Config { send_wrs: 16, recv_wrs: 4, peer_timeout: PEER_TIMEOUT, ..Config::default() };
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(9);
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 8;
    config
}

/// One client: increments the word by FAA or by CAS.
struct Client {
    vqp: VirtualQp,
    results: Arc<Buffer>,
    mr: VirtualMr,
    word: RemoteAddr,
    by_cas: bool,
    target: u64,
    posted: u64,
    in_flight: u64,
    /// The value that the next CAS expects.
    expected: u64,
    /// The values that the successful increments found.
    found: Vec<u64>,
    /// The number of atomics that may or may not have incremented the word, and of those that have and whose value is lost.
    undecided: u64,
}

impl Client {
    fn is_done(&self) -> bool {
        self.in_flight == 0
            && (self.found.len() as u64 + self.undecided >= self.target || self.vqp.close_reason().is_some())
    }

    fn step(&mut self, ctx: &mut AppContext<'_>) {
        let mut completions = Vec::new();
        self.vqp.poll(&mut completions);
        let had_completions = !completions.is_empty();
        for completion in completions {
            self.complete(&completion);
        }
        let limit = if self.by_cas { 1 } else { 1 + ctx.rng().below(DEPTH) };
        while self.vqp.close_reason().is_none()
            && self.in_flight < limit
            && self.found.len() as u64 + self.undecided + self.in_flight < self.target
        {
            self.post();
        }
        if had_completions && ctx.rng().below(4) == 0 {
            let pause = ctx.rng().below(60_000);
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

struct Setup {
    world: World,
    hosts: Vec<HostId>,
    /// The NICs of the server and then of each client, by rail.
    nics: Vec<Vec<Arc<SimNic>>>,
    domain: Arc<Domain>,
    word: Arc<Buffer>,
    mr: VirtualMr,
    server: Rc<RefCell<Vec<VirtualQp>>>,
    clients: Vec<Rc<RefCell<Client>>>,
    config: Config,
}

fn domain(nics: &[Arc<SimNic>]) -> Arc<Domain> {
    Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())
        .expect("the NICs have room")
}

impl Setup {
    fn new(seed: u64, rails: u8, world: mitra_sim::Config, shares: bool) -> Setup {
        let mut world = World::with_config(seed, world);
        let (mut hosts, mut nics) = (Vec::new(), Vec::new());
        for host in 0..=CLIENTS {
            hosts.push(world.add_host(&format!("h{host}")));
            nics.push((0..rails).map(|rail| world.add_nic(hosts[host], rail)).collect::<Vec<_>>());
        }
        let domain = domain(&nics[0]);
        if shares {
            domain.share_atomics().expect("no vQP is connected");
        }
        let word = Arc::new(Buffer::new(8));
        let mr = domain.register(&word, Access::LOCAL_WRITE | Access::REMOTE).expect("the NICs have room");
        let server = Rc::<RefCell<Vec<VirtualQp>>>::default();
        let mut config = config();
        config.completion_log = seed.is_multiple_of(2);
        let vqps = Rc::clone(&server);
        world.add_app(hosts[0], move |_: &mut AppContext<'_>| {
            vqps.borrow_mut().iter_mut().for_each(|vqp| vqp.progress());
        });
        Setup { world, hosts, nics, domain, word, mr, server, clients: Vec::new(), config }
    }

    fn vqp(&self, domain: &Arc<Domain>, secret: u64) -> VirtualQp {
        let builder = VirtualQp::builder(domain).config(self.config).secret(Secret::fixed([secret, secret]));
        builder.build().expect("the NICs have room")
    }

    /// Connects the next client and starts its program.
    fn add_client(&mut self, by_cas: bool, target: u64) {
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

    fn run(&mut self, time: Duration) -> bool {
        let clients = self.clients.clone();
        self.world.run_until(move |_| clients.iter().all(|client| client.borrow().is_done()), time).is_ok()
    }

    /// Runs until all vQPs are on one rail, at both ends.
    fn run_until_together(&mut self) -> bool {
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
    fn rails(&self) -> [Vec<usize>; 2] {
        let server = self.server.borrow().iter().map(VirtualQp::active_rail).collect();
        [server, self.clients.iter().map(|client| client.borrow().vqp.active_rail()).collect()]
    }

    fn close_reasons(&self) -> Vec<Option<CloseReason>> {
        self.clients.iter().map(|client| client.borrow().vqp.close_reason()).collect()
    }

    /// Checks that each increment found another value, and that the word counts each. Returns the error as text.
    fn check(&mut self) -> Result<(), String> {
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

fn world_of(seed: u64) -> mitra_sim::Config {
    let mut config = mitra_sim::Config::swarm(seed);
    config.link.switched = true; // the rails of the clients fail one by one
    config.memory.atomic_delay = mitra_sim::DurationRange::nanos(100, 3_000);
    assert_eq!(config.capabilities.atomic_scope, AtomicScope::Nic);
    config
}

/// Draws a time below a random power of two, in nanoseconds.
fn time_below(rng: &mut Prng, from: u64, to: u64) -> Duration {
    let bits = rng.between(from, to);
    Duration::from_nanos(rng.below(1 << bits))
}

/// Draws failures of single links, each healed later, and naps of clients.
fn add_faults(setup: &mut Setup, rng: &mut Prng, rails: usize) {
    let mut at = Duration::ZERO;
    for _ in 0..rng.between(1, 5) {
        at += time_below(rng, 15, 22);
        let (host, rail) = (rng.index(CLIENTS + 1), rng.index(rails));
        let nic = setup.nics[host][rail].id();
        let up = at + time_below(rng, 15, 25);
        setup.world.after(at, move |w| w.set_link(nic, false));
        setup.world.after(up, move |w| w.set_link(nic, true));
        if rng.below(4) == 0 {
            let (host, begin) = (setup.hosts[1 + rng.index(CLIENTS)], at);
            let nap = time_below(rng, 18, 27);
            setup.world.after(begin, move |w| {
                let until = w.now() + nap;
                w.pause(host, Some(until));
            });
        }
    }
}

/// Runs the clients through random failures of links. Returns the setup at the end, and whether the counts are right.
fn run_random(seed: u64, shares: bool, preferred: Option<u8>) -> (Setup, Result<(), String>) {
    let rng = &mut Prng::stream(seed, "setup");
    let rails = rng.between(2, 3) as u8;
    let mut setup = Setup::new(seed, rails, world_of(seed), shares);
    (setup.config.preferred_rail, setup.config.failback_delay) = (preferred, FAILBACK_DELAY);
    for n in 0..CLIENTS as u64 {
        setup.add_client((seed + n).is_multiple_of(3), INCREMENTS);
    }
    add_faults(&mut setup, rng, rails.into());
    if !setup.run(Duration::from_millis(200)) {
        setup.world.heal();
        let done = setup.run(Duration::from_secs(30));
        assert!(
            done,
            "seed {seed}: work is not done, rails {:?}\n{}",
            setup.rails(),
            reproduce_command(seed)
        );
    }
    let checked = setup.check();
    (setup, checked)
}

#[test]
fn clients_lose_no_update_through_link_failures() {
    let mut moved = 0;
    for seed in seeds(1_000) {
        let (mut setup, checked) = run_random(seed, true, None);
        checked.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", reproduce_command(seed)));
        assert_eq!(setup.close_reasons(), [None; CLIENTS], "seed {seed}\n{}", reproduce_command(seed));
        let found: usize = setup.clients.iter().map(|client| client.borrow().found.len()).sum();
        assert_eq!(found as u64, CLIENTS as u64 * INCREMENTS, "seed {seed}: all atomics were decided");
        setup.world.heal();
        let together = setup.run_until_together();
        assert!(together, "seed {seed}: rails {:?}\n{}", setup.rails(), reproduce_command(seed));
        moved += u32::from(setup.rails()[0][0] != 0);
    }
    println!("the home moved in the end: {moved}");
    assert!(moved > 0);
}

/// The same with a preferred rail: the home also moves while it works.
#[test]
fn clients_that_prefer_a_rail_lose_no_update() {
    let mut returned = 0;
    for seed in seeds(200) {
        let (mut setup, checked) = run_random(seed, true, Some(seed as u8 % 2));
        checked.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", reproduce_command(seed)));
        assert_eq!(setup.close_reasons(), [None; CLIENTS], "seed {seed}\n{}", reproduce_command(seed));
        let found: usize = setup.clients.iter().map(|client| client.borrow().found.len()).sum();
        assert_eq!(found as u64, CLIENTS as u64 * INCREMENTS, "seed {seed}: all atomics were decided");
        setup.world.heal();
        setup.world.run_for(PEER_TIMEOUT);
        let together = setup.run_until_together();
        assert!(together, "seed {seed}: rails {:?}\n{}", setup.rails(), reproduce_command(seed));
        returned += u32::from(setup.rails()[0][0] == seed as usize % 2);
    }
    println!("the home is the preferred rail in the end: {returned}");
    assert!(returned > 0);
}

/// The hazard: the same workload without the rule.
#[test]
fn without_sharing_clients_lose_updates() {
    let losing: Vec<String> = seeds(400).filter_map(|seed| run_random(seed, false, None).1.err()).collect();
    println!("{} seeds lose updates: {losing:?}", losing.len());
    assert!(!losing.is_empty() || seeds(400).count() < 400, "no run lost an update");
}

fn quiet_world() -> mitra_sim::Config {
    mitra_sim::Config::fault_free()
}

impl Setup {
    fn set_link(&mut self, host: usize, rail: usize, up: bool) {
        let nic = self.nics[host][rail].id();
        self.world.set_link(nic, up);
    }

    /// Gives a client more increments to make.
    fn add_work(&mut self, client: usize, increments: u64) {
        self.clients[client].borrow_mut().target += increments;
    }

    fn assert_all_done_on(&mut self, rail: usize) {
        assert!(self.run(Duration::from_secs(5)), "work is not done, rails {:?}", self.rails());
        assert_eq!(self.check(), Ok(()));
        self.world.run_for(PEER_TIMEOUT);
        let all = vec![rail; self.clients.len()];
        assert_eq!(self.rails(), [all.clone(), all]);
    }
}

/// One client loses its link to rail 0. The others, which could stay there, follow it, also one that naps at that time.
#[test]
fn all_clients_follow_the_first_that_leaves_the_home() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    (0..3).for_each(|n| setup.add_client(n == 1, 50));
    setup.assert_all_done_on(0);
    let (napping, until) = (setup.hosts[3], setup.world.now() + PEER_TIMEOUT / 2);
    setup.world.pause(napping, Some(until));
    setup.set_link(1, 0, false);
    (0..3).for_each(|n| setup.add_work(n, 50));
    setup.assert_all_done_on(1);
}

impl Setup {
    /// Returns the epoch of the vQP that has moved most often.
    fn highest_epoch(&self) -> u16 {
        let server = self.server.borrow();
        server.iter().filter_map(|vqp| vqp.last_failover()).map(|report| report.epoch).max().unwrap_or(0)
    }
}

/// All clients prefer rail 0, and the first loses it for a while.
#[test]
fn home_moves_back_to_the_preferred_rail() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    (setup.config.preferred_rail, setup.config.failback_delay) = (Some(0), FAILBACK_DELAY);
    (0..3).for_each(|n| setup.add_client(n == 1, 50));
    setup.assert_all_done_on(0);
    setup.set_link(1, 0, false);
    setup.world.run_for(FAILBACK_DELAY / 2);
    setup.set_link(1, 0, true);
    (0..3).for_each(|n| setup.add_work(n, 50));
    setup.assert_all_done_on(0);
    assert!(setup.highest_epoch() > 0, "the home has moved");
}

/// All clients prefer rail 0, and the first cannot use it. The others move the home there again and again, and the first moves it away. Each
/// move uses up an epoch of all vQPs, so the pauses before the failbacks grow.
#[test]
fn home_rarely_returns_to_a_preferred_rail_that_a_client_cannot_use() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    (setup.config.preferred_rail, setup.config.failback_delay) = (Some(0), FAILBACK_DELAY);
    (0..3).for_each(|n| setup.add_client(n == 1, 50));
    setup.assert_all_done_on(0);
    setup.set_link(1, 0, false);
    let mut epochs = Vec::new();
    for _ in 0..8 {
        (0..3).for_each(|n| setup.add_work(n, 20));
        assert!(setup.run(Duration::from_secs(20)), "{:?}, {:?}", setup.rails(), setup.close_reasons());
        setup.world.run_for(PEER_TIMEOUT * 5);
        epochs.push(setup.highest_epoch());
    }
    assert_eq!((setup.check(), setup.close_reasons()), (Ok(()), vec![None; 3]));
    let (early, late) = (epochs[3], epochs[7] - epochs[3]);
    assert!(late * 2 <= early, "the home does not settle: {epochs:?}");
}

#[test]
fn late_client_begins_at_the_home() {
    let mut setup = Setup::new(1, 3, quiet_world(), true);
    setup.add_client(false, 50);
    setup.set_link(1, 0, false);
    setup.assert_all_done_on(1);
    setup.add_client(true, 50);
    // The server's queue pair on rail 0 executes nothing, so the first atomic is executed when the client has moved.
    setup.clients[1].borrow_mut().expected = 50;
    let word = Arc::clone(&setup.word);
    setup.world.run_until(move |_| word.load(0) > 50, Duration::from_secs(1)).expect("the client moves");
    assert_eq!(setup.rails()[1], [1, 1]);
    setup.add_work(0, 500);
    setup.assert_all_done_on(1);
}

/// The home moves from a NIC that died or hangs at the server.
#[test]
fn home_leaves_a_nic_that_fails_at_the_server() {
    for seed in seeds(200) {
        let rng = &mut Prng::stream(seed, "setup");
        let mut setup = Setup::new(seed, 2, world_of(seed), true);
        (0..CLIENTS as u64).for_each(|n| setup.add_client((seed + n).is_multiple_of(2), INCREMENTS));
        let (nic, failure) = (setup.nics[0][0].id(), *rng.pick(&[Failure::NicDead, Failure::NicHung]));
        setup.world.after(Duration::from_micros(rng.below(500)), move |w| w.fail(nic, failure));
        if !setup.run(Duration::from_millis(200)) {
            setup.world.heal();
            assert!(setup.run(Duration::from_secs(30)), "seed {seed}, {failure:?}: {:?}", setup.rails());
        }
        setup
            .check()
            .unwrap_or_else(|e| panic!("seed {seed}, {failure:?}: {e}\n{}", reproduce_command(seed)));
        assert_eq!(setup.close_reasons(), [None; CLIENTS], "seed {seed}, {failure:?}");
    }
}

/// No rail reaches both clients. The home alternates, and each client makes its increments.
#[test]
fn clients_without_a_common_rail_take_turns() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    (0..2).for_each(|n| setup.add_client(n == 1, 20));
    setup.assert_all_done_on(0);
    setup.set_link(1, 0, false);
    setup.set_link(2, 1, false);
    for _ in 0..5 {
        (0..2).for_each(|n| setup.add_work(n, 20));
        assert!(setup.run(Duration::from_secs(20)), "rails {:?}, {:?}", setup.rails(), setup.close_reasons());
    }
    assert_eq!((setup.check(), setup.close_reasons()), (Ok(()), vec![None; 2]));
    assert_eq!(setup.word.load(0), 2 * 6 * 20);
}

/// Clients that are on different rails when the server begins to share atomics end on one.
#[test]
fn sharing_brings_vqps_on_different_rails_together() {
    let mut setup = Setup::new(1, 2, quiet_world(), false);
    (0..2).for_each(|n| setup.add_client(n == 1, 20));
    setup.set_link(1, 0, false);
    assert!(setup.run(Duration::from_secs(5)));
    setup.world.run_for(PEER_TIMEOUT);
    assert_eq!(setup.rails(), [vec![1, 0], vec![1, 0]]);
    setup.domain.share_atomics().expect("all vQPs fence");
    (0..2).for_each(|n| setup.add_work(n, 200));
    setup.assert_all_done_on(1);
}

/// A vQP that closes frees the home.
#[test]
fn closed_vqps_do_not_hold_the_home() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    setup.add_client(false, 20);
    setup.set_link(1, 0, false);
    setup.assert_all_done_on(1);
    setup.server.borrow_mut()[0].close().expect("the NICs are alive");
    setup.add_client(true, 20);
    assert!(setup.run(Duration::from_secs(5)));
    assert_eq!(setup.server.borrow()[1].active_rail(), 0, "nobody else is there");
}

#[test]
fn vqps_that_do_not_fence_share_no_atomics() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    setup.config.policy = Policy::Blanket;
    let peer = domain(&setup.nics[1]);
    let [mut a, mut b] = [setup.vqp(&setup.domain, 1), setup.vqp(&peer, 2)];
    let (info_a, info_b) = (a.local_info().expect("is open"), b.local_info().expect("is open"));
    assert!(matches!(a.connect(&info_b), Err(Error::Unsupported(_))));
    b.connect(&info_a).expect("this end shares nothing");
    assert!(matches!(peer.share_atomics(), Err(Error::Unsupported(_))));
    b.close().expect("the NICs are alive");
    peer.share_atomics().expect("no such vQP is left");
}

#[test]
fn global_atomics_need_no_home() {
    let mut config = quiet_world();
    config.capabilities.atomic_scope = AtomicScope::Global;
    let mut setup = Setup::new(1, 2, config, true);
    (0..2).for_each(|n| setup.add_client(n == 1, 50));
    setup.set_link(1, 0, false);
    assert!(setup.run(Duration::from_secs(5)));
    setup.world.run_for(PEER_TIMEOUT);
    assert_eq!((setup.rails(), setup.check()), ([vec![1, 0], vec![1, 0]], Ok(())));
}
