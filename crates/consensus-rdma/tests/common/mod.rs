//! Test harness: memory nodes and process nodes in one test process, each with NICs of its own on
//! loopback.
#![allow(dead_code, reason = "each test binary uses a part of this module")]

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

pub const REGISTER_CAPACITY: usize = 16 << 10;
/// The time after which a wait counts as a hang. A correct test on a busy machine takes a small
/// part of this time.
pub const TIMEOUT: Duration = Duration::from_secs(120);

pub fn nics(rails: usize) -> (Arc<Domain>, Vec<Arc<SoftNic>>) {
    let nics: Vec<_> =
        (0..rails).map(|_| SoftNic::open(Config::loopback()).expect("a loopback NIC opens")).collect();
    let providers = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
    (Domain::with_completion_channels(providers).expect("the NICs have the resources of a domain"), nics)
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

pub fn tokens(n: u8) -> Vec<Token> {
    (0..n).map(|p| [p + 1; 16]).collect()
}

/// A memory node with the thread that serves it.
pub struct ServedMemory {
    pub address: SocketAddr,
    pub nics: Vec<Arc<SoftNic>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ServedMemory {
    pub fn start(n: u8, rails: usize, regions: Vec<Region>) -> ServedMemory {
        let (domain, nics) = nics(rails);
        let config = MemoryConfig {
            regions,
            register_capacity: REGISTER_CAPACITY,
            tokens: tokens(n),
            allow_restarts: false,
            storage: None,
            failover: mitra_failover::Config::default(),
        };
        let mut memory =
            MemoryNode::new(domain, listener(), config).expect("the memory configuration is valid");
        let (address, stop) = (memory.address(), Arc::new(AtomicBool::new(false)));
        let stop_flag = Arc::clone(&stop);
        let serve = move || {
            while !stop_flag.load(Ordering::Relaxed) {
                memory.serve_for(Duration::from_millis(1));
            }
        };
        ServedMemory { address, nics, stop, thread: Some(std::thread::spawn(serve)) }
    }

    /// Stops the thread that serves the memory node, which simulates a crash.
    pub fn crash(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the memory thread does not panic");
        }
    }
}

impl Drop for ServedMemory {
    fn drop(&mut self) {
        self.crash();
    }
}

/// Process nodes with their memory nodes.
pub struct Cluster<P: Process> {
    pub memories: Vec<ServedMemory>,
    pub nodes: Vec<Option<ProcessNode<P>>>,
    /// The address at which each process accepts its peers.
    pub process_addresses: Vec<SocketAddr>,
    pub nics: Vec<Vec<Arc<SoftNic>>>,
}

impl<P> Cluster<P>
where
    P: Process + Debug,
    P::Cell: Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    pub fn start(processes: Vec<P>, memories: &[Vec<Region>], rails: usize) -> Cluster<P> {
        Cluster::start_without(ProcessSet::NONE, processes, memories, rails)
    }

    pub fn start_without(
        absent: ProcessSet,
        processes: Vec<P>,
        memories: &[Vec<Region>],
        rails: usize,
    ) -> Cluster<P> {
        let n = processes.len() as u8;
        let memories: Vec<_> = memories
            .iter()
            .map(|regions| (ServedMemory::start(n, rails, regions.clone()), regions.clone()))
            .collect();
        let listeners: Vec<_> = (0..n).map(|_| listener()).collect();
        let process_addresses: Vec<_> =
            listeners.iter().map(|l| l.local_addr().expect("the listener is bound")).collect();
        let config = |id: usize| ProcessConfig {
            id: ProcessId(id as u8),
            tokens: tokens(n),
            processes: process_addresses.clone(),
            memories: memories.iter().map(|(memory, regions)| (memory.address, regions.clone())).collect(),
            register_capacity: REGISTER_CAPACITY,
            max_message_bytes: 4096,
            wake_delay: Duration::from_millis(5),
            failover: mitra_failover::Config::default(),
        };
        let (mut nodes, mut all_nics) = (Vec::new(), Vec::new());
        for (id, process) in processes.into_iter().enumerate() {
            let (domain, nics) = nics(rails);
            let listener = listeners[id].try_clone().expect("a free descriptor");
            let node = || {
                ProcessNode::new(process, &domain, listener, &config(id))
                    .expect("the process configuration is valid")
            };
            nodes.push((!absent.contains(ProcessId(id as u8))).then(node));
            all_nics.push(nics);
        }
        let memories = memories.into_iter().map(|(memory, _)| memory).collect();
        let mut cluster = Cluster { memories, nodes, process_addresses, nics: all_nics };
        let m = cluster.memories.len();
        let others = usize::from(n - absent.len() as u8) - 1;
        cluster.wait_until("all memories and peers are connected", |c| {
            c.running().all(|node| node.connected_memories() == m && node.connected_peers() == others)
        });
        cluster
    }

    pub fn running(&self) -> impl Iterator<Item = &ProcessNode<P>> {
        self.nodes.iter().flatten()
    }

    pub fn poll_all(&mut self) {
        self.nodes.iter_mut().flatten().for_each(|node| _ = node.poll());
    }

    /// Polls all processes until `holds` returns true.
    ///
    /// # Panics
    /// Panics if `holds` returns false for longer than `TIMEOUT`.
    pub fn wait_until(&mut self, condition: &str, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !holds(self) {
            assert!(Instant::now() < end, "timed out after {TIMEOUT:?}: {condition}; {:#?}", self.state());
            self.poll_all();
            std::thread::yield_now();
        }
    }

    fn state(&self) -> Vec<(&P, usize, usize)> {
        self.running()
            .map(|node| (node.process(), node.connected_memories(), node.connected_peers()))
            .collect()
    }

    /// Tells every process that `p` leads, as Ω would.
    pub fn announce_leader(&mut self, p: u8) {
        for node in self.nodes.iter_mut().flatten() {
            node.handle_input(Input::Leader(ProcessId(p)));
        }
    }

    /// Polls until every running process has decided, and returns the decision.
    ///
    /// # Panics
    /// Panics if processes decide differently, or not within `TIMEOUT`.
    pub fn wait_for_decision(&mut self) -> P::Value {
        self.decided_without(ProcessSet::NONE)
    }

    /// Like [`Cluster::wait_for_decision`], ignoring the decisions of `faulty` processes.
    ///
    /// # Panics
    /// Panics if processes decide differently, or not within `TIMEOUT`.
    pub fn decided_without(&mut self, faulty: ProcessSet) -> P::Value {
        self.wait_until("every correct process decides", |c| {
            c.decisions(faulty).all(|decision| decision.is_some())
        });
        let first = self.decisions(faulty).flatten().next().expect("a process runs").clone();
        assert!(self.decisions(faulty).flatten().all(|other| *other == first), "{:#?}", self.state());
        first
    }

    /// Returns the decisions so far of the running processes that are not `faulty`.
    pub fn decisions(&self, faulty: ProcessSet) -> impl Iterator<Item = Option<&P::Value>> {
        let processes = (0..).map(ProcessId).zip(&self.nodes).filter(move |(p, _)| !faulty.contains(*p));
        processes.filter_map(|(_, node)| Some(node.as_ref()?.process().decision()))
    }
}

/// Returns the signers of three processes.
pub fn keys() -> Vec<Ed25519> {
    let secrets: Vec<[u8; 32]> = (1..=3).map(|p| [p; 32]).collect();
    let public_keys: Arc<[_]> = secrets.iter().map(|s| SigningKey::from_bytes(s).verifying_key()).collect();
    secrets.iter().map(|secret| Ed25519::new(1, secret, Arc::clone(&public_keys))).collect()
}
