//! Transactions over virtual queue pairs. Each process that runs as a coordinator is one *life* of
//! that coordinator. Links and NICs fail. Coordinators die at any step, or sleep, and wake after
//! another process has taken over their lives.
//!
//! Each memory node and each life of a coordinator has a host of its own. Only the TCP connections
//! are simulated.
//!
//! In the end, every life that has ended is recovered. If the transactions that took effect run
//! again in a serial order, they return the same results. The memory has the records of such a run,
//! the same in all copies, and no lock. A coordinator may die while it logs an attempt. The attempt
//! took effect if the log has it when the coordinator's life is recovered.

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

use mitra_failover::{CompletionLogConfig, Config as VqpConfig};
use mitra_txn::{Inspector, Layout, Life, LifeState, LifeWord, Loader, NodeId, RecordKey, Request, Timing};
use mitra_txn_rdma::{Answer, Node, NodeConfig, QpKind};
use mitra_verbs::{AtomicScope, Buffer, Error, LocalAckTimeout, Time};

use self::faults::Faults;
use self::history::{History, execute};
use self::mail::Mail;
use self::process::{End, Process, ProcessEvent, Shared, State, token};
use self::program::{Mix, draw_records, layout};
use super::faults::schedule_nap;
use super::memory::read_all;
use super::parts::{Left, Reduced};
use super::{Finding, SeedRun, domain};
use mitra_sim::{AppContext, Config, DurationRange, Failure, HostId, Prng, SimNic, World};

const SAFETY_TIME: Duration = Duration::from_millis(150);
/// The time for the liveness phase.
const LIVENESS_LIMIT: Duration = Duration::from_secs(20);
/// The maximum number of processes that are started.
const MAX_PROCESSES: usize = 40;

pub(super) struct Transactions;

impl Reduced for Transactions {
    fn run(seed: u64, left: &mut Left<'_>, kept_records: usize, result: &mut SeedRun) -> Result<(), Error> {
        let rng = &mut Prng::stream(seed, "seeded transactions");
        let mut config = world_config(seed, rng);
        let mut vqp = vqp_config(rng);
        left.leave_out_noise(&mut config);
        left.leave_out_log(&mut vqp);
        let mut world = TransactionWorld::new(seed, config, vqp, rng, left, kept_records)?;
        world.faults.draw_fates(left);
        world.run(left);
        result.faults = left.faults;
        let committed = world.check();
        let TransactionWorld { world, shared, processes, setup, .. } = world;
        let history = &mut *shared.history.borrow_mut();
        result.operations = shared.requests.get();
        result.findings = core::mem::take(&mut history.findings);
        result.keep_trace(&world, kept_records, || {
            let summary = format!(
                "{committed} transactions, {} of them untold, {} aborted for good, {} lives, {:?}",
                history.untold,
                history.aborts,
                processes.len(),
                world.now()
            );
            vec![setup, summary]
        });
        Ok(())
    }
}

/// Draws the configuration of a world. Transactions depend on NICs that can be reset, and place
/// data in order before they acknowledge it.
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

struct TransactionWorld {
    world: World,
    shared: Rc<Shared>,
    rails: u8,
    node_nics: Vec<Vec<Arc<SimNic>>>,
    memories: Vec<Arc<Buffer>>,
    records: Vec<(RecordKey, Vec<u8>)>,
    faults: Faults,
    processes: Vec<Rc<RefCell<Process>>>,
    /// How many processes of each coordinator were started.
    starts: BTreeMap<u16, u64>,
    setup: String,
}

impl TransactionWorld {
    fn new(
        seed: u64,
        config: Config,
        vqp: VqpConfig,
        rng: &mut Prng,
        left: &mut Left<'_>,
        kept_records: usize,
    ) -> Result<TransactionWorld, Error> {
        let (nodes, rails) = (rng.between(2, 3) as u16, rng.between(2, 3) as u8);
        let drawn = rng.between(2, 3) as usize;
        left.parts.connections = drawn;
        let coordinators = left.reduction.connections.unwrap_or(drawn).min(drawn) as u16;
        let layout = Rc::new(layout(nodes, coordinators, rng.between(2, 4) as u16));
        let records = draw_records(rng);
        let mut world = World::with_trace_len(seed, config, kept_records);
        let timeout = Duration::from_millis(8 << rng.below(3));
        let mail_delay = Duration::from_micros(*rng.pick(&[100, 2_000, 20_000]));
        let mix = Mix::draw(rng);
        let tasks = rng.between(1, 3) as usize;
        let most = rng.between(2, 8) as usize;
        left.parts.operations = [most, 0];
        let programs = left.reduction.operations_of(0, most);
        let work = (0..coordinators).map(|coordinator| {
            let work_of_task = |task: usize| {
                let rng = &mut Prng::stream(seed, &format!("transactions {coordinator} {task}"));
                let first = (usize::from(coordinator) * tasks + task) * most;
                let programs = (0..programs).map(|at| mix.program(rng, (first + at) as u64));
                RefCell::new(programs.collect::<VecDeque<_>>())
            };
            (0..tasks).map(work_of_task).collect()
        });
        let shared = Rc::new(Shared {
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
        });
        let faults = Faults::new(seed, rails, timeout);
        let mut node_nics = Vec::new();
        let mut memories = Vec::new();
        for number in 0..nodes {
            let host = world.add_host(&format!("n{number}"));
            let nics: Vec<_> = (0..rails).map(|rail| world.add_nic(host, rail)).collect();
            memories.push(start_node(&mut world, &shared, host, &nics, number, coordinators)?);
            node_nics.push(nics);
        }
        load(&shared.layout, &records, &memories);
        let setup = format!(
            "{nodes} nodes, {coordinators} coordinators, {rails} rails, {tasks} tasks of {most} programs, {mix:?}, {:?}, {vqp:?}\n{:?}",
            shared.timing,
            world.config()
        );
        let (processes, starts) = Default::default();
        Ok(TransactionWorld {
            world,
            shared,
            rails,
            node_nics,
            memories,
            records,
            faults,
            processes,
            starts,
            setup,
        })
    }

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

    fn run(&mut self, left: &mut Left<'_>) {
        let coordinators = self.shared.layout.schema().coordinators;
        (1..=coordinators).for_each(|coordinator| self.start(coordinator));
        // A reduction to fewer coordinators does not change the failures of links and NICs.
        (usize::from(coordinators)..left.parts.connections).for_each(|_| self.faults.skip_fate());
        let of_processes = self.processes.iter().map(|process| process.borrow().nics.clone());
        let nics: Vec<_> = self.node_nics.iter().cloned().chain(of_processes).collect();
        self.faults.schedule(&mut self.world, &nics, left);
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
                let stuck = Finding::stuck("stuck", format!("{}; {words:?}", states.join(", ")));
                self.shared.history.borrow_mut().findings.push(stuck);
            }
        }
        // Delayed packets arrive. They must change nothing.
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
                    return schedule_nap(&mut self.world, host, fate.delay, time);
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

    /// Starts another process of a coordinator after a time, or when the faults are over.
    fn start_later(&mut self, coordinator: u16) {
        if let Some(delay) = self.faults.draw_restart() {
            let shared = Rc::clone(&self.shared);
            self.world.after(delay, move |_| {
                shared.events.borrow_mut().push(ProcessEvent::Start(coordinator));
            });
        }
    }

    /// Whether a coordinator needs a process: it has work and no process, or no running process
    /// could recover lives.
    fn needs_process(&self, coordinator: u16) -> bool {
        let runs = |process: &Rc<RefCell<Process>>| process.borrow().state != State::Ended;
        let is_running = |process: &Rc<RefCell<Process>>| {
            runs(process) && process.borrow().life.coordinator == coordinator
        };
        let has_work =
            self.shared.work[usize::from(coordinator) - 1].iter().any(|work| !work.borrow().is_empty());
        let is_alone = !self.processes.iter().any(runs);
        (has_work || is_alone) && !self.processes.iter().any(is_running)
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

    /// Checks the history and the memory. Returns the number of transactions that took effect.
    fn check(&mut self) -> u64 {
        let shared = Rc::clone(&self.shared);
        let history = &mut *shared.history.borrow_mut();
        if !history.findings.is_empty() {
            return 0;
        }
        for coordinator in 1..=shared.layout.schema().coordinators {
            history.read_log(&shared.layout, &self.memories, coordinator);
        }
        let (model, committed) = history.replay(&self.records);
        if !history.findings.is_empty() {
            return committed;
        }
        let mut inspector = Inspector::new(Rc::clone(&shared.layout));
        for (coordinator, word) in (1..).zip(self.words()) {
            let mut lives = (0..=word.incarnation()).map(|incarnation| Life { coordinator, incarnation });
            if let Some(life) = lives.rfind(|&life| word.is_recovered(life)) {
                inspector.set_recovered(life);
            }
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
            let text = format!("memory that belongs to nothing has changed at {at} on node {node}");
            history.find("touched", text);
        }
        committed
    }
}

fn start_node(
    world: &mut World,
    shared: &Rc<Shared>,
    host: HostId,
    nics: &[Arc<SimNic>],
    number: u16,
    coordinators: u16,
) -> Result<Arc<Buffer>, Error> {
    let config = NodeConfig {
        node: NodeId(number),
        bytes: shared.layout.bytes() as usize,
        fingerprint: shared.fingerprint,
        tokens: (1..=coordinators).map(token).collect(),
        kind: QpKind::Virtual,
        failover: shared.vqp,
    };
    let mut node = Node::new(domain(nics)?, config).expect("the NICs keep what transactions rely on");
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
    Ok(memory)
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

fn word(layout: &Layout, memory: &Buffer, coordinator: u16) -> LifeWord {
    LifeWord::from_bits(memory.load(layout.life_line(coordinator) as usize))
}

/// Whether all lives are recovered, apart from the lives of running processes.
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

/// Returns the node and the offset of a byte that is not zero, outside of all lines, logs and
/// places of records.
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
    for (node, (memory, used)) in memories.iter().zip(used).enumerate() {
        let mut bytes = read_all(memory);
        used.into_iter().for_each(|range| bytes[range].fill(0));
        if let Some(at) = bytes.iter().position(|&byte| byte != 0) {
            return Some((node, at));
        }
    }
    None
}
