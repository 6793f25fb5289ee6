//! A memory node: provides regions that processes read and write by one-sided operations.
//!
//! The CPU of a memory node does only what the NIC cannot do: it accepts processes, changes
//! permissions, and reads the sequence numbers of registers for a new writer.

mod config;
mod nics;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_consensus::{ProcessId, RegisterKind};
use mitra_consensus_memory::{Hello, Layout, Node, NodeConfig, Storage};
use mitra_failover::{Domain, VirtualMr};
use mitra_handshake::Acceptor;

pub use self::config::{MemoryConfig, StartError};
use self::nics::Nics;
use crate::link_poller::{LinkPoller, Pass, Ready};
use crate::storage_directory::{StorageConfig, StorageDirectory};

/// A memory node.
///
/// A node makes progress only inside [`poll`](MemoryNode::poll) and
/// [`serve_for`](MemoryNode::serve_for). One-sided operations of processes do not depend on these
/// calls.
#[derive(Debug)]
pub struct MemoryNode {
    node: Node<VirtualMr, StorageDirectory>,
    nics: Nics,
    acceptor: Acceptor<Hello>,
    poller: LinkPoller,
}

impl MemoryNode {
    /// Creates a memory node that accepts processes on `listener`. Registers hold the default cell,
    /// or the stored contents if [`MemoryConfig::storage`] names a directory of an earlier run.
    ///
    /// The NICs must have completion channels.
    ///
    /// If a region has write-once registers, the connections of all processes share atomics
    /// ([`Domain::share_atomics`]): all connections are on one rail, and [`MemoryConfig::failover`]
    /// must have the policy exact.
    ///
    /// # Errors
    /// - [`StartError::ProcessCount`] unless `config.tokens` has 1 to 64 entries.
    /// - [`StartError::Storage`] if the storage directory belongs to another memory, is in use, or
    ///   may have lost writes.
    /// - [`StartError::Io`] or [`StartError::Nic`] if the system or the NIC refuses a resource.
    pub fn new(
        domain: Arc<Domain>,
        listener: TcpListener,
        config: MemoryConfig,
    ) -> Result<MemoryNode, StartError> {
        let n = config.tokens.len();
        if !(1..=64).contains(&n) {
            return Err(StartError::ProcessCount(n));
        }
        let incarnation = getrandom::u64()?;
        let open = |storage: &StorageConfig| {
            let layout = Layout::new(&config.regions, config.register_capacity);
            Storage::open(StorageDirectory::open(&storage.directory)?, storage.sync, &layout, incarnation)
        };
        let storage = config.storage.as_ref().map(open).transpose()?;
        if config.regions.iter().any(|region| region.kind == RegisterKind::WriteOnce) {
            // Processes write these registers by compare-and-swap. After a failover, the
            // compare-and-swaps of different processes must still exclude each other.
            domain.share_atomics()?;
        }
        let poller = LinkPoller::new(&domain)?;
        let nics = Nics::new(&domain, n, config.failover, poller.clone())?;
        let MemoryConfig { regions, register_capacity, tokens, allow_restarts, .. } = config;
        let config = NodeConfig { regions, register_capacity, tokens, allow_restarts };
        let waker = poller.clone();
        Ok(MemoryNode {
            node: Node::new(config, storage, incarnation),
            nics,
            acceptor: Acceptor::start(listener, move || waker.wake())?,
            poller,
        })
    }

    /// Returns the address at which the node accepts processes.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Returns the total size of the regions, in bytes.
    pub fn lent_bytes(&self) -> usize {
        self.node.buffers().iter().map(|buffer| buffer.len()).sum()
    }

    /// Accepts waiting processes, answers requests, and takes part in failovers. Call it when the
    /// node's descriptor is readable, and after [`MemoryNode::next_timeout`].
    pub fn poll(&mut self) {
        let ready = self.poller.wait(Duration::ZERO);
        self.handle(ready);
    }

    fn handle(&mut self, ready: Ready) {
        while let Some(incoming) = self.acceptor.next() {
            let p = incoming.hello.from;
            if let Some(welcome) = self.node.accept(&incoming.hello, &mut self.nics)
                && incoming.accept(&welcome).is_err()
            {
                self.node.disconnect(p, &mut self.nics); // the process connects again
            }
        }
        let mut requests = Vec::new();
        for (p, link) in self.nics.links() {
            link.drive(Pass::HandleEvents(ready), |event| {
                requests.extend(event.message().map(|message| (p, message)));
            });
        }
        for (p, message) in requests {
            if let Some(reply) = self.node.handle_request(p, &message, &mut self.nics) {
                self.nics.send(p, reply);
            }
        }
        // A broken link stays so, and its process connects again.
        let broken: Vec<ProcessId> =
            self.nics.links().filter(|(_, link)| link.is_broken()).map(|(p, _)| p).collect();
        broken.into_iter().for_each(|p| self.node.disconnect(p, &mut self.nics));
    }

    /// Returns the shorter of `max` and the time after which [`MemoryNode::poll`] is due without an
    /// event.
    pub fn next_timeout(&mut self, max: Duration) -> Duration {
        self.nics.links().filter_map(|(_, link)| link.due_in()).fold(max, Duration::min)
    }

    /// Serves until `duration` has passed. The processor is idle while nothing happens.
    pub fn serve_for(&mut self, duration: Duration) {
        let deadline = Instant::now() + duration;
        self.poll();
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            let timeout = self.next_timeout(remaining);
            let ready = self.poller.wait(timeout);
            self.handle(ready);
        }
    }
}

impl AsFd for MemoryNode {
    /// The descriptor is readable when [`MemoryNode::poll`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

    use mitra_consensus::{LegalChange, Permissions, Region};
    use mitra_consensus_memory::MAX_MESSAGE_BYTES;
    use mitra_softnic::{Config, SoftNic};

    use super::*;
    use crate::link::Link;
    use crate::pending_connect::Identity;

    fn domain() -> Arc<Domain> {
        let nic = SoftNic::open(Config::loopback()).expect("a loopback NIC opens");
        Domain::with_completion_channels(vec![nic]).expect("the NIC has the resources of a domain")
    }

    /// Returns a memory node of 2 processes.
    fn memory_node(allow_restarts: bool) -> MemoryNode {
        let n = 2;
        let region = Region {
            registers: 1,
            permissions: Permissions::read_only(n),
            legal_change: LegalChange::ExclusiveWriter,
            kind: RegisterKind::ReadWrite,
        };
        let tokens = vec![[7; 16]; n.into()];
        let config = MemoryConfig {
            regions: vec![region],
            register_capacity: 64,
            tokens,
            allow_restarts,
            storage: None,
            failover: mitra_failover::Config::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        MemoryNode::new(domain(), listener, config).expect("the configuration is valid")
    }

    /// Connects process 1 with a given incarnation to a memory node. Returns the process's end and
    /// whether the node accepted the process.
    fn connect(memory: &mut MemoryNode, domain: &Arc<Domain>, incarnation: u64) -> (Link, bool) {
        let poller = LinkPoller::new(domain).expect("the system has descriptors");
        let identity = Identity {
            process: ProcessId(1),
            domain: Arc::clone(domain),
            failover: mitra_failover::Config::default(),
            token: [7; 16],
            incarnation,
            poller,
        };
        let link = identity.new_link(0, MAX_MESSAGE_BYTES, 0).expect("the NIC has a free queue pair");
        let connecting = identity.connect(memory.address(), link, Duration::ZERO).expect("a new link");
        loop {
            memory.serve_for(Duration::from_millis(1));
            match connecting.response.try_recv() {
                Err(TryRecvError::Empty) => {}
                response => return (connecting.link, response.is_ok_and(|welcome| welcome.is_ok())),
            }
        }
    }

    /// Returns a function that connects process 1 with a given incarnation to a new memory node,
    /// and returns whether the node accepted the process.
    fn connect_to_memory(allow_restarts: bool) -> impl FnMut(u64) -> bool {
        let (mut memory, domain) = (memory_node(allow_restarts), domain());
        move |incarnation| connect(&mut memory, &domain, incarnation).1
    }

    /// The memory node would otherwise keep the queue pair and the keys until the process connects
    /// again, which it may never do.
    #[test]
    fn broken_link_is_dropped() {
        let mut memory = memory_node(false);
        let (_end, is_accepted) = connect(&mut memory, &domain(), 1);
        assert!(is_accepted);
        let (_, link) = memory.nics.links().next().expect("the node has accepted the process");
        link.close().expect("the NIC is alive");
        memory.poll();
        assert_eq!(memory.nics.links().count(), 0);
    }

    /// Two processes with the same id use the same ballots, and each may mistake the other's
    /// ballots for its own. The node therefore accepts only the latest incarnation.
    #[test]
    fn earlier_incarnation_is_refused_after_later_one_connected() {
        let mut connects = connect_to_memory(true);
        assert!(connects(1));
        assert!(connects(1), "the same incarnation may reconnect");
        assert!(connects(2), "a restarted process has a new incarnation");
        assert!(!connects(1), "the first incarnation was only suspended");
        assert!(connects(2));
    }

    /// A restarted process does not know the value that its last incarnation accepted. If the
    /// process wrote its slot without this value, the process could undo a decision.
    #[test]
    fn restarted_process_is_refused_without_allow_restarts() {
        let mut connects = connect_to_memory(false);
        assert!(connects(1));
        assert!(!connects(2));
        assert!(connects(1));
    }
}
