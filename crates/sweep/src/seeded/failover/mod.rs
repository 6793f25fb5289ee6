//! Virtual queue pairs, and queue pairs with a shared backup, under faults.
//!
//! Two processes post operations to each other over one to eight rails: over one vQP, over two XRC
//! connections, or over one to eight queue pairs with a shared backup. In the safety phase, links,
//! NICs and hosts fail. In the liveness phase, all links are up, no packet is lost, and the
//! programs post the operations that they held back.

mod checkers;
mod false_alarms;
mod fault_schedule;
mod fault_words;
mod focus;
mod injection;
mod limits;
mod more_knobs;
mod options;
mod placed;
mod reduce;
mod setup;
mod starvation;

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{Domain, Secret};
use mitra_verbs::Error;

use super::{FIRST_GENERATION, Finding, Reducible, Reduction, ReductionError, SeedRun, domain};
use mitra_sim::timeline::NoteKind;
use mitra_sim::workload::{FailoverEndpoint, FailoverQp, OpKind, WorkloadPeer, XrcEnd, exchange_memory};
use mitra_sim::{AppContext, HostId, SimNic, World};

use false_alarms::{Moves, detection_time, new_move};
use fault_schedule::{FaultSchedule, LONGEST_HOLD};
use options::{EndQp, connect_backed, connect_vqps, exchange_windows};
use reduce::DrawSetup;
use setup::{Polling, Setup};

/// The time for the liveness phase. It exceeds `peer_timeout` and all retries of a queue pair many
/// times.
const LIVENESS_LIMIT: Duration = Duration::from_secs(30);

struct End<Q> {
    peer: WorkloadPeer,
    endpoint: FailoverEndpoint<Q>,
    /// The number of operations whose outcome was compared with memory.
    checked: usize,
    /// Descriptions of operations whose success was reported before their effect was in memory.
    early: Vec<String>,
    /// The epoch of the last recorded move.
    epoch: u16,
    /// Describes the first list of a vQP that was longer than its configuration allows.
    too_long: Option<String>,
}

type Ends<Q> = [Rc<RefCell<End<Q>>>; 2];

type Connect<Q> = fn(&Setup, [Arc<Domain>; 2]) -> Result<Vec<[EndQp<Q>; 2]>, Error>;

struct FailoverWorld<Q> {
    world: World,
    hosts: [HostId; 2],
    setup: Setup,
    schedule: FaultSchedule,
    nics: [Vec<Arc<SimNic>>; 2],
    connections: Vec<Ends<Q>>,
    moves: Vec<Moves>,
    stop: Rc<Cell<bool>>,
    faults: Rc<Cell<u64>>,
}

pub(super) const REDUCIBLE: Reducible = Reducible {
    run: |seed, reduction, kept_records| run_reduced(Setup::draw, seed, reduction, kept_records),
    smaller: |seed, reduction, step| reduce::smaller(Setup::draw, seed, reduction, step),
};

/// The smaller worlds with a [focus](focus::Focus).
pub(super) const REDUCIBLE_FOCUSED: Reducible = Reducible {
    run: |seed, reduction, kept_records| run_reduced(Setup::draw_focused, seed, reduction, kept_records),
    smaller: |seed, reduction, step| reduce::smaller(Setup::draw_focused, seed, reduction, step),
};

fn run_reduced(
    draw_setup: DrawSetup,
    seed: u64,
    reduction: &Reduction,
    kept_records: usize,
) -> Result<SeedRun, ReductionError> {
    let (setup, schedule) = reduce::draw(draw_setup, seed, reduction)?;
    let seed = if setup.is_first_generation { seed & !FIRST_GENERATION } else { seed };
    Ok(run_setup(seed, setup, schedule, kept_records))
}

/// Runs a world with [limits](limits::Limits).
pub(super) fn run_with_limits(seed: u64, kept_records: usize) -> SeedRun {
    let setup = Setup::draw_with_limits(seed);
    let schedule = FaultSchedule::draw(seed, &setup);
    run_setup(seed, setup, schedule, kept_records)
}

/// Runs a world of which most rails are rings of shared memory.
pub(super) fn run_with_rings(seed: u64, kept_records: usize) -> SeedRun {
    let setup = Setup::draw_with_rings(seed);
    let schedule = FaultSchedule::draw(seed, &setup);
    run_setup(seed & !FIRST_GENERATION, setup, schedule, kept_records)
}

fn run_setup(seed: u64, setup: Setup, schedule: FaultSchedule, kept_records: usize) -> SeedRun {
    match setup.xrc_queues {
        _ if setup.has_shared_backup => run_world(seed, setup, schedule, kept_records, connect_backed),
        Some(_) => run_world(seed, setup, schedule, kept_records, connect_xrc),
        None => run_world(seed, setup, schedule, kept_records, connect_vqps),
    }
}

fn run_world<Q: FailoverQp + 'static>(
    seed: u64,
    setup: Setup,
    schedule: FaultSchedule,
    kept_records: usize,
    connect: Connect<Q>,
) -> SeedRun {
    SeedRun::of(|result| {
        let mut world = FailoverWorld::new(seed, setup, schedule, kept_records, connect)?;
        world.run(result);
        result.keep_trace(&world.world, kept_records, || world.describe_setup());
        if kept_records > 0 {
            result.schedule = world.schedule.describe();
            result.trace.extend(world.describe_ends());
        }
        Ok(())
    })
}

fn connect_xrc(setup: &Setup, domains: [Arc<Domain>; 2]) -> Result<Vec<[EndQp<XrcEnd>; 2]>, Error> {
    let other_way = |[first, second]: [u64; 2]| [first ^ 1 << 63, second];
    let secrets = [setup.secrets, setup.secrets.map(other_way)].map(|ends| ends.map(Secret::fixed));
    let queues = setup.xrc_queues.unwrap_or(1);
    let mut ends = XrcEnd::pair(domains, setup.configs(), secrets, queues)?;
    ends.iter_mut().for_each(|end| end.begin_at(setup.limits.first_epoch, setup.limits.first_seq));
    Ok(vec![ends.map(|qp| EndQp { qp, shared_receives: None, backup: None, membership: None })])
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
        if let Some([flushes, receives]) = setup.limits.late_completions {
            for nic in nics.iter().flatten() {
                world.delay_completions(nic.id(), flushes, receives);
            }
        }
        let qps = connect(&setup, [domain(&nics[0])?, domain(&nics[1])?])?;
        let mut connections = Vec::new();
        for (i, [mut a, mut b]) in qps.into_iter().enumerate() {
            let plans = &setup.plans[i];
            let mut peers =
                [WorkloadPeer::new(&plans[0], &plans[1]), WorkloadPeer::new(&plans[1], &plans[0])];
            let ends = [&mut a.qp, &mut b.qp];
            match setup.options.and_then(|options| options.windows) {
                Some(windows) => exchange_windows(&mut world, ends, peers.each_mut(), windows)?,
                None => exchange_memory(ends, peers.each_mut())?,
            }
            let mut held_back = setup.held_back[i].into_iter();
            for (peer, host) in peers.iter_mut().zip(hosts) {
                let changes = world.memory_changes(host, peer.memory());
                peer.watch(changes);
            }
            let mut end = |mut peer: WorkloadPeer, end: EndQp<Q>| {
                let mut endpoint = FailoverEndpoint::new(end.qp);
                endpoint.shared_receives = end.shared_receives;
                endpoint.backup = end.backup;
                endpoint.membership = end.membership;
                peer.hold_back(held_back.next().unwrap_or(0));
                if setup.receives_posted_ahead {
                    peer.post_receives(&mut endpoint);
                }
                Rc::new(RefCell::new(End {
                    peer,
                    endpoint,
                    checked: 0,
                    early: Vec::new(),
                    epoch: 0,
                    too_long: None,
                }))
            };
            let [first, second] = peers;
            connections.push([end(first, a), end(second, b)]);
        }
        let mut made = FailoverWorld {
            world,
            hosts,
            setup,
            schedule,
            nics,
            moves: connections.iter().map(|_| Moves::default()).collect(),
            connections,
            stop: Rc::default(),
            faults: Rc::default(),
        };
        for (connection, ends) in made.connections.clone().iter().enumerate() {
            for (h, host) in hosts.into_iter().enumerate() {
                made.add_program(connection, ends, h, host);
            }
        }
        made.inject_faults(hosts);
        made.starve();
        Ok(made)
    }

    fn add_program(&mut self, connection: usize, ends: &Ends<Q>, h: usize, host: HostId) {
        let [own, other] = [Rc::clone(&ends[h]), Rc::clone(&ends[1 - h])];
        let stop = Rc::clone(&self.stop);
        let polling = self.setup.polling[h];
        let rails = self.setup.rails.len();
        // Responders without these properties may acknowledge data that is not in memory yet.
        let checks_effects =
            self.setup.vqp.is_durable() || self.setup.nics().all(|nic| nic.ack_after_placement);
        let confirms_receives = self.confirms_receives(h);
        let moves = self.moves[connection].clone();
        let detection_time = detection_time(&self.setup);
        let clock = Arc::clone(&self.nics[h][0]);
        let may_leave = self.schedule.has_leave(connection);
        let mut last_poll = mitra_verbs::Time::ZERO;
        self.world.add_app(host, move |ctx: &mut AppContext<'_>| {
            if stop.get() {
                return ctx.exit();
            }
            let own = &mut *own.borrow_mut();
            let now = ctx.now();
            let is_poll_due = match polling {
                Polling::Always | Polling::WhenWoken => true,
                Polling::CompletionsOnly(interval) => now.saturating_since(last_poll) >= interval,
            };
            own.endpoint.takes_completions_only = !is_poll_due;
            if is_poll_due {
                last_poll = now;
            }
            let before = ctx.keeps_trace().then(|| own.progress());
            if own.peer.step(&mut own.endpoint) {
                ctx.mark_active();
            }
            if let Some(before) = before {
                own.note_progress(before, ctx);
            }
            own.check_lengths(rails);
            if let Some(report) = new_move(&own.endpoint.qp, own.epoch) {
                own.epoch = report.epoch;
                let is_peer_gone = may_leave || other.borrow().endpoint.qp.close_reason().is_some();
                moves.record(&report, detection_time, is_peer_gone, &*clock, ctx);
            }
            let qp = &own.endpoint.qp;
            let completed = qp.last_failover().filter(|failover| failover.completed_at.is_some());
            let epoch = completed.map_or(0, |failover| failover.epoch.into());
            ctx.observe_recovery(qp.active_rail(), epoch, qp.close_reason().is_some());
            if checks_effects {
                own.check_effects(&other.borrow().peer, h);
            }
            if confirms_receives {
                own.check_receives(&other.borrow(), h);
            }
        });
    }

    /// Returns whether a message of end `h` succeeds only when the other end's program has received
    /// it. The connection must be durable on every rail, and the other program must poll in every
    /// turn.
    fn confirms_receives(&self, h: usize) -> bool {
        let setup = &self.setup;
        let is_plain = setup.options.is_none_or(|o| o.shared_receives == [false; 2] && o.windows.is_none());
        setup.vqp.is_durable()
            && setup.nics().all(|nic| !nic.ack_after_placement)
            && (is_plain && setup.is_vqp())
            && matches!(setup.polling[1 - h], Polling::Always)
            && setup.plans[0][h].mix[OpKind::WriteImm as usize] == 0 // its length may have to wait for the peer
    }

    fn run(&mut self, result: &mut SeedRun) {
        let ends: Vec<_> = self.connections.iter().flatten().map(Rc::clone).collect();
        let done = || World::programs_are(|| ends.iter().all(|end| end.borrow().peer.is_done()));
        // The safety phase ends at its limit, or when the faults have happened and all operations
        // that are not held back have ended.
        let faults_end = self.schedule.end.max(starvation::end(&self.setup.starvation));
        let limit = faults_end + Duration::from_millis(50);
        let mut programs_are_done = done();
        let all_done = |world: &World| {
            programs_are_done(world) && world.now().saturating_since(mitra_verbs::Time::ZERO) >= faults_end
        };
        let _ = self.world.run_until(all_done, limit); // unfinished operations end in the liveness phase
        self.stop_faults();
        for end in &ends {
            end.borrow_mut().peer.hold_back(0);
        }
        let ended = self.world.run_until(done(), LIVENESS_LIMIT);
        if let Err(stalled) = ended {
            let stuck = ends.iter().filter(|end| !end.borrow().peer.is_done());
            let qps: Vec<_> = stuck.map(|end| format!("{:?}", end.borrow().endpoint.qp)).collect();
            result.stuck("stuck", format!("{}\n{}", qps.join(" "), stalled.state));
        }
        self.check_that_messages_are_received(result);
        for ends in self.connections.clone() {
            self.check_that_both_ends_close(ends, result);
        }
        self.check_that_waiting_messages_are_received(result);
        // Both programs take what has arrived.
        self.world.run_for(Duration::from_millis(2));
        self.stop.set(true);
        self.world.run_for(LONGEST_HOLD + Duration::from_millis(2)); // held packets arrive
        result.must_reach("packets", self.world.run_until_quiet());
        for end in &ends {
            end.borrow_mut().peer.sweep();
        }
        result.operations = ends.iter().map(|end| end.borrow().peer.posted() as u64).sum();
        result.faults = self.faults.get();
        // All connections of a shared backup move together.
        let moves = if self.setup.has_shared_backup { &self.moves[..1] } else { &self.moves[..] };
        result.false_alarms = Some(moves.iter().map(Moves::false_alarms).sum());
        (0..self.connections.len()).for_each(|connection| self.check(connection, result));
    }

    fn describe_setup(&self) -> Vec<String> {
        let Setup { rails, vqp, plans, polling, held_back, focus, .. } = &self.setup;
        let mut lines = vec![format!("{:?}", self.world.config())];
        lines.extend(rails.iter().enumerate().map(|(i, rail)| format!("rail {i}: {rail:?}")));
        lines.push(format!("{vqp:?}"));
        lines.extend(plans.iter().flatten().map(|plan| format!("{plan:?}")));
        lines.push(format!(
            "{polling:?}, held back {held_back:?}, focus {focus:?}, receives posted ahead {}, shared backup {}, {:?}, XRC queues {:?}",
            self.setup.receives_posted_ahead, self.setup.has_shared_backup, self.setup.options, self.setup.xrc_queues
        ));
        lines.push(format!("{:?}", self.setup.limits));
        lines.push(format!("{:?}", self.setup.starvation));
        lines.push(format!(
            "spared rail {:?}, faults until {:?}:",
            self.schedule.spared_rail, self.schedule.end
        ));
        lines
    }

    fn describe_ends(&self) -> Vec<String> {
        let mut lines = Vec::new();
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

/// The progress of an end, for the time line.
#[derive(Clone, Copy)]
struct Progress {
    posted: usize,
    ended: usize,
    rail: usize,
    is_closed: bool,
}

impl<Q: FailoverQp> End<Q> {
    fn progress(&self) -> Progress {
        Progress {
            posted: self.peer.posted(),
            ended: self.peer.ended(),
            rail: self.endpoint.qp.active_rail(),
            is_closed: self.endpoint.qp.close_reason().is_some(),
        }
    }

    fn note_progress(&self, before: Progress, ctx: &mut AppContext<'_>) {
        let now = self.progress();
        if now.posted > before.posted {
            let range = before.posted..now.posted;
            ctx.note(NoteKind::Operation, || format!("posts {}", self.peer.describe_operations(range)));
        }
        if now.rail != before.rail {
            ctx.note(NoteKind::Move, || format!("moves from rail {} to rail {}", before.rail, now.rail));
        }
        if now.ended > before.ended {
            let range = before.ended..now.ended;
            ctx.note(NoteKind::Operation, || format!("ends {}", self.peer.describe_operations(range)));
        }
        if now.is_closed && !before.is_closed {
            ctx.note(NoteKind::Move, || format!("closes: {:?}", self.endpoint.qp.close_reason()));
        }
    }

    /// Checks that the other end has received all messages that were reported as executed. If an
    /// end is closed, its program has perhaps not taken all received messages.
    fn check_receives(&mut self, other: &End<Q>, h: usize) {
        let is_closed = |end: &End<Q>| end.endpoint.qp.close_reason().is_some();
        let (executed, received) =
            (self.peer.delivered_messages(), other.peer.responder_log().received.len());
        if executed > received && !is_closed(self) && !is_closed(other) {
            self.early.push(format!(
                "{executed} messages of end {} are executed, of which {received} are received",
                ["a", "b"][h]
            ));
        }
    }

    /// Checks that the operations that succeeded since the last call have their effect in the
    /// memory of the other end.
    fn check_effects(&mut self, other: &WorkloadPeer, h: usize) {
        let records = &self.peer.requester_log().records;
        while let Some(record) = records.get(self.checked)
            && let Some(outcome) = record.outcome
        {
            if outcome == mitra_sim::workload::ReportedOutcome::Success && !other.has_effect(self.checked) {
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
