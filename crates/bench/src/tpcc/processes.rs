//! The memory processes and the coordinator processes.

use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mitra_failover::Domain;
use mitra_peer_process::PeerConnection;
use mitra_txn::{Abort, Client, Ending, NodeId, NotCommitted, TableId};
use mitra_txn_rdma::{Driver, MemoryNode, NodeConfig};
use mitra_txn_workloads::Program;
use mitra_txn_workloads::tpcc::Terminal;

use super::history::{Entry, Writer};
use super::process_messages::{FromCoordinator, Role, SetLink, Setup, Summary, ToCoordinator, clock, open};
use crate::endpoint::RailPair;

/// The longest sleep of a memory node.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// The interval at which a coordinator checks for messages of the first process.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(1);
/// A coordinator gives up after this many failures in a row to connect again.
const MAX_REFUSALS: u32 = 50;
/// The time before a coordinator whose life has ended connects again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn run(role: Role, connection: &mut PeerConnection) -> anyhow::Result<()> {
    match role {
        Role::Memory { setup, node } => run_memory(&setup, NodeId(node), connection),
        Role::Coordinator { setup, coordinator, nodes, history } => {
            let writer = Rc::new(RefCell::new(Writer::create(&history)?));
            let (domain, nics) = open()?;
            let messages = receive(connection, nics)?;
            let first_process =
                FirstProcess { connection, messages, is_told_live: false, is_pausing: false, stops: false };
            let (shared, summary) = Default::default();
            Process { setup, coordinator, nodes, writer, shared, first_process, summary, domain }.run()
        }
    }
}

/// Receives messages on a thread, because the caller must not block. The thread also sets links,
/// because a caller that connects reads no messages. The channel ends with the connection.
fn receive(connection: &PeerConnection, nics: RailPair) -> anyhow::Result<Receiver<ToCoordinator>> {
    let mut connection = connection.try_clone()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok(message) = connection.receive_within(None) {
            if let ToCoordinator::SetLink(link) = message {
                link.apply(&nics);
            }
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

fn run_memory(setup: &Setup, node: NodeId, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let (domain, nics) = open()?;
    let layout = setup.layout()?;
    let config = NodeConfig {
        node,
        bytes: layout.bytes() as usize,
        fingerprint: layout.fingerprint(),
        tokens: setup.tokens(),
        kind: setup.variant.kind(),
        failover: setup.variant.failover(),
    };
    let mut memory = MemoryNode::new(domain, TcpListener::bind("127.0.0.1:0")?, config)?;
    connection.send(&memory.address())?;
    let mut messages = connection.try_clone()?;
    let (waker, ends) = (memory.waker(), Arc::new(AtomicBool::new(false)));
    let has_ended = Arc::clone(&ends);
    std::thread::spawn(move || {
        while let Ok(link) = messages.receive_within::<SetLink>(None) {
            link.apply(&nics);
        }
        ends.store(true, Ordering::Release);
        waker.wake();
    });
    while !has_ended.load(Ordering::Acquire) {
        memory.poll();
        memory.wait(MAX_SLEEP);
    }
    Ok(())
}

/// The state that the tasks of a coordinator share with its loop.
#[derive(Default)]
struct Shared {
    runs: Cell<bool>,
    /// The number of tasks in a transaction.
    busy: Cell<usize>,
    unknown: Cell<u64>,
    corrupt: Cell<u64>,
}

/// A coordinator process, over all its lives.
struct Process<'a> {
    setup: Setup,
    coordinator: u16,
    nodes: Vec<SocketAddr>,
    writer: Rc<RefCell<Writer>>,
    shared: Rc<Shared>,
    first_process: FirstProcess<'a>,
    summary: Summary,
    domain: Arc<Domain>,
}

/// The connection to the first process, with the requests that are not yet answered.
struct FirstProcess<'a> {
    connection: &'a mut PeerConnection,
    messages: Receiver<ToCoordinator>,
    is_told_live: bool,
    is_pausing: bool,
    stops: bool,
}

impl Process<'_> {
    fn run(mut self) -> anyhow::Result<()> {
        let layout = self.setup.layout()?;
        let links = self.setup.links(self.coordinator, &self.nodes)?;
        let mut refusals = 0;
        while !self.first_process.stops {
            match Driver::connect(&self.domain, &layout, links.clone(), self.setup.timing()) {
                Ok(driver) => {
                    refusals = 0;
                    self.live(driver)?;
                }
                Err(error) if !self.first_process.is_told_live || refusals == MAX_REFUSALS => {
                    return Err(error.into());
                }
                Err(error) => {
                    refusals += 1;
                    self.summary.ended_lives.push(error.to_string());
                    std::thread::sleep(RECONNECT_INTERVAL);
                }
            }
        }
        (self.summary.unknown, self.summary.corrupt) = (self.shared.unknown.get(), self.shared.corrupt.get());
        self.first_process.connection.send(&FromCoordinator::Stopped(self.summary))?;
        Ok(())
    }

    /// Drives a life until it ends, or until the process is to stop.
    fn live(&mut self, mut driver: Driver) -> anyhow::Result<()> {
        self.spawn(&mut driver)?;
        let mut last_look = Instant::now();
        let mut failovers = vec![None; self.nodes.len()];
        let mut ending = None;
        while ending.is_none() && !self.first_process.stops {
            ending = driver.poll();
            let recovered = driver.session().take_recovered();
            let others = recovered.iter().filter(|life| life.coordinator != self.coordinator);
            self.summary.recovered.extend(others.map(|_| clock()));
            if ending.is_none() && last_look.elapsed() >= MESSAGE_INTERVAL {
                last_look = Instant::now();
                self.count_failovers(&driver, &mut failovers);
                self.first_process.look(&mut driver, &self.shared)?;
            }
        }
        self.sum_up(&mut driver, ending);
        self.shared.busy.set(0);
        Ok(())
    }

    /// Counts new failovers. `last` has, for each node, the epoch of the last failover that was
    /// counted.
    fn count_failovers(&mut self, driver: &Driver, last: &mut [Option<u16>]) {
        for (node, last) in (0..).map(NodeId).zip(last) {
            // A failback is not counted.
            let report = driver.links().last_failover(node);
            let epoch = report.filter(|report| report.cause.detector().is_some()).map(|report| report.epoch);
            if epoch.is_some() && epoch != *last {
                self.summary.failovers += 1;
                *last = epoch;
            }
        }
    }

    /// Adds the counts of an ended life to the summary.
    fn sum_up(&mut self, driver: &mut Driver, ending: Option<Ending>) {
        self.summary.ended_lives.extend(ending.map(|ending| match driver.links().lost() {
            Some(lost) => format!("{ending}: {lost}"),
            None => ending.to_string(),
        }));
        for (reason, count) in driver.session().coordinator().aborts() {
            *self.summary.aborts.entry(reason.to_owned()).or_default() += count;
        }
        let counters = driver.links().counters();
        self.summary.requests += counters.requests;
        self.summary.bytes += counters.bytes;
        self.summary.doorbells += counters.doorbells;
    }

    fn spawn(&self, driver: &mut Driver) -> anyhow::Result<()> {
        let scale = self.setup.scale()?;
        let tables = 0..self.setup.layout()?.schema().tables.len() as u16;
        let partitions =
            tables.flat_map(|table| (0..scale.warehouses()).map(move |at| (TableId(table), at.into())));
        let incarnation = driver.links().life().incarnation;
        let coordinator = driver.session().coordinator();
        coordinator.warm_up(partitions);
        for terminal in 0..self.setup.terminals {
            let place =
                u32::from(self.coordinator - 1) * u32::from(self.setup.terminals) + u32::from(terminal);
            // Each life of the coordinator starts its terminals again, also a life in a new
            // process.
            let starts = u64::from(incarnation) - 1;
            let terminal = Terminal::numbered(scale, self.setup.seed, place, starts);
            let (shared, writer) = (Rc::clone(&self.shared), Rc::clone(&self.writer));
            coordinator.spawn(run_terminal(coordinator.client(), terminal, shared, writer));
        }
        Ok(())
    }
}

impl FirstProcess<'_> {
    /// Sends the due answers to the first process, and executes one of its messages.
    fn look(&mut self, driver: &mut Driver, shared: &Shared) -> anyhow::Result<()> {
        if !self.is_told_live && driver.session().is_live() {
            self.is_told_live = true;
            self.connection.send(&FromCoordinator::Live)?;
        }
        // A commit is reported before it is applied, so a coordinator without a busy terminal may
        // still have work. It pauses only when all its transactions are applied.
        let session = driver.session();
        let is_at_rest = session.is_live() && session.coordinator().is_settled();
        if self.is_pausing && shared.busy.get() == 0 && is_at_rest {
            self.is_pausing = false;
            self.connection.send(&FromCoordinator::Paused)?;
        }
        match self.messages.try_recv() {
            Ok(ToCoordinator::Run) => shared.runs.set(true),
            Ok(ToCoordinator::Pause) => {
                shared.runs.set(false);
                self.is_pausing = true;
            }
            Ok(ToCoordinator::Stop) | Err(mpsc::TryRecvError::Disconnected) => self.stops = true,
            // `receive` has set the link.
            Ok(ToCoordinator::SetLink(_)) | Err(mpsc::TryRecvError::Empty) => {}
        }
        Ok(())
    }
}

async fn run_terminal(
    client: Client,
    mut terminal: Terminal,
    shared: Rc<Shared>,
    writer: Rc<RefCell<Writer>>,
) {
    loop {
        while !shared.runs.get() {
            if client.sleep(MESSAGE_INTERVAL).await.is_err() {
                return;
            }
        }
        let date = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        shared.busy.set(shared.busy.get() + 1);
        for input in terminal.next(date) {
            let begun = clock();
            let result = client.run(async |tx| input.execute(tx).await).await;
            match result {
                Ok(committed) => {
                    let entry = Entry {
                        kind: input.kind(),
                        begun,
                        told: clock(),
                        attempts: committed.attempts,
                        round_trips: committed.round_trips,
                        footprint: committed.footprint,
                    };
                    if committed.value.is_err() {
                        shared.corrupt.set(shared.corrupt.get() + 1);
                    }
                    writer.borrow_mut().add(&entry).expect("the history can be written");
                }
                Err(NotCommitted::Unknown) => {
                    shared.unknown.set(shared.unknown.get() + 1);
                    return;
                }
                // The next life spawns its own tasks.
                Err(NotCommitted::Aborted(Abort::LifeEnded)) => return,
                Err(NotCommitted::Aborted(_)) => {}
            }
        }
        shared.busy.set(shared.busy.get().saturating_sub(1));
    }
}
