//! A process node, which drives the state machine of one process over RDMA.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_consensus::{Action, Input, MemoryId, OpId, Process, ProcessId, Region, Response};
use mitra_consensus_memory::{Hello, Token};
use mitra_failover::{Domain, FailoverReport};
use mitra_handshake::Acceptor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::link_poller::{KEYS, LinkPoller, Pass, Ready};
use crate::memory_client::{MemoryClient, MemoryState};
use crate::memory_node::StartError;
use crate::peer::Peer;
use crate::pending_connect::Identity;

/// The configuration of a [`ProcessNode`].
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The id of this process.
    pub id: ProcessId,
    /// The token of each process, indexed by [`ProcessId`]. The length is the number of processes.
    pub tokens: Vec<Token>,
    /// The address at which each process accepts its peers, indexed by [`ProcessId`]. The address
    /// of the last process is not used, because a process dials only peers with lower ids.
    pub processes: Vec<SocketAddr>,
    /// The address of each memory node, and its regions, indexed by [`MemoryId`].
    pub memories: Vec<(SocketAddr, Vec<Region>)>,
    /// The capacity of a register's contents, in bytes. The memory nodes must use the same
    /// capacity.
    pub register_capacity: usize,
    /// The maximum length of an encoded message between processes, in bytes. Longer messages are
    /// dropped.
    pub max_message_bytes: usize,
    /// The delay between [`Action::Wake`] and [`Input::Wake`].
    pub wake_delay: Duration,
    /// The configuration of the connections. Both ends must use the same configuration.
    pub failover: mitra_failover::Config,
}

/// A process with its connections to memory nodes and peers.
///
/// The node performs the [`Action`]s of the state machine and passes their outcomes back as
/// [`Input`]s. The node makes progress only inside its methods.
#[derive(Debug)]
pub struct ProcessNode<P: Process> {
    process: P,
    memories: Vec<MemoryClient<P::Cell>>,
    peers: Vec<Peer>,
    acceptor: Acceptor<Hello>,
    poller: LinkPoller,
    wake_delay: Duration,
    wakes_at: Option<Instant>,
    actions: Vec<Action<P::Cell, P::Message>>,
    /// Inputs that the state machine has not handled yet.
    inputs: Vec<Input<P::Cell, P::Message>>,
    responses: Vec<(OpId, Response<P::Cell>)>,
}

impl<P> ProcessNode<P>
where
    P: Process,
    P::Cell: Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    /// Creates a node that accepts peers on `listener`, passes [`Input::Start`] to the process, and
    /// begins to connect to memory nodes and peers. The node repeats failed connection attempts for
    /// as long as it runs.
    ///
    /// The NICs must have completion channels.
    ///
    /// # Errors
    /// - [`StartError::ProcessCount`] if `config` has no token or more than 64, more than 64
    ///   memories, if the numbers of addresses and tokens differ, or if `id` is not below the
    ///   number of tokens.
    /// - [`StartError::Io`] or [`StartError::Nic`] if the system or the NIC refuses a resource.
    pub fn new(
        process: P,
        domain: &Arc<Domain>,
        listener: TcpListener,
        config: &ProcessConfig,
    ) -> Result<ProcessNode<P>, StartError> {
        let n = config.tokens.len();
        let max = usize::from(KEYS / 2);
        if !(1..=max).contains(&n)
            || config.memories.len() > max
            || config.processes.len() != n
            || usize::from(config.id.0) >= n
        {
            return Err(StartError::ProcessCount(n));
        }
        let token = config.tokens[usize::from(config.id.0)];
        let incarnation = getrandom::u64()?;
        let poller = LinkPoller::new(domain)?;
        let identity = Identity {
            poller: poller.clone(),
            process: config.id,
            domain: Arc::clone(domain),
            failover: config.failover,
            token,
            incarnation,
        };
        let memories = (KEYS / 2..).zip(&config.memories).map(|(key, (address, regions))| {
            MemoryClient::new(identity.clone(), key, *address, regions, config.register_capacity)
        });
        let peers = (0..n as u8).map(ProcessId).map(|p| {
            Peer::new(
                &identity,
                p.0,
                p,
                config.processes[usize::from(p.0)],
                config.tokens[usize::from(p.0)],
                config.max_message_bytes,
            )
        });
        let waker = poller.clone();
        let mut node = ProcessNode {
            memories: memories.collect::<Result<_, _>>()?,
            peers: peers.collect::<Result<_, _>>()?,
            acceptor: Acceptor::start(listener, move || waker.wake())?,
            poller,
            wake_delay: config.wake_delay,
            wakes_at: None,
            actions: Vec::new(),
            inputs: vec![Input::Start],
            responses: Vec::new(),
            process,
        };
        node.handle_inputs();
        Ok(node)
    }

    /// Returns the state machine.
    pub fn process(&self) -> &P {
        &self.process
    }

    /// Calls `f` with the state machine, then performs the actions that `f` appended.
    pub fn with_process<T>(
        &mut self,
        f: impl FnOnce(&mut P, &mut Vec<Action<P::Cell, P::Message>>) -> T,
    ) -> T {
        let result = f(&mut self.process, &mut self.actions);
        self.perform_actions();
        result
    }

    /// Passes an input to the state machine.
    pub fn handle_input(&mut self, input: Input<P::Cell, P::Message>) {
        self.inputs.push(input);
        self.handle_inputs();
    }

    /// Sets the delay between [`Action::Wake`] and [`Input::Wake`], for later wake-ups.
    pub fn set_wake_delay(&mut self, delay: Duration) {
        self.wake_delay = delay;
    }

    /// Returns the number of connected memory nodes.
    pub fn connected_memories(&self) -> usize {
        self.memories.iter().filter(|memory| memory.is_connected()).count()
    }

    /// Returns the memory nodes that are treated as crashed, because their contents were lost or
    /// their layout is not the configured layout.
    pub fn crashed_memories(&self) -> impl Iterator<Item = MemoryId> {
        (0..)
            .map(MemoryId)
            .zip(&self.memories)
            .filter(|(_, memory)| memory.is_crashed())
            .map(|(memory, _)| memory)
    }

    /// Returns what the process knows of each memory node, in the order of [`MemoryId`].
    pub fn memory_states(&self) -> impl Iterator<Item = MemoryState> {
        self.memories.iter().map(MemoryClient::state)
    }

    /// Returns the number of connected peers.
    pub fn connected_peers(&self) -> usize {
        self.peers.iter().filter(|peer| peer.is_connected()).count()
    }

    /// Returns the report of the last failover of the connection to a memory node.
    pub fn last_failover(&self, memory: MemoryId) -> Option<FailoverReport> {
        self.memories.get(usize::from(memory.0))?.last_failover()
    }

    /// Returns how many times the connection to a memory node was established.
    pub fn connection_count(&self, memory: MemoryId) -> u64 {
        self.memories.get(usize::from(memory.0)).map_or(0, MemoryClient::connections)
    }

    /// Accepts peers, drives all connections, and passes the responses, messages and wake-ups to
    /// the state machine. Returns whether there was any input. For a caller that does not sleep
    /// before its next call.
    pub fn poll(&mut self) -> bool {
        self.drive(Pass::Poll)
    }

    /// As [`ProcessNode::poll`], but drives only the connections with events or expired timers. The
    /// caller may then sleep until [`ProcessNode`]'s descriptor is readable, for at most
    /// [`ProcessNode::next_timeout`].
    pub fn handle_events(&mut self) -> bool {
        let ready = self.poller.wait(Duration::ZERO);
        self.drive(Pass::HandleEvents(ready))
    }

    fn drive(&mut self, pass: Pass) -> bool {
        while let Some(incoming) = self.acceptor.next() {
            if let Some(peer) = self.peers.get_mut(usize::from(incoming.hello.from.0)) {
                peer.accept(incoming);
            }
        }
        let mut busy = false;
        let wakes = self.wakes_at.is_some_and(|at| at <= Instant::now());
        let memory_pass = match pass {
            // The responses before a wake-up may have raised no event.
            Pass::HandleEvents(_) if wakes => Pass::HandleEvents(Ready::ALL),
            _ => pass,
        };
        for at in 0..self.memories.len() {
            self.memories[at].drive(memory_pass, &mut self.responses);
            // The process handles each memory's responses before the next memory is polled, so that
            // the operations that it invokes in reply are posted as early as possible.
            let memory = MemoryId(at as u8);
            let responses = self.responses.drain(..);
            self.inputs.extend(responses.map(|(id, response)| Input::Response { memory, id, response }));
            busy |= self.handle_inputs();
        }
        for (from, peer) in (0..).map(ProcessId).zip(&mut self.peers) {
            peer.drive(pass, |bytes| {
                // Malformed messages come from a Byzantine peer and are dropped.
                if let Ok(message) = postcard::from_bytes(&bytes) {
                    self.inputs.push(Input::Message { from, message });
                }
            });
        }
        if wakes {
            self.wakes_at = None;
            self.inputs.push(Input::Wake);
        }
        self.handle_inputs() | busy
    }

    /// Handles what has happened. If there was no input, blocks until there may be one, for at most
    /// `max`, and handles it.
    pub fn wait(&mut self, max: Duration) {
        if !self.handle_events() {
            let ready = self.poller.wait(self.next_timeout(max));
            self.drive(Pass::HandleEvents(ready));
        }
    }

    /// Returns the shorter of `max` and the time until [`ProcessNode::handle_events`] is due
    /// without an event.
    pub fn next_timeout(&self, max: Duration) -> Duration {
        let until_wake = self.wakes_at.map(|at| at.saturating_duration_since(Instant::now()));
        let memories = self.memories.iter().filter_map(MemoryClient::due_in);
        let peers = self.peers.iter().filter_map(Peer::due_in);
        memories.chain(peers).chain(until_wake).fold(max, Duration::min)
    }

    fn handle_inputs(&mut self) -> bool {
        let busy = !self.inputs.is_empty();
        while !self.inputs.is_empty() {
            for input in std::mem::take(&mut self.inputs) {
                self.process.handle(input, &mut self.actions);
                self.perform_actions();
            }
        }
        busy
    }

    fn perform_actions(&mut self) {
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Send { to, message } => {
                    if let (Some(peer), Ok(bytes)) =
                        (self.peers.get_mut(usize::from(to.0)), postcard::to_stdvec(&message))
                    {
                        peer.send(bytes);
                    }
                }
                Action::Invoke { memory, id, op } => {
                    if let Some(memory) = self.memories.get_mut(usize::from(memory.0)) {
                        memory.submit(id, op);
                    }
                }
                Action::Wake => self.wakes_at = Some(Instant::now() + self.wake_delay),
                Action::FlipCoin => {
                    let mut byte = [0];
                    // The system's generator fails only before it is seeded at boot; the coin is
                    // then tails.
                    let _ = getrandom::fill(&mut byte);
                    self.inputs.push(Input::Coin(byte[0] & 1 == 1));
                }
            }
        }
        // The operations at a memory are one list.
        let wakes = self.process.awaits_responses();
        self.memories.iter_mut().for_each(|memory| memory.post(wakes));
    }
}

impl<P: Process> AsFd for ProcessNode<P> {
    /// The descriptor is readable when [`ProcessNode::handle_events`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use mitra_consensus::{Actions, LegalChange, Op, Permissions, RegisterKind};
    use mitra_softnic::{Config, SoftNic};

    use super::*;
    use crate::memory_node::{MemoryConfig, MemoryNode};

    /// The key of the links to the first memory.
    const MEMORY: u8 = KEYS / 2;

    /// Reads a register when it is told the leader, and wakes at once.
    #[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
    struct Reader {
        responses: Vec<Response<u64>>,
    }

    impl Process for Reader {
        type Cell = u64;
        type Message = ();
        type Value = u64;

        fn handle(&mut self, input: Input<u64, ()>, out: &mut Actions<Self>) {
            match input {
                Input::Leader(_) => {
                    let op = Op::Read { region: 0, first: 0, count: 1 };
                    out.extend([Action::Invoke { memory: MemoryId(0), id: OpId(0), op }, Action::Wake]);
                }
                Input::Response { response, .. } => self.responses.push(response),
                _ => {}
            }
        }

        fn decision(&self) -> Option<&u64> {
            None
        }

        fn attempts(&self) -> u64 {
            0
        }
    }

    fn domain() -> Arc<Domain> {
        let nic = SoftNic::open(Config::loopback()).expect("a loopback NIC opens");
        Domain::with_completion_channels(vec![nic]).expect("the NIC has the resources of a domain")
    }

    fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").expect("a free port")
    }

    /// Returns a process that is connected to a memory of one register, and the memory.
    fn connected() -> (ProcessNode<Reader>, MemoryNode) {
        let regions = vec![Region {
            registers: 1,
            permissions: Permissions::read_only(1),
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        }];
        let (register_capacity, tokens) = (64, vec![[7; 16]]);
        let config = MemoryConfig {
            regions: regions.clone(),
            register_capacity,
            tokens: tokens.clone(),
            allow_restarts: false,
            storage: None,
            failover: mitra_failover::Config::default(),
        };
        let mut memory = MemoryNode::new(domain(), listener(), config).expect("the configuration is valid");
        let listener = listener();
        let config = ProcessConfig {
            id: ProcessId(0),
            tokens,
            processes: vec![listener.local_addr().expect("the listener is bound")],
            memories: vec![(memory.address(), regions)],
            register_capacity,
            max_message_bytes: 64,
            wake_delay: Duration::ZERO,
            failover: mitra_failover::Config::default(),
        };
        let node = ProcessNode::new(Reader::default(), &domain(), listener, &config);
        let mut node = node.expect("the configuration is valid");
        while node.connected_memories() == 0 {
            memory.serve_for(Duration::from_millis(1));
            node.handle_events();
        }
        (node, memory)
    }

    /// An event loop that watches the node's descriptor with edge-triggering gets no other event
    /// of a queue whose event is unread.
    #[test]
    fn wake_up_leaves_no_event_of_a_memory_unread() {
        let (mut node, _memory) = connected();
        // An event of a NIC is reported once, an unread event of a link by each wait.
        let has_unread_event = |node: &ProcessNode<Reader>| {
            (0..8).all(|_| node.poller.wait(Duration::from_millis(1)).contains(MEMORY))
        };
        let mut reads = 0;
        // A control message also raises an event, before the response or after the pass. It does so
        // in few of the rounds.
        let mut pass_leaves_no_event = || {
            node.handle_events(); // arms the queues
            while node.process().responses.len() < reads {
                node.wait(Duration::from_millis(1));
            }
            node.handle_input(Input::Leader(ProcessId(0)));
            reads += 1;
            while !has_unread_event(&node) {}
            node.handle_events();
            assert!(node.wakes_at.is_none(), "the pass has woken the process");
            node.process().responses.len() == reads && !has_unread_event(&node)
        };
        assert!((0..50).any(|_| pass_leaves_no_event()));
        assert!(node.process().responses.iter().all(|response| *response == Response::Cells(vec![0])));
    }
}
