//! Virtual queue pairs, and queue pairs with a shared backup, under faults.
//!
//! Two processes post operations to each other over one to eight rails: over one vQP, over two XRC connections, or over one to eight queue pairs with a shared backup. In the safety phase, links, NICs and hosts fail. Then all
//! links come up, noise stops, the programs run, and they post the operations that they held back.

mod backed_options;
mod checks;
mod fault_schedule;
mod focus;
mod injection;
mod setup;

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{Domain, Secret, VirtualQp};
use mitra_verbs::{Error, Provider};

use super::{Finding, SeedRun};
use crate::workload::{FailoverEndpoint, FailoverQp, WorkloadPeer, XrcEnd, exchange_memory, virtual_qps};
use crate::{AppContext, HostId, SimNic, World};

use backed_options::{EndQp, connect_backed, exchange_windows};
use fault_schedule::{FaultSchedule, LONGEST_HOLD};
use setup::{Polling, Setup};

/// The time after the last fault within which everything must have ended. It exceeds `peer_timeout` and all retries of a queue pair many times.
const LIVENESS_LIMIT: Duration = Duration::from_secs(20);

/// One end of the world.
struct End<Q> {
    peer: WorkloadPeer,
    endpoint: FailoverEndpoint<Q>,
    /// The operations that ended so far, for the check that each success has its effect at once.
    checked: usize,
    /// Operations whose success was reported before their effect was in memory.
    early: Vec<String>,
}

/// The ends of a connection.
type Ends<Q> = [Rc<RefCell<End<Q>>>; 2];

/// Makes the connections of a world.
type Connect<Q> = fn(&Setup, [Arc<Domain>; 2]) -> Result<Vec<[EndQp<Q>; 2]>, Error>;

/// A world of the workload.
struct FailoverWorld<Q> {
    world: World,
    hosts: [HostId; 2],
    setup: Setup,
    schedule: FaultSchedule,
    nics: [Vec<Arc<SimNic>>; 2],
    connections: Vec<Ends<Q>>,
    stop: Rc<Cell<bool>>,
    faults: Rc<Cell<u64>>,
}

/// Runs the world of a seed.
pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    let setup = Setup::draw(seed);
    match setup.xrc_queues {
        _ if setup.has_shared_backup => run_world(seed, setup, kept_records, connect_backed),
        Some(_) => run_world(seed, setup, kept_records, connect_xrc),
        None => run_world(seed, setup, kept_records, connect_vqps),
    }
}

fn run_world<Q: FailoverQp + 'static>(
    seed: u64,
    setup: Setup,
    kept_records: usize,
    connect: Connect<Q>,
) -> SeedRun {
    let schedule = FaultSchedule::draw(seed, &setup);
    let mut result = SeedRun::default();
    match FailoverWorld::new(seed, setup, schedule, kept_records, connect) {
        Ok(mut world) => {
            world.run(&mut result);
            if kept_records > 0 {
                result.trace = world.describe(kept_records);
            }
        }
        Err(e) => result.findings.push(Finding::violation("connect", e.to_string())),
    }
    result
}

fn connect_vqps(setup: &Setup, domains: [Arc<Domain>; 2]) -> Result<Vec<[EndQp<VirtualQp>; 2]>, Error> {
    let qps = virtual_qps(domains, setup.vqp, setup.secrets.map(Secret::fixed))?;
    Ok(vec![qps.map(|qp| (qp, None))])
}

fn connect_xrc(setup: &Setup, domains: [Arc<Domain>; 2]) -> Result<Vec<[EndQp<XrcEnd>; 2]>, Error> {
    let other_way = |[first, second]: [u64; 2]| [first ^ 1 << 63, second];
    let secrets = [setup.secrets, setup.secrets.map(other_way)].map(|ends| ends.map(Secret::fixed));
    let queues = setup.xrc_queues.unwrap_or(1);
    Ok(vec![XrcEnd::pair(domains, setup.vqp, secrets, queues)?.map(|qp| (qp, None))])
}

impl<Q: FailoverQp + 'static> FailoverWorld<Q> {
    fn new(
        seed: u64,
        setup: Setup,
        schedule: FaultSchedule,
        kept_records: usize,
        connect: Connect<Q>,
    ) -> Result<FailoverWorld<Q>, Error> {
        let mut world = World::with_trace_len(seed, setup.world.clone(), kept_records);
        let hosts = ["a", "b"].map(|name| world.add_host(name));
        let mut nics = [Vec::new(), Vec::new()];
        for (number, rail) in setup.rails.iter().enumerate() {
            world.set_rail_link(number as u8, rail.link);
            for (h, &host) in hosts.iter().enumerate() {
                nics[h].push(world.add_nic_with_mtu(host, number as u8, rail.capabilities[h], rail.mtu[h]));
            }
        }
        let domain = |nics: &Vec<Arc<SimNic>>| {
            Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())
        };
        let qps = connect(&setup, [domain(&nics[0])?, domain(&nics[1])?])?;
        let mut connections = Vec::new();
        for (i, [(mut a, queue_a), (mut b, queue_b)]) in qps.into_iter().enumerate() {
            let plans = &setup.plans[i];
            let mut peers =
                [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
            let ends = [&mut a, &mut b];
            match setup.backed_options.and_then(|options| options.windows) {
                Some(windows) => exchange_windows(&mut world, ends, peers.each_mut(), windows)?,
                None => exchange_memory(ends, peers.each_mut())?,
            }
            let mut held_back = setup.held_back[i].into_iter();
            let mut end = |mut peer: WorkloadPeer, (qp, shared_receives): EndQp<Q>| {
                let mut endpoint = FailoverEndpoint::new(qp);
                endpoint.shared_receives = shared_receives;
                peer.hold_back(held_back.next().unwrap_or(0));
                if setup.receives_posted_ahead {
                    peer.post_receives(&mut endpoint);
                }
                Rc::new(RefCell::new(End { peer, endpoint, checked: 0, early: Vec::new() }))
            };
            let [first, second] = peers;
            connections.push([end(first, (a, queue_a)), end(second, (b, queue_b))]);
        }
        let mut made = FailoverWorld {
            world,
            hosts,
            setup,
            schedule,
            nics,
            connections,
            stop: Rc::default(),
            faults: Rc::default(),
        };
        for ends in made.connections.clone() {
            for (h, host) in hosts.into_iter().enumerate() {
                made.add_program(&ends, h, host);
            }
        }
        made.inject_faults(hosts);
        Ok(made)
    }

    /// Adds the program of an end.
    fn add_program(&mut self, ends: &Ends<Q>, h: usize, host: HostId) {
        let [own, other] = [Rc::clone(&ends[h]), Rc::clone(&ends[1 - h])];
        let stop = Rc::clone(&self.stop);
        let polling = self.setup.polling[h];
        // Elsewhere, the responder may acknowledge data that is not in memory yet.
        let checks_effects = self.setup.vqp.durable || self.setup.nics().all(|nic| nic.ack_after_placement);
        let mut last_poll = mitra_verbs::Time::ZERO;
        self.world.add_app(host, move |ctx: &mut AppContext<'_>| {
            if stop.get() {
                return ctx.exit();
            }
            let own = &mut *own.borrow_mut();
            let now = ctx.now();
            let is_poll_due = match polling {
                Polling::Always => true,
                Polling::CompletionsOnly(interval) => now.saturating_since(last_poll) >= interval,
            };
            own.endpoint.takes_completions_only = !is_poll_due;
            if is_poll_due {
                last_poll = now;
            }
            if own.peer.step(&mut own.endpoint) {
                ctx.mark_active();
            }
            if checks_effects {
                own.check_effects(&other.borrow().peer, h);
            }
        });
    }

    fn run(&mut self, result: &mut SeedRun) {
        let ends: Vec<_> = self.connections.iter().flatten().map(Rc::clone).collect();
        let done = {
            let ends = ends.clone();
            move |_: &World| ends.iter().all(|end| end.borrow().peer.is_done())
        };
        // The safety phase. It ends when the faults have happened and all operations that are not held back have ended, or at its limit.
        let limit = self.schedule.end + Duration::from_millis(50);
        let faults_end = self.schedule.end;
        let all_done = |world: &World| {
            world.now().saturating_since(mitra_verbs::Time::ZERO) >= faults_end && done(world)
        };
        let _ = self.world.run_until(all_done, limit); // unfinished operations end in the liveness phase
        self.stop_faults();
        for end in &ends {
            end.borrow_mut().peer.hold_back(0);
        }
        if let Err(stalled) = self.world.run_until(&done, LIVENESS_LIMIT) {
            let stuck = ends.iter().filter(|end| !end.borrow().peer.is_done());
            let qps: Vec<_> = stuck.map(|end| format!("{:?}", end.borrow().endpoint.qp)).collect();
            result.findings.push(Finding::stuck("stuck", format!("{}\n{}", qps.join(" "), stalled.state)));
        }
        // A message that was reported as executed is received, if the receiver does not close.
        let connections = self.connections.clone();
        let received = move |_: &World| {
            connections.iter().all(|ends| {
                let [a, b] = ends.each_ref().map(|end| end.borrow());
                a.has_received_from(&b) && b.has_received_from(&a)
            })
        };
        if let Err(stalled) = self.world.run_until(received, LIVENESS_LIMIT) {
            result.findings.push(Finding::stuck("not-received", stalled.state));
        }
        for ends in self.connections.clone() {
            self.check_that_both_ends_close(ends, result);
        }
        // Both programs consume what has arrived.
        self.world.run_for(Duration::from_millis(2));
        self.stop.set(true);
        self.world.run_for(LONGEST_HOLD + Duration::from_millis(2)); // held packets arrive
        if let Err(stalled) = self.world.run_until_quiet() {
            result.findings.push(Finding::stuck("packets", stalled.state));
        }
        for end in &ends {
            end.borrow_mut().peer.sweep();
        }
        result.operations = ends.iter().map(|end| end.borrow().peer.posted() as u64).sum();
        result.faults = self.faults.get();
        (0..self.connections.len()).for_each(|connection| self.check(connection, result));
    }

    /// Checks that the other end of a connection that has closed closes too.
    fn check_that_both_ends_close(&mut self, ends: Ends<Q>, result: &mut SeedRun) {
        let reasons = |ends: &Ends<Q>| ends.each_ref().map(|end| end.borrow().endpoint.qp.close_reason());
        if reasons(&ends) == [None; 2] {
            return;
        }
        // An end without heartbeats and requests has no reason to ask whether its peer is alive.
        let detects = self.setup.vqp.detector.max_missed_heartbeats > 0;
        let both = |_: &World| !reasons(&ends).contains(&None);
        let closed = self.world.run_until(both, LIVENESS_LIMIT);
        if let (Err(stalled), true) = (closed, detects) {
            let [a, b] = reasons(&ends);
            let detail = format!("one end closed, the other does not notice: {a:?} {b:?}\n{}", stalled.state);
            result.findings.push(Finding::stuck("half-open", detail));
        }
    }

    /// Describes what the seed drew and what happened, with the last records of the trace.
    fn describe(&self, kept_records: usize) -> Vec<String> {
        let Setup { rails, vqp, plans, polling, held_back, focus, .. } = &self.setup;
        let mut lines = vec![format!("{:?}", self.world.config())];
        lines.extend(rails.iter().enumerate().map(|(i, rail)| format!("rail {i}: {rail:?}")));
        lines.push(format!("{vqp:?}"));
        lines.extend(plans.iter().flatten().map(|plan| format!("{plan:?}")));
        lines.push(format!(
            "{polling:?}, held back {held_back:?}, focus {focus:?}, receives posted ahead {}, shared backup {}, {:?}, XRC queues {:?}",
            self.setup.receives_posted_ahead, self.setup.has_shared_backup, self.setup.backed_options, self.setup.xrc_queues
        ));
        lines.push(format!(
            "spared rail {:?}, faults until {:?}:",
            self.schedule.spared_rail, self.schedule.end
        ));
        lines.extend(self.schedule.faults.iter().map(|(at, fault)| format!("  {at:?} {fault:?}")));
        lines.extend(self.world.trace_tail(kept_records));
        for end in self.connections.iter().flatten() {
            let end = end.borrow();
            lines.push(format!("{:?} {:?}", end.endpoint.qp, end.endpoint.qp.last_failover()));
            let (requests, effects) = (end.peer.requester_log(), end.peer.responder_log());
            lines.push(format!(
                "  posted {}, ended {}, refused {:?}, received {}, failed receives {}",
                end.peer.posted(),
                end.peer.ended(),
                requests.refused,
                effects.received.len(),
                effects.receives_failed
            ));
            lines.extend(end.endpoint.failures.iter().take(10).map(|failure| format!("  {failure:?}")));
        }
        lines
    }
}

impl<Q: FailoverQp> End<Q> {
    /// Returns whether this end has received all messages that were reported as executed at the other end, or has closed.
    fn has_received_from(&self, other: &End<Q>) -> bool {
        let log = self.peer.responder_log();
        self.endpoint.qp.close_reason().is_some() || log.received.len() >= other.peer.delivered_messages()
    }

    /// Checks that the operations that were reported as successful since the last call have their effect in the memory of the other end.
    fn check_effects(&mut self, other: &WorkloadPeer, h: usize) {
        let records = &self.peer.requester_log().records;
        while let Some(record) = records.get(self.checked)
            && let Some(outcome) = record.outcome
        {
            if outcome == crate::workload::ReportedOutcome::Success && !other.has_effect(self.checked) {
                self.early.push(format!(
                    "operation {} of end {} succeeded and has no effect",
                    self.checked,
                    ["a", "b"][h]
                ));
            }
            self.checked += 1;
        }
    }
}
