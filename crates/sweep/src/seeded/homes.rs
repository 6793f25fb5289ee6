//! Three processes in a ring that all share atomics, so that the home rails of all three must
//! agree. Two pairs of processes may prefer different rails. A process may begin to share after its
//! vQPs were connected.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{
    CloseReason, CompletionLogConfig, Config as VqpConfig, Domain, Failback, VirtualMr, VirtualQp,
};
use mitra_verbs::{Access, Buffer};

use super::SeedRun;
use super::faults::{schedule_blink, schedule_nap};
use mitra_sim::workload::check_liveness;
use mitra_sim::workload::shared_word::{self, Client, PEER_TIMEOUT, Pace, connect, domain, time_below};
use mitra_sim::{AppContext, Config, DurationRange, HostId, Prng, SimNic, World};

const PROCESSES: usize = 3;
/// The most epochs that a run may reach for each fault. Home rails that alternate forever reach
/// more.
const EPOCHS_PER_FAULT: usize = 6;

/// A process that lends a word.
struct Process {
    host: HostId,
    nics: Vec<Arc<SimNic>>,
    domain: Arc<Domain>,
    word: Arc<Buffer>,
    mr: VirtualMr,
    lending: Rc<RefCell<Vec<VirtualQp>>>,
}

impl Process {
    fn new(world: &mut World, name: &str, rails: u8, pace: Pace) -> Process {
        let host = world.add_host(name);
        let nics: Vec<_> = (0..rails).map(|rail| world.add_nic(host, rail)).collect();
        let domain = domain(&nics);
        let word = Arc::new(Buffer::new(8));
        let mr = domain.register(&word, Access::LOCAL_WRITE | Access::REMOTE).expect("the NICs have room");
        let lending = Rc::<RefCell<Vec<VirtualQp>>>::default();
        let (vqps, mut pace) = (Rc::clone(&lending), pace);
        world.add_app(host, move |ctx: &mut AppContext<'_>| {
            if pace.is_due(ctx) {
                vqps.borrow_mut().iter_mut().for_each(|vqp| vqp.progress());
            }
        });
        Process { host, nics, domain, word, mr, lending }
    }
}

/// A client on the process `from`, which increments the word of the process `to`. `vqp` is the
/// position of the other end of the client's vQP in the list of the process `to`.
struct Edge {
    from: usize,
    to: usize,
    vqp: usize,
    client: Rc<RefCell<Client>>,
}

struct Ring {
    world: World,
    processes: Vec<Process>,
    edges: Vec<Edge>,
}

impl Ring {
    /// A ring with one to `most` vQPs in each direction between two processes. The clients have no
    /// work yet.
    fn set_up(seed: u64, rng: &mut Prng, most: u64, kept_records: usize) -> Ring {
        let mut world = Config::swarm(seed);
        world.link.switched = true;
        world.memory.atomic_delay = DurationRange::nanos(100, 3_000);
        if Prng::stream(seed, "late atomics").below(2) == 0 {
            // Clients poll seldom, so the first atomic on a new home comes long after the last
            // fence.
            world.nic.error_flush_delay = DurationRange::nanos(0, 500_000);
        }
        world.host.pause_length.max = world.host.pause_length.max.min(PEER_TIMEOUT / 16);
        world.host.pause_length.min = world.host.pause_length.min.min(world.host.pause_length.max);
        let mut world = World::with_trace_len(seed, world, kept_records);
        let rails = rng.between(2, 4) as u8;
        let mut pace = || Pace::every(Duration::from_nanos(rng.below(200_000)));
        let processes = (0..PROCESSES).map(|n| Process::new(&mut world, &format!("h{n}"), rails, pace()));
        let processes: Vec<Process> = processes.collect();
        let mut ring = Ring { world, processes, edges: Vec::new() };
        let prefers = rng.below(2) == 0;
        for from in 0..PROCESSES {
            let to = (from + 1) % PROCESSES;
            let mut config = shared_word::config();
            config.completion_log = seed.is_multiple_of(2).then(CompletionLogConfig::default);
            if prefers {
                let to = |rail| Failback { rail, delay: PEER_TIMEOUT / 8 };
                config.failback = (rng.below(3) > 0).then(|| to(rng.below(rails.into()) as u8));
            }
            for (from, to) in [(from, to), (to, from)] {
                for _ in 0..rng.between(1, most) {
                    ring.add_edge(
                        config,
                        from,
                        to,
                        rng.below(3) == 0,
                        Pace::every(Duration::from_nanos(rng.below(200_000))),
                    );
                }
            }
        }
        ring
    }

    fn add_edge(&mut self, config: VqpConfig, from: usize, to: usize, by_cas: bool, pace: Pace) {
        let (client, server) = (&self.processes[from], &self.processes[to]);
        let secret = 2 * self.edges.len() as u64 + 1;
        let [a, b] = connect(config, [&server.domain, &client.domain], secret);
        let vqp = server.lending.borrow().len();
        server.lending.borrow_mut().push(a);
        let word = server.mr.remote().at(0);
        let mut client_end = Client::new(from, b, &client.domain, word, by_cas, 0);
        client_end.pace = pace;
        let client_end = Rc::new(RefCell::new(client_end));
        self.edges.push(Edge { from, to, vqp, client: Rc::clone(&client_end) });
        let host = client.host;
        self.world.add_app(host, move |ctx: &mut AppContext<'_>| client_end.borrow_mut().step(ctx));
    }

    fn lend(&self, to: usize, rng: &mut Prng) {
        for edge in self.edges.iter().filter(|edge| edge.to == to) {
            let mut client = edge.client.borrow_mut();
            client.vqp.import(&self.processes[to].mr.remote()).expect("is connected");
            client.target = rng.between(100, 1000);
        }
    }

    /// Draws changes of addresses, link failures that heal, and pauses. Returns their number.
    ///
    /// On rail `n`, process `n` modulo [`PROCESSES`] keeps its address, so that of every two
    /// processes at least one finds the other. If all addresses of two processes change before
    /// either learns a new one, the processes cannot find each other again.
    fn add_faults(&mut self, rng: &mut Prng) -> usize {
        let faults = rng.between(6, 16) as usize;
        let mut at = Duration::ZERO;
        for _ in 0..faults {
            at += time_below(rng, 14, 22);
            let number = rng.index(PROCESSES);
            let process = &self.processes[number];
            let rail = rng.index(process.nics.len());
            let nic = process.nics[rail].id();
            let until = at + time_below(rng, 15, 23);
            match rng.below(5) {
                0 | 1 if rail % PROCESSES != number => {
                    self.world.after(at, move |w| w.change_address(nic));
                }
                0..=3 => schedule_blink(&mut self.world, nic, at, until),
                _ => schedule_nap(&mut self.world, process.host, at, until - at),
            }
        }
        faults
    }

    fn run(&mut self, time: Duration) -> bool {
        let clients: Vec<_> = self.edges.iter().map(|edge| Rc::clone(&edge.client)).collect();
        let done = World::programs_are(move || clients.iter().all(|client| client.borrow().is_done()));
        self.world.run_until(done, time).is_ok()
    }

    /// The active rail of both ends of each vQP.
    fn rails(&self) -> Vec<[usize; 2]> {
        let of = |edge: &Edge| {
            let server = self.processes[edge.to].lending.borrow()[edge.vqp].active_rail();
            [server, edge.client.borrow().vqp.active_rail()]
        };
        self.edges.iter().map(of).collect()
    }

    fn run_until_together(&mut self) -> bool {
        for _ in 0..200 {
            let rails = self.rails();
            if rails.iter().flatten().all(|&rail| rail == rails[0][0]) {
                return true;
            }
            self.world.run_for(PEER_TIMEOUT / 50);
        }
        false
    }

    fn highest_epoch(&self) -> u16 {
        let reports = self.edges.iter().filter_map(|edge| edge.client.borrow().vqp.last_failover());
        reports.map(|report| report.epoch).max().unwrap_or(0)
    }

    fn close_reasons(&self) -> Vec<CloseReason> {
        self.edges.iter().filter_map(|edge| edge.client.borrow().vqp.close_reason()).collect()
    }

    /// Checks that the increments of a word found different values, that the word counts each
    /// increment, and that no vQP closed although a rail was usable.
    fn check(&mut self, result: &mut SeedRun) {
        if let Err(stalled) = self.world.run_until_quiet() {
            return result.stuck("packets", stalled.state);
        }
        for (to, process) in self.processes.iter().enumerate() {
            let (mut found, mut increments, mut undecided) = (BTreeSet::<u64>::new(), 0, 0);
            for edge in self.edges.iter().filter(|edge| edge.to == to) {
                let client = edge.client.borrow();
                found.extend(client.found.iter().copied());
                increments += client.found.len() as u64;
                undecided += client.undecided;
                let ends = [&process.lending.borrow()[edge.vqp], &client.vqp];
                let hosts = [process.host, self.processes[edge.from].host];
                if let Err(text) = check_liveness(&self.world, hosts, ends) {
                    result.violation("ended-with-a-good-rail", text);
                }
            }
            let (word, values) = (process.word.load(0), found.len());
            if values as u64 != increments || !(increments..=increments + undecided).contains(&word) {
                let text = format!(
                    "word {to} is {word} after {increments} increments that found {values} values, and {undecided} undecided ones"
                );
                result.violation("increments", text);
            }
            result.operations += increments + undecided;
        }
    }
}

pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    let rng = &mut Prng::stream(seed, "home ring");
    let most = rng.between(1, 8);
    let mut ring = Ring::set_up(seed, rng, most, kept_records);
    let mut result = SeedRun::default();
    let faults = ring.add_faults(rng);
    result.faults = faults as u64;
    let is_late: Vec<bool> = (0..PROCESSES).map(|_| rng.below(4) == 0).collect();
    let late = time_below(rng, 18, 24);
    for begins_late in [false, true] {
        if begins_late {
            ring.world.run_for(late);
        }
        for to in (0..PROCESSES).filter(|&to| is_late[to] == begins_late) {
            ring.processes[to].domain.share_atomics().expect("all vQPs fence");
            ring.lend(to, rng);
        }
    }
    ring.world.run_for(Duration::from_millis(60) - late.min(Duration::from_millis(30)));
    ring.world.stop_noise();
    for nic in ring.processes.iter().flat_map(|process| process.nics.clone()) {
        ring.world.set_link(nic.id(), true);
    }
    let is_done = ring.run(Duration::from_secs(20));
    let closed = ring.close_reasons();
    if !is_done {
        let rails = ring.rails();
        result.stuck("stuck", format!("work is not done, rails {rails:?}, {closed:?}"));
    } else if closed.is_empty() && !ring.run_until_together() {
        result.stuck("apart", format!("the homes differ: {:?}", ring.rails()));
    }
    if !closed.is_empty() {
        result.violation("closed", format!("vQPs closed: {closed:?}"));
    }
    ring.check(&mut result);
    let epoch = ring.highest_epoch();
    if usize::from(epoch) > EPOCHS_PER_FAULT * (faults + 1) {
        result.violation("epochs", format!("the homes alternate: {faults} faults, epoch {epoch}"));
    }
    result.keep_trace(&ring.world, kept_records, Vec::new);
    result
}
