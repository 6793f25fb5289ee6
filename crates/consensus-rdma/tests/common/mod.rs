//! Memories and processes, each with NICs of its own, on loopback.
#![allow(dead_code, reason = "each test uses its part")]

use std::fmt::Debug;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use mitra_consensus::signature::Ed25519;
use mitra_consensus::{Input, Process, ProcessId, ProcessSet, Region};
use mitra_consensus_rdma::{MemoryConfig, MemoryNode, ProcessConfig, ProcessNode, Token};
use mitra_failover::Domain;
use mitra_softnic::{Config, SoftNic};
use mitra_verbs::Provider;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub const ROOM: usize = 16 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

pub fn nics(rails: usize) -> (Arc<Domain>, Vec<Arc<SoftNic>>) {
    let nics: Vec<_> = (0..rails).map(|_| SoftNic::open(Config::loopback()).expect("a NIC")).collect();
    let providers = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
    (Domain::with_completion_channels(providers).expect("a domain"), nics)
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

/// The word by which each process is known.
pub fn tokens(n: u8) -> Vec<Token> {
    (0..n).map(|p| [p + 1; 16]).collect()
}

/// A memory, served by a thread of its own.
pub struct Served {
    pub address: SocketAddr,
    pub nics: Vec<Arc<SoftNic>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    pub fn start(n: u8, rails: usize, regions: Vec<Region>) -> Served {
        let (domain, nics) = nics(rails);
        let config = MemoryConfig {
            regions,
            register_capacity: ROOM,
            tokens: tokens(n),
            allow_restarts: false,
            storage: None,
            failover: mitra_failover::Config::default(),
        };
        let mut memory = MemoryNode::new(domain, listener(), config).expect("a memory");
        let (address, over) = (memory.address(), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&over);
        let serve = move || {
            while !stop.load(Ordering::Relaxed) {
                memory.serve_for(Duration::from_millis(1));
            }
        };
        Served { address, nics, over, thread: Some(std::thread::spawn(serve)) }
    }

    /// It crashes.
    pub fn crash(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a memory never panics");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.crash();
    }
}

/// Processes over memories.
pub struct Cluster<P: Process> {
    pub memories: Vec<Served>,
    pub nodes: Vec<Option<ProcessNode<P>>>,
    /// Where each process lets others in.
    pub doors: Vec<SocketAddr>,
    pub nics: Vec<Vec<Arc<SoftNic>>>,
}

impl<P> Cluster<P>
where
    P: Process + Debug,
    P::Cell: Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    pub fn start(processes: Vec<P>, memories: &[Vec<Region>], rails: usize) -> Cluster<P> {
        Cluster::start_but(ProcessSet::NONE, processes, memories, rails)
    }

    /// The same, where these processes never come.
    pub fn start_but(
        absent: ProcessSet,
        processes: Vec<P>,
        memories: &[Vec<Region>],
        rails: usize,
    ) -> Cluster<P> {
        let n = processes.len() as u8;
        let memories: Vec<_> = memories
            .iter()
            .map(|regions| (Served::start(n, rails, regions.clone()), regions.clone()))
            .collect();
        let listeners: Vec<_> = (0..n).map(|_| listener()).collect();
        let doors: Vec<_> = listeners.iter().map(|l| l.local_addr().expect("bound")).collect();
        let config = |me: usize| ProcessConfig {
            id: ProcessId(me as u8),
            tokens: tokens(n),
            processes: doors.clone(),
            memories: memories.iter().map(|(served, regions)| (served.address, regions.clone())).collect(),
            register_capacity: ROOM,
            max_message_bytes: 4096,
            wake_delay: Duration::from_millis(5),
            failover: mitra_failover::Config::default(),
        };
        let (mut nodes, mut all_nics) = (Vec::new(), Vec::new());
        for (me, process) in processes.into_iter().enumerate() {
            let (domain, nics) = nics(rails);
            let listener = listeners[me].try_clone().expect("a port");
            let node = || ProcessNode::new(process, &domain, listener, &config(me)).expect("a process");
            nodes.push((!absent.contains(ProcessId(me as u8))).then(node));
            all_nics.push(nics);
        }
        let memories = memories.into_iter().map(|(served, _)| served).collect();
        let mut cluster = Cluster { memories, nodes, doors, nics: all_nics };
        let m = cluster.memories.len();
        let others = usize::from(n - absent.len() as u8) - 1;
        cluster.until("all are connected", |c| {
            c.living().all(|node| node.connected_memories() == m && node.connected_peers() == others)
        });
        cluster
    }

    pub fn living(&self) -> impl Iterator<Item = &ProcessNode<P>> {
        self.nodes.iter().flatten()
    }

    pub fn turn(&mut self) {
        self.nodes.iter_mut().flatten().for_each(|node| _ = node.poll());
    }

    /// Goes on until something holds.
    ///
    /// # Panics
    /// It does not come to hold.
    pub fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < end, "not in {PATIENCE:?}: {what}; {:#?}", self.state());
            self.turn();
            std::thread::yield_now();
        }
    }

    fn state(&self) -> Vec<(&P, usize, usize)> {
        self.living()
            .map(|node| (node.process(), node.connected_memories(), node.connected_peers()))
            .collect()
    }

    /// Ω names a process to all.
    pub fn lead(&mut self, p: u8) {
        for node in self.nodes.iter_mut().flatten() {
            node.handle_input(Input::Leader(ProcessId(p)));
        }
    }

    /// Goes on until everybody who lives has decided, alike.
    ///
    /// # Panics
    /// They do not.
    pub fn decided(&mut self) -> P::Value {
        self.decided_but(ProcessSet::NONE)
    }

    /// The same, but for these, who may do what they like.
    ///
    /// # Panics
    /// They do not.
    pub fn decided_but(&mut self, liars: ProcessSet) -> P::Value {
        self.until("everybody decides", |c| c.decisions(liars).all(|decision| decision.is_some()));
        let first = self.decisions(liars).flatten().next().expect("somebody lives").clone();
        assert!(self.decisions(liars).flatten().all(|other| *other == first), "{:#?}", self.state());
        first
    }

    /// What those who live have decided so far, but for these.
    pub fn decisions(&self, liars: ProcessSet) -> impl Iterator<Item = Option<&P::Value>> {
        let processes = (0..).map(ProcessId).zip(&self.nodes).filter(move |(p, _)| !liars.contains(*p));
        processes.filter_map(|(_, node)| Some(node.as_ref()?.process().decision()))
    }
}

/// Ed25519 keys of three processes.
pub fn keys() -> Vec<Ed25519> {
    let secrets: Vec<[u8; 32]> = (1..=3).map(|p| [p; 32]).collect();
    let everybody: Arc<[_]> = secrets.iter().map(|s| SigningKey::from_bytes(s).verifying_key()).collect();
    secrets.iter().map(|secret| Ed25519::new(1, secret, Arc::clone(&everybody))).collect()
}
