//! The driver of a process: carries out what a state machine asks for, and tells it what came of it.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_consensus::{Action, Input, MemoryId, OpId, Process, ProcessId, Region, Response};
use mitra_failover::{Domain, FailoverReport};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::handshake::{Door, Token};
use crate::memory_node::StartError;
use crate::peer::Peer;
use crate::pending_connect::Identity;
use crate::poller::Rest;
use crate::port::Port;

/// Where a process is, and whom it knows.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// Which process it is.
    pub id: ProcessId,
    /// The word by which each process is known; how many they are.
    pub tokens: Vec<Token>,
    /// Where the doors of the processes are. Nobody needs the last one's but to be known.
    pub processes: Vec<SocketAddr>,
    /// Where the doors of the memories are, and their regions.
    pub memories: Vec<(SocketAddr, Vec<Region>)>,
    /// Bytes of a register's contents, at most; as the memories say.
    pub register_capacity: usize,
    /// Bytes of a message between processes, at most.
    pub max_message_bytes: usize,
    /// How long [`Action::Wake`] is.
    pub wake_delay: Duration,
    /// How connections behave. Both ends must have the same.
    pub failover: mitra_failover::Config,
}

/// A process that runs.
#[derive(Debug)]
pub struct ProcessNode<P: Process> {
    process: P,
    ports: Vec<Port<P::Cell>>,
    peers: Vec<Peer>,
    door: Door,
    rest: Rest,
    wake: Duration,
    awake_at: Option<Instant>,
    actions: Vec<Action<P::Cell, P::Message>>,
    /// What it is to be told next.
    inputs: Vec<Input<P::Cell, P::Message>>,
    answers: Vec<(OpId, Response<P::Cell>)>,
}

impl<P> ProcessNode<P>
where
    P: Process,
    P::Cell: Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    /// Starts it. Others come in through `listener`. What it cannot reach yet, it goes on calling. The domain should notify, if the
    /// process is to [`ProcessNode::wait`].
    ///
    /// # Errors
    /// The system or the NIC refuses.
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
        let life = getrandom::u64()?;
        let identity =
            Identity { me: config.id, domain: Arc::clone(domain), failover: config.failover, token, life };
        let ports = config.memories.iter().map(|(address, regions)| {
            Port::new(identity.clone(), *address, regions, config.register_capacity)
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
        let rest = Rest::new(domain)?;
        let bell = rest.bell();
        let mut node = ProcessNode {
            ports: ports.collect::<Result<_, _>>()?,
            peers: peers.collect::<Result<_, _>>()?,
            door: Door::open(listener, move || bell.ring())?,
            rest,
            wake: config.wake_delay,
            awake_at: None,
            actions: Vec::new(),
            inputs: vec![Input::Start],
            answers: Vec::new(),
            process,
        };
        node.tell_all();
        Ok(node)
    }

    /// The process.
    pub fn process(&self) -> &P {
        &self.process
    }

    /// Lets the process do something of its own, and carries out what it asks for then.
    pub fn with_process<T>(
        &mut self,
        act: impl FnOnce(&mut P, &mut Vec<Action<P::Cell, P::Message>>) -> T,
    ) -> T {
        let done = act(&mut self.process, &mut self.actions);
        self.carry_out();
        done
    }

    /// Tells the process something.
    pub fn handle_input(&mut self, input: Input<P::Cell, P::Message>) {
        self.inputs.push(input);
        self.tell_all();
    }

    /// How many memories can be reached now.
    pub fn connected_memories(&self) -> usize {
        self.ports.iter().filter(|port| port.is_ready()).count()
    }

    /// Those that have lost what they held, or are not what they should be: as good as crashed.
    pub fn crashed_memories(&self) -> impl Iterator<Item = MemoryId> {
        (0..).map(MemoryId).zip(&self.ports).filter(|(_, port)| port.is_dead()).map(|(memory, _)| memory)
    }

    /// How many other processes are connected now.
    pub fn connected_peers(&self) -> usize {
        self.peers.iter().filter(|peer| peer.is_connected()).count()
    }

    /// The last move of the connection to a memory from one rail to another.
    pub fn last_failover(&self, memory: MemoryId) -> Option<FailoverReport> {
        self.ports.get(usize::from(memory.0))?.last_failover()
    }

    /// How often the connection to a memory was made.
    pub fn connection_count(&self, memory: MemoryId) -> u64 {
        self.ports.get(usize::from(memory.0)).map_or(0, Port::connections)
    }

    /// Does what has come up, and says whether anything has.
    pub fn poll(&mut self) -> bool {
        while let Some(guest) = self.door.next() {
            if let Some(peer) = self.peers.get_mut(usize::from(guest.hello.from.0)) {
                peer.let_in(guest);
            }
        }
        let mut busy = false;
        for at in 0..self.ports.len() {
            self.ports[at].poll(&mut self.answers);
            // One by one: what the process does in between is asked after what was answered.
            let memory = MemoryId(at as u8);
            let answers = self.answers.drain(..);
            self.inputs.extend(answers.map(|(id, response)| Input::Response { memory, id, response }));
            busy |= self.tell_all();
        }
        for (from, peer) in (0..).map(ProcessId).zip(&mut self.peers) {
            peer.poll(|bytes| {
                // What cannot be read was said by nobody of ours.
                if let Ok(message) = postcard::from_bytes(&bytes) {
                    self.inputs.push(Input::Message { from, message });
                }
            });
        }
        if self.awake_at.is_some_and(|at| at <= Instant::now()) {
            self.awake_at = None;
            self.inputs.push(Input::Wake);
        }
        self.tell_all() | busy
    }

    /// Sleeps until something comes up, or so long. Recoveries of connections are taken part in by [`ProcessNode::poll`], so it should be
    /// short.
    pub fn wait(&mut self, at_most: Duration) {
        self.arm();
        if !self.poll() {
            let _ = self.rest.rest(self.next_timeout(at_most));
        }
    }

    /// Asks that its file descriptors become readable when something comes up: for who waits for other things too. Poll once more after
    /// that, and [`ProcessNode::drain_events`] what has come.
    pub fn arm(&self) {
        self.ports.iter().for_each(Port::arm);
        self.peers.iter().for_each(Peer::arm);
    }

    /// What to wait for.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.rest.fds()
    }

    /// Takes note of what has made them readable.
    pub fn drain_events(&self) {
        self.rest.note();
    }

    /// So long, or until the process is to be woken.
    pub fn next_timeout(&self, at_most: Duration) -> Duration {
        let wake = self.awake_at.map_or(at_most, |at| at.saturating_duration_since(Instant::now()));
        at_most.min(wake)
    }

    fn tell_all(&mut self) -> bool {
        let busy = !self.inputs.is_empty();
        while !self.inputs.is_empty() {
            for input in std::mem::take(&mut self.inputs) {
                self.process.handle(input, &mut self.actions);
                self.carry_out();
            }
        }
        busy
    }

    fn carry_out(&mut self) {
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
                    if let Some(port) = self.ports.get_mut(usize::from(memory.0)) {
                        port.ask(id, op);
                    }
                }
                Action::Wake => self.awake_at = Some(Instant::now() + self.wake),
                Action::FlipCoin => {
                    let mut byte = [0];
                    // The system's generator fails only before it is seeded at boot; the coin is then tails.
                    let _ = getrandom::fill(&mut byte);
                    self.inputs.push(Input::Coin(byte[0] & 1 == 1));
                }
            }
        }
    }
}
