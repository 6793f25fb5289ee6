//! A rail fails while a switch holds one of its packets back. The packet arrives when the failover
//! is over.

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{CompletionLogConfig, Config as VqpConfig, Policy};
use mitra_verbs::Provider;

use super::faults::draw_time;
use super::{SeedRun, verdict_findings};
use mitra_sim::workload::{OpKind, PeerApp, Plan, WorkloadPeer, connect_vqp, verify};
use mitra_sim::{App, AppContext, Config, DurationRange, Failure, Prng, Stage, Testbed, World};

/// The number of operations of the end that posts.
const OPS: usize = 60;
/// The limit of the run, far above the time of a failover.
const LIMIT: Duration = Duration::from_secs(20);
/// The time after which the packet has arrived. It exceeds the longest hold.
const SETTLED: Duration = Duration::from_millis(200);

/// The draws of a seed. The policy is not among them, so each policy meets the same world.
struct Scene {
    world: Config,
    vqp: VqpConfig,
    plan: Plan,
    /// The number of the request that is held back.
    nth: u32,
    hold: Duration,
}

impl Scene {
    fn draw(seed: u64) -> Scene {
        let rng = &mut Prng::stream(seed, "late packet");
        let mut world = Config::swarm(seed).without_noise();
        // The packet is already behind the cable that fails.
        (world.link.switched, world.link.survivor_ppm) = (true, 1_000_000);
        world.link.straggler_delay = DurationRange::micros(1, 100);
        let kinds = [OpKind::Write, OpKind::FetchAdd];
        let plan = Plan { depth: rng.between(1, 32) as usize, ..Plan::new(rng.bits(), OPS) }.only(&kinds);
        let completion_log = (rng.below(2) == 0).then(CompletionLogConfig::default);
        let vqp = VqpConfig { completion_log, ..VqpConfig::default() };
        let (nth, hold) = (rng.between(1, 40) as u32, draw_time(rng, 1_000, 1_000_000, 8));
        Scene { world, vqp, plan, nth, hold }
    }
}

pub(super) fn run(policy: Policy, seed: u64, kept_records: usize) -> SeedRun {
    let Scene { world, vqp, plan, nth, hold } = Scene::draw(seed);
    let vqp = VqpConfig { policy, ..vqp };
    SeedRun::of(|result| {
        let mut testbed = Testbed::from_world(World::with_trace_len(seed, world, kept_records), 2);
        let plans = [plan, Plan { tag: 2, ..Plan::new(seed, 0) }];
        let mut peers = [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
        let nics =
            [0, 1].map(|h| testbed.nics[h].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect());
        let ends = connect_vqp(nics, peers.each_mut(), vqp, seed)?.map(|end| Rc::new(RefCell::new(end)));
        let peers = peers.map(|peer| Rc::new(RefCell::new(peer)));
        let stop = Rc::new(Cell::new(false));
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
        let [requester, _] = testbed.rail(0);
        let link = [(requester, Failure::LinkDown)];
        testbed.world.fail_at_stage(requester, Stage::RequestOnWire, nth, &link, Some(hold));
        let is_done = World::programs_are(|| peers.iter().all(|peer| peer.borrow().is_done()));
        let world = &mut testbed.world;
        result.must_reach("stuck", world.run_until(is_done, LIMIT));
        // The responder's program looks at its memory before and after the packet arrives.
        world.run_for(Duration::from_millis(2));
        stop.set(true);
        world.run_for(SETTLED);
        peers.iter().for_each(|peer| peer.borrow_mut().sweep());
        (result.operations, result.faults) = (OPS as u64, 1);
        let [a, b] = peers.each_ref().map(|peer| peer.borrow());
        let verdict = verify(&plans[0], a.requester_log(), b.responder_log());
        result.findings.extend(verdict_findings::of_verdict("a", &verdict));
        // Only a link fails, so the evidence decides every operation.
        if result.findings.is_empty() && !verdict.is_complete() {
            result.violation("incomplete", verdict.to_string());
        }
        result.keep_trace(world, kept_records, || {
            vec![
                format!("request {nth} is held back for {hold:?}"),
                format!("{vqp:?}\n{:?}\n{:?}", plans[0], world.config()),
            ]
        });
        if kept_records > 0 {
            result.schedule = vec![format!("the link of rail 0 fails at request {nth}, held for {hold:?}")];
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait of the baseline `delay`.
    const WAIT: Duration = Duration::from_millis(10);

    #[test]
    fn only_a_packet_later_than_the_wait_is_executed_twice() {
        let mut doubled = 0;
        for seed in 0..200 {
            let (hold, found) = (Scene::draw(seed).hold, run(Policy::Delay, seed, 0).findings);
            let checkers: Vec<_> = found.iter().map(|finding| finding.checker).collect();
            match &checkers[..] {
                [] => {}
                ["doubled"] if hold > WAIT => doubled += 1,
                _ => panic!("seed {seed}: {found:?} after {hold:?}"),
            }
        }
        assert!(doubled > 0, "no seed broke the baseline");
    }
}
