//! One run of peers over queue pairs with a shared backup.

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{
    CloseReason, Completion, Config, Contradiction, Domain, Secret, SharedBackup, VirtualQp,
};
use mitra_sim::workload::{
    BackedEndpoint, PeerApp, Plan, Verdict, WorkloadPeer, check_liveness, connect_backed, verify,
};
use mitra_sim::{App, AppContext, Prng, Testbed, World, reproduce_command};
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
    pub members: u64,
    /// The number of operations that each end of a member posts.
    pub ops: [usize; 2],
    pub world: mitra_sim::Config,
    /// The configuration of the queue pairs and of the backup.
    pub config: Config,
}

/// The results of a run. Each `Vec` has one element for each member, and each array one element for
/// each end.
pub struct Outcome {
    pub verdicts: Vec<[Verdict; 2]>,
    pub close_reasons: Vec<[Option<CloseReason>; 2]>,
    pub contradictions: Vec<[Option<Contradiction>; 2]>,
    /// The operations that did not succeed.
    pub failures: Vec<[Vec<Completion>; 2]>,
    /// The number of messages that the backups rejected.
    pub rejected: [u64; 2],
    /// The epoch of the backup's last failover, or 0 without a failover.
    pub epoch: u16,
}

impl Outcome {
    /// Also checks that no end reports a contradiction, and that no message was rejected.
    pub fn assert_exact(&self, seed: u64, label: &str) {
        for (i, v) in self.verdicts.iter().enumerate() {
            for v in v {
                assert!(
                    v.is_exact() && self.contradictions[i] == [None, None] && self.rejected == [0, 0],
                    "seed {seed}, {label}: {:?}, {:?}, rejected {:?}\n{v}\n{}",
                    self.close_reasons[i],
                    self.contradictions[i],
                    self.rejected,
                    reproduce_command(seed)
                );
            }
        }
    }
}

pub fn connect_backups(testbed: &Testbed, config: Config, seed: u64) -> [Arc<SharedBackup>; 2] {
    connect_backups_over(nics_of(testbed), config, seed)
}

pub fn nics_of(testbed: &Testbed) -> [Vec<Arc<dyn Provider>>; 2] {
    testbed.nics.each_ref().map(|nics| nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())
}

/// The seed determines the roles of the ends.
pub fn connect_backups_over(
    nics: [Vec<Arc<dyn Provider>>; 2],
    config: Config,
    seed: u64,
) -> [Arc<SharedBackup>; 2] {
    let mut h = 0;
    let backups = nics.map(|nics| {
        let domain = Domain::new(nics).expect("the NICs have the resources of a domain");
        let secret = Secret::fixed([seed << 1 | h as u64, seed ^ 0x1234_5678_9abc ^ h as u64]);
        h += 1;
        let builder = VirtualQp::builder(&domain).config(config).secret(secret);
        SharedBackup::new(builder).expect("the NICs have the resources of a backup")
    });
    let infos = backups.each_ref().map(|backup| backup.local_info());
    backups[0].connect(&infos[1]).expect("the ends match");
    backups[1].connect(&infos[0]).expect("the ends match");
    backups
}

/// Runs the peers under the faults that `inject_faults` schedules. All operations must end within
/// 20 s of virtual time, and the liveness rule holds for each queue pair. `plan` adapts the plan of
/// each end.
pub fn run(
    seed: u64,
    setup: Setup,
    plan: impl Fn(Plan) -> Plan,
    inject_faults: impl FnOnce(&mut Testbed, &mut Prng),
) -> (Outcome, Testbed) {
    let mut testbed = Testbed::with_config(seed, setup.world, setup.rails);
    let config = setup.config;
    let backups = connect_backups(&testbed, config, seed);
    let stop = Rc::new(Cell::new(false));
    let mut runs = Vec::new();
    for i in 0..setup.members {
        let seed = seed + 10_000 * i;
        let mut plans = [seed, seed + 1_000_000].map(|seed| plan(Plan::new(seed, 0)));
        plans[1].tag = 2;
        (plans[0].ops, plans[1].ops) = (setup.ops[0], setup.ops[1]);
        let mut peers = [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
        let [first, second] = &mut peers;
        let ends = connect_backed(&backups, [first, second], config).expect("the NICs have the resources");
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
            ends.iter().for_each(|e: &Rc<RefCell<BackedEndpoint>>| eprintln!("{:?}", e.borrow().qp));
        }
        panic!("seed {seed}: operations did not end: {stalled}\n{}", reproduce_command(seed));
    }
    // Paused hosts resume, both ends consume the data that has arrived, and stragglers arrive
    // without effect.
    testbed.world.stop_noise();
    testbed.hosts.iter().for_each(|&host| testbed.world.resume(host));
    testbed.world.run_for(config.peer_timeout + Duration::from_millis(500));
    stop.set(true);
    testbed.world.run_for(Duration::from_millis(5));
    testbed.world.run_until_quiet().unwrap_or_else(|stalled| panic!("{stalled}"));
    let mut out = Outcome {
        verdicts: Vec::new(),
        close_reasons: Vec::new(),
        contradictions: Vec::new(),
        failures: Vec::new(),
        rejected: backups.each_ref().map(|backup| backup.rejected_messages()),
        epoch: backups[0].last_failover().map_or(0, |r| r.epoch),
    };
    for (plans, peers, ends) in &runs {
        peers.iter().for_each(|p| p.borrow_mut().sweep());
        let [a, b] = [peers[0].borrow(), peers[1].borrow()];
        out.verdicts.push([
            verify(&plans[0], a.requester_log(), b.responder_log()),
            verify(&plans[1], b.requester_log(), a.responder_log()),
        ]);
        let [a, b] = [ends[0].borrow(), ends[1].borrow()];
        if let Err(dead) = check_liveness(&testbed.world, testbed.hosts, [&a.qp, &b.qp]) {
            panic!("seed {seed}: {dead}\n{}", reproduce_command(seed));
        }
        out.close_reasons.push([a.qp.close_reason(), b.qp.close_reason()]);
        out.contradictions.push([a.qp.contradiction(), b.qp.contradiction()]);
        out.failures.push([a.failures.clone(), b.failures.clone()]);
    }
    drop(runs);
    (out, testbed)
}
