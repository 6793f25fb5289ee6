//! The memory processes and the coordinator processes.

use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mitra_peer_process::PeerConnection;
use mitra_softnic::fault::Failure;
use mitra_txn::{Abort, Client, Life, NodeId, NotCommitted, TableId};
use mitra_txn_rdma::{Driver, MemoryNode, NodeConfig};
use mitra_txn_workloads::Program;
use mitra_txn_workloads::tpcc::Terminal;
use serde::de::DeserializeOwned;

use super::history::{Entry, Writer};
use super::setup::{FromCoordinator, Role, Setup, Summary, ToCoordinator, ToMemory, clock, open};

/// The time between two looks for a message of the first process.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(1);
/// How often in a row a coordinator may fail to connect again.
const MAX_REFUSALS: u32 = 50;
/// The time before a coordinator whose life has ended connects again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn run(role: Role, connection: &mut PeerConnection) -> anyhow::Result<()> {
    match role {
        Role::Memory { setup, node } => run_memory(&setup, NodeId(node), connection),
        Role::Coordinator { setup, coordinator, nodes, history } => {
            let writer = Rc::new(RefCell::new(Writer::create(&history)?));
            Process { setup, coordinator, nodes, writer, summary: Summary::default() }.run(connection)
        }
    }
}

/// Receives messages on a thread, because the caller must not block. The channel ends with the connection.
fn receive<T: DeserializeOwned + Send + 'static>(connection: &PeerConnection) -> anyhow::Result<Receiver<T>> {
    let mut connection = connection.try_clone()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok(message) = connection.receive_within(None) {
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
    let messages = receive(connection)?;
    loop {
        memory.serve_for(MESSAGE_INTERVAL);
        match messages.try_recv() {
            Ok(ToMemory::LinkDown { rail }) => nics[rail].faults().fail(Failure::LinkDown),
            Ok(ToMemory::LinkUp { rail }) => nics[rail].faults().heal(),
            Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

/// What the tasks of a coordinator share with its loop.
struct Shared {
    /// Whether transactions may begin.
    runs: Cell<bool>,
    /// The tasks in a transaction.
    busy: Cell<usize>,
    unknown: Cell<u64>,
    corrupt: Cell<u64>,
}

/// A coordinator process, over all its lives.
struct Process {
    setup: Setup,
    coordinator: u16,
    nodes: Vec<SocketAddr>,
    writer: Rc<RefCell<Writer>>,
    summary: Summary,
}

impl Process {
    fn run(mut self, connection: &mut PeerConnection) -> anyhow::Result<()> {
        let (domain, _nics) = open()?;
        let layout = self.setup.layout()?;
        let shared = Rc::new(Shared {
            runs: Cell::new(false),
            busy: Cell::new(0),
            unknown: Cell::new(0),
            corrupt: Cell::new(0),
        });
        let messages = receive(connection)?;
        let links = self.setup.links(self.coordinator, &self.nodes)?;
        let mut is_told_live = false;
        let mut is_pausing = false;
        let mut stops = false;
        let mut refusals = 0;
        while !stops {
            let connected = Driver::connect(&domain, &layout, links.clone(), self.setup.timing());
            let mut driver = match connected {
                Ok(driver) => driver,
                Err(error) if !is_told_live || refusals == MAX_REFUSALS => return Err(error.into()),
                Err(error) => {
                    refusals += 1;
                    self.summary.ended_lives.push(error.to_string());
                    std::thread::sleep(RECONNECT_INTERVAL);
                    continue;
                }
            };
            refusals = 0;
            let life = driver.links().life();
            self.spawn(&mut driver, &shared, life)?;
            let mut last_look = Instant::now();
            let mut failovers = vec![None; self.nodes.len()];
            let ending = loop {
                let ending = driver.poll();
                let recovered = driver.session().take_recovered();
                let others = recovered.iter().filter(|life| life.coordinator != self.coordinator);
                self.summary.recovered.extend(others.map(|_| clock()));
                if ending.is_some() {
                    break ending;
                }
                let is_idle = shared.busy.get() == 0;
                if last_look.elapsed() < MESSAGE_INTERVAL {
                    continue;
                }
                last_look = Instant::now();
                for (node, last) in failovers.iter_mut().enumerate() {
                    // A move back to the preferred rail is none.
                    let report = driver.links().last_failover(NodeId(node as u16));
                    let report = report.filter(|report| report.cause.detector().is_some());
                    let epoch = report.map(|report| report.epoch);
                    if epoch.is_some() && epoch != *last {
                        self.summary.failovers += 1;
                        *last = epoch;
                    }
                }
                if !is_told_live && driver.session().is_live() {
                    is_told_live = true;
                    connection.send(&FromCoordinator::Live)?;
                }
                // The slots that are still applied are those of told transactions.
                if is_pausing && is_idle && driver.session().coordinator().is_settled() {
                    is_pausing = false;
                    connection.send(&FromCoordinator::Paused)?;
                }
                match messages.try_recv() {
                    Ok(ToCoordinator::Run) => shared.runs.set(true),
                    Ok(ToCoordinator::Pause) => {
                        shared.runs.set(false);
                        is_pausing = true;
                    }
                    Ok(ToCoordinator::Stop) | Err(mpsc::TryRecvError::Disconnected) => {
                        stops = true;
                        break None;
                    }
                    Err(mpsc::TryRecvError::Empty) => {}
                }
            };
            if let Some(ending) = ending {
                self.summary.ended_lives.push(match driver.links().lost() {
                    Some(lost) => format!("{ending}: {lost}"),
                    None => ending.to_string(),
                });
            }
            let aborts = driver.session().coordinator().aborts();
            for (reason, count) in aborts {
                *self.summary.aborts.entry(reason.to_owned()).or_default() += count;
            }
            let counters = driver.links().counters();
            self.summary.requests += counters.requests;
            self.summary.bytes += counters.bytes;
            self.summary.doorbells += counters.doorbells;
            drop(driver);
            shared.busy.set(0);
        }
        (self.summary.unknown, self.summary.corrupt) = (shared.unknown.get(), shared.corrupt.get());
        connection.send(&FromCoordinator::Stopped(self.summary))?;
        Ok(())
    }

    fn spawn(&self, driver: &mut Driver, shared: &Rc<Shared>, life: Life) -> anyhow::Result<()> {
        let scale = self.setup.scale()?;
        let tables = 0..self.setup.layout()?.schema().tables.len() as u16;
        let partitions =
            tables.flat_map(|table| (0..scale.warehouses()).map(move |at| (TableId(table), at.into())));
        let coordinator = driver.session().coordinator();
        coordinator.warm_up(partitions);
        for terminal in 0..self.setup.terminals {
            let place =
                u32::from(self.coordinator - 1) * u32::from(self.setup.terminals) + u32::from(terminal);
            // Each life of the coordinator, in whichever process, starts its terminals again.
            let starts = u64::from(life.incarnation) - 1;
            let terminal = Terminal::numbered(scale, self.setup.seed, place, starts);
            let (client, shared, writer) = (coordinator.client(), Rc::clone(shared), Rc::clone(&self.writer));
            coordinator.spawn(run_terminal(client, terminal, shared, writer));
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
                // The next life has tasks of its own.
                Err(NotCommitted::Aborted(Abort::LifeEnded)) => return,
                Err(NotCommitted::Aborted(_)) => {}
            }
        }
        shared.busy.set(shared.busy.get().saturating_sub(1));
    }
}
