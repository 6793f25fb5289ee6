//! Reliable connections over the simulated fabric: exactly once, in order, whole, whatever the wire does.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mitra_sim::workload::{Party, Plan, RcEndpoint, RcOptions, Verdict, connect_rc, judge};
use mitra_sim::{Config, PartyApp, Rig, World, seeds};
use mitra_verbs::{Mtu, Provider, Psn};

struct Run {
    rig: Rig,
    plans: [Plan; 2],
    parties: [Rc<RefCell<Party>>; 2],
    endpoints: [Rc<RefCell<RcEndpoint>>; 2],
}

impl Run {
    fn new(world: World, ops: usize) -> Run {
        let seed = world.seed();
        let rig = Rig::of(world, 1);
        let rng = &mut rig.world.rng("plans");
        let ordered = rig.world.config().capabilities.write_order;
        let plans = [1, 2].map(|tag| Plan {
            tag,
            ordered,
            depth: rng.between(1, 64) as usize,
            receives: rng.between(1, 64) as usize,
            max_len: 64 << rng.below(9),
            ..Plan::new(rng.bits(), ops)
        });
        let options = RcOptions {
            mtu: *rng.pick(&Mtu::ALL),
            timeout: rng.between(6, 9) as u8,
            rd_atomic: rng.between(1, 16) as u8,
            psns: [0, 1].map(|_| Psn::new(rng.bits() as u32 | 0xff_ff00)),
            ..RcOptions::default()
        };
        let mut parties = [Party::new(&plans[0], &plans[1]), Party::new(&plans[1], &plans[0])];
        let nics = rig.nics.each_ref().map(|n| Arc::clone(&n[0]) as Arc<dyn Provider>);
        let endpoints = connect_rc(nics, parties.each_mut(), &options)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"))
            .map(|e| Rc::new(RefCell::new(e)));
        let parties = parties.map(|p| Rc::new(RefCell::new(p)));
        let mut run = Run { rig, plans, parties, endpoints };
        for i in 0..2 {
            let app = PartyApp { party: Rc::clone(&run.parties[i]), endpoint: Rc::clone(&run.endpoints[i]) };
            run.rig.world.add_app(run.rig.hosts[i], app);
        }
        run
    }

    /// Lets noise last for a while, then heals the world: all must end.
    fn finish(&mut self) -> [Verdict; 2] {
        let parties = self.parties.clone();
        let done = move |_: &World| parties.iter().all(|p| p.borrow().is_done());
        if self.rig.world.run_until(&done, Duration::from_millis(40)).is_err() {
            self.rig.world.heal();
            self.rig.world.run_until(&done, Duration::from_secs(60)).unwrap_or_else(|e| panic!("{e}"));
        }
        // Stragglers may still arrive, and must change nothing.
        self.rig.world.settle().unwrap_or_else(|e| panic!("{e}"));
        // And a host that pauses must wake to see its completions.
        self.rig.world.heal();
        self.rig.world.run_for(Duration::from_millis(10));
        for party in &self.parties {
            party.borrow_mut().sweep();
        }
        [0, 1].map(|i| {
            let (asker, server) = (self.parties[i].borrow(), self.parties[1 - i].borrow());
            judge(&self.plans[i], asker.asked(), server.seen())
        })
    }
}

#[test]
fn exactly_once_in_order_and_whole() {
    let (mut posted, mut packets, mut events, mut broken) = (0, 0, 0, 0);
    for seed in seeds(1_000) {
        let mut config = Config::swarm(seed);
        let devices = seed / 2;
        config.capabilities.ack_after_placement = devices % 2 == 0;
        config.capabilities.write_order = devices % 3 != 0;
        let mut run = Run::new(World::with(seed, config), 60);
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
        events += run.rig.world.events();
        packets += run.rig.nics.iter().map(|n| run.rig.world.stats(n[0].id()).sent).sum::<u64>();
    }
    eprintln!(
        "{posted} operations succeeded in {packets} packets and {events} events, {broken} connections broke"
    );
    // In a storm a connection may use up its retries, and then rightly gives up; but not often.
    assert!(broken <= seeds(1_000).count() / 250, "{broken} connections broke");
}

#[test]
fn without_faults_nothing_times_out_or_is_out_of_sequence() {
    for seed in seeds(30) {
        let mut run = Run::new(World::with(seed, Config::calm()), 100);
        for verdict in run.finish() {
            assert!(verdict.is_complete(), "seed {seed}\n{verdict}");
        }
        for nic in run.rig.nics.iter().flatten() {
            let counters = nic.counters();
            let of = |name| counters.iter().find(|c| c.name == name).map(|c| c.value);
            for name in ["timeouts", "sequence_naks_sent", "duplicate_requests"] {
                assert_eq!(of(name), Some(0), "seed {seed}: {name}");
            }
        }
    }
}

#[test]
fn two_runs_of_a_seed_are_the_same_to_the_byte() {
    let run = |seed| {
        let mut run = Run::new(World::keeping(seed, Config::swarm(seed), usize::MAX), 40);
        run.finish();
        (run.rig.world.trace_hash(), run.rig.world.trace(usize::MAX), run.rig.world.events())
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
