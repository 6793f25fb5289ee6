//! Shared objects over virtual queue pairs: several clients of one server, whose links and NICs
//! fail.
//!
//! Each object has a module with the *script* of a client and the check of what all clients saw. A
//! client runs its scripts over its own virtual queue pair, one operation of a random script after
//! another. It may crash and come back: the server ends its virtual queue pair, and the scripts
//! resume over a new one. If a virtual queue pair ends by itself, a new one takes its place.

mod cell_history;
mod cells;
mod client;
mod connector;
mod counters;
mod latches;
mod mailboxes;
mod mutexes;
mod shared_object;

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{CompletionLogConfig, Config as VqpConfig, Domain, RemoteRegion};
use mitra_objects::Word;
use mitra_verbs::{Access, AtomicScope, Buffer, LocalAckTimeout, Provider, Result};

use self::cells::Cells;
use self::client::Client;
use self::connector::Connector;
use self::counters::Counter;
use self::latches::SharedLatch;
use self::mailboxes::Mailboxes;
use self::mutexes::SharedMutex;
use self::shared_object::SharedObject;
use super::parts::{FaultNumbers, Parts, Reduced, leave_out_noise};
use super::{Extra, Finding, Reduction, SeedRun};
use crate::liveness::check_close_reasons;
use crate::{AppContext, Config, DurationRange, Failure, NicId, Prng, Stage, Testbed, World};

/// The length of the server's memory.
const MEMORY_BYTES: usize = 4096;

/// The server's memory, from which the objects of a world are allocated.
struct ObjectMemory {
    buffer: Arc<Buffer>,
    remote: RemoteRegion,
    used: usize,
}

impl ObjectMemory {
    /// Allocates bytes for an object, a multiple of 8. Returns their first word and their offset.
    fn allocate(&mut self, bytes: usize) -> (Word, usize) {
        let offset = self.used;
        self.used += bytes;
        assert!(self.used <= MEMORY_BYTES, "the objects do not fit into the server's memory");
        (Word::new(self.remote.at(offset as u64)).expect("objects are multiples of 8 bytes"), offset)
    }
}

/// The workload.
pub(super) struct Objects;

impl Reduced for Objects {
    fn run(seed: u64, reduction: &Reduction, kept_records: usize) -> (SeedRun, Parts) {
        run_reduced(seed, reduction, kept_records)
    }
}

/// Runs the world of a seed.
pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    run_reduced(seed, &Reduction::default(), kept_records).0
}

fn run_reduced(seed: u64, reduction: &Reduction, kept_records: usize) -> (SeedRun, Parts) {
    let rng = &mut Prng::stream(seed, "seeded objects");
    let clients = rng.between(1, 3) as usize;
    let rails = rng.between(2, 3) as u8;
    let mut config = world_config(seed, rng);
    let mut vqp_config = vqp_config(rng);
    let mut parts = Parts { extras: leave_out_noise(&mut config, reduction), ..Parts::default() };
    parts.extras.extend(vqp_config.completion_log.map(|_| Extra::Log));
    vqp_config.completion_log = vqp_config.completion_log.filter(|_| !reduction.lacks(Extra::Log));
    let mut testbed = Testbed::from_world(World::with_trace_len(seed, config.clone(), kept_records), rails);
    let mut result = SeedRun::default();
    let (connector, mut memory) = match set_up(&testbed, vqp_config, seed) {
        Ok(set_up) => set_up,
        Err(error) => {
            result.findings.push(Finding::violation("connect", error.to_string()));
            return (result, parts);
        }
    };
    let drawn = draw_objects(&mut memory, clients, config.capabilities.atomic_scope, rng);
    if drawn.len() > 1 {
        parts.extras.extend(drawn.iter().map(|(kind, _)| *kind));
    }
    let stop = Rc::new(Cell::new(false));
    let mut states = Vec::new();
    for number in 0..clients {
        let mut scripts = Vec::new();
        for (kind, object) in &drawn {
            let drawn = object.scripts(number, rng);
            scripts.extend(Some(drawn).filter(|_| !reduction.lacks(*kind)).into_iter().flatten());
        }
        let [client, server] = match connector.connect() {
            Ok(vqps) => vqps,
            Err(error) => {
                result.findings.push(Finding::violation("connect", error.to_string()));
                return (result, parts);
            }
        };
        let server = Rc::new(RefCell::new(server));
        let own_rng = Prng::new(rng.bits());
        let client = Client::new(client, Rc::clone(&server), Rc::clone(&connector), scripts, own_rng);
        let client = Rc::new(RefCell::new(client));
        states.push(Rc::clone(&client));
        let ended = Rc::clone(&stop);
        testbed.world.add_app(testbed.hosts[0], move |ctx: &mut AppContext<'_>| {
            if ended.get() { ctx.exit() } else { client.borrow_mut().step(ctx) }
        });
        let ended = Rc::clone(&stop);
        testbed.world.add_app(testbed.hosts[1], move |ctx: &mut AppContext<'_>| {
            if ended.get() { ctx.exit() } else { server.borrow_mut().progress() }
        });
    }
    let left = drawn.into_iter().filter(|(kind, _)| !reduction.lacks(*kind));
    let objects: Rc<[_]> = left.map(|(_, object)| object).collect();
    let (ended, served, buffer) = (Rc::clone(&stop), Rc::clone(&objects), Arc::clone(&memory.buffer));
    testbed.world.add_app(testbed.hosts[1], move |ctx: &mut AppContext<'_>| {
        if ended.get() {
            return ctx.exit();
        }
        for object in served.iter() {
            if object.serve(&buffer, ctx.rng()) {
                ctx.mark_active();
            }
        }
    });
    let mut faults = FaultNumbers::new(reduction);
    let mut loses_nic = schedule_faults(&mut testbed, rails, &mut faults);
    schedule_crashes(&mut testbed, &states, &mut faults);
    result.faults = faults.kept();
    let executing_nic = schedule_death_after_execution(&mut testbed, &mut faults);
    parts.faults = faults.drawn();
    let done = || World::programs_are(|| states.iter().all(|client| client.borrow().is_done()));
    let world = &mut testbed.world;
    let ended = world.run_until(done(), Duration::from_millis(400)).or_else(|_| {
        world.heal();
        world.run_until(done(), Duration::from_secs(60))
    });
    if let Err(stalled) = ended {
        result.findings.push(Finding::stuck("stuck", stalled.state));
    }
    if executing_nic.is_some_and(|nic| world.stage_reached(nic)) {
        loses_nic = true;
        result.faults += 1;
    }
    world.disarm_stages();
    // What was delayed on a failed rail arrives. It must change nothing.
    world.heal();
    world.run_for(vqp_config.peer_timeout + Duration::from_millis(50));
    stop.set(true);
    world.run_for(Duration::from_millis(5));
    if let Err(stalled) = world.run_until_quiet() {
        result.findings.push(Finding::stuck("not-quiet", stalled.state));
    }
    result.operations = states.iter().map(|client| client.borrow().begun()).sum();
    for (number, client) in states.iter().enumerate() {
        result.findings.extend(
            client
                .borrow()
                .refusal()
                .map(|error| Finding::violation("refused", format!("client {number}: {error}"))),
        );
    }
    let mut close_reasons = connector.close_reasons.take();
    close_reasons.extend(states.iter().map(|client| client.borrow().close_reasons()));
    for reasons in close_reasons {
        let checked = check_close_reasons(&testbed.world, testbed.hosts, [vqp_config; 2], reasons);
        result.findings.extend(checked.err().map(|dead| Finding::stuck("ended-with-a-good-rail", dead)));
    }
    let all_finished = states.iter().all(|client| client.borrow().has_finished());
    // A new path needs all NICs, because the vQP's builder creates a queue pair on each.
    if !all_finished && !loses_nic && result.findings.is_empty() {
        let state = states.iter().map(|client| format!("{:?}", client.borrow())).collect::<String>();
        result.findings.push(Finding::stuck("ended", state));
    }
    result.findings.extend(objects.iter().flat_map(|object| object.findings(&memory.buffer, all_finished)));
    if kept_records > 0 {
        result.setup.push(format!("{clients} clients, {rails} rails, {vqp_config:?}\n{config:?}"));
    }
    result.keep_trace(&testbed.world, kept_records);
    if kept_records > 0 {
        result.trace.extend(states.iter().map(|client| format!("{:?}", client.borrow())));
    }
    (result, parts)
}

/// Allocates the objects of a world: each kind for one seed in two, and at least one.
fn draw_objects(
    memory: &mut ObjectMemory,
    clients: usize,
    atomics: AtomicScope,
    rng: &mut Prng,
) -> Vec<(Extra, Box<dyn SharedObject>)> {
    let kinds = rng.between(1, 31);
    let mut objects: Vec<(Extra, Box<dyn SharedObject>)> = Vec::new();
    let is_drawn = |kind: u32| kinds & 1 << kind != 0;
    if is_drawn(0) {
        objects.push((Extra::Cells, Box::new(Cells::new(memory, clients, atomics, rng))));
    }
    if is_drawn(1) {
        objects.push((Extra::Counter, Box::new(Counter::new(memory, clients, rng))));
    }
    if is_drawn(2) {
        objects.push((Extra::Latch, Box::new(SharedLatch::new(memory, clients, rng))));
    }
    if is_drawn(3) {
        objects.push((Extra::Mutex, Box::new(SharedMutex::new(memory))));
    }
    if is_drawn(4) {
        objects.push((Extra::Mailboxes, Box::new(Mailboxes::new(memory, clients))));
    }
    objects
}

/// Draws the configuration of a world. The NICs keep the promises on which the objects depend:
/// memory has what was acknowledged, in posting order, and the atomics of all clients exclude each
/// other, because the NICs' do, or because all clients are on one rail at a time.
fn world_config(seed: u64, rng: &mut Prng) -> Config {
    let mut config = Config::swarm(seed);
    config.capabilities.ack_after_placement = true;
    config.capabilities.write_order = true;
    config.capabilities.psn_query = rng.below(2) == 0;
    config.capabilities.saved_results = rng.below(2) == 0;
    config.capabilities.atomic_scope = *rng.pick(&[AtomicScope::Nic, AtomicScope::Global]);
    config.link.survivor_ppm = *rng.pick(&[0, 500_000, 1_000_000]);
    config.link.straggler_ppm = *rng.pick(&[0, 5_000, 50_000]);
    config.link.straggler_delay = DurationRange::micros(500, 40_000);
    config
}

fn vqp_config(rng: &mut Prng) -> VqpConfig {
    let mut config = VqpConfig { send_wrs: 16, recv_wrs: 16, ..VqpConfig::default() };
    config.completion_log = (rng.below(2) == 0).then(CompletionLogConfig::default);
    config.rd_atomic = rng.between(1, 16) as u8;
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(9);
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 8;
    config.peer_timeout = Duration::from_millis(100);
    config
}

/// Opens the domains of both hosts, and registers the server's memory.
fn set_up(testbed: &Testbed, config: VqpConfig, seed: u64) -> Result<(Rc<Connector>, ObjectMemory)> {
    let nics =
        |host: usize| testbed.nics[host].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
    let domains = [Domain::new(nics(0))?, Domain::new(nics(1))?];
    domains[1].share_atomics()?;
    let buffer = Arc::new(Buffer::new(MEMORY_BYTES));
    let remote = domains[1].register(&buffer, Access::LOCAL_WRITE | Access::REMOTE)?.remote();
    let (secrets, has_lost_client, close_reasons) = Default::default();
    let remote_region = remote.clone();
    let connector = Connector { domains, config, remote, seed, secrets, has_lost_client, close_reasons };
    Ok((Rc::new(connector), ObjectMemory { buffer, remote: remote_region, used: 0 }))
}

/// Schedules failures of links and NICs. Returns whether a NIC stays failed.
fn schedule_faults(testbed: &mut Testbed, rails: u8, faults: &mut FaultNumbers<'_>) -> bool {
    let rng = &mut testbed.world.test_rng("object faults");
    let mut at = Duration::ZERO;
    let mut loses_nic = false;
    for _ in 0..rng.between(0, 6) {
        let happens = faults.keeps_next();
        let nic = testbed.nics[rng.index(2)][rng.index(rails.into())].id();
        at += random_time(rng, 9);
        if rng.below(3) == 0 {
            let failure = *rng.pick(&[Failure::NicDead, Failure::NicHung]);
            if happens {
                testbed.world.after(at, move |world| world.fail(nic, failure));
                loses_nic = true;
            }
        } else {
            let up = at + random_time(rng, 11);
            if happens {
                testbed.world.after(at, move |world| world.set_link(nic, false));
                testbed.world.after(up, move |world| world.set_link(nic, true));
            }
        }
    }
    loses_nic
}

/// Schedules, for one seed in two, the death of the NIC on which the objects begin: when it has
/// executed a random number of requests, before it answers the last one. So the outcome of an
/// executed operation is unknown. Returns the NIC.
fn schedule_death_after_execution(testbed: &mut Testbed, faults: &mut FaultNumbers<'_>) -> Option<NicId> {
    let rng = &mut testbed.world.test_rng("object executions");
    let nth = rng.between(1, 150) as u32;
    let nic = testbed.nics[1][0].id();
    let is_armed = rng.below(2) == 0 && faults.keeps_next();
    if is_armed {
        testbed.world.fail_at_stage(nic, Stage::Executed, nth, &[(nic, Failure::NicDead)], None);
    }
    is_armed.then_some(nic)
}

/// Schedules crashes of clients, for one seed in two.
fn schedule_crashes(testbed: &mut Testbed, clients: &[Rc<RefCell<Client>>], faults: &mut FaultNumbers<'_>) {
    let rng = &mut testbed.world.test_rng("object crashes");
    let crashes = rng.between(0, 3).saturating_sub(1);
    for _ in 0..crashes {
        let client = Rc::clone(rng.pick(clients));
        let at = random_time(rng, 11);
        if faults.keeps_next() {
            testbed.world.after(at, move |_| client.borrow_mut().crash());
        }
    }
}

/// Returns a time below 40 µs · 2^`doublings`; short times are as frequent as long ones.
fn random_time(rng: &mut Prng, doublings: u64) -> Duration {
    let limit = 40_000 << rng.below(doublings);
    Duration::from_nanos(rng.between(1_000, limit))
}
