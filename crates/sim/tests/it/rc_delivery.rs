//! Reliable connections over noisy links execute every operation exactly once and in order.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mitra_sim::workload::{PeerApp, Plan, RcEndpoint, RcOptions, Verdict, WorkloadPeer, connect_rc, verify};
use mitra_sim::{Config, Testbed, World, seeds};
use mitra_verbs::Provider;

struct Run {
    testbed: Testbed,
    plans: [Plan; 2],
    peers: [Rc<RefCell<WorkloadPeer>>; 2],
    endpoints: [Rc<RefCell<RcEndpoint>>; 2],
}

impl Run {
    fn new(world: World, ops: usize) -> Run {
        let seed = world.seed();
        let testbed = Testbed::from_world(world, 1);
        let rng = &mut testbed.world.test_rng("plans");
        let ordered = testbed.world.config().capabilities.write_order;
        let plans = [1, 2].map(|tag| Plan::draw(rng, tag, ordered, ops));
        let options = RcOptions::draw(rng);
        let mut peers = [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
        let nics = testbed.nics.each_ref().map(|n| Arc::clone(&n[0]) as Arc<dyn Provider>);
        let endpoints = connect_rc(nics, peers.each_mut(), &options)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"))
            .map(|e| Rc::new(RefCell::new(e)));
        let peers = peers.map(|p| Rc::new(RefCell::new(p)));
        let mut run = Run { testbed, plans, peers, endpoints };
        for i in 0..2 {
            let app = PeerApp { peer: Rc::clone(&run.peers[i]), endpoint: Rc::clone(&run.endpoints[i]) };
            run.testbed.world.add_app(run.testbed.hosts[i], app);
        }
        run
    }

    /// Runs with noise until all operations have ended, at most for 40 ms, and then without noise.
    /// Fails if an operation does not end. Returns the verdict on each end's operations.
    fn finish(&mut self) -> [Verdict; 2] {
        let peers = self.peers.clone();
        let done = move |_: &World| peers.iter().all(|p| p.borrow().is_done());
        if self.testbed.world.run_until(&done, Duration::from_millis(40)).is_err() {
            self.testbed.world.heal();
            self.testbed.world.run_until(&done, Duration::from_secs(60)).unwrap_or_else(|e| panic!("{e}"));
        }
        // Stragglers may still arrive. They must have no effect.
        self.testbed.world.run_until_quiet().unwrap_or_else(|e| panic!("{e}"));
        // A paused host must resume to poll its completions.
        self.testbed.world.heal();
        self.testbed.world.run_for(Duration::from_millis(10));
        for peer in &self.peers {
            peer.borrow_mut().sweep();
        }
        [0, 1].map(|i| {
            let (requester, responder) = (self.peers[i].borrow(), self.peers[1 - i].borrow());
            verify(&self.plans[i], requester.requester_log(), responder.responder_log())
        })
    }
}

#[test]
fn operations_execute_exactly_once_in_order_despite_noise() {
    let (mut posted, mut packets, mut events, mut broken) = (0, 0, 0, 0);
    for seed in seeds(1_000) {
        let mut config = Config::swarm(seed);
        let device_kind = seed / 2;
        config.capabilities.ack_after_placement = device_kind % 2 == 0;
        config.capabilities.write_order = device_kind % 3 != 0;
        let mut run = Run::new(World::with_config(seed, config), 60);
        let verdicts = run.finish();
        let failed = run.endpoints.each_ref().map(|e| e.borrow().failed);
        for verdict in &verdicts {
            assert!(verdict.is_exact(), "seed {seed}: {failed:?}\n{verdict}");
            assert!(failed != [None, None] || verdict.is_complete(), "seed {seed}\n{verdict}");
            posted += verdict.total().success;
        }
        if failed != [None, None] {
            broken += 1;
            eprintln!("seed {seed} broke: {failed:?}");
        }
        events += run.testbed.world.events();
        packets += run.testbed.nics.iter().map(|n| run.testbed.world.stats(n[0].id()).sent).sum::<u64>();
    }
    eprintln!(
        "{posted} operations succeeded in {packets} packets and {events} events, {broken} connections broke"
    );
    // Under heavy noise, a connection may exhaust its retries and fail. This must be rare.
    assert!(broken <= seeds(1_000).count() / 250, "{broken} connections broke");
}

#[test]
fn fault_free_run_has_no_timeouts_or_naks() {
    for seed in seeds(30) {
        let mut run = Run::new(World::with_config(seed, Config::fault_free()), 100);
        for verdict in run.finish() {
            assert!(verdict.is_complete(), "seed {seed}\n{verdict}");
        }
        for nic in run.testbed.nics.iter().flatten() {
            let counters = nic.counters();
            let value_of = |name| counters.iter().find(|c| c.name == name).map(|c| c.value);
            for name in ["timeouts", "sequence_naks_sent", "duplicate_requests"] {
                assert_eq!(value_of(name), Some(0), "seed {seed}: {name}");
            }
        }
    }
}

#[test]
fn runs_of_one_seed_are_identical() {
    let run = |seed| {
        let mut run = Run::new(World::with_trace_len(seed, Config::swarm(seed), usize::MAX), 40);
        run.finish();
        (run.testbed.world.trace_hash(), run.testbed.world.trace_tail(usize::MAX), run.testbed.world.events())
    };
    let mut hashes = Vec::new();
    for seed in seeds(20) {
        let (first, second) = (run(seed), run(seed));
        assert!(first.1.len() > 200, "a trace of {} lines", first.1.len());
        assert_eq!(first.1, second.1, "seed {seed}");
        assert_eq!((first.0, first.2), (second.0, second.2), "seed {seed}");
        hashes.push(first.0);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert!(hashes.len() > 19 || seeds(20).count() < 20, "seeds differ");
}
