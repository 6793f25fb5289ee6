//! One process of the store for its clients: an event loop over their connections, and RESP. The
//! replicated store is behind [`Store`].

mod client_connection;
mod client_state;
mod config_parameters;
mod multi_part;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use mitra_consensus::ProcessId;
use mitra_consensus::kv_store::{Event, Reply as KvReply, Request};
use mitra_consensus::log::LogError;
use mitra_consensus::replicated_store::Outcome;
use mitra_consensus_rdma::{MemoryState, StartError};
use mitra_failover::Domain;

use self::client_connection::ClientConnection;
use self::multi_part::{MultiPart, MultiPartResult};
use crate::ServerConfig;
use crate::command::{Command, ReplyStyle};
use crate::log_store::LogStore;
use crate::resp::Reply;
use crate::store::{Store, Waiter};

const LISTENER: Token = Token(usize::MAX);
const STORE: Token = Token(usize::MAX - 1);
/// The maximum number of client connections. The server closes further connections at once.
const MAX_CLIENTS: usize = 4096;
/// The maximum number of bytes that all connections buffer. The server closes the connections that
/// buffer the most if there are more.
const MAX_BUFFERED_BYTES: usize = 256 << 20;
/// The duration for which the server polls without sleeping after its last work for clients.
const SPIN_DURATION: Duration = Duration::from_micros(50);
/// The maximum duration of a sleep. The store names its own deadlines.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// One process of the store, with its clients.
pub struct Server {
    config: ServerConfig,
    store: Box<dyn Store>,
    /// Why no request can be answered, if a majority of the memory nodes is lost.
    majority_lost: Option<String>,
    poll: Poll,
    events: Events,
    listener: mio::net::TcpListener,
    connections: HashMap<usize, ClientConnection>,
    next_connection: usize,
    /// Requests of several commands, by connection id and request number.
    multi_parts: HashMap<(usize, u64), MultiPart>,
    /// When the server last worked for clients.
    last_activity: Instant,
    /// Whether the last step left events of the store unread.
    has_spun: bool,
    /// The number of client commands since the server started, for `INFO`.
    commands: u64,
}

impl Server {
    /// Creates a server that accepts peers on `peer_listener` and clients on `client_listener`. The
    /// NICs must have completion channels.
    ///
    /// # Errors
    /// - [`StartError::ProcessCount`] if the dimensions are not valid.
    /// - The errors of [`ProcessNode::new`](mitra_consensus_rdma::ProcessNode::new).
    /// - [`StartError::Io`] if an operating system call fails.
    pub fn new(
        domain: &Arc<Domain>,
        peer_listener: TcpListener,
        client_listener: TcpListener,
        config: ServerConfig,
    ) -> Result<Server, StartError> {
        let store = Box::new(LogStore::new(domain, peer_listener, &config)?);
        Ok(Server::over(store, client_listener, config)?)
    }

    /// Creates a server of the clients of `store`.
    fn over(
        store: Box<dyn Store>,
        client_listener: TcpListener,
        config: ServerConfig,
    ) -> std::io::Result<Server> {
        client_listener.set_nonblocking(true)?;
        let mut listener = mio::net::TcpListener::from_std(client_listener);
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        poll.registry().register(&mut SourceFd(&store.fd().as_raw_fd()), STORE, Interest::READABLE)?;
        Ok(Server {
            store,
            majority_lost: None,
            poll,
            events: Events::with_capacity(256),
            listener,
            connections: HashMap::new(),
            next_connection: 0,
            multi_parts: HashMap::new(),
            last_activity: Instant::now(),
            has_spun: true,
            commands: 0,
            config,
        })
    }

    /// Returns the address at which the server accepts clients.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn client_address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the leader that this process knows of.
    pub fn leader(&self) -> Option<ProcessId> {
        self.store.leader()
    }

    /// Returns the address of each memory node, and what this process knows of it.
    pub fn memories(&self) -> impl Iterator<Item = (SocketAddr, MemoryState)> {
        self.store.memories().states()
    }

    /// Returns whether this process is the leader and can commit changes.
    pub fn is_leader(&self) -> bool {
        self.store.is_leader()
    }

    /// Sleeps until there is work, for at most a second, and does it. Call this in a loop.
    ///
    /// # Errors
    /// An error of epoll(7), or `InvalidData` if a snapshot in the memories cannot be decoded.
    pub fn run_once(&mut self) -> std::io::Result<()> {
        let client_work = self.connections.values().any(ClientConnection::has_work);
        let spins = client_work || self.last_activity.elapsed() < SPIN_DURATION;
        let timeout = match spins || self.has_spun {
            true => Duration::ZERO,
            false => self.store.next_timeout(MAX_SLEEP),
        };
        self.has_spun = spins;
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            other => other?,
        }
        for event in &std::mem::replace(&mut self.events, Events::with_capacity(0)) {
            match event.token() {
                LISTENER => self.accept(),
                STORE => {} // the step reads the events
                Token(id) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.readable |=
                            event.is_readable() || event.is_read_closed() || event.is_error();
                    }
                }
            }
        }
        self.events = Events::with_capacity(256);
        self.step(spins)
    }

    /// Does what there is to do. Without `spins`, the server may sleep after the step.
    fn step(&mut self, spins: bool) -> std::io::Result<()> {
        let mut busy = false;
        let ids: Vec<usize> =
            self.connections.iter().filter(|(_, c)| c.has_work()).map(|(&id, _)| id).collect();
        for id in ids {
            busy |= self.serve_client(id);
        }
        // Heartbeats alone keep no processor busy.
        match spins {
            true => busy |= self.store.poll()?,
            false => _ = self.store.handle_events()?,
        }
        self.watch_memories();
        let (outcomes, changes) = self.store.take_outcomes();
        busy |= !outcomes.is_empty();
        for (waiter, outcome) in outcomes {
            self.deliver(waiter, &outcome);
        }
        self.push_changes(&changes);
        self.connections.values_mut().for_each(ClientConnection::write);
        self.bound_buffers();
        let finished: Vec<usize> =
            self.connections.iter().filter(|(_, c)| c.is_finished()).map(|(&id, _)| id).collect();
        for id in finished {
            if let Some(mut connection) = self.connections.remove(&id) {
                // The server ignores an error: dropping the connection closes its descriptor.
                let _ = self.poll.registry().deregister(connection.stream());
            }
            self.multi_parts.retain(|&(connection, _), _| connection != id);
        }
        if busy {
            self.last_activity = Instant::now();
        }
        Ok(())
    }

    /// Once a majority of the memory nodes is lost, answers all requests that wait. Nobody knows
    /// whether such a memory node comes back, and when.
    fn watch_memories(&mut self) {
        let reason = self.store.memories().majority_lost();
        if let (Some(reason), None) = (&reason, &self.majority_lost) {
            let reply = Reply::Error(format!("UNKNOWN {reason}: the change may or may not be made"));
            self.connections.values_mut().for_each(|connection| connection.reply_to_all(&reply));
        }
        self.majority_lost = reason;
    }

    /// Closes connections until the others buffer at most [`MAX_BUFFERED_BYTES`].
    fn bound_buffers(&mut self) {
        let mut total: usize = self.connections.values().map(ClientConnection::buffered_bytes).sum();
        while total > MAX_BUFFERED_BYTES {
            let living = self.connections.values_mut().filter(|connection| !connection.is_finished());
            let Some(largest) = living.max_by_key(|connection| connection.buffered_bytes()) else { return };
            total -= largest.buffered_bytes();
            largest.abort();
        }
    }

    fn accept(&mut self) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            if self.connections.len() >= MAX_CLIENTS {
                continue;
            }
            let (id, interest) = (self.next_connection, Interest::READABLE | Interest::WRITABLE);
            // The server ignores an error: without TCP_NODELAY, replies may only arrive later.
            let _ = stream.set_nodelay(true);
            if self.poll.registry().register(&mut stream, Token(id), interest).is_ok() {
                self.next_connection += 1;
                self.connections.insert(id, ClientConnection::new(stream, id as u64 + 1));
            }
        }
    }

    /// Returns whether there were requests.
    fn serve_client(&mut self, id: usize) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        connection.read();
        let mut commands = Vec::new();
        let executed = connection.drain_requests(|number, command| commands.push((number, command)));
        self.commands += executed;
        for (request, command) in commands {
            self.execute(id, request, command);
        }
        executed > 0
    }

    fn execute(&mut self, connection: usize, request: u64, command: Command) {
        let waiter = |in_session| Waiter { connection, request, in_session };
        if let (Some(reason), true) = (&self.majority_lost, command.needs_store()) {
            let down = Reply::Error(format!("CLUSTERDOWN {reason}"));
            return self.reply(connection, request, down);
        }
        match command {
            // The connection executes these.
            Command::Local(_) | Command::Connection(_) => {}
            Command::Info => self.reply(connection, request, Reply::Text(self.info())),
            Command::ConfigGet(patterns) => {
                let found = config_parameters::matching(&self.config.store, &patterns);
                self.reply(connection, request, found);
            }
            Command::Watch(key) => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.watch(request, key);
                }
                self.reply(connection, request, Reply::Simple("OK"));
            }
            Command::Get(key) => self.store.request(waiter(false), Request::Get { key }),
            Command::InSession(request) => self.store.request(waiter(true), request),
            Command::Exists(keys) => {
                self.start_multi_part(connection, request, keys.len(), ReplyStyle::Count);
                for key in keys {
                    self.store.request(waiter(false), Request::Get { key });
                }
            }
            Command::Change(changes, style) => {
                self.start_multi_part(connection, request, changes.len(), style);
                for change in changes {
                    self.store.change(waiter(false), change);
                }
            }
        }
    }

    fn start_multi_part(&mut self, connection: usize, request: u64, parts: usize, style: ReplyStyle) {
        self.multi_parts.insert((connection, request), MultiPart::new(parts, style));
    }

    /// Handles the outcome of a command: sets the reply of its request, if no other command of the
    /// request is pending.
    fn deliver(&mut self, waiter: Waiter, outcome: &Outcome) {
        let Waiter { connection, request, in_session } = waiter;
        let error_reply = self.error_reply(outcome);
        let Some(multi_part) = self.multi_parts.get_mut(&(connection, request)) else {
            let reply = error_reply.unwrap_or_else(|| success_reply(outcome, in_session));
            return self.reply(connection, request, reply);
        };
        let Some(result) = multi_part.finish_part(outcome, error_reply) else { return };
        self.multi_parts.remove(&(connection, request));
        let reply = match result {
            MultiPartResult::Reply(reply) => reply,
            MultiPartResult::PartlyRefused => {
                Reply::Error("UNKNOWN some parts were refused; the others were executed or not".into())
            }
        };
        self.reply(connection, request, reply);
    }

    /// Returns the error reply for an outcome, or `None` if the outcome is a success.
    fn error_reply(&self, outcome: &Outcome) -> Option<Reply> {
        let text = match outcome {
            Outcome::Reply(KvReply::Full) => "OOM the store is full: delete keys first".into(),
            Outcome::Reply(KvReply::Malformed) => "ERR malformed request".into(),
            Outcome::Reply(KvReply::StaleSequence) => "OUTDATED the session has made a later change: this one was made before that, or never will be".into(),
            Outcome::Reply(KvReply::SessionExpired) => "EXPIRED the session has expired: the change was made before that, or never will be; open another session".into(),
            Outcome::Reply(_) => return None,
            Outcome::Unknown => "UNKNOWN this process lost the lead: outcome unknown; retry in the same session".into(),
            Outcome::Refused(LogError::NotLeader) => match self.leader() {
                Some(leader) if leader != self.config.id => {
                    let address = self.config.client_addresses[usize::from(leader.0)];
                    // The redirection of Redis Cluster, where 0 is the only hash slot.
                    format!("MOVED 0 {address}")
                }
                _ => "TRYAGAIN there is no leader yet".into(),
            },
            Outcome::Refused(LogError::TooLarge) => {
                let max = self.config.store.log_config().max_command_bytes();
                format!("ERR a key and its value may have about {max} bytes together")
            }
            Outcome::Refused(_) => "TRYAGAIN too many commands are queued".into(),
        };
        Some(Reply::Error(text))
    }

    fn reply(&mut self, connection: usize, request: u64, reply: Reply) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.reply_to(request, reply);
        }
    }

    fn push_changes(&mut self, changes: &[Event]) {
        for Event { index, key, value } in changes {
            for connection in self.connections.values_mut().filter(|c| c.is_watching(key)) {
                connection.push(&Reply::Push(vec![
                    Reply::bulk("change"),
                    Reply::bulk(key.clone()),
                    Reply::Bulk(value.clone()),
                    Reply::Integer(*index as i64),
                ]));
            }
        }
    }

    fn info(&self) -> String {
        let me = self.config.id;
        let leader = self.leader().map_or("nobody".into(), |p| p.to_string());
        let (memories, peers) = self.store.connected();
        format!(
            "# Mitra\r\nprocess:{me}\r\nleader:{leader}\r\nleads:{}\r\napplied:{}\r\nmemories:{}\r\nlost_memories:{}\r\n\
             processes:{}\r\nclients:{}\r\ncommands:{}\r\n",
            u8::from(self.is_leader()),
            self.store.applied(),
            memories,
            self.store.memories().lost().count(),
            peers + 1,
            self.connections.len(),
            self.commands,
        )
    }
}

/// Returns the reply for the successful outcome of a request that is one command. If `with_index`
/// is set, the reply to a read contains the index of the log entry that changed the value last.
fn success_reply(outcome: &Outcome, with_index: bool) -> Reply {
    let Outcome::Reply(reply) = outcome else { return Reply::Bulk(None) };
    match reply {
        KvReply::SessionOpened(session) => Reply::Integer(session.0 as i64),
        KvReply::Changed(made) => Reply::Integer(i64::from(*made)),
        KvReply::Value(Some((value, index))) if with_index => {
            Reply::Array(vec![Reply::Bulk(Some(value.clone())), Reply::Integer(*index as i64)])
        }
        KvReply::Value(found) => Reply::Bulk(found.as_ref().map(|(value, _)| value.clone())),
        _ => Reply::Bulk(None),
    }
}
