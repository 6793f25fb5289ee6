//! Shared objects over virtual queue pairs: several clients of one server, whose links and NICs fail.
//!
//! Each object has a module with the *script* of a client and the check of what all clients saw. A client runs its scripts one after
//! another over its own virtual queue pair.

mod cell_history;
mod cells;
mod client;

use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{Config as VqpConfig, Domain, RemoteRegion, Secret, VirtualQp};
use mitra_objects::Word;
use mitra_verbs::{Access, AtomicScope, Buffer, LocalAckTimeout, Provider, Result};

use self::cells::Cells;
use self::client::Client;
use super::{Finding, SeedRun};
use crate::{AppContext, Config, DurationRange, Failure, Prng, Testbed, World};

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

/// Runs the world of a seed.
pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    let rng = &mut Prng::stream(seed, "seeded objects");
    let clients = rng.between(1, 3) as usize;
    let rails = rng.between(2, 3) as u8;
    let config = world_config(seed, rng, clients);
    let vqp_config = vqp_config(rng);
    let mut testbed = Testbed::from_world(World::with_trace_len(seed, config.clone(), kept_records), rails);
    let mut result = SeedRun::default();
    let connected = match connect(&testbed, clients, vqp_config, seed) {
        Ok(connected) => connected,
        Err(error) => {
            result.findings.push(Finding::violation("connect", error.to_string()));
            return result;
        }
    };
    let (vqps, mut memory) = connected;
    let cells = Cells::new(&mut memory, clients, config.capabilities.atomic_scope, rng);
    let stop = Rc::new(Cell::new(false));
    let mut states = Vec::new();
    for (number, [client, mut server]) in vqps.into_iter().enumerate() {
        let scripts = cells.scripts(number, rng);
        let client = Rc::new(RefCell::new(Client::new(client, scripts)));
        states.push(Rc::clone(&client));
        let ended = Rc::clone(&stop);
        testbed.world.add_app(testbed.hosts[0], move |ctx: &mut AppContext<'_>| {
            if ended.get() {
                ctx.exit();
            } else if client.borrow_mut().step() {
                ctx.mark_active();
            }
        });
        let ended = Rc::clone(&stop);
        testbed.world.add_app(
            testbed.hosts[1],
            move |ctx: &mut AppContext<'_>| {
                if ended.get() { ctx.exit() } else { server.progress() }
            },
        );
    }
    result.faults = schedule_faults(&mut testbed, rails);
    let done = |_: &World| states.iter().all(|client| client.borrow().is_done());
    let world = &mut testbed.world;
    let ended = world.run_until(done, Duration::from_millis(400)).or_else(|_| {
        world.heal();
        world.run_until(done, Duration::from_secs(60))
    });
    if let Err(stalled) = ended {
        result.findings.push(Finding::stuck("stuck", stalled.state));
    }
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
    result.findings.extend(cells.findings(&memory.buffer));
    if kept_records > 0 {
        result.trace.push(format!("{clients} clients, {rails} rails, {vqp_config:?}\n{config:?}"));
        result.trace.extend(states.iter().map(|client| format!("{:?}", client.borrow())));
        result.trace.extend(world.trace_tail(kept_records));
    }
    result
}

/// Draws the configuration of a world. The NICs keep the promises on which the objects depend: memory has what was acknowledged, in posting order,
/// and the atomics of several clients exclude each other. Only one client may use NICs whose atomics are atomic per NIC, since
/// each virtual queue pair moves by itself.
fn world_config(seed: u64, rng: &mut Prng, clients: usize) -> Config {
    let mut config = Config::swarm(seed);
    config.capabilities.ack_after_placement = true;
    config.capabilities.write_order = true;
    config.capabilities.psn_query = rng.below(2) == 0;
    config.capabilities.saved_results = rng.below(2) == 0;
    config.capabilities.atomic_scope = match clients {
        1 if rng.below(2) == 0 => AtomicScope::Nic,
        _ => AtomicScope::Global,
    };
    config.link.survivor_ppm = *rng.pick(&[0, 500_000, 1_000_000]);
    config.link.straggler_ppm = *rng.pick(&[0, 5_000, 50_000]);
    config.link.straggler_delay = DurationRange::micros(500, 40_000);
    config
}

fn vqp_config(rng: &mut Prng) -> VqpConfig {
    let mut config = VqpConfig { send_wrs: 16, recv_wrs: 16, ..VqpConfig::default() };
    config.completion_log = rng.below(2) == 0;
    config.rd_atomic = rng.between(1, 16) as u8;
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(9);
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 8;
    config.peer_timeout = Duration::from_millis(100);
    config
}

/// Connects the virtual queue pairs of all clients, each with its server end, and registers the server's memory.
fn connect(
    testbed: &Testbed,
    clients: usize,
    config: VqpConfig,
    seed: u64,
) -> Result<(Vec<[VirtualQp; 2]>, ObjectMemory)> {
    let domain = |host: usize| {
        Domain::new(testbed.nics[host].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())
    };
    let domains = [domain(0)?, domain(1)?];
    let buffer = Arc::new(Buffer::new(MEMORY_BYTES));
    let remote = domains[1].register(&buffer, Access::LOCAL_WRITE | Access::REMOTE)?.remote();
    let mut vqps = Vec::new();
    for client in 0..clients as u64 {
        let end = |host: usize| {
            let secret = Secret::fixed([2 * client + host as u64 + 1, seed ^ (client << 32)]);
            VirtualQp::builder(&domains[host]).config(config).secret(secret).build()
        };
        let (mut a, mut b) = (end(0)?, end(1)?);
        let infos = [a.local_info()?, b.local_info()?];
        a.connect(&infos[1])?;
        b.connect(&infos[0])?;
        a.import(&remote)?;
        vqps.push([a, b]);
    }
    Ok((vqps, ObjectMemory { buffer, remote, used: 0 }))
}

/// Schedules failures of links and NICs. Returns their number.
fn schedule_faults(testbed: &mut Testbed, rails: u8) -> u64 {
    let rng = &mut testbed.world.test_rng("object faults");
    let faults = rng.between(0, 6);
    let mut at = Duration::ZERO;
    for _ in 0..faults {
        let nic = testbed.nics[rng.index(2)][rng.index(rails.into())].id();
        at += random_time(rng, 9);
        if rng.below(3) == 0 {
            let failure = *rng.pick(&[Failure::NicDead, Failure::NicHung]);
            testbed.world.after(at, move |world| world.fail(nic, failure));
        } else {
            let up = at + random_time(rng, 11);
            testbed.world.after(at, move |world| world.set_link(nic, false));
            testbed.world.after(up, move |world| world.set_link(nic, true));
        }
    }
    faults
}

/// Returns a time below 40 µs · 2^`doublings`; short times are as frequent as long ones.
fn random_time(rng: &mut Prng, doublings: u64) -> Duration {
    let limit = 40_000 << rng.below(doublings);
    Duration::from_nanos(rng.between(1_000, limit))
}
