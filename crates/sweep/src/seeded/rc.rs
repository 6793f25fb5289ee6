//! RC queue pairs over one noisy link.

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mitra_verbs::{Error, LocalAckTimeout, Provider, WcStatus};

use super::faults::{draw_time, schedule_blink};
use super::parts::{Left, Reduced};
use super::{SeedRun, run_phases, verdict_findings};
use mitra_sim::workload::{PeerApp, Plan, RcOptions, WorkloadPeer, connect_rc, verify};
use mitra_sim::{Config, NicId, Prng, Testbed, World};
use mitra_sim::{RcFlow, RetryRules};

/// The number of operations of each end.
const OPS: usize = 60;

pub(super) struct RcWorld;

impl Reduced for RcWorld {
    fn run(seed: u64, left: &mut Left<'_>, kept_records: usize, result: &mut SeedRun) -> Result<(), Error> {
        let rng = &mut Prng::stream(seed, "seeded rc");
        let mut config = Config::swarm(seed);
        left.parts.operations = [OPS; 2];
        left.leave_out_noise(&mut config);
        config.capabilities.ack_after_placement = rng.below(2) == 0;
        config.capabilities.write_order = rng.below(3) != 0;
        let ordered = config.capabilities.write_order;
        let mut testbed = Testbed::from_world(World::with_trace_len(seed, config, kept_records), 1);
        let fences = &mut Prng::stream(seed, "seeded rc fences");
        let mut plans = [1, 2].map(|tag| {
            let overwritten_read_ppm = *fences.pick(&[0, 300_000, 1_000_000]);
            Plan { overwritten_read_ppm, ..Plan::draw(rng, tag, ordered, OPS) }
        });
        for (end, plan) in plans.iter_mut().enumerate() {
            plan.ops = left.reduction.operations_of(end, OPS);
        }
        let retries = &mut Prng::stream(seed, "seeded rc retries");
        let options = RcOptions::draw(rng).with_drawn_retries(retries);
        result.operations = plans.iter().map(|plan| plan.ops as u64).sum();
        let mut peers = [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
        let nics = testbed.nics.each_ref().map(|n| Arc::clone(&n[0]) as Arc<dyn Provider>);
        let endpoints = connect_rc(nics, peers.each_mut(), &options)?.map(|e| Rc::new(RefCell::new(e)));
        let peers = peers.map(|p| Rc::new(RefCell::new(p)));
        let addresses = [0, 1].map(|h| (testbed.nics[h][0].id(), endpoints[h].borrow().qpn));
        for h in 0..2 {
            let rules = retry_rules(&options, &testbed.world.config());
            let flow = RcFlow::new(addresses[h], addresses[1 - h], options.psns[h], rules);
            testbed.world.analyse_rc(flow);
            let app = PeerApp { peer: Rc::clone(&peers[h]), endpoint: Rc::clone(&endpoints[h]) };
            testbed.world.add_app(testbed.hosts[h], app);
        }
        let (rail, world) = (testbed.rail(0), &mut testbed.world);
        if world.test_rng("flaps").below(2) == 0 {
            schedule_flaps(world, rail, left);
        }
        result.faults = left.faults;
        let is_done = World::programs_are(|| peers.iter().all(|p| p.borrow().is_done()));
        let (safety, liveness) = (Duration::from_millis(40), Duration::from_secs(60));
        let ended = run_phases(world, is_done, safety, World::heal, liveness).and_then(|()| {
            world.heal();
            world.run_until_quiet()
        });
        result.must_reach("stuck", ended);
        // The hosts that were paused poll their last completions.
        world.run_for(Duration::from_millis(10));
        peers.iter().for_each(|peer| peer.borrow_mut().sweep());
        let failed = endpoints.each_ref().map(|e| e.borrow().failed);
        for wc in failed.iter().flatten().filter(|wc| is_refusal(wc.status)) {
            result.violation("refused", format!("a valid request ended as {wc:?}"));
        }
        for h in 0..2 {
            for (checker, text) in world.rc_findings(addresses[h], failed[h].map(|wc| wc.status)) {
                result.violation(checker, text);
            }
            let verdict =
                verify(&plans[h], peers[h].borrow().requester_log(), peers[1 - h].borrow().responder_log());
            result.findings.extend(verdict_findings::of_verdict(["a", "b"][h], &verdict));
            if failed == [None, None] && result.findings.is_empty() && !verdict.is_complete() {
                result.violation("incomplete", format!("no queue pair failed\n{verdict}"));
            }
        }
        result.keep_trace(world, kept_records, || {
            vec![format!("{options:?}, failed {failed:?}\n{plans:?}\n{:?}", world.config())]
        });
        Ok(())
    }
}

fn retry_rules(options: &RcOptions, config: &Config) -> RetryRules {
    let &RcOptions { mtu, retry_cnt, rnr_retry, .. } = options;
    let timeout = LocalAckTimeout::from_code(options.timeout).as_duration().unwrap_or(Duration::MAX);
    RetryRules { mtu, retry_cnt, rnr_retry, timeout, tuning: config.tuning }
}

/// Returns whether a queue pair or its peer has refused a request. The programs post only valid
/// requests.
fn is_refusal(status: WcStatus) -> bool {
    !matches!(status, WcStatus::RetryExceeded | WcStatus::RnrRetryExceeded | WcStatus::Flushed)
}

/// Schedules link failures. Some outlast the retries of a queue pair.
fn schedule_flaps(world: &mut World, nics: [NicId; 2], left: &mut Left<'_>) {
    let rng = &mut world.test_rng("flap times");
    let mut at = Duration::ZERO;
    for _ in 0..rng.between(1, 4) {
        let nic = *rng.pick(&nics);
        let down = at + draw_time(rng, 1, 100_000, 6);
        at = down + draw_time(rng, 1, 100_000, 8);
        if left.keeps_next_fault() {
            schedule_blink(world, nic, down, at);
        }
    }
}
