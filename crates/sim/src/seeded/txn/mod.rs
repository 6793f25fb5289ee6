//! Transactions over virtual queue pairs: coordinators whose links and NICs fail, which die at any
//! step, sleep, and wake after they were taken over.
//!
//! Each memory node and each life of a coordinator has a host of its own. The queue pairs, the
//! rights of lives, the takeovers and the transactions are those of the product. Only the TCP
//! connections are simulated.
//!
//! In the end, every life that has ended is recovered. The transactions that took effect, in a
//! serial order, must return the same again; the memory has the records that result, the same in
//! all copies, and no lock. What a coordinator was logging when it died took effect if the log has
//! it when the life is recovered.

mod faults;
mod history;
mod mail;
mod process;
mod program;

use core::cell::{Cell, RefCell};
use core::num::NonZeroU64;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{CompletionLogConfig, Config as VqpConfig, Domain};
use mitra_txn::{Inspector, Layout, Life, LifeState, LifeWord, Loader, NodeId, RecordKey, Request, Timing};
use mitra_txn_rdma::{Answer, Node, NodeConfig, QpKind};
use mitra_verbs::{AtomicScope, Buffer, LocalAckTimeout, Provider, Time};

use self::faults::Faults;
use self::history::{History, execute};
use self::mail::Mail;
use self::process::{End, Process, ProcessEvent, Shared, State, token};
use self::program::{Mix, draw_records, layout};
use super::parts::{FaultNumbers, Parts, Reduced, leave_out_noise};
use super::{Extra, Finding, Reduction, SeedRun};
use crate::{AppContext, Config, DurationRange, Failure, HostId, Prng, SimNic, World};

/// The time in which faults happen.
const SAFETY_TIME: Duration = Duration::from_millis(150);
/// The time within which everything ends after the faults.
const LIVENESS_LIMIT: Duration = Duration::from_secs(20);
/// The number of processes that are started at most.
const MAX_PROCESSES: usize = 40;

/// The workload.
pub(super) struct Transactions;

impl Reduced for Transactions {
    fn run(seed: u64, reduction: &Reduction, kept_records: usize) -> (SeedRun, Parts) {
        run_reduced(seed, reduction, kept_records)
    }
}

/// Runs the world of a seed.
pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    run_reduced(seed, &Reduction::default(), kept_records).0
}

fn run_reduced(seed: u64, reduction: &Reduction, kept_records: usize) -> (SeedRun, Parts) {
    let rng = &mut Prng::stream(seed, "seeded transactions");
    let mut config = world_config(seed, rng);
    let mut vqp = vqp_config(rng);
    let mut parts = Parts { extras: leave_out_noise(&mut config, reduction), ..Parts::default() };
    parts.extras.extend(vqp.completion_log.map(|_| Extra::Log));
    vqp.completion_log = vqp.completion_log.filter(|_| !reduction.lacks(Extra::Log));
    let mut faults = FaultNumbers::new(reduction);
    let mut world = TransactionWorld::new(seed, config, vqp, rng, reduction, &mut parts, kept_records);
    world.faults.draw_fates(&mut faults);
    world.run(parts.connections, &mut faults);
    parts.faults = faults.drawn();
    let mut result = SeedRun { faults: faults.kept(), ..SeedRun::default() };
    world.check();
    let history = &mut *world.shared.history.borrow_mut();
    result.operations = world.shared.requests.get();
    result.findings = core::mem::take(&mut history.findings);
    result.keep_trace(&world.world, kept_records);
    if kept_records > 0 {
        result.setup = world.setup.clone();
        result.setup.push(format!(
            "{} transactions, {} of them untold, {} aborted for good, {} lives, {:?}",
            world.committed,
            history.untold,
            history.aborts,
            world.processes.len(),
            world.world.now()
        ));
    }
    (result, parts)
}

/// Draws the configuration of a world, whose NICs keep the promises on which transactions depend.
fn world_config(seed: u64, rng: &mut Prng) -> Config {
    let mut config = Config::swarm(seed);
    let capabilities = &mut config.capabilities;
    (capabilities.reset, capabilities.ack_after_placement, capabilities.write_order) = (true, true, true);
    capabilities.psn_query = rng.below(3) > 0;
    capabilities.saved_results = rng.below(3) > 0;
    capabilities.atomic_scope = *rng.pick(&[AtomicScope::Nic, AtomicScope::Global]);
    config.link.survivor_ppm = *rng.pick(&[0, 500_000, 1_000_000]);
    config.link.straggler_ppm = *rng.pick(&[0, 0, 5_000, 50_000]);
    config.link.straggler_delay = DurationRange::micros(500, 20_000);
    config
}

fn vqp_config(rng: &mut Prng) -> VqpConfig {
    let mut config = VqpConfig { send_wrs: 32, recv_wrs: 4, ..VqpConfig::default() };
    config.completion_log = (rng.below(2) == 0).then(CompletionLogConfig::default);
    config.rd_atomic = rng.between(1, 16) as u8;
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(9);
    config.detector.retry_cnt = *rng.pick(&[1, 3, 7]);
    config.detector.heartbeat_interval = Duration::from_millis(2);
    config.detector.max_missed_heartbeats = 8;
    config.peer_timeout = Duration::from_millis(100);
    config
}

/// A world of the workload.
struct TransactionWorld {
    world: World,
    shared: Rc<Shared>,
    rails: u8,
    node_nics: Vec<Vec<Arc<SimNic>>>,
    memories: Vec<Arc<Buffer>>,
    /// What the store has at first.
    records: Vec<(RecordKey, Vec<u8>)>,
    faults: Faults,
    processes: Vec<Rc<RefCell<Process>>>,
    /// The processes of each coordinator that were started.
    starts: BTreeMap<u16, u64>,
    committed: u64,
    setup: Vec<String>,
}

impl TransactionWorld {
    fn new(
        seed: u64,
        config: Config,
        vqp: VqpConfig,
        rng: &mut Prng,
        reduction: &Reduction,
        parts: &mut Parts,
        kept_records: usize,
    ) -> TransactionWorld {
        let (nodes, rails) = (rng.between(2, 3) as u16, rng.between(2, 3) as u8);
        let drawn = rng.between(2, 3) as usize;
        parts.connections = drawn;
        let coordinators = reduction.connections.unwrap_or(drawn).min(drawn) as u16;
        let layout = Rc::new(layout(nodes, coordinators, rng.between(2, 4) as u16));
        let records = draw_records(rng);
        let mut world = World::with_trace_len(seed, config, kept_records);
        let timeout = Duration::from_millis(8 << rng.below(3));
        let mail_delay = Duration::from_micros(*rng.pick(&[100, 2_000, 20_000]));
        let mix = Mix::draw(rng);
        let tasks = rng.between(1, 3) as usize;
        let most = rng.between(2, 8) as usize;
        parts.operations = [most, 0];
        let programs = reduction.operations_of(0, most);
        let work = (0..coordinators).map(|coordinator| {
            let work_of_task = |task: usize| {
                let rng = &mut Prng::stream(seed, &format!("transactions {coordinator} {task}"));
                let first = (usize::from(coordinator) * tasks + task) * most;
                let programs = (0..programs).map(|at| mix.program(rng, (first + at) as u64));
                RefCell::new(programs.collect::<VecDeque<_>>())
            };
            (0..tasks).map(work_of_task).collect()
        });
        let shared = Shared {
            fingerprint: layout.fingerprint(),
            vqp,
            timing: Timing { interval: Duration::from_micros(*rng.pick(&[500, 1_000, 2_000])), timeout },
            mail: RefCell::new(Mail::new(mail_delay, Prng::stream(seed, "mail"))),
            history: RefCell::new(History::default()),
            work: work.collect(),
            events: RefCell::default(),
            stop: Cell::new(false),
            requests: Cell::new(0),
            layout,
        };
        let shared = Rc::new(shared);
        let faults = Faults::new(seed, rails, timeout);
        let mut node_nics = Vec::new();
        let mut memories = Vec::new();
        for number in 0..nodes {
            let host = world.add_host(&format!("n{number}"));
            let nics: Vec<_> = (0..rails).map(|rail| world.add_nic(host, rail)).collect();
            memories.push(start_node(&mut world, &shared, host, &nics, number, coordinators));
            node_nics.push(nics);
        }
        load(&shared.layout, &records, &memories);
        let setup = match kept_records {
            0 => Vec::new(),
            _ => vec![format!(
                "{nodes} nodes, {coordinators} coordinators, {rails} rails, {tasks} tasks of {most} programs, {mix:?}, {:?}, {vqp:?}\n{:?}",
                shared.timing,
                world.config()
            )],
        };
        let (processes, starts) = Default::default();
        let mut made = TransactionWorld {
            world,
            shared,
            rails,
            node_nics,
            memories,
            records,
            faults,
            processes,
            starts,
            committed: 0,
            setup,
        };
        made.setup.retain(|line| !line.is_empty());
        made
    }

    /// Starts a process of a coordinator, on a host of its own.
    fn start(&mut self, coordinator: u16) {
        let id = self.processes.len();
        if id == MAX_PROCESSES {
            return;
        }
        let start = self.starts.entry(coordinator).or_default();
        *start += 1;
        let host = self.world.add_host(&format!("c{coordinator}.{start}"));
        let nics: Vec<_> = (0..self.rails).map(|rail| self.world.add_nic(host, rail)).collect();
        let fate = self.faults.next_fate();
        if self.faults.is_over {
            self.world.stop_noise();
        }
        let mut process = Process::new(Rc::clone(&self.shared), id, host, nics, coordinator, fate);
        process.start(self.world.now());
        let process = Rc::new(RefCell::new(process));
        self.processes.push(Rc::clone(&process));
        self.world.add_app(host, move |ctx: &mut AppContext<'_>| process.borrow_mut().step(ctx));
    }

    /// Runs the world until all work is done and all lives are recovered.
    /// `drawn` is the number of coordinators of the whole world.
    fn run(&mut self, drawn: usize, numbers: &mut FaultNumbers<'_>) {
        let coordinators = self.shared.layout.schema().coordinators;
        (1..=coordinators).for_each(|coordinator| self.start(coordinator));
        // The failures of links and NICs are those of the whole world.
        (usize::from(coordinators)..drawn).for_each(|_| self.faults.skip_fate());
        let of_processes = self.processes.iter().map(|process| process.borrow().nics.clone());
        let nics: Vec<_> = self.node_nics.iter().cloned().chain(of_processes).collect();
        self.faults.schedule(&mut self.world, &nics, numbers);
        let safety = self.world.now() + SAFETY_TIME;
        let is_done = self.run_until(safety);
        self.faults.is_over = true;
        self.world.disarm_stages();
        self.world.heal();
        if !is_done || self.shared.has_work() {
            self.restart_missing();
            let limit = self.world.now() + LIVENESS_LIMIT;
            if !self.run_until(limit) {
                let states: Vec<_> =
                    self.processes.iter().map(|process| process.borrow().describe()).collect();
                let words = self.words();
                self.find(Finding::stuck("stuck", format!("{}; {words:?}", states.join(", "))));
            }
        }
        // What was delayed arrives. It must change nothing.
        self.world.run_for(Duration::from_millis(25));
        self.shared.stop.set(true);
        self.world.run_for(Duration::from_millis(2));
    }

    fn run_until(&mut self, deadline: Time) -> bool {
        let (processes, shared) = (RefCell::new(self.processes.clone()), Rc::clone(&self.shared));
        let memory = Arc::clone(&self.memories[0]);
        let is_over = self.faults.is_over;
        let mut is_done = World::programs_are(|| {
            let processes = processes.borrow();
            processes.iter().all(|process| process.borrow_mut().is_idle())
                && all_recovered(&shared, &processes, &memory)
                && !(is_over && shared.has_work())
        });
        loop {
            if self.shared.events.borrow().is_empty() {
                if is_done(&self.world) {
                    return true;
                }
                if self.world.now() >= deadline || !self.world.step() {
                    return false;
                }
            }
            let events = core::mem::take(&mut *self.shared.events.borrow_mut());
            for event in events {
                self.on_event(event);
            }
            if processes.borrow().len() < self.processes.len() {
                processes.borrow_mut().clone_from(&self.processes);
            }
        }
    }

    fn on_event(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Start(coordinator) => {
                if !self.faults.is_over || self.needs_process(coordinator) {
                    self.start(coordinator);
                }
            }
            ProcessEvent::Ended(id) => {
                let coordinator = self.processes[id].borrow().life.coordinator;
                self.world.exit(self.processes[id].borrow().host);
                self.start_later(coordinator);
            }
            ProcessEvent::Live(coordinator) => {
                let history = &mut *self.shared.history.borrow_mut();
                history.read_log(&self.shared.layout, &self.memories, coordinator);
            }
            ProcessEvent::Fated(id, fate) => {
                let (host, coordinator) = {
                    let process = self.processes[id].borrow();
                    (process.host, process.life.coordinator)
                };
                if let End::Sleeps(time) = fate.end {
                    self.world.after(fate.delay, move |world| {
                        let until = world.now() + time;
                        world.pause(host, Some(until));
                    });
                    return;
                }
                let process = Rc::clone(&self.processes[id]);
                self.world.after(fate.delay, move |world| {
                    process.borrow_mut().die();
                    if fate.end == End::Exits {
                        return world.exit(host);
                    }
                    let nics: Vec<_> = process.borrow().nics.iter().map(|nic| nic.id()).collect();
                    nics.into_iter().for_each(|nic| world.fail(nic, Failure::NicDead));
                });
                self.start_later(coordinator);
            }
        }
    }

    /// Starts another process of a coordinator after a time, or not before the faults are over.
    fn start_later(&mut self, coordinator: u16) {
        if let Some(delay) = self.faults.draw_restart() {
            let shared = Rc::clone(&self.shared);
            self.world.after(delay, move |_| {
                shared.events.borrow_mut().push(ProcessEvent::Start(coordinator));
            });
        }
    }

    /// Whether a coordinator has no process although it has work, or although nobody else could
    /// recover lives.
    fn needs_process(&self, coordinator: u16) -> bool {
        let runs = |process: &Rc<RefCell<Process>>| process.borrow().state != State::Ended;
        let is_running = |process: &&Rc<RefCell<Process>>| {
            runs(process) && process.borrow().life.coordinator == coordinator
        };
        let has_work =
            self.shared.work[usize::from(coordinator) - 1].iter().any(|work| !work.borrow().is_empty());
        let is_alone = !self.processes.iter().any(runs);
        (has_work || is_alone) && !self.processes.iter().any(|process| is_running(&process))
    }

    fn restart_missing(&mut self) {
        for coordinator in 1..=self.shared.layout.schema().coordinators {
            if self.needs_process(coordinator) {
                self.start(coordinator);
            }
        }
    }

    fn words(&self) -> Vec<LifeWord> {
        let coordinators = 1..=self.shared.layout.schema().coordinators;
        coordinators.map(|coordinator| word(&self.shared.layout, &self.memories[0], coordinator)).collect()
    }

    fn find(&self, finding: Finding) {
        self.shared.history.borrow_mut().findings.push(finding);
    }

    /// Checks the history, and what the memory has in the end.
    fn check(&mut self) {
        let shared = Rc::clone(&self.shared);
        let history = &mut *shared.history.borrow_mut();
        if !history.findings.is_empty() {
            return;
        }
        for coordinator in 1..=shared.layout.schema().coordinators {
            history.read_log(&shared.layout, &self.memories, coordinator);
        }
        let (model, committed) = history.replay(&self.records);
        self.committed = committed;
        if !history.findings.is_empty() {
            return;
        }
        let mut inspector = Inspector::new(Rc::clone(&shared.layout));
        for (coordinator, word) in (1..).zip(self.words()) {
            let mut lives = (0..=word.incarnation()).map(|incarnation| Life { coordinator, incarnation });
            lives
                .rfind(|&life| word.is_recovered(life))
                .into_iter()
                .for_each(|life| inspector.set_recovered(life));
        }
        let mut records = BTreeMap::new();
        while let Some(requests) = inspector.requests() {
            let outcomes = execute(&self.memories, &requests);
            inspector.on_outcomes(&outcomes, |at, value| _ = records.insert(at, value.to_vec()));
        }
        let inspection = inspector.into_inspection();
        if !inspection.is_clean() {
            history.find("memory", inspection.to_string());
        }
        if records != *model.records() {
            let all = records.keys().chain(model.records().keys());
            let other = all.clone().find(|at| records.get(at) != model.records().get(at));
            let text = other.map(|at| {
                format!("{at:?} is {:?} and should be {:?}", records.get(at), model.records().get(at))
            });
            history.find("records", text.unwrap_or_default());
        }
        if let Some((node, at)) = touched(&shared.layout, &self.memories) {
            history.find(
                "touched",
                format!("memory that belongs to nothing has changed at {at} on node {node}"),
            );
        }
    }
}

/// Starts a memory node. Returns its memory.
fn start_node(
    world: &mut World,
    shared: &Rc<Shared>,
    host: HostId,
    nics: &[Arc<SimNic>],
    number: u16,
    coordinators: u16,
) -> Arc<Buffer> {
    let domain = Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect());
    let config = NodeConfig {
        node: NodeId(number),
        bytes: shared.layout.bytes() as usize,
        fingerprint: shared.fingerprint,
        tokens: (1..=coordinators).map(token).collect(),
        kind: QpKind::Virtual,
        failover: shared.vqp,
    };
    let node = Node::new(domain.expect("the NICs are new"), config);
    let mut node = node.expect("the NICs keep what transactions rely on");
    let memory = Arc::clone(node.memory());
    let shared = Rc::clone(shared);
    world.add_app(host, move |ctx: &mut AppContext<'_>| {
        if shared.stop.get() {
            return ctx.exit();
        }
        let now = ctx.now();
        loop {
            let question = shared.mail.borrow_mut().next_question(now, number);
            let Some((by, hello)) = question else { break };
            let answer = node.answer(&hello).unwrap_or_else(Answer::Refused);
            shared.mail.borrow_mut().answer(now, by, hello, answer);
            ctx.mark_active();
        }
        node.poll();
    });
    memory
}

fn load(layout: &Layout, records: &[(RecordKey, Vec<u8>)], memories: &[Arc<Buffer>]) {
    let mut loader = Loader::new(layout);
    for (at, value) in records {
        loader.insert(*at, value.clone()).expect("there is a place for each record");
    }
    let requests: Vec<Request> = loader.take_requests().collect();
    execute(memories, &requests);
    let number = loader.finish(NonZeroU64::MIN).expect("all records were taken");
    execute(memories, &number);
}

/// The life word of a coordinator on a node.
fn word(layout: &Layout, memory: &Buffer, coordinator: u16) -> LifeWord {
    LifeWord::from_bits(memory.load(layout.life_line(coordinator) as usize))
}

/// Whether all lives are recovered, apart from those of processes that run.
fn all_recovered(shared: &Shared, processes: &[Rc<RefCell<Process>>], memory: &Buffer) -> bool {
    (1..=shared.layout.schema().coordinators).all(|coordinator| {
        let word = word(&shared.layout, memory, coordinator);
        let life = Life { coordinator, incarnation: word.incarnation() };
        let runs = |process: &Rc<RefCell<Process>>| {
            let process = process.borrow();
            process.state == State::Live && process.life == life
        };
        word.state() == LifeState::Recovered || word.state() == LifeState::Live && processes.iter().any(runs)
    })
}

/// Returns a byte that is not zero, outside of all lines, logs and places.
fn touched(layout: &Layout, memories: &[Arc<Buffer>]) -> Option<(usize, usize)> {
    let store = layout.store_line() as usize;
    let mut used: Vec<Vec<core::ops::Range<usize>>> = vec![vec![store..store + 8]; memories.len()];
    let coordinators = 1..=layout.schema().coordinators;
    for coordinator in coordinators {
        for (node, used) in used.iter_mut().enumerate() {
            let line = layout.life_line(coordinator) as usize;
            used.push(line..line + 16);
            for slot in layout.log_slots(coordinator) {
                let at = slot[node].at as usize;
                used.push(at..at + layout.slot_bytes() as usize);
            }
        }
    }
    for copies in layout.all_places() {
        for at in copies.backups.iter().chain([&copies.primary]) {
            let begin = at.at as usize;
            used[usize::from(at.node.0)].push(begin..begin + copies.bytes as usize);
        }
    }
    for (node, (memory, mut used)) in memories.iter().zip(used).enumerate() {
        let mut bytes = vec![0; memory.len()];
        memory.read_at(0, &mut bytes);
        used.drain(..).for_each(|range| bytes[range].fill(0));
        if let Some(at) = bytes.iter().position(|&byte| byte != 0) {
            return Some((node, at));
        }
    }
    None
}
