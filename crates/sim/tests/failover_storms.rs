//! Virtual queue pairs under what comes seldom: three rails and two failures, rails that flap, hosts that sleep through a
//! move, several queue pairs over the same NICs. Every operation keeps its word, and every end ends in one.

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{Config, Contradiction, Domain, Ended, FailoverReport};
use mitra_sim::workload::{Kind, Party, Plan, Verdict, VqpEndpoint, connect_vqp_in, judge};
use mitra_sim::{App, Case, Ctx, Failure, PartyApp, Rig, SimRng, World, reproduce, seeds};
use mitra_verbs::Provider;

fn config() -> Config {
    let mut config = Config { send_wrs: 64, recv_wrs: 64, ..Config::default() };
    config.detector.timeout = 9;
    config.detector.heartbeat = Duration::from_millis(1);
    config.detector.misses = 8;
    config.give_up = Duration::from_millis(300);
    config
}

/// What became of a storm: per vQP, both directions and both ends.
struct Outcome {
    verdicts: Vec<[Verdict; 2]>,
    ended: Vec<[Option<Ended>; 2]>,
    moves: Vec<u16>,
    causes: Vec<[Option<FailoverReport>; 2]>,
    contradictions: Vec<[Option<Contradiction>; 2]>,
}

impl Outcome {
    fn assert_exact(&self, seed: u64) {
        for (v, ended) in self.verdicts.iter().zip(&self.ended) {
            for (v, ended) in v.iter().zip(ended) {
                assert!(v.is_exact(), "seed {seed}, {ended:?}:\n{v}\n{}", reproduce(seed));
            }
        }
    }
}

/// `vqps` pairs over `rails` shared NICs, while `storm` has its way. Everything must be over within 20 virtual seconds.
fn run(
    seed: u64,
    rails: u8,
    vqps: u64,
    config: Config,
    plan: impl Fn(Plan) -> Plan,
    storm: impl FnOnce(&mut Rig, &mut SimRng),
) -> Outcome {
    let mut rig = Rig::new(seed, rails);
    let domains = [0, 1].map(|h| {
        let nics: Vec<_> = rig.nics[h].iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect();
        Domain::new(nics).expect("domain")
    });
    let stopped = Rc::new(Cell::new(false));
    let mut all = Vec::new();
    for i in 0..vqps {
        let seed = seed + 10_000 * i;
        let mut plans = [plan(Plan::new(seed, 80)), plan(Plan::new(seed + 1_000_000, 40))];
        plans[1].tag = 2;
        let mut parties = [Party::new(&plans[0], &plans[1]), Party::new(&plans[1], &plans[0])];
        let [first, second] = &mut parties;
        let ends = connect_vqp_in(domains.clone(), [first, second], config, seed).expect("connect");
        let parties = parties.map(|p| Rc::new(RefCell::new(p)));
        let ends = ends.map(|e| Rc::new(RefCell::new(e)));
        for h in 0..2 {
            let mut app = PartyApp { party: Rc::clone(&parties[h]), endpoint: Rc::clone(&ends[h]) };
            let stopped = Rc::clone(&stopped);
            rig.world.add_app(
                rig.hosts[h],
                move |ctx: &mut Ctx<'_>| {
                    if stopped.get() { ctx.exit() } else { app.step(ctx) }
                },
            );
        }
        all.push((plans, parties, ends));
    }
    let mut rng = rig.world.rng("storm");
    storm(&mut rig, &mut rng);
    let done = |_: &World| all.iter().all(|(_, parties, _)| parties.iter().all(|p| p.borrow().is_done()));
    if let Err(stuck) = rig.world.run_until(done, Duration::from_secs(20)) {
        for (_, _, ends) in &all {
            ends.iter().for_each(|e: &Rc<RefCell<VqpEndpoint>>| eprintln!("{:?}", e.borrow().vqp));
        }
        panic!("it hangs: {stuck}");
    }
    // Both ends know that it is over, and take what has arrived; stragglers come, and change nothing.
    rig.world.run_for(Duration::from_millis(1000));
    stopped.set(true);
    rig.world.run_for(Duration::from_millis(1100));
    let mut out = Outcome {
        verdicts: Vec::new(),
        ended: Vec::new(),
        moves: Vec::new(),
        causes: Vec::new(),
        contradictions: Vec::new(),
    };
    for (plans, parties, ends) in &all {
        parties.iter().for_each(|p| p.borrow_mut().sweep());
        let [a, b] = [parties[0].borrow(), parties[1].borrow()];
        out.verdicts.push([judge(&plans[0], a.asked(), b.seen()), judge(&plans[1], b.asked(), a.seen())]);
        let [a, b] = [ends[0].borrow(), ends[1].borrow()];
        out.ended.push([a.vqp.ended(), b.vqp.ended()]);
        out.causes.push([a.vqp.last_failover(), b.vqp.last_failover()]);
        out.contradictions.push([a.vqp.contradiction(), b.vqp.contradiction()]);
        out.moves.push(a.vqp.last_failover().map_or(0, |r| r.epoch));
    }
    out
}

/// Takes out one of the two cables of a rail.
fn cut(rig: &mut Rig, rng: &mut SimRng, rail: usize, after: Duration) {
    let nic = rig.rail(rail)[rng.index(2)];
    rig.world.after(after, move |w| w.set_link(nic, false));
}

fn micros(rng: &mut SimRng, low: u64, high: u64) -> Duration {
    Duration::from_nanos(rng.between(low * 1000, high * 1000))
}

/// The second failure strikes during the first recovery, during its tail, or long after.
#[test]
fn two_failures_on_three_rails() {
    let (mut survived, mut ended) = (0, 0);
    for seed in seeds(400) {
        let mut config = config();
        config.log = seed % 2 == 0;
        let kinds: &[Kind] = match seed % 4 {
            0 | 1 => &Kind::ALL,
            2 => &[Kind::WriteImm, Kind::Send],
            _ => &[Kind::WriteImm],
        };
        let plan = |mut p: Plan| {
            p.max_len = 12_000;
            p.only(kinds)
        };
        let out = run(seed, 3, 1, config, plan, |rig, rng| {
            let first = micros(rng, 1, 200);
            cut(rig, rng, 0, first);
            let most = [50, 2_000, 20_000][rng.index(3)];
            let second = first + micros(rng, 1, most);
            cut(rig, rng, 1, second);
        });
        out.assert_exact(seed);
        match out.ended[0] {
            [None, None] => {
                survived += u32::from(out.moves[0] >= 3);
                assert!(out.verdicts[0].iter().all(Verdict::is_complete), "seed {seed}");
            }
            _ => ended += 1,
        }
    }
    println!("moved twice: {survived}, ended in a word: {ended}");
    assert!(survived > 0);
}

/// NICs die or hang one after the other, at either end.
#[test]
fn nics_fail_one_after_the_other() {
    for seed in seeds(200) {
        let mut config = config();
        config.log = seed % 2 == 0;
        let out = run(
            seed,
            3,
            1,
            config,
            |p| p,
            |rig, rng| {
                let mut at = Duration::ZERO;
                for rail in 0..2 {
                    let most = [300, 20_000][rng.index(2)];
                    at += micros(rng, 1, most);
                    let nic = rig.rail(rail)[rng.index(2)];
                    let failure = [Failure::NicDead, Failure::NicHung, Failure::LinkDown][rng.index(3)];
                    rig.world.after(at, move |w| w.fail(nic, failure));
                }
            },
        );
        out.assert_exact(seed);
    }
}

/// The standby comes and goes while the active rail fails.
#[test]
fn a_flapping_standby_moves_nothing_and_loses_nothing() {
    for seed in seeds(150) {
        let out = run(
            seed,
            2,
            1,
            config(),
            |p| p,
            |rig, rng| {
                let nic = rig.rail(1)[rng.index(2)];
                let mut at = Duration::ZERO;
                for _ in 0..20 {
                    at += micros(rng, 1, 60);
                    rig.world.after(at, move |w| w.set_link(nic, false));
                    at += micros(rng, 1, 60);
                    rig.world.after(at, move |w| w.set_link(nic, true));
                }
                if seed % 2 == 0 {
                    let after = micros(rng, 1, 400);
                    cut(rig, rng, 0, after);
                }
            },
        );
        out.assert_exact(seed);
        if seed % 2 == 1 {
            assert_eq!(
                (out.ended[0], out.moves[0]),
                ([None; 2], 0),
                "seed {seed}: the standby is not in use"
            );
            assert!(out.verdicts[0].iter().all(Verdict::is_complete), "seed {seed}");
        }
    }
}

/// Every link fails, one after another, and none comes back.
#[test]
fn when_every_rail_fails_every_end_ends_named() {
    for seed in seeds(150) {
        let out = run(
            seed,
            2,
            1,
            config(),
            |p| p,
            |rig, rng| {
                let mut at = Duration::ZERO;
                for rail in 0..2 {
                    let most = [20, 300, 5_000][rng.index(3)];
                    at += micros(rng, 1, most);
                    cut(rig, rng, rail, at);
                }
            },
        );
        out.assert_exact(seed);
        let finished = out.verdicts[0].iter().all(Verdict::is_complete);
        let named = out.ended[0].iter().all(Option::is_some);
        assert!(finished || named, "seed {seed}: {:?}", out.ended[0]);
    }
}

/// A host sleeps through the failure, and wakes when its peer has moved, is waiting, or has given up.
#[test]
fn a_host_that_sleeps_through_the_failure_wakes_in_an_old_epoch() {
    let mut given_up = 0;
    for seed in seeds(150) {
        let out = run(
            seed,
            2,
            1,
            config(),
            |p| p,
            |rig, rng| {
                let host = rig.hosts[rng.index(2)];
                let at = micros(rng, 1, 300);
                let most = [500, 8_000, 100_000, 600_000][rng.index(4)];
                let length = micros(rng, 100, most);
                rig.world.after(at, move |w| {
                    let until = w.now() + length;
                    w.pause(host, Some(until));
                });
                let cut_at = micros(rng, 1, 600);
                cut(rig, rng, 0, cut_at);
            },
        );
        out.assert_exact(seed);
        given_up += u32::from(out.ended[0].iter().any(Option::is_some));
    }
    println!("{given_up} ended");
}

/// Several vQPs over the same NICs: what one does to its rail (a reset even) leaves the others their word.
#[test]
fn several_queue_pairs_share_their_nics() {
    let cases: Vec<Case> = Case::all().into_iter().filter(|c| !c.breaks_promise()).collect();
    for seed in seeds(150) {
        let mut config = config();
        config.log = true;
        config.detector.misses = 40; // longer than the hosts' pauses: only one rail is to fail
        let case = cases[(seed as usize * 7) % cases.len()];
        let out = run(
            seed,
            2,
            3,
            config,
            |p| p,
            |rig, rng| {
                let nth = rng.between(1, 120) as u32;
                let rail = rig.rail(0);
                case.arm(&mut rig.world, rail, nth, None);
            },
        );
        out.assert_exact(seed);
        for ended in &out.ended {
            assert_eq!(*ended, [None; 2], "seed {seed}, {case}: {:?} {:?}", out.contradictions, out.causes);
        }
    }
}
