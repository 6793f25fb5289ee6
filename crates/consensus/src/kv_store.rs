//! A key-value store: a deterministic state machine for [`crate::log`]. What it does depends on the commands alone, in their order: it
//! reads no clock.
//!
//! **Retries.** Who changes something does it in a session, under a sequence number that grows. The store keeps each session's last
//! reply: a command that comes again is not done again, and has the same reply; one that comes after a later one is refused. There are so
//! many sessions; who opens one more ends the one that was used least recently. What comes in a session that has ended is refused, as
//! [`Reply::SessionExpired`]: it may have been done before, and is not done again. Sessions are numbered by the store, so that none is
//! ever taken for another.
//!
//! **Reads** are linearizable because they are commands, too: one costs a place in an entry, two delays with its whole batch. They need no
//! session: to read twice does no harm. A leader that answered alone would have to make sure that it is not deposed, by a write to
//! a majority: two delays as well.
//!
//! **Watching.** [`KvStore::apply`] says what has changed, with the entry's index, at every process alike. Who reads a key learns the index of its
//! last change, and so which changes are news to it.

use core::marker::PhantomData;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{AllRules, RuleSet};

/// What a key takes beside its bytes and those of its value, at most: their lengths, and an index.
const PER_KEY: usize = 20;
/// What a session takes, at most.
const PER_SESSION: usize = 48;

/// The rules that linearizability rests on, for checkers to switch off.
pub trait Rules: RuleSet {
    /// What comes again is not done again.
    const KEEPS_REPLIES: bool = true;
    /// What comes in a session that has ended is not done.
    const REFUSES_EXPIRED: bool = true;
}

impl Rules for AllRules {}

/// A session. Who wants to change something opens one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Session(pub u64);

/// What clients ask for.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Request {
    /// A session. If the reply is lost, another one does as well.
    OpenSession,
    /// What a key's value is.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// A change.
    Change {
        /// Whose.
        session: Session,
        /// From 1, and higher than that of the session's last. A retry has the same.
        sequence: u64,
        /// Which.
        change: Change,
    },
}

/// How something is to change.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Change {
    /// A key has this value.
    Put {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// A key has this value, or none, if it has that one, or none.
    Cas {
        /// The key.
        key: Vec<u8>,
        /// What it must have before.
        expected: Option<Vec<u8>>,
        /// What it has then.
        value: Option<Vec<u8>>,
    },
    /// A key has no value.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
}

/// What clients are told.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The session is open.
    SessionOpened(Session),
    /// The value, and the entry that changed it last; none if the key has none.
    Value(Option<(Vec<u8>, u64)>),
    /// Whether the change was made: of a put always; else if the key had what was expected, or anything to delete.
    Changed(bool),
    /// There is no room for it. Nothing was changed.
    Full,
    /// A later command of the session came before. This one was done then, or never will be.
    StaleSequence,
    /// The session has ended. This may have been done before that, or never will be.
    SessionExpired,
    /// These bytes are no request.
    Malformed,
}

/// A key has another value, or none any more.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Event {
    /// By which entry.
    pub index: u64,
    /// Which key.
    pub key: Vec<u8>,
    /// What it has now.
    pub value: Option<Vec<u8>>,
}

/// How much a store holds, the same at all processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// How many sessions, at least 1.
    pub sessions: u16,
    /// How many bytes a snapshot may have, sessions included.
    pub bytes: u32,
}

/// The store.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct KvStore<R = AllRules> {
    limits: Limits,
    /// Values, and by which entry.
    values: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    /// What they take of a snapshot.
    bytes: usize,
    sessions: BTreeMap<Session, Used>,
    /// How many sessions were ever opened.
    opened: u64,
    /// How many commands have used a session.
    uses: u64,
    rules: PhantomData<R>,
}

/// A session's last command.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
struct Used {
    sequence: u64,
    reply: Reply,
    /// As the so manieth command of all.
    nth: u64,
}

impl Request {
    /// As a command for the log.
    ///
    /// # Panics
    /// Never: a request can be written down.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a request can be written down")
    }

    /// The request in a command.
    ///
    /// # Errors
    /// The bytes are no request, or more than one.
    pub fn decode(bytes: &[u8]) -> postcard::Result<Request> {
        whole(bytes)
    }
}

fn whole<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> postcard::Result<T> {
    match postcard::take_from_bytes(bytes)? {
        (whole, []) => Ok(whole),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}

impl<R: Rules> KvStore<R> {
    /// A store that holds nothing.
    pub fn new(limits: Limits) -> KvStore<R> {
        KvStore {
            limits,
            values: BTreeMap::new(),
            bytes: 0,
            sessions: BTreeMap::new(),
            opened: 0,
            uses: 0,
            rules: PhantomData,
        }
    }

    /// Does what a command of the log's entry `index` says. Says what its client is told, and what has changed.
    pub fn apply(&mut self, index: u64, command: &[u8]) -> (Reply, Option<Event>) {
        match Request::decode(command) {
            Err(_) => (Reply::Malformed, None),
            Ok(Request::OpenSession) => (self.open(), None),
            Ok(Request::Get { key }) => (Reply::Value(self.get(&key).cloned()), None),
            Ok(Request::Change { session, sequence, change }) => {
                self.change_once(index, session, sequence, change)
            }
        }
    }

    /// What a key's value is here, and by which entry: of all that was applied here, which may not be the newest.
    pub fn get(&self, key: &[u8]) -> Option<&(Vec<u8>, u64)> {
        self.values.get(key)
    }

    /// All of it, as bytes: the same at all processes that have applied the same.
    ///
    /// # Panics
    /// Never: a store can be written down.
    pub fn snapshot(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("a store can be written down")
    }

    /// A store from a snapshot.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn restore(bytes: &[u8]) -> postcard::Result<KvStore<R>> {
        whole(bytes)
    }

    fn open(&mut self) -> Reply {
        if self.sessions.len() >= self.limits.sessions.max(1).into() {
            let oldest = self.sessions.iter().min_by_key(|(_, used)| used.nth).map(|(&session, _)| session);
            oldest.map(|session| self.sessions.remove(&session));
        }
        self.opened += 1;
        let session = Session(self.opened);
        self.note(session, 0, Reply::SessionOpened(session))
    }

    fn note(&mut self, session: Session, sequence: u64, reply: Reply) -> Reply {
        self.uses += 1;
        self.sessions.insert(session, Used { sequence, reply: reply.clone(), nth: self.uses });
        reply
    }

    fn change_once(
        &mut self,
        index: u64,
        session: Session,
        sequence: u64,
        change: Change,
    ) -> (Reply, Option<Event>) {
        match self.sessions.get(&session) {
            None if R::REFUSES_EXPIRED => return (Reply::SessionExpired, None),
            Some(used) if sequence < used.sequence && R::KEEPS_REPLIES => {
                return (Reply::StaleSequence, None);
            }
            Some(used) if sequence == used.sequence && R::KEEPS_REPLIES => {
                let reply = used.reply.clone();
                return (self.note(session, sequence, reply), None);
            }
            _ => {}
        }
        let (reply, event) = self.change(index, change);
        (self.note(session, sequence, reply), event)
    }

    fn change(&mut self, index: u64, change: Change) -> (Reply, Option<Event>) {
        let (key, value) = match change {
            Change::Put { key, value } => (key, Some(value)),
            Change::Delete { key } if self.values.contains_key(&key) => (key, None),
            Change::Cas { key, expected, value }
                if self.values.get(&key).map(|(value, _)| value) == expected.as_ref() =>
            {
                (key, value)
            }
            Change::Delete { .. } | Change::Cas { .. } => return (Reply::Changed(false), None),
        };
        let room = |value: &Vec<u8>| PER_KEY + key.len() + value.len();
        let before = self.values.get(&key).map_or(0, |(value, _)| room(value));
        let after = self.bytes - before + value.as_ref().map_or(0, room);
        let most = (self.limits.bytes as usize)
            .saturating_sub(PER_SESSION * (1 + usize::from(self.limits.sessions.max(1))));
        if after > most && after > self.bytes {
            return (Reply::Full, None);
        }
        self.bytes = after;
        match &value {
            Some(value) => self.values.insert(key.clone(), (value.clone(), index)),
            None => self.values.remove(&key),
        };
        (Reply::Changed(true), Some(Event { index, key, value }))
    }
}
