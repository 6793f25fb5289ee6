//! The connection of a process to one memory node: dials the node, and drives [`Client`].

use std::net::SocketAddr;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use mitra_consensus::{Op, OpId, Region, Response};
use mitra_consensus_memory::{Client, Layout, MAX_MESSAGE_BYTES, MAX_READ_BYTES, Welcome};
use mitra_failover::{FailoverReport, RemoteRegion};
use mitra_verbs::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::link::{Link, LinkEvent};
use crate::link_poller::Pass;
use crate::pending_connect::{Identity, PendingConnect, RETRY_INTERVAL};

/// How long the connection to a memory node may be down before the memory node counts as lost,
/// unless an attempt to connect again fails earlier.
const LOST_AFTER: Duration = Duration::from_millis(200);
/// How long a memory node that was never connected may take to start before it counts as lost.
const START_TIME: Duration = Duration::from_secs(3);

/// The number of longest READs, and of longest WRITEs, that fit into the registered memory of a
/// link at the same time.
const READS: usize = 4;
const WRITES: usize = 16;

/// The state of a memory node, as one process sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryState {
    /// The process dials the memory node for the first time, or again after the connection broke.
    Connecting,
    /// The process uses the memory node.
    Connected,
    /// The memory node does not answer. The process continues to dial it.
    Lost,
    /// The memory node has lost its contents since the process used it. The process does not use it
    /// any more.
    ContentsLost,
    /// The memory node has other regions or registers than the process expects. The process does
    /// not use it.
    OtherLayout,
}

#[derive(Debug)]
enum State {
    Connecting(PendingConnect),
    Connected(Link),
    /// No queue pair or descriptor was free. The client dials again at this time.
    Backoff(Instant),
    /// The client never connects again.
    Closed,
}

#[derive(Debug)]
pub(crate) struct MemoryClient<C> {
    address: SocketAddr,
    identity: Identity,
    /// The key of the links.
    key: u8,
    state: State,
    client: Client<C, RemoteRegion>,
    /// The registered memory of a link for the payload of READs and WRITEs.
    operation_bytes: usize,
    connections: u64,
    /// When the client began to dial, if it is not connected.
    dials_since: Instant,
    /// Whether an attempt to connect has failed since then.
    dial_failed: bool,
}

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq> MemoryClient<C> {
    /// Starts to connect to the memory node at `address`.
    pub(crate) fn new(
        identity: Identity,
        key: u8,
        address: SocketAddr,
        regions: &[Region],
        register_capacity: usize,
    ) -> Result<MemoryClient<C>, Error> {
        let layout = Layout::new(regions, register_capacity);
        let operation_bytes = READS * MAX_READ_BYTES.max(layout.register_bytes())
            + WRITES * layout.slot_bytes().next_multiple_of(size_of::<u64>());
        let link = identity.new_link(key, MAX_MESSAGE_BYTES, operation_bytes)?;
        let connecting = identity.connect(address, link, Duration::ZERO)?;
        Ok(MemoryClient {
            address,
            identity,
            key,
            state: State::Connecting(connecting),
            client: Client::new(regions, register_capacity),
            operation_bytes,
            connections: 0,
            dials_since: Instant::now(),
            dial_failed: false,
        })
    }

    /// Queues an operation. [`MemoryClient::post`] posts it if possible.
    pub(crate) fn submit(&mut self, id: OpId, op: Op<C>) {
        self.client.submit(id, op);
    }

    /// Posts the queued operations as one list. With `wakes`, their responses wake the node.
    pub(crate) fn post(&mut self, wakes: bool) {
        if let State::Connected(link) = &mut self.state {
            link.wake_for_operations(wakes);
            self.client.post(link);
            link.post();
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    /// Returns whether the memory is treated as crashed: its contents were lost, or its layout is
    /// not the configured layout.
    pub(crate) fn is_crashed(&self) -> bool {
        self.client.is_crashed()
    }

    pub(crate) fn state(&self) -> MemoryState {
        let was_connected = self.connections > 0;
        let for_long = self.dials_since.elapsed() > if was_connected { LOST_AFTER } else { START_TIME };
        if self.is_connected() {
            MemoryState::Connected
        } else if self.is_crashed() {
            // The first connection shows the layout, and a later one also whether the contents are
            // those of before.
            if was_connected { MemoryState::ContentsLost } else { MemoryState::OtherLayout }
        } else if for_long || was_connected && self.dial_failed {
            MemoryState::Lost
        } else {
            MemoryState::Connecting
        }
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections
    }

    pub(crate) fn last_failover(&self) -> Option<FailoverReport> {
        let State::Connected(link) = &self.state else { return None };
        link.last_failover()
    }

    /// Returns after which time a pass is due even if no event arrives.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        match &self.state {
            State::Closed => None,
            // The state may change to lost.
            State::Connecting(_) => Some(RETRY_INTERVAL),
            State::Backoff(until) => Some(until.saturating_duration_since(Instant::now())),
            // No event tells of a response that the client makes itself.
            State::Connected(_) if self.client.has_impossible() => Some(Duration::ZERO),
            State::Connected(link) => link.due_in(),
        }
    }

    /// Drives the connection, and appends the responses of finished operations to `responses`.
    pub(crate) fn drive(&mut self, pass: Pass, responses: &mut Vec<(OpId, Response<C>)>) {
        match &mut self.state {
            State::Closed => return,
            State::Backoff(until) if *until > Instant::now() => return,
            State::Backoff(_) => return self.reconnect(),
            State::Connecting(connecting) => match connecting.response.try_recv() {
                Ok(Ok(welcome)) => self.finish_connect(&welcome, responses),
                Err(TryRecvError::Empty) => return,
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => return self.redial(),
            },
            State::Connected(link) => {
                let mut events = Vec::new();
                if !link.drive(pass, |event| events.push(event)) && !self.client.has_impossible() {
                    return;
                }
                let broken = link.is_broken();
                for event in events {
                    match event {
                        LinkEvent::Ended { id, ended, fetched } => {
                            self.client.on_completion(id, ended, &fetched, responses);
                        }
                        LinkEvent::Message(message) => self.client.on_message(&message, link, responses),
                    }
                }
                if broken {
                    return self.reconnect();
                }
            }
        }
        if let State::Connected(link) = &mut self.state {
            self.client.post(link);
            link.post();
            self.client.nak_impossible(responses);
        }
    }

    fn reconnect(&mut self) {
        if self.client.is_connected() {
            (self.dials_since, self.dial_failed) = (Instant::now(), false);
        }
        self.client.on_disconnect();
        // The assignment drops the old link, which frees its queue pair and memory.
        self.state = State::Backoff(Instant::now() + RETRY_INTERVAL);
        if let Ok(link) = self.identity.new_link(self.key, MAX_MESSAGE_BYTES, self.operation_bytes) {
            self.dial(link, Duration::ZERO);
        }
    }

    /// Dials again, with a delay, after a failed handshake. Possibly, the memory node has not
    /// started yet or has stopped.
    fn redial(&mut self) {
        self.dial_failed = true;
        let backoff = State::Backoff(Instant::now() + RETRY_INTERVAL);
        if let State::Connecting(PendingConnect { link, .. }) = std::mem::replace(&mut self.state, backoff) {
            self.dial(link, RETRY_INTERVAL);
        }
    }

    fn dial(&mut self, link: Link, delay: Duration) {
        if let Ok(connecting) = self.identity.connect(self.address, link, delay) {
            self.state = State::Connecting(connecting);
        }
    }

    fn finish_connect(&mut self, welcome: &Welcome, responses: &mut Vec<(OpId, Response<C>)>) {
        let State::Connecting(PendingConnect { mut link, .. }) =
            std::mem::replace(&mut self.state, State::Closed)
        else {
            return;
        };
        self.client.on_welcome(welcome, &mut link, responses);
        if self.client.is_connected() {
            self.state = State::Connected(link);
            self.connections += 1;
        } else if !self.client.is_crashed() {
            self.reconnect();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use mitra_consensus::{LegalChange, Permissions, ProcessId, RegisterKind};
    use mitra_failover::Domain;
    use mitra_softnic::{Config, SoftNic};

    use super::*;
    use crate::link_poller::{LinkPoller, Ready};
    use crate::memory_node::{MemoryConfig, MemoryNode};

    fn domain() -> Arc<Domain> {
        let nic = SoftNic::open(Config::loopback()).expect("a loopback NIC opens");
        Domain::with_completion_channels(vec![nic]).expect("the NIC has the resources of a domain")
    }

    const TOKEN: [u8; 16] = [7; 16];

    fn identity() -> Identity {
        let domain = domain();
        let poller = LinkPoller::new(&domain).expect("the system has descriptors");
        let mut failover = mitra_failover::Config::default();
        failover.detector.max_missed_heartbeats = 0; // a heartbeat would be due now and then
        Identity { process: ProcessId(0), domain, failover, token: TOKEN, incarnation: 1, poller }
    }

    /// Returns a memory node with one register, and a client that dials the node.
    fn dialled(identity: &Identity) -> (MemoryNode, MemoryClient<u64>) {
        let regions = vec![Region {
            registers: 1,
            permissions: Permissions::single_writer(1, ProcessId(0)),
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        }];
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let config = MemoryConfig {
            regions: regions.clone(),
            register_capacity: 64,
            tokens: vec![TOKEN],
            allow_restarts: false,
            storage: None,
            failover: identity.failover,
        };
        let memory = MemoryNode::new(domain(), listener, config).expect("the configuration is valid");
        let client = MemoryClient::new(identity.clone(), 0, memory.address(), &regions, 64);
        (memory, client.expect("a free queue pair"))
    }

    /// Returns whether the client connects soon.
    fn connects(memory: &mut MemoryNode, client: &mut MemoryClient<u64>) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while !client.is_connected() && Instant::now() < end {
            memory.serve_for(Duration::from_millis(1));
            client.drive(Pass::Poll, &mut Vec::new());
        }
        client.is_connected()
    }

    /// No event tells the node of a response that the client makes itself.
    #[test]
    fn impossible_operation_is_due_at_once() {
        let identity = identity();
        let (mut memory, mut client) = dialled(&identity);
        assert!(connects(&mut memory, &mut client));
        client.drive(Pass::HandleEvents(Ready::ALL), &mut Vec::new());
        assert_ne!(client.due_in(), Some(Duration::ZERO));
        for op in [Op::Read { region: 0, first: 0, count: 2 }, Op::Read { region: 0, first: 0, count: 0 }] {
            client.submit(OpId(5), op);
            client.post(true);
            assert_eq!(client.due_in(), Some(Duration::ZERO));
            let mut responses = Vec::new();
            let none_is_ready = LinkPoller::new(&identity.domain).expect("the system has descriptors");
            let pass = Pass::HandleEvents(none_is_ready.wait(Duration::ZERO));
            client.drive(pass, &mut responses);
            assert_eq!(responses.len(), 1);
            assert!(!client.client.has_impossible());
        }
    }

    /// The client's NIC runs out of queue pairs while the connection to the memory node is down.
    #[test]
    fn client_reconnects_once_queue_pairs_are_free() {
        let identity = identity();
        let (mut memory, mut client) = dialled(&identity);
        assert_eq!(client.state(), MemoryState::Connecting);
        assert!(connects(&mut memory, &mut client));
        // Take all free queue pairs, break the connection, and take the queue pairs of that
        // connection as well.
        let mut all: Vec<Link> =
            std::iter::from_fn(|| identity.new_link(1, MAX_MESSAGE_BYTES, 0).ok()).collect();
        client.state = State::Closed;
        all.extend(std::iter::from_fn(|| identity.new_link(1, MAX_MESSAGE_BYTES, 0).ok()));
        client.reconnect();
        client.drive(Pass::Poll, &mut Vec::new());
        assert!(!client.is_connected() && !client.is_crashed());
        drop(all);
        assert!(connects(&mut memory, &mut client));
        assert_eq!(client.state(), MemoryState::Connected);
    }
}
