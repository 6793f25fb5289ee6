//! Memory nodes on threads, and links to them.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mitra_failover::Domain;
use mitra_softnic::{Config, SoftNic};
use mitra_txn::{NodeId, Op, Outcome, Request};
use mitra_txn_rdma::{ConnectError, Links, LinksConfig, MemoryNode, NodeConfig, QpKind, Token};
use mitra_verbs::{Buffer, Provider};

/// The time after which a wait counts as a hang. A correct test on a busy machine takes a small
/// part of this time.
pub const TIMEOUT: Duration = Duration::from_secs(120);
pub const BYTES: usize = 1 << 17;
pub const FINGERPRINT: u64 = 0x5eed;
pub const COORDINATORS: u8 = 3;

pub fn nics(rails: usize) -> (Arc<Domain>, Vec<Arc<SoftNic>>) {
    let nics: Vec<_> =
        (0..rails).map(|_| SoftNic::open(Config::loopback()).expect("a loopback NIC opens")).collect();
    let providers = nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
    (Domain::with_completion_channels(providers).expect("the NICs have the resources of a domain"), nics)
}

pub fn tokens() -> Vec<Token> {
    (1..=COORDINATORS).map(|coordinator| [coordinator; 16]).collect()
}

pub fn node_config(node: u16, kind: QpKind) -> NodeConfig {
    NodeConfig {
        node: NodeId(node),
        bytes: BYTES,
        fingerprint: FINGERPRINT,
        tokens: tokens(),
        kind,
        failover: mitra_failover::Config::default(),
    }
}

/// A memory node with the thread that serves it.
pub struct ServedNode {
    pub address: SocketAddr,
    pub memory: Arc<Buffer>,
    pub nics: Vec<Arc<SoftNic>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ServedNode {
    pub fn start(node: u16, rails: usize, kind: QpKind) -> ServedNode {
        let (domain, nics) = nics(rails);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut node = MemoryNode::new(domain, listener, node_config(node, kind)).expect("the node starts");
        let (address, memory, stop) =
            (node.address(), Arc::clone(node.memory()), Arc::new(AtomicBool::new(false)));
        let is_over = Arc::clone(&stop);
        let serve = move || {
            while !is_over.load(Ordering::Relaxed) {
                node.serve_for(Duration::from_millis(5));
            }
        };
        ServedNode { address, memory, nics, stop, thread: Some(std::thread::spawn(serve)) }
    }
}

impl Drop for ServedNode {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let served = thread.join();
            assert!(served.is_ok() || std::thread::panicking(), "the node does not panic");
        }
    }
}

pub fn start_nodes(count: u16, rails: usize, kind: QpKind) -> Vec<ServedNode> {
    (0..count).map(|node| ServedNode::start(node, rails, kind)).collect()
}

pub fn links_config(coordinator: u16, nodes: &[ServedNode], kind: QpKind) -> LinksConfig {
    LinksConfig {
        coordinator,
        token: tokens()[usize::from(coordinator) - 1],
        fingerprint: FINGERPRINT,
        nodes: nodes.iter().map(|node| node.address).collect(),
        dead: Vec::new(),
        repeatable: Vec::new(),
        kind,
        failover: mitra_failover::Config::default(),
        staging_bytes: 1 << 16,
        timeout: Duration::from_secs(30),
    }
}

/// Connects over NICs of its own.
pub fn try_connect(config: &LinksConfig, rails: usize) -> Result<(Links, Vec<Arc<SoftNic>>), ConnectError> {
    let (domain, nics) = nics(rails);
    Ok((Links::connect(&domain, config)?, nics))
}

pub fn connect(config: &LinksConfig, rails: usize) -> (Links, Vec<Arc<SoftNic>>) {
    try_connect(config, rails).expect("the nodes admit the coordinator")
}

/// Executes requests as one ticket.
pub fn execute(links: &mut Links, requests: Vec<Request>) -> Vec<Outcome> {
    links.post(7, requests).expect("the requests are valid");
    let (mut done, end) = (Vec::new(), Instant::now() + TIMEOUT);
    while done.is_empty() {
        assert!(Instant::now() < end, "the requests did not end");
        links.wait(&mut done, Duration::from_millis(1)).expect("the nodes are connected");
    }
    let (ticket, outcomes) = done.remove(0);
    assert_eq!((ticket, done.len()), (7, 0));
    outcomes
}

pub fn read(node: u16, at: u64, bytes: u32) -> Request {
    Request { node: NodeId(node), at, op: Op::Read(bytes) }
}

pub fn write(node: u16, at: u64, bytes: Vec<u8>) -> Request {
    Request { node: NodeId(node), at, op: Op::Write(bytes) }
}

pub fn swap(node: u16, at: u64, compare: u64, swap: u64) -> Request {
    Request { node: NodeId(node), at, op: Op::CompareSwap { compare, swap } }
}

pub fn executed(word: u64) -> Outcome {
    Outcome::Executed(word.to_le_bytes().to_vec())
}

pub const WRITTEN: Outcome = Outcome::Executed(Vec::new());
