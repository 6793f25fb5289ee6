//! The store whose changes are entries of the replicated log of `mitra-consensus`.

mod leader_choice;

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_consensus::heartbeat::Heartbeat;
use mitra_consensus::kv_store::{Change, Event, KvStore, Request};
use mitra_consensus::log::Log;
use mitra_consensus::replicated_store::{LogHost, Outcome, ReplicatedStore};
use mitra_consensus::{Actions, Composite, Input, ProcessId};
use mitra_consensus_rdma::{ProcessConfig, ProcessNode, StartError};
use mitra_failover::Domain;

use self::leader_choice::LeaderChoice;
use crate::ServerConfig;
use crate::memories::Memories;
use crate::store::{Store, Waiter};

/// The largest message between processes, in bytes.
const MAX_MESSAGE_BYTES: usize = 256;

/// The state machine of a store process.
type Member = Composite<Log, Heartbeat>;

/// The log at this process, the node that drives it, and the state machine that it replicates.
pub(crate) struct LogStore {
    node: ProcessNode<Member>,
    store: ReplicatedStore<Waiter>,
    leader_choice: LeaderChoice,
    memories: Memories,
}

impl LogStore {
    /// Creates a store that accepts the other processes on `peer_listener`.
    ///
    /// # Errors
    /// - [`StartError::ProcessCount`] if the dimensions are not valid.
    /// - The errors of [`ProcessNode::new`].
    pub(crate) fn new(
        domain: &Arc<Domain>,
        peer_listener: TcpListener,
        config: &ServerConfig,
    ) -> Result<LogStore, StartError> {
        let store = config.store;
        let node_config = ProcessConfig {
            id: config.id,
            tokens: config.tokens.clone(),
            processes: config.processes.clone(),
            memories: config.memories.iter().map(|&address| (address, store.regions())).collect(),
            register_capacity: store.register_capacity(),
            max_message_bytes: MAX_MESSAGE_BYTES,
            wake_delay: config.heartbeat_interval,
            failover: config.failover,
        };
        let log = Log::new(config.id, store.log_config())
            .ok_or(StartError::ProcessCount(config.processes.len()))?;
        let heartbeat = Heartbeat::new(config.id, store.processes, store.memories);
        let member = Member::new(log, heartbeat, store.log_config().regions().len() as u8);
        Ok(LogStore {
            node: ProcessNode::new(member, domain, peer_listener, &node_config)?,
            store: ReplicatedStore::new(KvStore::new(store.kv_limits())),
            leader_choice: LeaderChoice::new(config.heartbeat_interval, Instant::now()),
            memories: Memories::new(config.memories.clone()),
        })
    }

    /// Takes account of what the node has done, and submits what is queued.
    fn follow(&mut self) -> io::Result<()> {
        self.memories.update(self.node.memory_states());
        self.follow_leader();
        self.store.drive(&mut LogOfNode(&mut self.node));
        if self.store.is_unreadable() {
            let message = "a snapshot in the memories cannot be decoded: processes of two versions share these memories";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(())
    }

    fn follow_leader(&mut self) {
        let Member { first: log, second: heartbeat, .. } = self.node.process();
        let named = heartbeat.leader(log.eligible_leaders());
        let before = self.leader_choice.leader();
        let leader = self.leader_choice.step(named, Instant::now());
        if leader != before
            && let Some(leader) = leader
        {
            self.node.handle_input(Input::Leader(leader));
        }
    }
}

impl Store for LogStore {
    fn request(&mut self, waiter: Waiter, request: Request) {
        self.store.request(waiter, request);
    }

    fn change(&mut self, waiter: Waiter, change: Change) {
        self.store.change(waiter, change);
    }

    fn poll(&mut self) -> io::Result<bool> {
        let busy = self.node.poll();
        self.follow().map(|()| busy)
    }

    fn handle_events(&mut self) -> io::Result<bool> {
        let busy = self.node.handle_events();
        self.follow().map(|()| busy)
    }

    fn take_outcomes(&mut self) -> (Vec<(Waiter, Outcome)>, Vec<Event>) {
        self.store.take_outcomes()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.node.as_fd()
    }

    fn next_timeout(&self, max: Duration) -> Duration {
        self.node.next_timeout(max)
    }

    fn leader(&self) -> Option<ProcessId> {
        self.leader_choice.leader()
    }

    fn is_leader(&self) -> bool {
        self.node.process().first.is_leader()
    }

    fn applied(&self) -> u64 {
        self.store.applied()
    }

    fn memories(&self) -> &Memories {
        &self.memories
    }

    fn connected(&self) -> (usize, usize) {
        (self.node.connected_memories(), self.node.connected_peers())
    }
}

struct LogOfNode<'a>(&'a mut ProcessNode<Member>);

impl LogHost for LogOfNode<'_> {
    fn log(&self) -> &Log {
        &self.0.process().first
    }

    fn with_log<T>(&mut self, f: impl FnOnce(&mut Log, &mut Actions<Log>) -> T) -> T {
        self.0.with_process(|member, out| member.with_first(f, out))
    }
}
