//! Servers and clients of the key-value store. All are processes of one world, so that the adversary also delays, reorders and
//! repeats the requests and replies. A client repeats its request at the next server until it receives a reply.

use mitra_consensus::kv_store::{Change, KvStore, Limits, Reply, Request, Rules, Session};
use mitra_consensus::log::{Cell, CommitOutcome, Committed, Config, Delivery, Log, Payload, Ticket};
use mitra_consensus::{Action, Actions, AllRules, Input, Process, ProcessId};

/// The limits of the store. They are so low that sessions expire.
const LIMITS: Limits = Limits { sessions: 5, bytes: 1000 };

/// A server or a client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum StoreNode<R = AllRules, const LOCAL_READS: bool = false> {
    /// A process of the log with the store as its state machine. With `LOCAL_READS`, a leader replies to a read without the log. That is
    /// a mutant: a deposed leader does not know the latest writes.
    Server(Box<Server<R>>),
    /// A client.
    Client(Box<Client>),
}

/// A message.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Message {
    /// A message of the log between two servers.
    Log(Committed),
    /// A client's request.
    Request {
        /// The number of the request. A repeated request has the same number.
        number: u64,
        /// The request.
        request: Request,
    },
    /// A server's reply.
    Reply {
        /// The number of the request.
        number: u64,
        /// `None` if the server does not lead, or does not know the outcome.
        reply: Option<Reply>,
    },
}

/// A process of the log with the store as its state machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Server<R> {
    log: Log,
    store: KvStore<R>,
    /// Submitted requests, with the client and the request number.
    waiting: Vec<(Ticket, ProcessId, u64)>,
}

/// An operation that a client performs on a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClientOp {
    /// Reads the value.
    Get,
    /// Writes a value that no other operation writes.
    Put,
    /// Writes a value that no other operation writes, if the current value is the one that the client read last, of any key.
    Cas,
    /// Deletes the key.
    Delete,
}

/// The operation and arguments of an invocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Invocation {
    /// A read of a key.
    Get(u8),
    /// A change of a key.
    Change(u8, Change),
}

/// An event in the history of a client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ClientEvent {
    /// The client invokes an operation.
    Invoked(Invocation),
    /// The response to a read: the value of the key.
    Value(Option<Vec<u8>>),
    /// The response to a change: whether the change took effect.
    Changed(bool),
}

/// A client. It sends a request to one server after the other until it receives a reply. Earlier copies of the request may still
/// take effect.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    me: u8,
    servers: u8,
    next_server: u8,
    session: Option<Session>,
    /// The number of the current request.
    number: u64,
    /// The current request, and the invocation in the history. `OpenSession` has none.
    current: Option<(Request, Option<Invocation>)>,
    /// The operations that have not begun yet. The last one is next.
    operations: Vec<(ClientOp, u8)>,
    /// The value that the client read last, of any key.
    last_read: Option<Vec<u8>>,
    events: Vec<ClientEvent>,
}

impl<R: Rules, const LOCAL_READS: bool> StoreNode<R, LOCAL_READS> {
    /// Creates a server.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn server(me: ProcessId, config: Config) -> StoreNode<R, LOCAL_READS> {
        let log = Log::new(me, config).expect("the log configuration is valid");
        StoreNode::Server(Box::new(Server { log, store: KvStore::new(LIMITS), waiting: Vec::new() }))
    }

    /// Creates a client of the first `servers` processes. It performs `operations` from the last to the first.
    pub fn client(me: u8, servers: u8, operations: Vec<(ClientOp, u8)>) -> StoreNode<R, LOCAL_READS> {
        StoreNode::Client(Box::new(Client {
            me,
            servers,
            next_server: me % servers,
            session: None,
            number: 0,
            current: None,
            operations,
            last_read: None,
            events: Vec::new(),
        }))
    }

    /// Returns the history of a client in order. The history of a server is empty.
    pub fn events(&self) -> &[ClientEvent] {
        match self {
            StoreNode::Client(client) => &client.events,
            StoreNode::Server(_) => &[],
        }
    }

    /// Returns whether a client has completed all operations. True for a server.
    pub fn is_finished(&self) -> bool {
        !matches!(self, StoreNode::Client(client) if client.current.is_some() || !client.operations.is_empty())
    }
}

impl Client {
    /// Sends the current request to the next server.
    fn send_request(&mut self, out: &mut Vec<Action<Cell, Message>>) {
        if self.current.is_none() {
            self.begin();
        }
        let Some((request, _)) = &self.current else { return };
        let message = Message::Request { number: self.number, request: request.clone() };
        out.push(Action::Send { to: ProcessId(self.next_server), message });
        out.push(Action::Wake);
        self.next_server = (self.next_server + 1) % self.servers;
    }

    /// Begins the next operation, or opens a session if the operation needs one.
    fn begin(&mut self) {
        let Some(&(operation, key)) = self.operations.last() else { return };
        self.number += 1;
        let key_bytes = vec![key];
        let value = vec![self.me, self.number as u8];
        let change = match operation {
            ClientOp::Get => None,
            ClientOp::Put => Some(Change::Put { key: key_bytes.clone(), value }),
            ClientOp::Cas => Some(Change::Cas {
                key: key_bytes.clone(),
                expected: self.last_read.clone(),
                value: Some(value),
            }),
            ClientOp::Delete => Some(Change::Delete { key: key_bytes.clone() }),
        };
        self.current = Some(match (change, self.session) {
            (None, _) => (Request::Get { key: key_bytes }, Some(Invocation::Get(key))),
            (Some(_), None) => (Request::OpenSession, None),
            (Some(change), Some(session)) => {
                let request = Request::Change { session, sequence: self.number, change: change.clone() };
                (request, Some(Invocation::Change(key, change)))
            }
        });
        if let Some((_, Some(invocation))) = &self.current {
            self.events.push(ClientEvent::Invoked(invocation.clone()));
            self.operations.pop();
        }
    }

    fn on_reply(&mut self, number: u64, reply: Reply, out: &mut Vec<Action<Cell, Message>>) {
        if number != self.number || self.current.is_none() {
            return;
        }
        match reply {
            Reply::SessionOpened(session) => self.session = Some(session),
            Reply::Value(value) => {
                self.last_read = value.map(|(value, _)| value);
                self.events.push(ClientEvent::Value(self.last_read.clone()));
            }
            Reply::Changed(done) => self.events.push(ClientEvent::Changed(done)),
            // The client cannot know whether the operation took effect, and does not repeat it.
            Reply::SessionExpired | Reply::StaleSequence | Reply::Full | Reply::Malformed => {
                self.session = None
            }
        }
        self.current = None;
        out.push(Action::Wake);
    }
}

impl<R: Rules> Server<R> {
    fn submit(
        &mut self,
        from: ProcessId,
        number: u64,
        request: &Request,
        out: &mut Vec<Action<Cell, Message>>,
    ) {
        let reply = self.with_log(out, |log, out| log.submit(request.encode(), out));
        match reply {
            Ok(ticket) => self.waiting.push((ticket, from, number)),
            Err(_) => send_reply(from, number, None, out),
        }
    }

    /// Calls a function on the log, and translates the actions of the log to those of a node.
    fn with_log<T>(
        &mut self,
        out: &mut Vec<Action<Cell, Message>>,
        f: impl FnOnce(&mut Log, &mut Actions<Log>) -> T,
    ) -> T {
        let mut actions = Vec::new();
        let result = f(&mut self.log, &mut actions);
        out.extend(actions.into_iter().map(|action| match action {
            Action::Send { to, message } => Action::Send { to, message: Message::Log(message) },
            Action::Invoke { memory, id, op } => Action::Invoke { memory, id, op },
            Action::Wake => Action::Wake,
            Action::FlipCoin => Action::FlipCoin,
        }));
        result
    }

    /// Applies the committed commands, and replies to the clients that sent them.
    fn apply_committed(&mut self, out: &mut Vec<Action<Cell, Message>>) {
        let mut replies = Vec::new();
        for delivery in self.log.take_committed() {
            match delivery {
                Delivery::Entry { index, payload: Payload::Commands(commands) } => {
                    let apply = |(position, command): (_, &Vec<u8>)| {
                        (index, position, self.store.apply(index, command).0)
                    };
                    replies.extend(commands.iter().enumerate().map(apply));
                }
                Delivery::Entry { .. } => {}
                Delivery::Snapshot { bytes, .. } => {
                    self.store = KvStore::restore(&bytes).expect("the snapshot was made by a store");
                }
            }
        }
        for (ticket, outcome) in self.log.take_outcomes() {
            let Some(place) = self.waiting.iter().position(|(other, ..)| *other == ticket) else { continue };
            let (_, from, number) = self.waiting.remove(place);
            let reply = match outcome {
                CommitOutcome::Committed { index, position } => {
                    replies.iter().find(|(i, n, _)| (*i, *n) == (index, position))
                }
                CommitOutcome::Unknown => None,
            };
            send_reply(from, number, reply.map(|(.., reply)| reply.clone()), out);
        }
        if self.log.needs_snapshot() {
            let bytes = self.store.snapshot();
            self.with_log(out, |log, out| log.snapshot(bytes, out))
                .expect("the log needs a snapshot, and the snapshot fits");
        }
    }
}

fn send_reply(to: ProcessId, number: u64, reply: Option<Reply>, out: &mut Vec<Action<Cell, Message>>) {
    out.push(Action::Send { to, message: Message::Reply { number, reply } });
}

impl<R: Rules, const LOCAL_READS: bool> Process for StoreNode<R, LOCAL_READS> {
    type Cell = Cell;
    type Message = Message;
    type Value = u64;

    fn handle(&mut self, input: Input<Cell, Message>, out: &mut Actions<Self>) {
        match (self, input) {
            (StoreNode::Client(client), Input::Start | Input::Wake) => client.send_request(out),
            (StoreNode::Client(client), Input::Message { message: Message::Reply { number, reply }, .. }) => {
                if let Some(reply) = reply {
                    client.on_reply(number, reply, out);
                }
            }
            (StoreNode::Client(_), _) => {}
            (
                StoreNode::Server(server),
                Input::Message { from, message: Message::Request { number, request } },
            ) => {
                match request {
                    Request::Get { key } if LOCAL_READS && server.log.is_leader() => {
                        let reply = Reply::Value(server.store.get(&key).cloned());
                        send_reply(from, number, Some(reply), out);
                    }
                    request => server.submit(from, number, &request, out),
                }
                server.apply_committed(out);
            }
            (StoreNode::Server(server), input) => {
                let input = match input {
                    Input::Start => Input::Start,
                    Input::Leader(p) => Input::Leader(p),
                    Input::Message { from, message: Message::Log(message) } => {
                        Input::Message { from, message }
                    }
                    Input::Message { .. } => return,
                    Input::Response { memory, id, response } => Input::Response { memory, id, response },
                    Input::Wake => Input::Wake,
                    Input::Coin(side) => Input::Coin(side),
                };
                server.with_log(out, |log, out| log.handle(input, out));
                server.apply_committed(out);
            }
        }
    }

    fn decision(&self) -> Option<&u64> {
        None
    }

    /// Returns the number of terms that a server has begun; 0 for a client.
    fn attempts(&self) -> u64 {
        match self {
            StoreNode::Server(server) => server.log.attempts(),
            StoreNode::Client(_) => 0,
        }
    }
}
