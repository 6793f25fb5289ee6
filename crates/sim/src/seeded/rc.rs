//! RC queue pairs over one noisy link.

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mitra_verbs::{LocalAckTimeout, Provider, WcStatus};

use super::parts::{FaultNumbers, Parts, Reduced, leave_out_noise};
use super::{Finding, Reduction, SeedRun, verdict_findings};
use crate::rc_flow::{RcFlow, RetryRules};
use crate::workload::{PeerApp, Plan, RcOptions, WorkloadPeer, connect_rc, verify};
use crate::{Config, Prng, Testbed, World};

/// The number of operations that each end posts.
const OPS: usize = 60;

/// The workload.
pub(super) struct RcWorld;

impl Reduced for RcWorld {
    fn run(seed: u64, reduction: &Reduction, kept_records: usize) -> (SeedRun, Parts) {
        run_reduced(seed, reduction, kept_records)
    }
}

/// Runs the world of a seed.
pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    run_reduced(seed, &Reduction::default(), kept_records).0
}

fn run_reduced(seed: u64, reduction: &Reduction, kept_records: usize) -> (SeedRun, Parts) {
    let rng = &mut Prng::stream(seed, "seeded rc");
    let mut config = Config::swarm(seed);
    let mut parts = Parts { operations: [OPS; 2], ..Parts::default() };
    parts.extras = leave_out_noise(&mut config, reduction);
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
        plan.ops = reduction.operations_of(end, OPS);
    }
    let retries = &mut Prng::stream(seed, "seeded rc retries");
    let options = RcOptions::draw(rng).with_drawn_retries(retries);
    let operations = plans.iter().map(|plan| plan.ops as u64).sum();
    let mut result = SeedRun { operations, ..SeedRun::default() };
    let mut peers = [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
    let nics = testbed.nics.each_ref().map(|n| Arc::clone(&n[0]) as Arc<dyn Provider>);
    let endpoints = match connect_rc(nics, peers.each_mut(), &options) {
        Ok(endpoints) => endpoints.map(|e| Rc::new(RefCell::new(e))),
        Err(e) => {
            result.findings.push(Finding::violation("connect", e.to_string()));
            return (result, parts);
        }
    };
    let peers = peers.map(|p| Rc::new(RefCell::new(p)));
    let addresses = [0, 1].map(|h| (testbed.nics[h][0].id().0, endpoints[h].borrow().qpn));
    for h in 0..2 {
        let rules = retry_rules(&options, &testbed.world.config());
        let flow = RcFlow::new(addresses[h], addresses[1 - h], options.psns[h], rules);
        testbed.world.analyse_rc(flow);
        let app = PeerApp { peer: Rc::clone(&peers[h]), endpoint: Rc::clone(&endpoints[h]) };
        testbed.world.add_app(testbed.hosts[h], app);
    }
    let world = &mut testbed.world;
    if world.test_rng("flaps").below(2) == 0 {
        let mut faults = FaultNumbers::new(reduction);
        schedule_flaps(world, testbed.nics.each_ref().map(|n| n[0].id()), &mut faults);
        (parts.faults, result.faults) = (faults.drawn(), faults.kept());
    }
    let done = || World::programs_are(|| peers.iter().all(|p| p.borrow().is_done()));
    let ended = world.run_until(done(), Duration::from_millis(40)).or_else(|_| {
        world.heal();
        world.run_until(done(), Duration::from_secs(60))
    });
    let ended = ended.and_then(|()| {
        world.heal();
        world.run_until_quiet()
    });
    if let Err(stalled) = ended {
        result.findings.push(Finding::stuck("stuck", stalled.state));
    }
    // The resumed hosts poll their last completions.
    world.run_for(Duration::from_millis(10));
    peers.iter().for_each(|peer| peer.borrow_mut().sweep());
    let failed = endpoints.each_ref().map(|e| e.borrow().failed);
    for wc in failed.iter().flatten().filter(|wc| is_refusal(wc.status)) {
        result.findings.push(Finding::violation("refused", format!("a valid request ended as {wc:?}")));
    }
    for h in 0..2 {
        let violated = world.rc_findings(addresses[h], failed[h].map(|wc| wc.status));
        result.findings.extend(violated.into_iter().map(|(checker, text)| Finding::violation(checker, text)));
        let verdict =
            verify(&plans[h], peers[h].borrow().requester_log(), peers[1 - h].borrow().responder_log());
        result.findings.extend(verdict_findings::of_verdict(["a", "b"][h], &verdict));
        if failed == [None, None] && result.findings.is_empty() && !verdict.is_complete() {
            result
                .findings
                .push(Finding::violation("incomplete", format!("no queue pair failed\n{verdict}")));
        }
    }
    if kept_records > 0 {
        result.setup.push(format!("{options:?}, failed {failed:?}\n{plans:?}\n{:?}", world.config()));
    }
    result.keep_trace(world, kept_records);
    (result, parts)
}

fn retry_rules(options: &RcOptions, config: &Config) -> RetryRules {
    let &RcOptions { mtu, retry_cnt, rnr_retry, .. } = options;
    let timeout = LocalAckTimeout::from_code(options.timeout).as_duration().unwrap_or(Duration::MAX);
    RetryRules { mtu, retry_cnt, rnr_retry, timeout, tuning: config.tuning }
}

/// Returns whether a queue pair or its peer has refused a request. The programs post valid requests
/// only.
fn is_refusal(status: WcStatus) -> bool {
    !matches!(status, WcStatus::RetryExceeded | WcStatus::RnrRetryExceeded | WcStatus::Flushed)
}

/// Schedules link failures that are short enough for the retries of a queue pair, or not.
fn schedule_flaps(world: &mut World, nics: [crate::NicId; 2], faults: &mut FaultNumbers<'_>) {
    let rng = &mut world.test_rng("flap times");
    let mut at = Duration::ZERO;
    for _ in 0..rng.between(1, 4) {
        let nic = *rng.pick(&nics);
        let down = at + random_time(rng, 6);
        at = down + random_time(rng, 8);
        if faults.keeps_next() {
            world.after(down, move |w| w.set_link(nic, false));
            world.after(at, move |w| w.set_link(nic, true));
        }
    }
}

/// Returns a time below 0.1 ms · 2^`doublings`; short times are as frequent as long ones.
fn random_time(rng: &mut Prng, doublings: u64) -> Duration {
    let limit = 100_000 << rng.below(doublings);
    Duration::from_nanos(rng.between(1, limit))
}
