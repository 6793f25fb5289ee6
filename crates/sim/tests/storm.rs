//! Virtual queue pairs in a storm: failures upon failures on three rails, cables that come and go, stragglers, pauses.
//! Whatever happens, what they say of an operation is true.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{Config, Contradiction, Ended};
use mitra_sim::workload::{Party, Plan, Verdict, VqpEndpoint, connect_vqp, judge};
use mitra_sim::{Case, Failure, PartyApp, Range, Rig, SimRng, World, seeds};
use mitra_verbs::Provider;

struct Storm {
    rig: Rig,
    plans: [Plan; 2],
    parties: [Rc<RefCell<Party>>; 2],
    ends: [Rc<RefCell<VqpEndpoint>>; 2],
}

impl Storm {
    fn new(seed: u64, rails: u8, config: mitra_sim::Config, plans: [Plan; 2], log: bool) -> Storm {
        let mut rig = Rig::with(seed, config, rails);
        let mut failover = Config { log, send_wrs: 64, recv_wrs: 64, ..Config::default() };
        failover.detector.timeout = 9;
        failover.detector.heartbeat = Duration::from_millis(1);
        failover.detector.misses = 8;
        let mut parties = [Party::new(&plans[0], &plans[1]), Party::new(&plans[1], &plans[0])];
        let nics =
            rig.nics.each_ref().map(|n| n.iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect());
        let ends = connect_vqp(nics, parties.each_mut(), failover, seed).expect("connect");
        let ends = ends.map(|e| Rc::new(RefCell::new(e)));
        let parties = parties.map(|p| Rc::new(RefCell::new(p)));
        for i in 0..2 {
            let app = PartyApp { party: Rc::clone(&parties[i]), endpoint: Rc::clone(&ends[i]) };
            rig.world.add_app(rig.hosts[i], app);
        }
        Storm { rig, plans, parties, ends }
    }

    /// Lets the storm pass, and then everything come to an end; what the judge says.
    fn judge(&mut self) -> [Verdict; 2] {
        let parties = self.parties.clone();
        let done = move |_: &World| parties.iter().all(|p| p.borrow().is_done());
        if self.rig.world.run_until(&done, Duration::from_millis(300)).is_err() {
            self.rig.world.heal();
            if let Err(stuck) = self.rig.world.run_until(&done, Duration::from_secs(20)) {
                panic!("{stuck}\n{:?}\n{:?}", self.ends[0].borrow().vqp, self.ends[1].borrow().vqp);
            }
        }
        self.rig.world.calm();
        self.rig.world.settle().unwrap_or_else(|e| panic!("{e}"));
        for host in self.rig.hosts {
            self.rig.world.resume(host);
        }
        self.rig.world.run_for(Duration::from_millis(20));
        for party in &self.parties {
            party.borrow_mut().sweep();
        }
        [0, 1].map(|i| {
            let (asker, server) = (self.parties[i].borrow(), self.parties[1 - i].borrow());
            judge(&self.plans[i], asker.asked(), server.seen())
        })
    }

    fn ended(&self) -> [Option<Ended>; 2] {
        self.ends.each_ref().map(|e| e.borrow().vqp.ended())
    }

    fn assert_exact(&mut self, what: &str) {
        let verdicts = self.judge();
        self.check(what, &verdicts);
    }

    /// The same, but two words release from it: `Unfenced` (a hung NIC that nothing can stop may go on receiving) and
    /// `LostAfterAck` (a device acknowledges what it has not placed, and its log does not prove that it has). Without a log
    /// nobody can know what such a device takes to its grave.
    fn assert_exact_or_named(&mut self, what: &str, log: bool) {
        let verdicts = self.judge();
        let (world, nics) = (&self.rig.world, self.rig.nics.iter().flatten());
        let promised = world.config().capabilities.ack_after_placement;
        let lost = nics.map(|nic| world.stats(nic.id()).placements_lost).sum::<u64>() > 0;
        let named = self.ends.iter().any(|e| {
            let vqp = &e.borrow().vqp;
            let told = matches!(vqp.contradiction(), Some(Contradiction::LostAfterAck { .. }));
            told && !promised || vqp.ended() == Some(Ended::Unfenced)
        });
        if !named && (log || promised || !lost) {
            self.check(what, &verdicts);
        }
    }

    fn check(&self, what: &str, verdicts: &[Verdict]) {
        let seed = self.rig.world.seed();
        for verdict in verdicts {
            let contradictions = self.ends.each_ref().map(|e| e.borrow().vqp.contradiction());
            assert!(
                verdict.is_exact() && contradictions == [None, None],
                "seed {seed}, {what}: {:?} {contradictions:?}\n{verdict}",
                self.ended()
            );
        }
    }
}

fn plans(seed: u64, ops: usize) -> [Plan; 2] {
    let second = Plan { tag: 2, ..Plan::new(seed ^ 0xb, ops) };
    [Plan::new(seed, ops), second]
}

/// Stragglers that outlast a failover, and packets that survive their cable.
fn late(config: &mut mitra_sim::Config, rng: &mut SimRng) {
    config.wire.survivor_ppm = *rng.pick(&[0, 500_000, 1_000_000]);
    config.wire.straggler_ppm = *rng.pick(&[0, 5_000, 50_000]);
    config.wire.straggle = Range::micros(500, 40_000);
}

/// A time from a microsecond up to some nanoseconds, doubled up to so often.
fn span(rng: &mut SimRng, nanos: u64, doublings: u64) -> Duration {
    let most = nanos << rng.below(doublings);
    Duration::from_nanos(rng.between(1_000, most))
}

#[test]
fn failures_upon_failures() {
    let mut endings: BTreeMap<String, u32> = BTreeMap::new();
    for seed in seeds(600) {
        let rng = &mut SimRng::new(seed, "storm");
        let mut config = mitra_sim::Config::swarm(seed);
        late(&mut config, rng);
        let log = rng.below(2) == 0;
        let mut storm = Storm::new(seed, 3, config, plans(seed, 60), log);
        let mut what = Vec::new();
        for _ in 0..rng.between(2, 4) {
            let (host, rail) = (rng.index(2), rng.index(3));
            let nic = storm.rig.nics[host][rail].id();
            let at = span(rng, 1_000_000, 6);
            let failure =
                *rng.pick(&[Failure::LinkDown, Failure::LinkDown, Failure::NicDead, Failure::NicHung]);
            what.push(format!("{failure:?} of {}{rail} at {at:?}", ["a", "b"][host]));
            storm.rig.world.after(at, move |w| w.fail(nic, failure));
        }
        storm.assert_exact(&format!("log {log}: {}", what.join(", ")));
        *endings.entry(format!("{:?}", storm.ended())).or_default() += 1;
    }
    println!("{endings:#?}");
}

#[test]
fn cables_that_come_and_go() {
    for seed in seeds(400) {
        let rng = &mut SimRng::new(seed, "storm");
        let mut config = mitra_sim::Config::swarm(seed);
        late(&mut config, rng);
        let mut storm = Storm::new(seed, 2, config, plans(seed, 80), rng.below(2) == 0);
        let mut at = Duration::ZERO;
        for _ in 0..rng.between(1, 6) {
            let nic = storm.rig.nics[rng.index(2)][rng.index(2)].id();
            at += span(rng, 300_000, 8);
            storm.rig.world.after(at, move |w| w.set_link(nic, false));
            let up = at + span(rng, 100_000, 8);
            storm.rig.world.after(up, move |w| w.set_link(nic, true));
        }
        storm.assert_exact("flapping");
    }
}

#[test]
fn every_case_with_late_packets_and_pauses() {
    let cases: Vec<Case> = Case::all().into_iter().filter(|c| !c.breaks_promise()).collect();
    for seed in seeds(2 * cases.len() as u64) {
        let case = cases[(seed % cases.len() as u64) as usize];
        let rng = &mut SimRng::new(seed, "storm");
        let mut config = mitra_sim::Config::swarm(seed);
        late(&mut config, rng);
        config.host.pause_ppm = *rng.pick(&[0, 5_000]);
        config.host.pause = Range::micros(50, 30_000);
        let mut plans = plans(seed, 40);
        plans[0] = plans[0].clone().only(&[case.kind]);
        // The responder's own operations must not be counted by the trigger.
        plans[1].ops = 0;
        let mut storm = Storm::new(seed, 2, config, plans, rng.below(2) == 0);
        let hold = Some(Duration::from_micros(rng.between(100, 60_000)));
        let rail = storm.rig.rail(0);
        case.arm(&mut storm.rig.world, rail, rng.between(1, 30) as u32, hold);
        storm.assert_exact(&case.to_string());
    }
}

/// Poorer devices: what cannot be known is said, not guessed.
#[test]
fn poorer_devices() {
    let mut endings: BTreeMap<String, u32> = BTreeMap::new();
    for seed in seeds(600) {
        let rng = &mut SimRng::new(seed, "storm");
        let mut config = mitra_sim::Config::swarm(seed);
        late(&mut config, rng);
        let capabilities = &mut config.capabilities;
        capabilities.psn_query = rng.below(2) == 0;
        capabilities.saved_results = rng.below(2) == 0;
        capabilities.ack_after_placement = rng.below(2) == 0;
        capabilities.write_order = rng.below(2) == 0;
        capabilities.reset = rng.below(4) > 0;
        let (ordered, described) = (capabilities.write_order, format!("{capabilities:?}"));
        let plans = plans(seed, 60).map(|p| Plan { ordered, ..p });
        let log = ordered && rng.below(2) == 0;
        let mut storm = Storm::new(seed, 2, config, plans, log);
        let nic = storm.rig.nics[rng.index(2)][0].id();
        let at = span(rng, 300_000, 3);
        let failure = *rng.pick(&[Failure::LinkDown, Failure::NicDead, Failure::NicHung]);
        storm.rig.world.after(at, move |w| w.fail(nic, failure));
        storm.assert_exact_or_named(&format!("{failure:?} at {at:?}, log {log}, {described}"), log);
        *endings.entry(format!("{:?}", storm.ended())).or_default() += 1;
    }
    println!("{endings:#?}");
}
