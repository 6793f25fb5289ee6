//! A process node, which drives the state machine of one process over RDMA.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_consensus::{Action, Input, MemoryId, OpId, Process, ProcessId, Region, Response};
use mitra_consensus_memory::{Hello, Token};
use mitra_driver::Poller;
use mitra_failover::{Domain, FailoverReport};
use mitra_handshake::Acceptor;
use serde::Serialize;
use serde::de::DeserializeOwned;

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
    poller: Poller,
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
    /// The domain should have completion channels ([`Domain::with_completion_channels`]). Without
    /// them, completions do not end [`ProcessNode::wait`].
    ///
    /// # Errors
    /// - [`StartError::ProcessCount`] if `config` has no token or more than 64, if the numbers of
    ///   addresses and tokens differ, or if `id` is not below the number of tokens.
    /// - [`StartError::Io`] or [`StartError::Nic`] if the system or the NIC refuses a resource.
    pub fn new(
        process: P,
        domain: &Arc<Domain>,
        listener: TcpListener,
        config: &ProcessConfig,
    ) -> Result<ProcessNode<P>, StartError> {
        let n = config.tokens.len();
        if !(1..=64).contains(&n) || config.processes.len() != n || usize::from(config.id.0) >= n {
            return Err(StartError::ProcessCount(n));
        }
        let token = config.tokens[usize::from(config.id.0)];
        let incarnation = getrandom::u64()?;
        let identity = Identity {
            process: config.id,
            domain: Arc::clone(domain),
            failover: config.failover,
            token,
            incarnation,
        };
        let memories = config.memories.iter().map(|(address, regions)| {
            MemoryClient::new(identity.clone(), *address, regions, config.register_capacity)
        });
        let peers = (0..n as u8).map(ProcessId).map(|p| {
            Peer::new(
                &identity,
                p,
                config.processes[usize::from(p.0)],
                config.tokens[usize::from(p.0)],
                config.max_message_bytes,
            )
        });
        let poller = Poller::new(domain)?;
        let waker = poller.waker();
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
    /// the state machine. Returns whether there was any input.
    pub fn poll(&mut self) -> bool {
        while let Some(incoming) = self.acceptor.next() {
            if let Some(peer) = self.peers.get_mut(usize::from(incoming.hello.from.0)) {
                peer.accept(incoming);
            }
        }
        let mut busy = false;
        for at in 0..self.memories.len() {
            self.memories[at].poll(&mut self.responses);
            // The process handles each memory's responses before the next memory is polled, so that
            // the operations that it invokes in reply are posted as early as possible.
            let memory = MemoryId(at as u8);
            let responses = self.responses.drain(..);
            self.inputs.extend(responses.map(|(id, response)| Input::Response { memory, id, response }));
            busy |= self.handle_inputs();
        }
        for (from, peer) in (0..).map(ProcessId).zip(&mut self.peers) {
            peer.poll(|bytes| {
                // Malformed messages come from a Byzantine peer and are dropped.
                if let Ok(message) = postcard::from_bytes(&bytes) {
                    self.inputs.push(Input::Message { from, message });
                }
            });
        }
        if self.wakes_at.is_some_and(|at| at <= Instant::now()) {
            self.wakes_at = None;
            self.inputs.push(Input::Wake);
        }
        self.handle_inputs() | busy
    }

    /// Polls. If there was no input, blocks until an event arrives, for at most `max`.
    ///
    /// A failover of a connection raises no completion event, and the node takes part in the
    /// failover only in [`ProcessNode::poll`]. `max` should therefore be about a millisecond.
    pub fn wait(&mut self, max: Duration) {
        self.arm();
        if !self.poll() {
            let _ = self.poller.wait(self.next_timeout(max));
        }
    }

    /// Arms the completion queues, so that [`ProcessNode::fds`] become readable at the next event.
    /// A caller that waits for further descriptors calls `arm`, polls once more, waits, and then
    /// calls [`ProcessNode::drain_events`].
    pub fn arm(&self) {
        self.memories.iter().for_each(MemoryClient::arm);
        self.peers.iter().for_each(Peer::arm);
    }

    /// Returns the descriptors to wait on for reading.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.poller.fds()
    }

    /// Consumes the pending events, so that only later events make the descriptors readable.
    pub fn drain_events(&self) {
        self.poller.drain_events();
    }

    /// Returns the shorter of `max` and the time until [`Input::Wake`] is due.
    pub fn next_timeout(&self, max: Duration) -> Duration {
        let until_wake = self.wakes_at.map_or(max, |at| at.saturating_duration_since(Instant::now()));
        max.min(until_wake)
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
    }
}
