//! The server at a process: its clients' connections and its node, in one loop.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use mitra_consensus::ProcessId;
use mitra_consensus::heartbeat::Heartbeat;
use mitra_consensus::kv::{Event, Kv, Reply as Said, Request};
use mitra_consensus::log::{Log, Refused};
use mitra_consensus_rdma::{ProcessConfig, ProcessNode, StartError};
use mitra_failover::Domain;

use crate::StoreConfig;
use crate::client_connection::ClientConnection;
use crate::command::{Command, Told, parse};
use crate::resp::Reply;
use crate::store::{Member, Outcome, Store, Waiter};

const LISTENER: Token = Token(usize::MAX);
const NODE: Token = Token(usize::MAX - 1);
/// Clients at a time; more are turned away.
const CLIENTS: usize = 4096;
/// How long it looks for more before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long it sleeps at most: how late a peer's failover can find it.
const NAP: Duration = Duration::from_millis(1);
/// The longest message between processes.
const MESSAGE: usize = 256;

/// What a server is told.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// How large the store is.
    pub store: StoreConfig,
    /// Which process it is.
    pub id: ProcessId,
    /// The word by which each process is known.
    pub tokens: Vec<mitra_consensus_rdma::Token>,
    /// Where the processes let each other in.
    pub processes: Vec<SocketAddr>,
    /// Where the memories are.
    pub memories: Vec<SocketAddr>,
    /// Where the processes serve clients: who does not lead sends them to who does.
    pub client_addresses: Vec<SocketAddr>,
    /// Time between two heartbeats. A leader counts as dead after thirteen without one.
    pub heartbeat_interval: Duration,
    /// How connections behave. Both ends must have the same.
    pub failover: mitra_failover::Config,
}

/// A process of the store, with its clients.
pub struct Server {
    config: ServerConfig,
    node: ProcessNode<Member>,
    store: Store,
    poll: Poll,
    events: Events,
    listener: mio::net::TcpListener,
    connections: HashMap<usize, ClientConnection>,
    next: usize,
    gathers: HashMap<(usize, u64), Gather>,
    active: Instant,
    commands: u64,
}

impl Server {
    /// Starts it: `door` is where the other processes come in, `clients` where clients do. The domain must notify.
    ///
    /// # Errors
    /// The system or the NIC refuses, or the sizes do not fit.
    pub fn new(
        domain: &Arc<Domain>,
        door: TcpListener,
        clients: TcpListener,
        config: ServerConfig,
    ) -> Result<Server, StartError> {
        let sizes = config.store;
        let node_config = ProcessConfig {
            id: config.id,
            tokens: config.tokens.clone(),
            processes: config.processes.clone(),
            memories: config.memories.iter().map(|&at| (at, sizes.regions())).collect(),
            register_capacity: sizes.register_capacity(),
            max_message_bytes: MESSAGE,
            wake_delay: config.heartbeat_interval,
            failover: config.failover,
        };
        let log = Log::new(config.id, sizes.log_config())
            .ok_or(StartError::ProcessCount(config.processes.len()))?;
        let heartbeat = Heartbeat::new(config.id, sizes.processes, sizes.memories);
        let member = Member::new(log, heartbeat, sizes.log_config().regions().len() as u8);
        let node = ProcessNode::new(member, domain, door, &node_config)?;
        clients.set_nonblocking(true)?;
        let mut listener = mio::net::TcpListener::from_std(clients);
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        for fd in node.fds() {
            poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), NODE, Interest::READABLE)?;
        }
        Ok(Server {
            node,
            store: Store::new(Kv::new(sizes.kv_limits())),
            poll,
            events: Events::with_capacity(256),
            listener,
            connections: HashMap::new(),
            next: 0,
            gathers: HashMap::new(),
            active: Instant::now(),
            commands: 0,
            config,
        })
    }

    /// Where clients come in.
    pub fn client_address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Who leads, as far as this process knows.
    pub fn leader(&self) -> Option<ProcessId> {
        self.store.leader()
    }

    /// Whether this process leads, and can make changes.
    pub fn is_leader(&self) -> bool {
        self.node.process().first.leads()
    }

    /// Serves: does what has come up, and sleeps if that was nothing, not for long.
    ///
    /// # Errors
    /// The system cannot wait, or a snapshot in the memories cannot be read.
    pub fn run_once(&mut self) -> std::io::Result<()> {
        let waiting = self.connections.values().any(ClientConnection::is_waiting);
        let sleep = if waiting || self.active.elapsed() < SPIN {
            Duration::ZERO
        } else {
            self.node.arm();
            match self.step() {
                true => Duration::ZERO,
                false => self.node.next_timeout(NAP),
            }
        };
        match self.poll.poll(&mut self.events, Some(sleep)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            other => other?,
        }
        for event in &std::mem::replace(&mut self.events, Events::with_capacity(0)) {
            match event.token() {
                LISTENER => self.accept(),
                NODE => self.node.drain_events(),
                Token(id) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.readable |=
                            event.is_readable() || event.is_read_closed() || event.is_error();
                    }
                }
            }
        }
        self.events = Events::with_capacity(256);
        self.step();
        if self.store.is_unreadable() {
            let why = "a snapshot of the store cannot be read: processes of two versions share its memories";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
        }
        Ok(())
    }

    /// Does what has come up, and says whether anything has.
    fn step(&mut self) -> bool {
        let mut busy = self.node.poll();
        self.store.drive(&mut self.node);
        let ids: Vec<usize> =
            self.connections.iter().filter(|(_, c)| c.is_waiting()).map(|(&id, _)| id).collect();
        for id in ids {
            busy |= self.serve(id);
        }
        // What was asked for just now goes out with what came back, and what has come back is told.
        self.store.drive(&mut self.node);
        let (outcomes, changes) = self.store.take();
        busy |= !outcomes.is_empty();
        for (waiter, outcome) in outcomes {
            self.tell(waiter, &outcome);
        }
        self.tell_watchers(&changes);
        self.connections.values_mut().for_each(ClientConnection::write);
        let over: Vec<usize> =
            self.connections.iter().filter(|(_, c)| c.is_over()).map(|(&id, _)| id).collect();
        for id in over {
            if let Some(mut connection) = self.connections.remove(&id) {
                // It is closed with its descriptor.
                let _ = self.poll.registry().deregister(connection.stream());
            }
            self.gathers.retain(|&(connection, _), _| connection != id);
        }
        if busy {
            self.active = Instant::now();
        }
        busy
    }

    fn accept(&mut self) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            if self.connections.len() >= CLIENTS {
                continue;
            }
            let (id, interest) = (self.next, Interest::READABLE | Interest::WRITABLE);
            // Without it replies are only later.
            let _ = stream.set_nodelay(true);
            if self.poll.registry().register(&mut stream, Token(id), interest).is_ok() {
                self.next += 1;
                self.connections.insert(id, ClientConnection::new(stream));
            }
        }
    }

    /// Reads a client's requests, and asks for what they ask for.
    fn serve(&mut self, id: usize) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        connection.read();
        let mut commands = Vec::new();
        connection.requests(|number, arguments| commands.push((number, parse(arguments))));
        let busy = !commands.is_empty();
        self.commands += commands.len() as u64;
        for (request, command) in commands {
            self.carry_out(id, request, command);
        }
        busy
    }

    fn carry_out(&mut self, connection: usize, request: u64, command: Command) {
        let waiter = |part| Waiter { connection, request, part };
        match command {
            Command::Local(reply) => self.answer(connection, request, reply),
            Command::Quit => {
                self.answer(connection, request, Reply::Simple("OK"));
                self.connections.get_mut(&connection).into_iter().for_each(ClientConnection::close);
            }
            Command::Info => {
                let info = self.info();
                self.answer(connection, request, Reply::Bulk(Some(info.into_bytes())));
            }
            Command::Watch(key) => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.watch(request, key);
                }
                self.answer(connection, request, Reply::Simple("OK"));
            }
            Command::Get(key) => self.store.ask(waiter(0), Request::Get { key }),
            Command::InSession(request) => self.store.ask(waiter(1), request),
            Command::Exists(keys) => {
                self.gather(connection, request, keys.len(), Told::Count);
                for key in keys {
                    self.store.ask(waiter(0), Request::Get { key });
                }
            }
            Command::Change(changes, told) => {
                self.gather(connection, request, changes.len(), told);
                for change in changes {
                    self.store.change(waiter(0), change);
                }
            }
        }
    }

    fn gather(&mut self, connection: usize, request: u64, left: usize, told: Told) {
        self.gathers.insert((connection, request), Gather::new(left, told));
    }

    /// A part of a request has come to this.
    fn tell(&mut self, waiter: Waiter, outcome: &Outcome) {
        let Waiter { connection, request, part } = waiter;
        let error = self.error(outcome);
        let Some(gather) = self.gathers.get_mut(&(connection, request)) else {
            let reply = error.unwrap_or_else(|| single(outcome, part == 1));
            return self.answer(connection, request, reply);
        };
        let Some(gathered) = gather.take(outcome, error) else { return };
        self.gathers.remove(&(connection, request));
        let reply = match gathered {
            Gathered::All(reply) => reply,
            Gathered::InPart => {
                Reply::Error("UNKNOWN some of it was refused, and the rest done or not".into())
            }
        };
        self.answer(connection, request, reply);
    }

    /// What went wrong, if anything did, and what to do then.
    fn error(&self, outcome: &Outcome) -> Option<Reply> {
        let text = match outcome {
            Outcome::Reply(Said::Full) => "OOM the store has no room for it: delete something first".into(),
            Outcome::Reply(Said::Malformed) => "ERR no request".into(),
            Outcome::Reply(Said::Outdated) => "OUTDATED a later change of this session came before: this one was done then, or never will be".into(),
            Outcome::Reply(Said::Expired) => "EXPIRED the session has ended: this may have been done before, and will not be now; open another".into(),
            Outcome::Reply(_) => return None,
            Outcome::Unknown => "UNKNOWN this process lost the lead: it may have been done, and may yet be; in a session, ask again".into(),
            Outcome::Refused(Refused::NotLeader) => match self.store.leader() {
                Some(leader) if leader != self.config.id => {
                    let at = self.config.client_addresses[usize::from(leader.0)];
                    // As Redis' clusters say it; ours have one slot.
                    format!("MOVED 0 {at}")
                }
                _ => "TRYAGAIN nobody leads yet".into(),
            },
            Outcome::Refused(Refused::TooLarge) => {
                let most = self.config.store.log_config().most_command_bytes();
                format!("ERR a key and its value may have about {most} bytes")
            }
            Outcome::Refused(_) => "TRYAGAIN too much is waiting already".into(),
        };
        Some(Reply::Error(text))
    }

    fn answer(&mut self, connection: usize, request: u64, reply: Reply) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.answer(request, reply);
        }
    }

    fn tell_watchers(&mut self, changes: &[Event]) {
        for Event { index, key, value } in changes {
            for connection in self.connections.values_mut().filter(|c| c.hears_of(key)) {
                connection.tell(&Reply::Array(vec![
                    Reply::Bulk(Some(b"change".to_vec())),
                    Reply::Bulk(Some(key.clone())),
                    Reply::Bulk(value.clone()),
                    Reply::Integer(*index as i64),
                ]));
            }
        }
    }

    fn info(&self) -> String {
        let me = self.config.id;
        let leader = self.store.leader().map_or("nobody".into(), |p| p.to_string());
        format!(
            "# Mitra\r\nprocess:{me}\r\nleader:{leader}\r\nleads:{}\r\napplied:{}\r\nmemories:{}\r\nlost_memories:{}\r\n\
             processes:{}\r\nclients:{}\r\ncommands:{}\r\n",
            u8::from(self.is_leader()),
            self.store.applied(),
            self.node.connected_memories(),
            self.node.crashed_memories().count(),
            self.node.connected_peers() + 1,
            self.connections.len(),
            self.commands,
        )
    }
}

/// What a request of one part has come to. Who has sessions hears of indices, too.
fn single(outcome: &Outcome, ours: bool) -> Reply {
    let Outcome::Reply(said) = outcome else { return Reply::Bulk(None) };
    match said {
        Said::Opened(session) => Reply::Integer(session.0 as i64),
        Said::Changed(made) => Reply::Integer(i64::from(*made)),
        Said::Value(Some((value, index))) if ours => {
            Reply::Array(vec![Reply::Bulk(Some(value.clone())), Reply::Integer(*index as i64)])
        }
        Said::Value(found) => Reply::Bulk(found.as_ref().map(|(value, _)| value.clone())),
        _ => Reply::Bulk(None),
    }
}
