//! Virtual queue pairs over failing rails: every stage × failure × kind of operation, judged by an oracle that shares
//! nothing with them.

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{
    CloseReason, Config, Contradiction, Fencing, Outcome, Policy, UnresolvedError, WritePolicy,
};
use mitra_sim::workload::{Kind, Party, Plan, Verdict, VqpEndpoint, connect_vqp, judge};
use mitra_sim::{App, Case, Ctx, PartyApp, Rig, Stage, What, seeds};
use mitra_verbs::Provider;

/// What a run was like.
struct Run {
    /// The requester's and the responder's end.
    ends: [Rc<RefCell<VqpEndpoint>>; 2],
    /// Of the requester's operations, and of the responder's.
    verdicts: [Verdict; 2],
    /// Whether the failure struck while there was something to strike.
    struck: bool,
}

#[derive(Clone, Copy)]
struct Setup {
    config: Config,
    ops: usize,
    /// Whether the responder posts operations of its own.
    both_ways: bool,
    honest_ack: bool,
}

impl Setup {
    fn exact() -> Setup {
        let mut config = Config::default();
        config.detector.local_ack_timeout = mitra_verbs::LocalAckTimeout::from_code(9);
        config.detector.heartbeat_interval = Duration::from_millis(1);
        config.detector.max_missed_heartbeats = 8;
        config.send_wrs = 64;
        config.recv_wrs = 64;
        config.rnr_retry = 7;
        Setup { config, ops: 80, both_ways: true, honest_ack: true }
    }
}

fn run(seed: u64, case: Option<Case>, setup: Setup, tune: impl FnOnce(&mut mitra_sim::Config)) -> Run {
    run_holding(seed, case, setup, None, tune)
}

/// `hold`: a packet that the failure takes arrives so much later instead.
fn run_holding(
    seed: u64,
    case: Option<Case>,
    setup: Setup,
    hold: Option<Duration>,
    tune: impl FnOnce(&mut mitra_sim::Config),
) -> Run {
    let mut config = mitra_sim::Config::swarm(seed);
    config.capabilities.ack_after_placement = setup.honest_ack;
    tune(&mut config);
    let mut rig = Rig::with(seed, config, 2);
    let mut plans = [Plan::new(seed, setup.ops), Plan::new(seed + 1_000_000, setup.ops / 2)];
    plans[1].tag = 2;
    if !setup.both_ways {
        plans[1].ops = 0;
    }
    if let Some(case) = case {
        plans[0] = plans[0].clone().only(&[case.kind]);
        // The responder's own operations must not be counted by the trigger.
        plans[1].ops = 0;
    }
    let mut parties = [Party::new(&plans[0], &plans[1]), Party::new(&plans[1], &plans[0])];
    let nics = [0, 1].map(|h| rig.nics[h].iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect());
    let [first, second] = &mut parties;
    let endpoints = connect_vqp(nics, [first, second], setup.config, seed).expect("connect");
    let parties = parties.map(|p| Rc::new(RefCell::new(p)));
    let ends = endpoints.map(|e| Rc::new(RefCell::new(e)));
    let stopped = Rc::new(Cell::new(false));
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
    let mut rng = rig.world.rng("failover");
    let mut at = None;
    match case {
        Some(case) => {
            let nth = rng.between(1, 40) as u32;
            let rail = rig.rail(0);
            at = Some(case.arm(&mut rig.world, rail, nth, hold));
        }
        None => {
            let nic = rig.rail(0)[rng.index(2)];
            let time = Duration::from_nanos(rng.between(1_000, 400_000));
            rig.world.after(time, move |w| w.set_link(nic, false));
        }
    }
    let done = |_: &mitra_sim::World| parties.iter().all(|p| p.borrow().is_done());
    let most = Duration::from_secs(3);
    if rig.world.run_until(done, most).is_err() {
        rig.world.heal();
        if let Err(stuck) = rig.world.run_until(done, Duration::from_secs(20)) {
            for end in &ends {
                eprintln!("{:?}", end.borrow().vqp);
            }
            panic!("{stuck}");
        }
    }
    let struck = at.is_none_or(|nic| rig.world.struck(nic));
    // What is still under way arrives; nothing may come of it.
    let late = rig.world.config().wire.straggler_ppm > 0 || rig.world.config().wire.survivor_ppm > 0;
    let quiet = if late { Duration::from_millis(1100) } else { Duration::from_millis(5) };
    rig.world.run_for(Duration::from_millis(20)); // the receiving end takes what has arrived
    stopped.set(true);
    rig.world.run_for(quiet.max(hold.unwrap_or_default() * 2));
    for p in &parties {
        p.borrow_mut().sweep();
    }
    let [a, b] = [parties[0].borrow(), parties[1].borrow()];
    let verdicts = [judge(&plans[0], a.asked(), b.seen()), judge(&plans[1], b.asked(), a.seen())];
    Run { ends, verdicts, struck }
}

fn assert_exact(seed: u64, what: &str, run: &Run) {
    for v in &run.verdicts {
        assert!(v.is_exact(), "seed {seed}, {what}:\n{v}\n{}", mitra_sim::reproduce(seed));
    }
}

/// Where the table promises exactly once, every operation succeeds: no error, named or not.
fn assert_complete(seed: u64, what: &str, run: &Run) {
    assert_exact(seed, what, run);
    for (v, end) in run.verdicts.iter().zip(&run.ends) {
        let end = end.borrow();
        assert!(
            v.is_complete(),
            "seed {seed}, {what}: {:?} {:?}\n{v}\n{:?}\n{}",
            end.vqp.close_reason(),
            end.vqp.contradiction(),
            end.failures,
            mitra_sim::reproduce(seed)
        );
    }
}

#[test]
fn a_lost_link_loses_nothing_and_doubles_nothing() {
    for seed in seeds(300) {
        let run = run(seed, None, Setup::exact(), |_| {});
        assert_complete(seed, "link", &run);
    }
}

#[test]
fn with_the_log_too() {
    for seed in seeds(300) {
        let mut setup = Setup::exact();
        setup.config.completion_log = true;
        let run = run(seed, None, setup, |_| {});
        assert_complete(seed, "link, with log", &run);
    }
}

/// Row by row of the promise table.
#[test]
fn every_stage_failure_and_kind_keeps_the_table() {
    let cases: Vec<Case> = Case::all().into_iter().filter(|c| !c.breaks_promise()).collect();
    let rounds = 1_400_u64.div_ceil(cases.len() as u64);
    let mut struck: BTreeMap<(u8, String), u32> = BTreeMap::new();
    for seed in seeds(rounds * cases.len() as u64) {
        let case = cases[(seed % cases.len() as u64) as usize];
        let mut setup = Setup::exact();
        setup.config.completion_log = true;
        if seed % 3 == 0 {
            setup.config.write_policy = WritePolicy::Repeatable;
        }
        let run = run(seed, Some(case), setup, |_| {});
        let what = case.to_string();
        if run.struck {
            *struck.entry((case.stage.number(), format!("{:?}", case.what))).or_default() += 1;
        }
        // Who declares a WRITE repeatable, and consumes its target all the same, may see the one at the edge twice.
        let repeated = setup.config.write_policy == WritePolicy::Repeatable
            && matches!(case.kind, Kind::Write | Kind::Block | Kind::WriteImm)
            && matches!(case.what, What::Responder | What::Both | What::ResponderHung);
        if repeated {
            let total = run.verdicts[0].total();
            let others = (total.lost, total.wrong_value, total.out_of_order, run.verdicts[0].strays);
            assert!(total.doubled <= 1 && others == (0, 0, 0, 0), "seed {seed}, {what}: {}", run.verdicts[0]);
        } else {
            assert_exact(seed, &what, &run);
        }
        match case.what {
            What::Link | What::Requester | What::RequesterHung => assert_complete(seed, &what, &run),
            What::Responder | What::Both | What::ResponderHung => {
                let end = run.ends[0].borrow();
                let indeterminate = end
                    .failures
                    .iter()
                    .filter(|c| c.outcome == Outcome::Unresolved(UnresolvedError::Indeterminate))
                    .count();
                assert!(indeterminate <= 1, "seed {seed}, {what}: {:?}", end.failures);
                assert_eq!(
                    end.vqp.close_reason(),
                    None,
                    "seed {seed}, {what}: {:?}",
                    end.vqp.contradiction()
                );
                let never_fails = matches!(case.kind, Kind::Send | Kind::Read)
                    || setup.config.write_policy == WritePolicy::Repeatable
                        && matches!(case.kind, Kind::Write | Kind::Block | Kind::WriteImm);
                if never_fails {
                    assert!(end.failures.is_empty(), "seed {seed}, {what}: {:?}", end.failures);
                }
            }
        }
    }
    println!("struck: {struck:?}");
}

/// A NIC that acknowledges before it places, and dies in between: the loss is found and named.
#[test]
fn what_was_acknowledged_and_never_placed_is_reported() {
    let mut found = 0;
    let cases: Vec<Case> = Case::all()
        .into_iter()
        .filter(|c| c.breaks_promise() && matches!(c.what, What::Responder | What::Both))
        .collect();
    for seed in seeds(20 * cases.len() as u64) {
        let case = cases[(seed % cases.len() as u64) as usize];
        let mut setup = Setup { honest_ack: false, ..Setup::exact() };
        setup.config.completion_log = true;
        let run = run(seed, Some(case), setup, |_| {});
        let end = run.ends[0].borrow();
        match (end.vqp.close_reason(), end.vqp.contradiction()) {
            (Some(CloseReason::Contradiction), Some(Contradiction::LostAfterAck { .. })) => found += 1,
            (None, None) => assert_exact(seed, &case.to_string(), &run),
            // The responder's end may have met it first, and closed.
            (Some(CloseReason::PeerClosed), _) if run.ends[1].borrow().vqp.contradiction().is_some() => {}
            other => panic!("seed {seed}, {case}: {other:?}, {:?}", run.ends[1].borrow().vqp.close_reason()),
        }
    }
    assert!(found > 0, "no seed lost anything after its acknowledgement");
}

/// What the fence is for: without it some delayed packet executes after the evidence was read.
#[test]
fn without_the_fence_a_delayed_packet_executes_twice() {
    let mut doubled = 0;
    for seed in seeds(60) {
        let kind = if seed % 2 == 0 { Kind::FetchAdd } else { Kind::Write };
        let case = Case { stage: Stage::RequestOnWire, what: What::Link, kind };
        let hold = Some(Duration::from_millis(80));
        let calm = |c: &mut mitra_sim::Config| {
            *c = mitra_sim::Config::calm();
            c.wire.survivor_ppm = 1_000_000;
        };
        let mut setup = Setup::exact();
        setup.config.fencing = Fencing::Off;
        let without = run_holding(seed, Some(case), setup, hold, calm);
        doubled += without.verdicts.iter().map(|v| v.total().doubled).sum::<u64>();
        let with = run_holding(seed, Some(case), Setup::exact(), hold, calm);
        assert_complete(seed, "with the fence", &with);
    }
    assert!(doubled > 0, "no seed doubled anything without the fence");
}

/// The baseline that sends everything again corrupts, and the judge sees it.
#[test]
fn blanket_doubles() {
    let mut doubled = 0;
    for seed in seeds(40) {
        let mut setup = Setup::exact();
        setup.config.policy = Policy::Blanket;
        let run = run(seed, None, setup, |_| {});
        doubled += run.verdicts.iter().map(|v| v.total().doubled).sum::<u64>();
    }
    assert!(doubled > 0);
}
