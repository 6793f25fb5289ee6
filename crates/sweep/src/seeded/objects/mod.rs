//! Shared objects over virtual queue pairs: several clients use one server, while links and NICs
//! fail.
//!
//! Each object has a module with the *script* of a client and the check of the results. A client
//! has one virtual queue pair, and one operation in flight. A random script begins each operation.
//! After a crash of the client, the server closes the virtual queue pair, and the scripts resume
//! over a new one. A new virtual queue pair also replaces one that ends by itself.

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

use mitra_failover::{CompletionLogConfig, Config as VqpConfig, RemoteRegion};
use mitra_objects::Word;
use mitra_verbs::{Access, AtomicScope, Buffer, Error, LocalAckTimeout};

use self::cells::Cells;
use self::client::Client;
use self::connector::Connector;
use self::counters::Counter;
use self::latches::SharedLatch;
use self::mailboxes::Mailboxes;
use self::mutexes::SharedMutex;
use self::shared_object::SharedObject;
use super::faults::{NIC_FAILURES, draw_time, schedule_blink};
use super::parts::{Left, Reduced};
use super::{Extra, Finding, SeedRun, domain, run_phases};
use mitra_sim::check_close_reasons;
use mitra_sim::{AppContext, Config, DurationRange, Failure, NicId, Prng, Stage, Testbed, World};

const MEMORY_BYTES: usize = 4096;

/// The server's memory, from which the objects of a world are allocated.
struct ObjectMemory {
    buffer: Arc<Buffer>,
    remote: RemoteRegion,
    used: usize,
}

impl ObjectMemory {
    /// Allocates a multiple of 8 bytes. Returns the first word and its offset.
    fn allocate(&mut self, bytes: usize) -> (Word, usize) {
        let offset = self.used;
        self.used += bytes;
        assert!(self.used <= MEMORY_BYTES, "the objects do not fit into the server's memory");
        (Word::new(self.remote.at(offset as u64)).expect("objects are multiples of 8 bytes"), offset)
    }
}

pub(super) struct Objects;

impl Reduced for Objects {
    fn run(seed: u64, left: &mut Left<'_>, kept_records: usize, result: &mut SeedRun) -> Result<(), Error> {
        let rng = &mut Prng::stream(seed, "seeded objects");
        let clients = rng.between(1, 3) as usize;
        let rails = rng.between(2, 3) as u8;
        let mut config = world_config(seed, rng);
        let mut vqp_config = vqp_config(rng);
        left.leave_out_noise(&mut config);
        left.leave_out_log(&mut vqp_config);
        let world = World::with_trace_len(seed, config.clone(), kept_records);
        let mut testbed = Testbed::from_world(world, rails);
        let (connector, mut memory) = set_up(&testbed, vqp_config, seed)?;
        let drawn = draw_objects(&mut memory, clients, config.capabilities.atomic_scope, rng);
        if drawn.len() > 1 {
            left.parts.extras.extend(drawn.iter().map(|(kind, _)| *kind));
        }
        let stop = Rc::new(Cell::new(false));
        let mut states = Vec::new();
        for number in 0..clients {
            let mut scripts = Vec::new();
            for (kind, object) in &drawn {
                let script = object.script(number, rng);
                scripts.extend((!left.reduction.lacks(*kind)).then_some(script));
            }
            let [client, server] = connector.connect()?;
            let server = Rc::new(RefCell::new(server));
            let own_rng = Prng::new(rng.bits());
            let client = Client::new(client, Rc::clone(&server), Rc::clone(&connector), scripts, own_rng);
            let client = Rc::new(RefCell::new(client));
            states.push(Rc::clone(&client));
            add_program(&mut testbed, 0, &stop, move |ctx| client.borrow_mut().step(ctx));
            add_program(&mut testbed, 1, &stop, move |_| server.borrow_mut().progress());
        }
        let kept = drawn.into_iter().filter(|(kind, _)| !left.reduction.lacks(*kind));
        let objects: Rc<[_]> = kept.map(|(_, object)| object).collect();
        let (served, buffer) = (Rc::clone(&objects), Arc::clone(&memory.buffer));
        add_program(&mut testbed, 1, &stop, move |ctx| {
            for object in served.iter() {
                if object.serve(&buffer, ctx.rng()) {
                    ctx.mark_active();
                }
            }
        });
        let mut loses_nic = schedule_faults(&mut testbed, rails, left);
        schedule_crashes(&mut testbed, &states, left);
        result.faults = left.faults;
        let executing_nic = schedule_death_after_execution(&mut testbed, left);
        let is_done = World::programs_are(|| states.iter().all(|client| client.borrow().is_done()));
        let world = &mut testbed.world;
        let (safety, liveness) = (Duration::from_millis(400), Duration::from_secs(60));
        result.must_reach("stuck", run_phases(world, is_done, safety, World::heal, liveness));
        if executing_nic.is_some_and(|nic| world.stage_reached(nic)) {
            loses_nic = true;
            result.faults += 1;
        }
        world.disarm_stages();
        // Delayed packets of failed rails arrive. They must change nothing.
        world.heal();
        world.run_for(vqp_config.peer_timeout + Duration::from_millis(50));
        stop.set(true);
        world.run_for(Duration::from_millis(5));
        result.must_reach("not-quiet", world.run_until_quiet());
        result.operations = states.iter().map(|client| client.borrow().begun).sum();
        for (number, client) in states.iter().enumerate() {
            if let Some(error) = client.borrow().refusal() {
                result.violation("refused", format!("client {number}: {error}"));
            }
        }
        let mut close_reasons = connector.close_reasons.take();
        close_reasons.extend(states.iter().map(|client| client.borrow().close_reasons()));
        for reasons in close_reasons {
            if let Err(dead) = check_close_reasons(world, testbed.hosts, [vqp_config; 2], reasons) {
                result.stuck("ended-with-a-good-rail", dead);
            }
        }
        let all_finished = states.iter().all(|client| client.borrow().has_finished());
        let describe = || states.iter().map(|client| format!("{:?}", client.borrow()));
        // A new path needs all NICs, because the builder of a vQP creates a queue pair on each.
        if !all_finished && !loses_nic && result.findings.is_empty() {
            result.stuck("ended", describe().collect::<String>());
        }
        let findings = objects.iter().flat_map(|object| object.findings(&memory.buffer, all_finished));
        result.findings.extend(findings);
        result.keep_trace(world, kept_records, || {
            vec![format!("{clients} clients, {rails} rails, {vqp_config:?}\n{config:?}")]
        });
        result.trace.extend(describe().filter(|_| kept_records > 0));
        Ok(())
    }
}

fn add_program(
    testbed: &mut Testbed,
    host: usize,
    stop: &Rc<Cell<bool>>,
    mut step: impl FnMut(&mut AppContext<'_>) + 'static,
) {
    let stop = Rc::clone(stop);
    testbed.world.add_app(
        testbed.hosts[host],
        move |ctx: &mut AppContext<'_>| {
            if stop.get() { ctx.exit() } else { step(ctx) }
        },
    );
}

/// Allocates the objects of a world: at least one, and each kind in half of the seeds.
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

/// Draws the configuration of a world. The objects depend on NICs that place data before they
/// acknowledge it, in posting order. The atomics of all clients exclude each other: the scope of
/// atomics is global, or all clients are on one rail at a time.
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

fn set_up(testbed: &Testbed, config: VqpConfig, seed: u64) -> Result<(Rc<Connector>, ObjectMemory), Error> {
    let domains = [domain(&testbed.nics[0])?, domain(&testbed.nics[1])?];
    domains[1].share_atomics()?;
    let buffer = Arc::new(Buffer::new(MEMORY_BYTES));
    let remote = domains[1].register(&buffer, Access::LOCAL_WRITE | Access::REMOTE)?.remote();
    let (secrets, has_lost_client, close_reasons) = Default::default();
    let remote_region = remote.clone();
    let connector = Connector { domains, config, remote, seed, secrets, has_lost_client, close_reasons };
    Ok((Rc::new(connector), ObjectMemory { buffer, remote: remote_region, used: 0 }))
}

/// Schedules failures of links and NICs. Returns whether a NIC stays failed.
fn schedule_faults(testbed: &mut Testbed, rails: u8, left: &mut Left<'_>) -> bool {
    let rng = &mut testbed.world.test_rng("object faults");
    let mut at = Duration::ZERO;
    let mut loses_nic = false;
    for _ in 0..rng.between(0, 6) {
        let happens = left.keeps_next_fault();
        let nic = testbed.nics[rng.index(2)][rng.index(rails.into())].id();
        at += draw_time(rng, 1_000, 40_000, 9);
        if rng.below(3) == 0 {
            let failure = *rng.pick(&NIC_FAILURES);
            if happens {
                testbed.world.after(at, move |world| world.fail(nic, failure));
                loses_nic = true;
            }
        } else {
            let up = at + draw_time(rng, 1_000, 40_000, 11);
            if happens {
                schedule_blink(&mut testbed.world, nic, at, up);
            }
        }
    }
    loses_nic
}

/// In half of the seeds, schedules the death of the server's NIC on the first rail. The NIC dies
/// when it has executed a random number of requests, before it answers the last of them. So the
/// outcome of an executed operation is unknown. Returns the NIC.
fn schedule_death_after_execution(testbed: &mut Testbed, left: &mut Left<'_>) -> Option<NicId> {
    let rng = &mut testbed.world.test_rng("object executions");
    let nth = rng.between(1, 150) as u32;
    let nic = testbed.nics[1][0].id();
    let is_armed = rng.below(2) == 0 && left.keeps_next_fault();
    if is_armed {
        testbed.world.fail_at_stage(nic, Stage::Executed, nth, &[(nic, Failure::NicDead)], None);
    }
    is_armed.then_some(nic)
}

/// Schedules crashes of clients, in half of the seeds.
fn schedule_crashes(testbed: &mut Testbed, clients: &[Rc<RefCell<Client>>], left: &mut Left<'_>) {
    let rng = &mut testbed.world.test_rng("object crashes");
    let crashes = rng.between(0, 3).saturating_sub(1);
    for _ in 0..crashes {
        let client = Rc::clone(rng.pick(clients));
        let at = draw_time(rng, 1_000, 40_000, 11);
        if left.keeps_next_fault() {
            testbed.world.after(at, move |_| client.borrow_mut().crash());
        }
    }
}
