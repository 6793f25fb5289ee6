//! Servers and clients of the key-value store. All are processes of one world, so that the
//! adversary also delays, reorders and repeats the requests and replies. A client repeats its
//! request at the next server until it receives a reply.

use mitra_consensus::kv_store::{Change, KvStore, Limits, Reply, Request, Rules, Session};
use mitra_consensus::log::{Cell, Committed, Config, Log};
use mitra_consensus::replicated_store::{LogHost, Outcome, ReplicatedStore};
use mitra_consensus::{Action, Actions, AllRules, Input, Process, ProcessId};

/// The limits of the store. They are so low that sessions expire.
const LIMITS: Limits = Limits { sessions: 5, bytes: 1000 };

/// A server or a client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum StoreNode<R = AllRules, const LOCAL_READS: bool = false> {
    /// A process of the log with the store as its state machine. With `LOCAL_READS`, a leader
    /// replies to a read without the log. Such a server is a mutant: a deposed leader does not know
    /// the latest writes.
    Server(Box<Server<R>>),
    /// A client.
    Client(Box<Client>),
}

/// A message between two nodes.
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
    /// A change of a client without a session.
    Change {
        /// The number of the request.
        number: u64,
        /// The change.
        change: Change,
    },
    /// A server's reply.
    Reply {
        /// The number of the request.
        number: u64,
        /// The outcome of the request.
        outcome: Outcome,
    },
}

/// A process of the log with the store as its state machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Server<R> {
    log: Log,
    /// The store. Each request comes with its client and its number.
    store: ReplicatedStore<(ProcessId, u64), R>,
}

struct LogOfServer<'a> {
    log: &'a mut Log,
    out: &'a mut Vec<Action<Cell, Message>>,
}

impl LogHost for LogOfServer<'_> {
    fn log(&self) -> &Log {
        self.log
    }

    fn with_log<T>(&mut self, f: impl FnOnce(&mut Log, &mut Actions<Log>) -> T) -> T {
        let mut actions = Vec::new();
        let result = f(self.log, &mut actions);
        self.out.extend(actions.into_iter().map(|action| match action {
            Action::Send { to, message } => Action::Send { to, message: Message::Log(message) },
            Action::Invoke { memory, id, op } => Action::Invoke { memory, id, op },
            Action::Wake => Action::Wake,
            Action::FlipCoin => Action::FlipCoin,
        }));
        result
    }
}

/// An operation that a client performs on a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClientOp {
    /// Reads the value.
    Get,
    /// Writes a value that no other operation writes.
    Put,
    /// Writes a value that no other operation writes. The expected value is the value that the
    /// client read last, of any key.
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

/// A client. The client sends a request to one server after the other until it receives a reply.
/// Earlier copies of the request may still take effect.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    me: u8,
    servers: u8,
    next_server: u8,
    session: Option<Session>,
    /// The number of the current request.
    number: u64,
    /// The current request, and the invocation in the history. `OpenSession` has no invocation.
    current: Option<(Request, Option<Invocation>)>,
    /// The operations that have not begun yet. The last operation is next.
    operations: Vec<(ClientOp, u8)>,
    /// The value that the client read last, of any key.
    last_read: Option<Vec<u8>>,
    /// Whether the client makes its changes in a session of its own. If not, the client uses the
    /// server's session, and repeats a change only if the server says that the change was not
    /// executed.
    has_session: bool,
    /// The number of times that the client has waited for the reply to a change without a session.
    waits: u8,
    events: Vec<ClientEvent>,
}

/// The number of times that a client without a session waits for a reply.
const MAX_WAITS: u8 = 20;

impl<R: Rules, const LOCAL_READS: bool> StoreNode<R, LOCAL_READS> {
    /// Creates a server.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn server(me: ProcessId, config: Config) -> StoreNode<R, LOCAL_READS> {
        let log = Log::new(me, config).expect("the log configuration is valid");
        StoreNode::Server(Box::new(Server { log, store: ReplicatedStore::new(KvStore::new(LIMITS)) }))
    }

    /// Creates a client of the first `servers` processes. The client performs `operations` from the
    /// last to the first.
    pub fn client(
        me: u8,
        servers: u8,
        operations: Vec<(ClientOp, u8)>,
        has_session: bool,
    ) -> StoreNode<R, LOCAL_READS> {
        StoreNode::Client(Box::new(Client {
            me,
            servers,
            next_server: me % servers,
            session: None,
            number: 0,
            current: None,
            operations,
            last_read: None,
            has_session,
            waits: 0,
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
    /// Sends the current request to the next server. If the request is a change without a session,
    /// and it was sent before, the client waits instead.
    fn send_request(&mut self, out: &mut Vec<Action<Cell, Message>>) {
        if self.current.is_none() {
            self.begin();
        } else if !self.has_session && matches!(self.current, Some((Request::Change { .. }, _))) {
            self.waits += 1;
            if self.waits > MAX_WAITS {
                self.end(out); // the change takes effect now, later or never
            } else {
                out.push(Action::Wake);
            }
            return;
        }
        self.send_current(out);
    }

    fn send_current(&mut self, out: &mut Vec<Action<Cell, Message>>) {
        let Some((request, _)) = &self.current else { return };
        let number = self.number;
        let message = match request {
            Request::Change { change, .. } if !self.has_session => {
                Message::Change { number, change: change.clone() }
            }
            request => Message::Request { number, request: request.clone() },
        };
        out.push(Action::Send { to: ProcessId(self.next_server), message });
        out.push(Action::Wake);
        self.next_server = (self.next_server + 1) % self.servers;
    }

    fn end(&mut self, out: &mut Vec<Action<Cell, Message>>) {
        (self.current, self.waits) = (None, 0);
        out.push(Action::Wake);
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
        let no_session = (!self.has_session).then_some(Session(0));
        self.current = Some(match (change, self.session.or(no_session)) {
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

    fn on_outcome(&mut self, number: u64, outcome: Outcome, out: &mut Vec<Action<Cell, Message>>) {
        if number != self.number || self.current.is_none() {
            return;
        }
        let reply = match outcome {
            Outcome::Reply(reply) => reply,
            // The request was not executed, so the client sends it to the next server.
            Outcome::Refused(_) if !self.has_session => return self.send_current(out),
            // The client cannot know whether the operation took effect.
            Outcome::Unknown if !self.has_session => return self.end(out),
            Outcome::Refused(_) | Outcome::Unknown => return, // the client repeats the request when it wakes
        };
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
        self.end(out);
    }
}

impl<R: Rules> Server<R> {
    /// Applies committed commands, submits queued commands, and replies to their clients.
    fn drive(&mut self, out: &mut Vec<Action<Cell, Message>>) {
        self.store.drive(&mut LogOfServer { log: &mut self.log, out });
        assert!(!self.store.is_unreadable(), "a snapshot was not made by a store");
        for ((to, number), outcome) in self.store.take_outcomes().0 {
            send_reply(to, number, outcome, out);
        }
    }
}

fn send_reply(to: ProcessId, number: u64, outcome: Outcome, out: &mut Vec<Action<Cell, Message>>) {
    out.push(Action::Send { to, message: Message::Reply { number, outcome } });
}

impl<R: Rules, const LOCAL_READS: bool> Process for StoreNode<R, LOCAL_READS> {
    type Cell = Cell;
    type Message = Message;
    type Value = u64;

    fn handle(&mut self, input: Input<Cell, Message>, out: &mut Actions<Self>) {
        match (self, input) {
            (StoreNode::Client(client), Input::Start | Input::Wake) => client.send_request(out),
            (
                StoreNode::Client(client),
                Input::Message { message: Message::Reply { number, outcome }, .. },
            ) => {
                client.on_outcome(number, outcome, out);
            }
            (StoreNode::Client(_), _) => {}
            (
                StoreNode::Server(server),
                Input::Message { from, message: Message::Request { number, request } },
            ) => {
                match request {
                    Request::Get { key } if LOCAL_READS && server.log.is_leader() => {
                        let reply = Reply::Value(server.store.kv().get(&key).cloned());
                        send_reply(from, number, Outcome::Reply(reply), out);
                    }
                    request => server.store.request((from, number), request),
                }
                server.drive(out);
            }
            (
                StoreNode::Server(server),
                Input::Message { from, message: Message::Change { number, change } },
            ) => {
                server.store.change((from, number), change);
                server.drive(out);
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
                LogOfServer { log: &mut server.log, out }.with_log(|log, out| log.handle(input, out));
                server.drive(out);
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
