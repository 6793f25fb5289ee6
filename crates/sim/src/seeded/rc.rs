//! RC queue pairs over one noisy link.

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use mitra_verbs::Provider;

use super::{Finding, SeedRun, verdict_findings};
use crate::workload::{Plan, RcOptions, WorkloadPeer, connect_rc, verify};
use crate::{Config, PeerApp, Prng, Testbed, World};

/// The number of operations that each end posts.
const OPS: usize = 60;

/// Runs the world of a seed.
pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    let rng = &mut Prng::stream(seed, "seeded rc");
    let mut config = Config::swarm(seed);
    config.capabilities.ack_after_placement = rng.below(2) == 0;
    config.capabilities.write_order = rng.below(3) != 0;
    let ordered = config.capabilities.write_order;
    let mut testbed = Testbed::from_world(World::with_trace_len(seed, config, kept_records), 1);
    let plans = [1, 2].map(|tag| Plan::draw(rng, tag, ordered, OPS));
    let options = RcOptions::draw(rng);
    let mut result = SeedRun { operations: 2 * OPS as u64, ..SeedRun::default() };
    let mut peers = [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
    let nics = testbed.nics.each_ref().map(|n| Arc::clone(&n[0]) as Arc<dyn Provider>);
    let endpoints = match connect_rc(nics, peers.each_mut(), &options) {
        Ok(endpoints) => endpoints.map(|e| Rc::new(RefCell::new(e))),
        Err(e) => {
            result.findings.push(Finding::violation("connect", e.to_string()));
            return result;
        }
    };
    let peers = peers.map(|p| Rc::new(RefCell::new(p)));
    for h in 0..2 {
        let app = PeerApp { peer: Rc::clone(&peers[h]), endpoint: Rc::clone(&endpoints[h]) };
        testbed.world.add_app(testbed.hosts[h], app);
    }
    let world = &mut testbed.world;
    if world.test_rng("flaps").below(2) == 0 {
        result.faults = schedule_flaps(world, testbed.nics.each_ref().map(|n| n[0].id()));
    }
    let done = |_: &World| peers.iter().all(|p| p.borrow().is_done());
    let ended = world.run_until(done, Duration::from_millis(40)).or_else(|_| {
        world.heal();
        world.run_until(done, Duration::from_secs(60))
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
    for h in 0..2 {
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
        result.trace.push(format!("{options:?}, failed {failed:?}\n{plans:?}\n{:?}", world.config()));
        result.trace.extend(world.trace_tail(kept_records));
    }
    result
}

/// Schedules link failures that are short enough for the retries of a queue pair, or not. Returns their number.
fn schedule_flaps(world: &mut World, nics: [crate::NicId; 2]) -> u64 {
    let rng = &mut world.test_rng("flap times");
    let mut at = Duration::ZERO;
    let flaps = rng.between(1, 4);
    for _ in 0..flaps {
        let nic = *rng.pick(&nics);
        at += random_time(rng, 6);
        world.after(at, move |w| w.set_link(nic, false));
        at += random_time(rng, 8);
        world.after(at, move |w| w.set_link(nic, true));
    }
    flaps
}

/// Returns a time below 0.1 ms · 2^`doublings`; short times are as frequent as long ones.
fn random_time(rng: &mut Prng, doublings: u64) -> Duration {
    let limit = 100_000 << rng.below(doublings);
    Duration::from_nanos(rng.between(1, limit))
}
