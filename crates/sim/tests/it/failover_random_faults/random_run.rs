//! One run of peers over virtual queue pairs under random faults.

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{CloseReason, CompletionLogConfig, Config, Contradiction, Domain, FailoverReport};
use mitra_sim::workload::{
    PeerApp, Plan, Verdict, VqpEndpoint, WorkloadPeer, check_liveness, connect_vqp_in, verify,
};
use mitra_sim::{App, AppContext, DurationRange, Prng, Testbed, World, reproduce_command};
use mitra_verbs::Provider;

pub fn config() -> Config {
    let mut config = Config { send_wrs: 64, recv_wrs: 64, ..Config::default() };
    config.detector.local_ack_timeout = mitra_verbs::LocalAckTimeout::from_code(9);
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 8;
    config.peer_timeout = Duration::from_millis(300);
    config
}

pub struct Setup {
    pub rails: u8,
    pub vqps: u64,
    /// The number of operations that each end of a vQP posts.
    pub ops: [usize; 2],
    pub world: mitra_sim::Config,
    pub failover: Config,
}

impl Setup {
    pub fn new(seed: u64, rails: u8) -> Setup {
        let world = mitra_sim::Config::swarm(seed);
        Setup { rails, vqps: 1, ops: [80, 40], world, failover: config() }
    }

    /// In some seeds, stragglers may arrive after a failover, packets survive a cable failure, or
    /// there is a completion log.
    pub fn with_late_packets(seed: u64, rails: u8, rng: &mut Prng) -> Setup {
        let mut setup = Setup::new(seed, rails);
        setup.world.link.survivor_ppm = *rng.pick(&[0, 500_000, 1_000_000]);
        setup.world.link.straggler_ppm = *rng.pick(&[0, 5_000, 50_000]);
        setup.world.link.straggler_delay = DurationRange::micros(500, 40_000);
        setup.failover.completion_log = (rng.below(2) == 0).then(CompletionLogConfig::default);
        setup
    }
}

/// The results of a run. Each `Vec` has one element for each vQP, and each array one element for
/// each end.
pub struct Outcome {
    pub verdicts: Vec<[Verdict; 2]>,
    pub close_reasons: Vec<[Option<CloseReason>; 2]>,
    /// The epoch of the first end's last failover, or 0 without a failover.
    pub epochs: Vec<u16>,
    pub last_failovers: Vec<[Option<FailoverReport>; 2]>,
    pub contradictions: Vec<[Option<Contradiction>; 2]>,
    /// The number of bytes that were not placed because a NIC died or was reset.
    pub placement_bytes_lost: u64,
}

impl Outcome {
    pub fn assert_exact(&self, seed: u64, label: &str) {
        for (i, v) in self.verdicts.iter().enumerate() {
            for v in v {
                assert!(
                    v.is_exact() && self.contradictions[i] == [None, None],
                    "seed {seed}, {label}: {:?}, {:?}\n{v}\n{}",
                    self.close_reasons[i],
                    self.contradictions[i],
                    reproduce_command(seed)
                );
            }
        }
    }
}

/// Runs the peers under the faults that `inject_faults` schedules. All operations must end within
/// 20 s of virtual time. `plan` adapts the plan of each end.
pub fn run(
    seed: u64,
    setup: Setup,
    plan: impl Fn(Plan) -> Plan,
    inject_faults: impl FnOnce(&mut Testbed, &mut Prng),
) -> Outcome {
    let mut testbed = Testbed::with_config(seed, setup.world, setup.rails);
    let domains = [0, 1].map(|h| {
        let nics: Vec<_> = testbed.nics[h].iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect();
        Domain::new(nics).expect("the NICs have the resources of a domain")
    });
    let stop = Rc::new(Cell::new(false));
    let mut runs = Vec::new();
    for i in 0..setup.vqps {
        let seed = seed + 10_000 * i;
        let mut plans = [seed, seed + 1_000_000].map(|seed| plan(Plan::new(seed, 0)));
        plans[1].tag = 2;
        (plans[0].ops, plans[1].ops) = (setup.ops[0], setup.ops[1]);
        let mut peers = [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
        let [first, second] = &mut peers;
        let ends = connect_vqp_in(domains.clone(), [first, second], setup.failover, seed)
            .expect("the NICs have the resources of a vQP");
        let peers = peers.map(|p| Rc::new(RefCell::new(p)));
        let ends = ends.map(|e| Rc::new(RefCell::new(e)));
        for h in 0..2 {
            let mut app = PeerApp { peer: Rc::clone(&peers[h]), endpoint: Rc::clone(&ends[h]) };
            let stop = Rc::clone(&stop);
            testbed.world.add_app(
                testbed.hosts[h],
                move |ctx: &mut AppContext<'_>| {
                    if stop.get() { ctx.exit() } else { app.step(ctx) }
                },
            );
        }
        runs.push((plans, peers, ends));
    }
    let mut rng = testbed.world.test_rng("storm");
    inject_faults(&mut testbed, &mut rng);
    let done = |_: &World| runs.iter().all(|(_, peers, _)| peers.iter().all(|p| p.borrow().is_done()));
    if let Err(stalled) = testbed.world.run_until(done, Duration::from_secs(20)) {
        for (_, _, ends) in &runs {
            ends.iter().for_each(|e: &Rc<RefCell<VqpEndpoint>>| eprintln!("{:?}", e.borrow().qp));
        }
        panic!("operations did not end: {stalled}");
    }
    for (_, _, ends) in &runs {
        let [a, b] = ends.each_ref().map(|end: &Rc<RefCell<VqpEndpoint>>| end.borrow());
        if let Err(dead) = check_liveness(&testbed.world, testbed.hosts, [&a.qp, &b.qp]) {
            panic!("seed {seed}: {dead}\n{}", reproduce_command(seed));
        }
    }
    // Paused hosts resume, both ends consume the data that has arrived, and stragglers arrive
    // without effect. A host that was paused until now may detect a failure only when its retries
    // are exhausted, which takes up to 120 ms.
    testbed.world.stop_noise();
    testbed.hosts.iter().for_each(|&host| testbed.world.resume(host));
    testbed.world.run_for(setup.failover.peer_timeout + Duration::from_secs(1));
    stop.set(true);
    testbed.world.run_for(Duration::from_millis(5));
    testbed.world.run_until_quiet().unwrap_or_else(|stalled| panic!("{stalled}"));
    let mut out = Outcome {
        verdicts: Vec::new(),
        close_reasons: Vec::new(),
        epochs: Vec::new(),
        last_failovers: Vec::new(),
        contradictions: Vec::new(),
        placement_bytes_lost: testbed
            .nics
            .iter()
            .flatten()
            .map(|nic| testbed.world.stats(nic.id()).placement_bytes_lost)
            .sum(),
    };
    for (plans, peers, ends) in &runs {
        peers.iter().for_each(|p| p.borrow_mut().sweep());
        let [a, b] = [peers[0].borrow(), peers[1].borrow()];
        out.verdicts.push([
            verify(&plans[0], a.requester_log(), b.responder_log()),
            verify(&plans[1], b.requester_log(), a.responder_log()),
        ]);
        let [a, b] = [ends[0].borrow(), ends[1].borrow()];
        out.close_reasons.push([a.qp.close_reason(), b.qp.close_reason()]);
        out.last_failovers.push([a.qp.last_failover(), b.qp.last_failover()]);
        out.contradictions.push([a.qp.contradiction(), b.qp.contradiction()]);
        out.epochs.push(a.qp.last_failover().map_or(0, |r| r.epoch));
    }
    out
}

pub fn cut_cable(testbed: &mut Testbed, rng: &mut Prng, rail: usize, after: Duration) {
    let nic = testbed.rail(rail)[rng.index(2)];
    testbed.world.after(after, move |w| w.set_link(nic, false));
}

/// Returns a random time between 1 µs and an upper bound. The bound is `nanos` ns, doubled at most
/// `doublings` - 1 times.
pub fn random_time(rng: &mut Prng, nanos: u64, doublings: u64) -> Duration {
    let limit = nanos << rng.below(doublings);
    Duration::from_nanos(rng.between(1_000, limit))
}

#[derive(Default)]
pub struct Endings(BTreeMap<String, u32>);

impl Endings {
    pub fn count(&mut self, out: &Outcome) {
        *self.0.entry(format!("{:?}", out.close_reasons[0])).or_default() += 1;
    }

    pub fn print(&self) {
        println!("{:#?}", self.0);
    }
}

pub fn micros(rng: &mut Prng, low: u64, high: u64) -> Duration {
    Duration::from_nanos(rng.between(low * 1000, high * 1000))
}
