//! Virtual queue pairs under faults.
//!
//! Two programs post operations to each other over one vQP with one to eight rails. In the safety phase, links, NICs and hosts fail. Then all
//! links come up, noise stops, the programs run, and they post the operations that they held back.

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
use crate::workload::{VqpEndpoint, WorkloadPeer};
use crate::{AppContext, HostId, SimNic, World};

use fault_schedule::{FaultSchedule, LONGEST_HOLD};
use setup::{Polling, Setup};

/// The time after the last fault within which everything must have ended. It exceeds `peer_timeout` and all retries of a queue pair many times.
const LIVENESS_LIMIT: Duration = Duration::from_secs(20);

/// One end of the world.
struct End {
    peer: WorkloadPeer,
    endpoint: VqpEndpoint,
    /// The operations that ended so far, for the check that each success has its effect at once.
    checked: usize,
    left: bool,
}

/// A world of the workload.
struct FailoverWorld {
    world: World,
    hosts: [HostId; 2],
    setup: Setup,
    schedule: FaultSchedule,
    nics: [Vec<Arc<SimNic>>; 2],
    ends: [Rc<RefCell<End>>; 2],
    stop: Rc<Cell<bool>>,
    /// Operations whose success was reported before their effect was in memory.
    early: Rc<RefCell<Vec<String>>>,
    faults: Rc<Cell<u64>>,
}

/// Runs the world of a seed.
pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    let setup = Setup::draw(seed);
    let schedule = FaultSchedule::draw(seed, &setup);
    let mut result = SeedRun::default();
    match FailoverWorld::new(seed, setup, schedule, kept_records) {
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

impl FailoverWorld {
    fn new(
        seed: u64,
        setup: Setup,
        schedule: FaultSchedule,
        kept_records: usize,
    ) -> Result<FailoverWorld, Error> {
        let mut world = World::with_trace_len(seed, setup.world.clone(), kept_records);
        let hosts = ["a", "b"].map(|name| world.add_host(name));
        let mut nics = [Vec::new(), Vec::new()];
        for (number, rail) in setup.rails.iter().enumerate() {
            world.set_rail_link(number as u8, rail.link);
            for (h, &host) in hosts.iter().enumerate() {
                nics[h].push(world.add_nic_with_mtu(host, number as u8, rail.capabilities[h], rail.mtu[h]));
            }
        }
        let mut ends = connect(&setup, &nics)?;
        let [a, b] = &mut ends;
        let (mr_a, mr_b) = (
            a.endpoint.vqp.domain().register(a.peer.memory(), WorkloadPeer::ACCESS)?,
            b.endpoint.vqp.domain().register(b.peer.memory(), WorkloadPeer::ACCESS)?,
        );
        a.endpoint.vqp.import(&mr_b.remote())?;
        b.endpoint.vqp.import(&mr_a.remote())?;
        a.peer.connect(mr_a.primary(), mr_b.remote().at(0));
        b.peer.connect(mr_b.primary(), mr_a.remote().at(0));
        for (h, end) in ends.iter_mut().enumerate() {
            end.peer.hold_back(setup.held_back[h]);
            if setup.receives_posted_ahead {
                end.peer.post_receives(&mut end.endpoint);
            }
        }
        let ends = ends.map(|end| Rc::new(RefCell::new(end)));
        let mut made = FailoverWorld {
            world,
            hosts,
            setup,
            schedule,
            nics,
            ends,
            stop: Rc::default(),
            early: Rc::default(),
            faults: Rc::default(),
        };
        for (h, host) in hosts.into_iter().enumerate() {
            made.add_program(h, host);
        }
        made.inject_faults(hosts);
        Ok(made)
    }

    /// Adds the program of an end.
    fn add_program(&mut self, h: usize, host: HostId) {
        let [own, other] = [Rc::clone(&self.ends[h]), Rc::clone(&self.ends[1 - h])];
        let (stop, early) = (Rc::clone(&self.stop), Rc::clone(&self.early));
        let polling = self.setup.polling[h];
        // Elsewhere, the responder may acknowledge data that is not in memory yet.
        let checks_effects = self.setup.nics().all(|nic| nic.ack_after_placement);
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
                own.check_effects(&other.borrow().peer, h, &mut early.borrow_mut());
            }
        });
    }

    fn run(&mut self, result: &mut SeedRun) {
        let ends = self.ends.clone();
        let done = move |_: &World| ends.iter().all(|end| end.borrow().peer.is_done());
        // The safety phase. It ends when the faults have happened and all operations that are not held back have ended, or at its limit.
        let limit = self.schedule.end + Duration::from_millis(50);
        let faults_end = self.schedule.end;
        let all_done = |world: &World| {
            world.now().saturating_since(mitra_verbs::Time::ZERO) >= faults_end && done(world)
        };
        let _ = self.world.run_until(all_done, limit); // unfinished operations end in the liveness phase
        self.stop_faults();
        for end in &self.ends {
            end.borrow_mut().peer.hold_back(0);
        }
        if let Err(stalled) = self.world.run_until(&done, LIVENESS_LIMIT) {
            let vqps = self.ends.each_ref().map(|end| format!("{:?}", end.borrow().endpoint.vqp));
            result
                .findings
                .push(Finding::stuck("stuck", format!("{} {}\n{}", vqps[0], vqps[1], stalled.state)));
        }
        // A message that was reported as executed is received, if the receiver does not close.
        let ends = self.ends.clone();
        let received = move |_: &World| {
            let [a, b] = ends.each_ref().map(|end| end.borrow());
            a.has_received_from(&b) && b.has_received_from(&a)
        };
        if let Err(stalled) = self.world.run_until(received, LIVENESS_LIMIT) {
            result.findings.push(Finding::stuck("not-received", stalled.state));
        }
        self.check_that_both_ends_close(result);
        // Both programs consume what has arrived.
        self.world.run_for(Duration::from_millis(2));
        self.stop.set(true);
        self.world.run_for(LONGEST_HOLD + Duration::from_millis(2)); // held packets arrive
        if let Err(stalled) = self.world.run_until_quiet() {
            result.findings.push(Finding::stuck("packets", stalled.state));
        }
        for end in &self.ends {
            end.borrow_mut().peer.sweep();
        }
        result.operations = self.ends.iter().map(|end| end.borrow().peer.posted() as u64).sum();
        result.faults = self.faults.get();
        self.check(result);
    }

    /// Checks that the other end of a vQP that has closed closes too.
    fn check_that_both_ends_close(&mut self, result: &mut SeedRun) {
        let reasons = |ends: &[Rc<RefCell<End>>; 2]| {
            ends.each_ref().map(|end| end.borrow().endpoint.vqp.close_reason())
        };
        if reasons(&self.ends) == [None; 2] {
            return;
        }
        let ends = self.ends.clone();
        // An end without heartbeats and requests has no reason to ask whether its peer is alive.
        let detects = self.setup.vqp.detector.max_missed_heartbeats > 0;
        let both = move |_: &World| !reasons(&ends).contains(&None);
        let closed = self.world.run_until(both, LIVENESS_LIMIT);
        if let (Err(stalled), true) = (closed, detects) {
            let [a, b] = self.ends.each_ref().map(|end| end.borrow().endpoint.vqp.close_reason());
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
        lines.extend(plans.iter().map(|plan| format!("{plan:?}")));
        lines.push(format!(
            "{polling:?}, held back {held_back:?}, focus {focus:?}, receives posted ahead {}",
            self.setup.receives_posted_ahead
        ));
        lines.push(format!(
            "spared rail {:?}, faults until {:?}:",
            self.schedule.spared_rail, self.schedule.end
        ));
        lines.extend(self.schedule.faults.iter().map(|(at, fault)| format!("  {at:?} {fault:?}")));
        lines.extend(self.world.trace_tail(kept_records));
        for end in &self.ends {
            let end = end.borrow();
            lines.push(format!("{:?} {:?}", end.endpoint.vqp, end.endpoint.vqp.last_failover()));
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

impl End {
    /// Returns whether this end has received all messages that were reported as executed at the other end, or has closed.
    fn has_received_from(&self, other: &End) -> bool {
        let log = self.peer.responder_log();
        self.endpoint.vqp.close_reason().is_some() || log.received.len() >= other.peer.delivered_messages()
    }

    /// Checks that the operations that were reported as successful since the last call have their effect in the memory of the other end.
    fn check_effects(&mut self, other: &WorkloadPeer, h: usize, early: &mut Vec<String>) {
        let records = &self.peer.requester_log().records;
        while let Some(record) = records.get(self.checked)
            && let Some(outcome) = record.outcome
        {
            if outcome == crate::workload::ReportedOutcome::Success && !other.has_effect(self.checked) {
                early.push(format!(
                    "operation {} of end {} succeeded and has no effect",
                    self.checked,
                    ["a", "b"][h]
                ));
            }
            self.checked += 1;
        }
    }
}

/// Creates the domains and the vQPs, and connects them.
fn connect(setup: &Setup, nics: &[Vec<Arc<SimNic>>; 2]) -> Result<[End; 2], Error> {
    let make = |h: usize| -> Result<End, Error> {
        let nics: Vec<_> = nics[h].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        let domain = Domain::new(nics)?;
        let secret = Secret::fixed(setup.secrets[h]);
        let vqp = VirtualQp::builder(&domain).config(setup.vqp).secret(secret).build()?;
        Ok(End {
            peer: WorkloadPeer::new(&setup.plans[h], &setup.plans[1 - h]),
            endpoint: VqpEndpoint::from_vqp(vqp),
            checked: 0,
            left: false,
        })
    };
    let mut ends = [make(0)?, make(1)?];
    let [a, b] = &mut ends;
    let (info_a, info_b) = (a.endpoint.vqp.local_info()?, b.endpoint.vqp.local_info()?);
    a.endpoint.vqp.connect(&info_b)?;
    b.endpoint.vqp.connect(&info_a)?;
    Ok(ends)
}
