//! A memory node: provides regions to processes, which read and write them by one-sided operations.
//!
//! The CPU of a memory node does only what the NIC cannot do: it accepts processes, changes permissions, and reads the sequence
//! numbers of registers for a new writer.

mod config;
mod permissions;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_consensus::{LegalChange, Permissions, ProcessId, RegisterKind};
use mitra_failover::{Domain, VirtualMr};
use mitra_verbs::{Buffer, Unmapped};

pub use self::config::{MemoryConfig, StartError};
use self::permissions::{KeyAccess, RegionKeys};
use crate::handshake::{Acceptor, Incoming, RegionGrant, Welcome};
use crate::layout::Layout;
use crate::link::Link;
use crate::memory_protocol::{MAX_MESSAGE_BYTES, MAX_SEQS, MemoryReply, MemoryRequest};
use crate::poller::{Poller, ReadyCqs};
use crate::storage::Storage;
use crate::two_slot_register;

/// The maximum number of incarnations of one process that a memory node accepts.
const MAX_INCARNATIONS: usize = 1 << 16;

/// A memory node.
///
/// A node makes progress only inside [`poll`](MemoryNode::poll), [`poll_ready`](MemoryNode::poll_ready) and
/// [`serve_for`](MemoryNode::serve_for). One-sided operations of processes do not depend on these calls.
#[derive(Debug)]
pub struct MemoryNode {
    config: MemoryConfig,
    /// Per process, a domain with protection domains of its own, so that the NIC refuses a process that uses another process's key.
    domains: Vec<Arc<Domain>>,
    layout: Layout,
    /// The bytes of each region.
    buffers: Vec<Arc<Buffer>>,
    /// The current permissions of each region.
    permissions: Vec<Permissions>,
    /// Per process, its connection.
    connections: Vec<Option<ConnectedProcess>>,
    /// Per process, the incarnations that have connected, oldest first.
    incarnations: Vec<Vec<u64>>,
    storage: Option<Storage>,
    acceptor: Acceptor,
    poller: Poller,
    /// The random number that identifies the contents. It is drawn again at each start at which the contents are lost.
    incarnation: u64,
    /// The write keys whose revocation a NIC has not confirmed, each with its process. The NIC may still execute writes by these keys.
    pending_revocations: Vec<(ProcessId, VirtualMr)>,
}

/// A connected process.
#[derive(Debug)]
struct ConnectedProcess {
    link: Link,
    /// The keys of the process to each region.
    keys: Vec<RegionKeys>,
}

impl MemoryNode {
    /// Creates a memory node that accepts processes on `listener`. Registers hold the default cell, or the stored contents if
    /// [`MemoryConfig::storage`] names a directory of an earlier run.
    ///
    /// The domain should have completion channels ([`Domain::with_completion_channels`]). Without them, requests do not end
    /// [`wait`](MemoryNode::wait).
    ///
    /// If a region has write-once registers, the connections of all processes share atomics ([`Domain::share_atomics`]): they are on one rail, and
    /// [`MemoryConfig::failover`] has the policy exact.
    ///
    /// # Errors
    /// - [`StartError::ProcessCount`] unless `config.tokens` has 1 to 64 entries.
    /// - [`StartError::Storage`] if the storage directory belongs to another memory, is in use, or may have lost writes.
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
        let layout = Layout::new(&config.regions, config.register_capacity);
        let incarnation = getrandom::u64()?;
        let storage = config
            .storage
            .as_ref()
            .map(|storage| Storage::open(storage, &layout, incarnation))
            .transpose()?;
        let mut incarnations = vec![Vec::new(); n];
        for &(p, incarnation) in storage.iter().flat_map(|storage| &storage.process_incarnations) {
            let known = incarnations.get_mut(usize::from(p.0));
            known.into_iter().for_each(|known| known.push(incarnation));
        }
        if config.regions.iter().any(|region| region.kind == RegisterKind::WriteOnce) {
            // Processes write these registers by compare-and-swap, which must exclude those of other processes also after a failover.
            domain.share_atomics()?;
        }
        let buffer = |region| Arc::new(Buffer::new(layout.len(region)));
        let poller = Poller::new(&domain)?;
        let waker = poller.waker();
        Ok(MemoryNode {
            buffers: match &storage {
                Some(storage) => storage.buffers.clone(),
                None => (0..config.regions.len() as u8).map(buffer).collect(),
            },
            permissions: config.regions.iter().map(|region| region.permissions).collect(),
            connections: (0..n).map(|_| None).collect(),
            incarnations,
            incarnation: storage.as_ref().map_or(incarnation, |storage| storage.incarnation),
            storage,
            acceptor: Acceptor::start(listener, move || waker.wake())?,
            poller,
            layout,
            domains: (0..n).map(|_| domain.with_own_pds()).collect::<Result<_, _>>()?,
            config,
            pending_revocations: Vec::new(),
        })
    }

    /// Returns the address at which the node accepts processes.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Returns the total size of the regions, in bytes.
    pub fn lent_bytes(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.len()).sum()
    }

    /// Accepts waiting processes, drives all connections, and answers all requests. Arms the completion queues.
    ///
    /// A failover of a connection raises no completion event, and the node takes part in the failover only in this function. Call it
    /// about every millisecond.
    pub fn poll(&mut self) {
        while let Some(incoming) = self.acceptor.next() {
            let p = incoming.hello.from;
            if self.config.tokens.get(usize::from(p.0)) == Some(&incoming.hello.token)
                && self.accept(incoming).is_err()
            {
                self.disconnect(p); // the process connects again
            }
        }
        let mut requests = Vec::new();
        for (p, link) in self.links() {
            link.arm();
            link.poll(|event| requests.extend(event.message().map(|message| (p, message))));
        }
        self.answer_requests(requests);
    }

    /// Answers the requests on the connections that have a completion queue in `ready`. To be fast, it does nothing else.
    pub fn poll_ready(&mut self, ready: &ReadyCqs) {
        let mut requests = Vec::new();
        for (p, link) in self.links().filter(|(_, link)| link.is_ready(ready)) {
            link.arm();
            link.poll_completions(|event| requests.extend(event.message().map(|message| (p, message))));
        }
        self.answer_requests(requests);
    }

    fn links(&mut self) -> impl Iterator<Item = (ProcessId, &mut Link)> {
        let connections = (0..).map(ProcessId).zip(&mut self.connections);
        connections
            .filter_map(|(p, connection)| connection.as_mut().map(|connected| (p, &mut connected.link)))
    }

    /// Blocks until a completion queue of the domain has an event or a process dials, for at most `timeout`.
    ///
    /// Several nodes may share a domain. Pass the result to [`poll_ready`](MemoryNode::poll_ready) of each of them.
    pub fn wait(&self, timeout: Duration) -> ReadyCqs {
        self.poller.wait(timeout)
    }

    /// Polls once, then answers requests as they arrive until `duration` has passed. A process that dials meanwhile is accepted
    /// by the next poll.
    pub fn serve_for(&mut self, duration: Duration) {
        let deadline = Instant::now() + duration;
        self.poll();
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            let ready = self.wait(remaining);
            self.poll_ready(&ready);
        }
    }

    fn answer_requests(&mut self, requests: Vec<(ProcessId, Vec<u8>)>) {
        for (p, message) in requests {
            match postcard::from_bytes(&message) {
                Ok(MemoryRequest::ChangePermissions { region, read, write }) => {
                    if let Some(reply) =
                        self.change_permissions(p, region.into(), Permissions { read, write })
                    {
                        self.reply(p, &reply);
                    }
                }
                Ok(MemoryRequest::ReadSeqs { region, first, count }) => {
                    match self.read_seqs(region, first, count) {
                        Ok(seqs) => self.reply(p, &MemoryReply::Seqs { seqs }),
                        Err(Unmapped) => self.disconnect(p),
                    }
                }
                // Malformed request: disconnect.
                Err(_) => self.disconnect(p),
            }
        }
    }

    /// Connects a process, after fencing the process's earlier connection: no request on the earlier connection is executed any more.
    /// Leaves the process unconnected if its incarnation is refused or a revocation is not confirmed.
    ///
    /// A reconnecting process must take an exclusive write permission again, because it may be a second process with the same id that
    /// was started while the first process was suspended. From then on, the memory node treats the earlier incarnation as crashed and
    /// refuses it, because neither incarnation knows the other's ballots. After the node has reopened its storage, every process must
    /// take the permission again, because the storage does not record the permissions.
    fn accept(&mut self, incoming: Incoming) -> Result<(), StartError> {
        let (p, incarnation) = (incoming.hello.from, incoming.hello.incarnation);
        let known = &mut self.incarnations[usize::from(p.0)];
        let reconnects = !known.is_empty();
        if known.last() != Some(&incarnation) {
            let restarted = reconnects && !self.config.allow_restarts;
            if known.contains(&incarnation) || known.len() == MAX_INCARNATIONS || restarted {
                return Ok(());
            }
            if let Some(storage) = &mut self.storage {
                storage.record_incarnation(p, incarnation)?;
            }
            known.push(incarnation);
        }
        let must_take_permission =
            reconnects || self.storage.as_ref().is_some_and(|storage| storage.reopened);
        self.disconnect(p);
        if !self.pending_revocations.is_empty() {
            return Ok(());
        }
        let mut link = Link::new(&self.domains[usize::from(p.0)], self.config.failover, MAX_MESSAGE_BYTES)?;
        let info = link.info()?;
        link.connect(&incoming.hello.info)?;
        link.arm();
        self.connections[usize::from(p.0)] = Some(ConnectedProcess { link, keys: Vec::new() });
        let mut regions = Vec::new();
        for region in 0..self.layout.regions() {
            let mut permissions = self.permissions[region];
            if must_take_permission && self.config.regions[region].legal_change != LegalChange::Never {
                permissions.write = permissions.write.without(p);
            }
            let key = |allowed: bool, access| allowed.then(|| self.register(p, region, access)).transpose();
            let keys = RegionKeys {
                read: key(permissions.read.contains(p), KeyAccess::Read)?,
                write: key(permissions.write.contains(p), KeyAccess::Write)?,
            };
            let encoded = |key: &Option<VirtualMr>| key.as_ref().map(|mr| mr.remote().encode());
            regions.push(RegionGrant { read: encoded(&keys.read), write: encoded(&keys.write) });
            let connected = self.connections[usize::from(p.0)].as_mut();
            connected.expect("`accept` stored this connection above").keys.push(keys);
        }
        let register_capacity = self.config.register_capacity as u32;
        Ok(incoming.accept(&Welcome { info, incarnation: self.incarnation, register_capacity, regions })?)
    }

    /// Returns the sequence numbers of at most [`MAX_SEQS`] registers from `first`. Registers that do not exist and write-once words
    /// have none.
    fn read_seqs(&self, region: u8, first: u16, count: u16) -> Result<Vec<u64>, Unmapped> {
        let registers = first..first.saturating_add(count.min(MAX_SEQS)).min(self.layout.registers(region));
        if self.layout.is_write_once(region) {
            return Ok(Vec::new());
        }
        let stride = self.layout.stride(region);
        let mut slots = vec![0; stride];
        let seq = |register: u16| {
            self.buffers[usize::from(region)].try_read_at(usize::from(register) * stride, &mut slots)?;
            Ok(two_slot_register::last_seq(&slots))
        };
        registers.map(seq).collect()
    }

    fn reply(&mut self, p: ProcessId, reply: &MemoryReply) {
        if let Some(connected) = &mut self.connections[usize::from(p.0)] {
            // A process that has disconnected connects again and repeats its request.
            let _ =
                connected.link.send(postcard::to_stdvec(reply).expect("postcard encodes any MemoryReply"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::TryRecvError;

    use mitra_consensus::{Region, RegisterKind};
    use mitra_softnic::{Config, SoftNic};

    use super::*;
    use crate::pending_connect::Identity;

    fn domain() -> Arc<Domain> {
        let nic = SoftNic::open(Config::loopback()).expect("a loopback NIC opens");
        Domain::with_completion_channels(vec![nic]).expect("the NIC has the resources of a domain")
    }

    /// Returns a function that connects process 1 with a given incarnation to a new memory node, and returns whether the node
    /// accepted the process.
    fn connect_to_memory(allow_restarts: bool) -> impl FnMut(u64) -> bool {
        let n = 2;
        let region = Region {
            registers: 1,
            permissions: Permissions::read_only(n),
            legal_change: LegalChange::ExclusiveWriter,
            kind: RegisterKind::ReadWrite,
        };
        let failover = mitra_failover::Config::default();
        let tokens = vec![[7; 16]; n.into()];
        let config = MemoryConfig {
            regions: vec![region],
            register_capacity: 64,
            tokens,
            allow_restarts,
            storage: None,
            failover,
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut memory = MemoryNode::new(domain(), listener, config).expect("the configuration is valid");
        let domain = domain();
        move |incarnation| {
            let domain = Arc::clone(&domain);
            let identity = Identity { process: ProcessId(1), domain, failover, token: [7; 16], incarnation };
            let link = identity.new_link(MAX_MESSAGE_BYTES).expect("the NIC has a free queue pair");
            let connecting = identity.connect(memory.address(), link, Duration::ZERO).expect("a new link");
            loop {
                memory.serve_for(Duration::from_millis(1));
                match connecting.response.try_recv() {
                    Err(TryRecvError::Empty) => {}
                    response => return response.is_ok_and(|welcome| welcome.is_ok()),
                }
            }
        }
    }

    /// Two processes with the same id use the same ballots, and each may mistake the other's ballots for its own. The node therefore
    /// accepts only the latest incarnation.
    #[test]
    fn earlier_incarnation_is_refused_after_later_one_connected() {
        let mut connects = connect_to_memory(true);
        assert!(connects(1));
        assert!(connects(1), "the same incarnation may reconnect");
        assert!(connects(2), "a restarted process has a new incarnation");
        assert!(!connects(1), "the first incarnation was only suspended");
        assert!(connects(2));
    }

    /// A restarted process does not know the value that its last incarnation accepted. If it wrote its slot without this value, it
    /// could undo a decision.
    #[test]
    fn restarted_process_is_refused_without_allow_restarts() {
        let mut connects = connect_to_memory(false);
        assert!(connects(1));
        assert!(!connects(2));
        assert!(connects(1));
    }
}
