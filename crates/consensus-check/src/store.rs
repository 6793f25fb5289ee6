//! The key-value store on its log, with clients that retry: servers and clients are processes of one world, and ask each other by
//! messages that take their time.

use mitra_consensus::kv_store::{Change, KvStore, Limits, Reply, Request, Rules, Session};
use mitra_consensus::log::{Cell, CommitOutcome, Committed, Config, Delivery, Log, Payload, Ticket};
use mitra_consensus::{Action, Actions, AllRules, Input, Process, ProcessId};

/// How much the store holds: sessions end now and then.
const LIMITS: Limits = Limits { sessions: 5, bytes: 1000 };

/// A process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Node<R = AllRules, const ALONE: bool = false> {
    /// A process of the log. `ALONE`, it answers reads without asking anybody: it must not.
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
    Ask {
        /// The same for retries.
        number: u64,
        /// For what.
        request: Request,
    },
    /// A server answers.
    Answer {
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
pub enum Wish {
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
pub enum Asked {
    /// To read a key.
    Get(u8),
    /// To change it.
    Change(u8, Change),
}

/// What a client knows of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Told {
    /// It begins.
    Called(Asked),
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
    asked: Option<(Request, Option<Asked>)>,
    wishes: Vec<(Wish, u8)>,
    seen: Option<Vec<u8>>,
    told: Vec<Told>,
}

impl<R: Rules, const ALONE: bool> Node<R, ALONE> {
    /// A server.
    ///
    /// # Panics
    /// The config's numbers do not fit.
    pub fn server(me: ProcessId, config: Config) -> Node<R, ALONE> {
        let log = Log::new(me, config).expect("numbers that fit");
        Node::Server(Box::new(Server { log, store: KvStore::new(LIMITS), waiting: Vec::new() }))
    }

    /// A client of the first `servers` processes, with wishes that come last first.
    pub fn client(me: u8, servers: u8, wishes: Vec<(Wish, u8)>) -> Node<R, ALONE> {
        Node::Client(Box::new(Client {
            me,
            servers,
            next_server: me % servers,
            session: None,
            number: 0,
            asked: None,
            wishes,
            seen: None,
            told: Vec::new(),
        }))
    }

    /// All that a client was told, in order.
    pub fn told(&self) -> &[Told] {
        match self {
            Node::Client(client) => &client.told,
            Node::Server(_) => &[],
        }
    }

    /// Whether it wants nothing more.
    pub fn is_content(&self) -> bool {
        !matches!(self, Node::Client(client) if client.asked.is_some() || !client.wishes.is_empty())
    }
}

impl Client {
    /// Asks for what is under way, again or for the first time.
    fn ask(&mut self, out: &mut Vec<Action<Cell, Message>>) {
        if self.asked.is_none() {
            self.begin();
        }
        let Some((request, _)) = &self.asked else { return };
        let message = Message::Ask { number: self.number, request: request.clone() };
        out.push(Action::Send { to: ProcessId(self.next_server), message });
        out.push(Action::Wake);
        self.next_server = (self.next_server + 1) % self.servers;
    }

    fn begin(&mut self) {
        let Some(&(wish, key)) = self.wishes.last() else { return };
        self.number += 1;
        let name = vec![key];
        let value = vec![self.me, self.number as u8];
        let change = match wish {
            Wish::Get => None,
            Wish::Put => Some(Change::Put { key: name.clone(), value }),
            Wish::Cas => {
                Some(Change::Cas { key: name.clone(), expected: self.seen.clone(), value: Some(value) })
            }
            Wish::Delete => Some(Change::Delete { key: name.clone() }),
        };
        self.asked = Some(match (change, self.session) {
            (None, _) => (Request::Get { key: name }, Some(Asked::Get(key))),
            (Some(_), None) => (Request::OpenSession, None),
            (Some(change), Some(session)) => {
                let request = Request::Change { session, sequence: self.number, change: change.clone() };
                (request, Some(Asked::Change(key, change)))
            }
        });
        if let Some((_, Some(asked))) = &self.asked {
            self.told.push(Told::Called(asked.clone()));
            self.wishes.pop();
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
                self.told.push(Told::Value(self.seen.clone()));
            }
            Reply::Changed(done) => self.told.push(Told::Changed(done)),
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
    out.push(Action::Send { to, message: Message::Answer { number, reply } });
}

impl<R: Rules, const ALONE: bool> Process for Node<R, ALONE> {
    type Cell = Cell;
    type Message = Message;
    type Value = u64;

    fn handle(&mut self, input: Input<Cell, Message>, out: &mut Actions<Self>) {
        match (self, input) {
            (Node::Client(client), Input::Start | Input::Wake) => client.ask(out),
            (Node::Client(client), Input::Message { message: Message::Answer { number, reply }, .. }) => {
                if let Some(reply) = reply {
                    client.answered(number, reply, out);
                }
            }
            (Node::Client(_), _) => {}
            (Node::Server(server), Input::Message { from, message: Message::Ask { number, request } }) => {
                match request {
                    Request::Get { key } if ALONE && server.log.is_leader() => {
                        let reply = Reply::Value(server.store.get(&key).cloned());
                        answer(from, number, Some(reply), out);
                    }
                    request => server.ask(from, number, &request, out),
                }
                server.take(out);
            }
            (Node::Server(server), input) => {
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
            Node::Server(server) => server.log.attempts(),
            Node::Client(_) => 0,
        }
    }
}
