//! The key-value store on its log, with clients that retry: servers and clients are processes of one world, and ask each other by
//! messages that take their time.

use mitra_consensus::kv_store::{Change, KvStore, Limits, Reply, Request, Rules, Session};
use mitra_consensus::log::{Cell, CommitOutcome, Committed, Config, Delivery, Log, Payload, Ticket};
use mitra_consensus::{Action, Actions, AllRules, Input, Process, ProcessId};

/// How much the store holds: sessions end now and then.
const LIMITS: Limits = Limits { sessions: 5, bytes: 1000 };

/// A process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum StoreNode<R = AllRules, const LOCAL_READS: bool = false> {
    /// A process of the log. `LOCAL_READS`, it answers reads without asking anybody: it must not.
    Server(Box<Server<R>>),
    /// A client.
    Client(Box<Client>),
}

/// What they say.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Message {
    /// Among servers.
    Log(Committed),
    /// A client asks.
    Request {
        /// The same for retries.
        number: u64,
        /// For what.
        request: Request,
    },
    /// A server answers.
    Reply {
        /// What was asked.
        number: u64,
        /// None: this server cannot tell.
        reply: Option<Reply>,
    },
}

/// A process of the log with the store above it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Server<R> {
    log: Log,
    store: KvStore<R>,
    waiting: Vec<(Ticket, ProcessId, u64)>,
}

/// What a client wants to do with a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClientOp {
    /// To read it.
    Get,
    /// To put a value of its own.
    Put,
    /// To put one if what it has seen last is there yet.
    Cas,
    /// To delete it.
    Delete,
}

/// What a client has asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Invocation {
    /// To read a key.
    Get(u8),
    /// To change it.
    Change(u8, Change),
}

/// What a client knows of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ClientEvent {
    /// It begins.
    Invoked(Invocation),
    /// The value that was read.
    Value(Option<Vec<u8>>),
    /// Whether the change was made.
    Changed(bool),
}

/// A client: it asks one server after the other until one answers, whatever becomes of what it has asked before.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    me: u8,
    servers: u8,
    next_server: u8,
    session: Option<Session>,
    number: u64,
    /// What is under way, and all that is to come, last first.
    asked: Option<(Request, Option<Invocation>)>,
    operations: Vec<(ClientOp, u8)>,
    seen: Option<Vec<u8>>,
    events: Vec<ClientEvent>,
}

impl<R: Rules, const LOCAL_READS: bool> StoreNode<R, LOCAL_READS> {
    /// A server.
    ///
    /// # Panics
    /// The config's numbers do not fit.
    pub fn server(me: ProcessId, config: Config) -> StoreNode<R, LOCAL_READS> {
        let log = Log::new(me, config).expect("numbers that fit");
        StoreNode::Server(Box::new(Server { log, store: KvStore::new(LIMITS), waiting: Vec::new() }))
    }

    /// A client of the first `servers` processes, with operations that come last first.
    pub fn client(me: u8, servers: u8, operations: Vec<(ClientOp, u8)>) -> StoreNode<R, LOCAL_READS> {
        StoreNode::Client(Box::new(Client {
            me,
            servers,
            next_server: me % servers,
            session: None,
            number: 0,
            asked: None,
            operations,
            seen: None,
            events: Vec::new(),
        }))
    }

    /// All that a client was told, in order.
    pub fn events(&self) -> &[ClientEvent] {
        match self {
            StoreNode::Client(client) => &client.events,
            StoreNode::Server(_) => &[],
        }
    }

    /// Whether it wants nothing more.
    pub fn is_finished(&self) -> bool {
        !matches!(self, StoreNode::Client(client) if client.asked.is_some() || !client.operations.is_empty())
    }
}

impl Client {
    /// Asks for what is under way, again or for the first time.
    fn ask(&mut self, out: &mut Vec<Action<Cell, Message>>) {
        if self.asked.is_none() {
            self.begin();
        }
        let Some((request, _)) = &self.asked else { return };
        let message = Message::Request { number: self.number, request: request.clone() };
        out.push(Action::Send { to: ProcessId(self.next_server), message });
        out.push(Action::Wake);
        self.next_server = (self.next_server + 1) % self.servers;
    }

    fn begin(&mut self) {
        let Some(&(wish, key)) = self.operations.last() else { return };
        self.number += 1;
        let name = vec![key];
        let value = vec![self.me, self.number as u8];
        let change = match wish {
            ClientOp::Get => None,
            ClientOp::Put => Some(Change::Put { key: name.clone(), value }),
            ClientOp::Cas => {
                Some(Change::Cas { key: name.clone(), expected: self.seen.clone(), value: Some(value) })
            }
            ClientOp::Delete => Some(Change::Delete { key: name.clone() }),
        };
        self.asked = Some(match (change, self.session) {
            (None, _) => (Request::Get { key: name }, Some(Invocation::Get(key))),
            (Some(_), None) => (Request::OpenSession, None),
            (Some(change), Some(session)) => {
                let request = Request::Change { session, sequence: self.number, change: change.clone() };
                (request, Some(Invocation::Change(key, change)))
            }
        });
        if let Some((_, Some(asked))) = &self.asked {
            self.events.push(ClientEvent::Invoked(asked.clone()));
            self.operations.pop();
        }
    }

    fn answered(&mut self, number: u64, reply: Reply, out: &mut Vec<Action<Cell, Message>>) {
        if number != self.number || self.asked.is_none() {
            return;
        }
        match reply {
            Reply::SessionOpened(session) => self.session = Some(session),
            Reply::Value(value) => {
                self.seen = value.map(|(value, _)| value);
                self.events.push(ClientEvent::Value(self.seen.clone()));
            }
            Reply::Changed(done) => self.events.push(ClientEvent::Changed(done)),
            // Nobody knows whether it was done. It is not tried again.
            Reply::SessionExpired | Reply::StaleSequence | Reply::Full | Reply::Malformed => {
                self.session = None
            }
        }
        self.asked = None;
        out.push(Action::Wake);
    }
}

impl<R: Rules> Server<R> {
    fn ask(&mut self, from: ProcessId, number: u64, request: &Request, out: &mut Vec<Action<Cell, Message>>) {
        let reply = self.with_log(out, |log, out| log.submit(request.encode(), out));
        match reply {
            Ok(ticket) => self.waiting.push((ticket, from, number)),
            Err(_) => answer(from, number, None, out),
        }
    }

    fn with_log<T>(
        &mut self,
        out: &mut Vec<Action<Cell, Message>>,
        what: impl FnOnce(&mut Log, &mut Actions<Log>) -> T,
    ) -> T {
        let mut actions = Vec::new();
        let result = what(&mut self.log, &mut actions);
        out.extend(actions.into_iter().map(|action| match action {
            Action::Send { to, message } => Action::Send { to, message: Message::Log(message) },
            Action::Invoke { memory, id, op } => Action::Invoke { memory, id, op },
            Action::Wake => Action::Wake,
            Action::FlipCoin => Action::FlipCoin,
        }));
        result
    }

    /// Applies what is committed, and answers those who have asked for it.
    fn take(&mut self, out: &mut Vec<Action<Cell, Message>>) {
        let mut replies = Vec::new();
        for delivery in self.log.take_committed() {
            match delivery {
                Delivery::Entry { index, payload: Payload::Commands(commands) } => {
                    let apply =
                        |(nth, command): (_, &Vec<u8>)| (index, nth, self.store.apply(index, command).0);
                    replies.extend(commands.iter().enumerate().map(apply));
                }
                Delivery::Entry { .. } => {}
                Delivery::Snapshot { bytes, .. } => {
                    self.store = KvStore::restore(&bytes).expect("what a store has written");
                }
            }
        }
        for (ticket, fate) in self.log.take_outcomes() {
            let Some(at) = self.waiting.iter().position(|(other, ..)| *other == ticket) else { continue };
            let (_, from, number) = self.waiting.remove(at);
            let reply = match fate {
                CommitOutcome::Committed { index, position } => {
                    replies.iter().find(|(i, n, _)| (*i, *n) == (index, position))
                }
                CommitOutcome::Unknown => None,
            };
            answer(from, number, reply.map(|(.., reply)| reply.clone()), out);
        }
        if self.log.needs_snapshot() {
            let bytes = self.store.snapshot();
            self.with_log(out, |log, out| log.snapshot(bytes, out))
                .expect("a snapshot that is wanted, and fits");
        }
    }
}

fn answer(to: ProcessId, number: u64, reply: Option<Reply>, out: &mut Vec<Action<Cell, Message>>) {
    out.push(Action::Send { to, message: Message::Reply { number, reply } });
}

impl<R: Rules, const LOCAL_READS: bool> Process for StoreNode<R, LOCAL_READS> {
    type Cell = Cell;
    type Message = Message;
    type Value = u64;

    fn handle(&mut self, input: Input<Cell, Message>, out: &mut Actions<Self>) {
        match (self, input) {
            (StoreNode::Client(client), Input::Start | Input::Wake) => client.ask(out),
            (StoreNode::Client(client), Input::Message { message: Message::Reply { number, reply }, .. }) => {
                if let Some(reply) = reply {
                    client.answered(number, reply, out);
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
                        answer(from, number, Some(reply), out);
                    }
                    request => server.ask(from, number, &request, out),
                }
                server.take(out);
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
                server.take(out);
            }
        }
    }

    fn decision(&self) -> Option<&u64> {
        None
    }

    /// Counts a server's terms.
    fn attempts(&self) -> u64 {
        match self {
            StoreNode::Server(server) => server.log.attempts(),
            StoreNode::Client(_) => 0,
        }
    }
}
