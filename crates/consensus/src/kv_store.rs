//! A key-value store: a deterministic state machine for [`crate::log`]. Its state depends only on
//! the sequence of commands.
//!
//! **Retries.** A client changes a key within a session, with increasing sequence numbers. The
//! store keeps the last reply of each session. A repeated command is not executed again; it returns
//! the stored reply. A command with a lower sequence number is refused. The number of sessions is
//! limited: when the limit is reached, opening a session ends the least recently used session. A
//! command in an ended session is refused with [`Reply::SessionExpired`], because the store no
//! longer knows whether it executed the command before. The store numbers sessions and never reuses
//! a number.
//!
//! **Reads** are linearizable because they are commands as well. A read takes up space in a log
//! entry. The entry is replicated in two delays, which all commands in it share. Reads need no
//! session, because repeating a read is harmless. A leader that answered reads from its own state
//! would first have to confirm its leadership by a write to a majority, which also takes two
//! delays.
//!
//! **Watches.** [`KvStore::apply`] returns the change that a command makes, with the index of the
//! command's entry. All processes return the same change for a command. A read returns the index of
//! the key's last change, so a client can recognize the changes that were made after the read.

use core::marker::PhantomData;
use std::collections::BTreeMap;

use mitra_mutants::Mutant;
use serde::{Deserialize, Serialize};

use crate::{AllRules, RuleSet};

/// An upper bound on the encoding overhead of an entry of the map, in bytes: two lengths and an
/// index.
const MAX_KEY_OVERHEAD: usize = 20;
/// An upper bound on the encoded size of a session, in bytes.
const MAX_SESSION_BYTES: usize = 48;

/// The rules that linearizability depends on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// A repeated command is not executed again; it returns the stored reply. A command with a
    /// lower sequence number is refused.
    const KEEPS_REPLIES: bool = true;
    /// A command in an ended session has no effect.
    const REFUSES_EXPIRED: bool = true;
}

impl Rules for AllRules {}

/// The number of a session. A client opens a session before its first change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Session(pub u64);

/// A client's request.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Opens a session. If the reply is lost, the client opens another session.
    OpenSession,
    /// Reads a key.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// Changes a key, at most once per session and sequence number.
    Change {
        /// The session.
        session: Session,
        /// The sequence number, from 1. A new change has a higher number than the session's
        /// previous change; a retry has the number of the change that it repeats.
        sequence: u64,
        /// The change.
        change: Change,
    },
}

/// A change of a key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Sets the key's value.
    Put {
        /// The key.
        key: Vec<u8>,
        /// The new value.
        value: Vec<u8>,
    },
    /// Compares the key's value with `expected`, and sets the key to `value` if they are equal.
    /// `None` stands for an absent key.
    Cas {
        /// The key.
        key: Vec<u8>,
        /// The expected value.
        expected: Option<Vec<u8>>,
        /// The new value.
        value: Option<Vec<u8>>,
    },
    /// Removes the key.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
}

/// The reply to a request.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The session is open.
    SessionOpened(Session),
    /// The value of the key and the index of the entry that last changed it, or `None` if the key
    /// is absent.
    Value(Option<(Vec<u8>, u64)>),
    /// Whether the change was made. A put is always made. A compare-and-swap is made only if the
    /// key had the expected value. A delete is made only if the key was present.
    Changed(bool),
    /// The store is full. Nothing was changed.
    Full,
    /// The session has executed a command with a higher sequence number. This command was executed
    /// before, or never will be.
    StaleSequence,
    /// The session has ended. The command was executed before the session ended, or never will be.
    SessionExpired,
    /// The bytes of the command are not a request.
    Malformed,
}

/// A change of a key that a command made.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Event {
    /// The index of the command's entry.
    pub index: u64,
    /// The key.
    pub key: Vec<u8>,
    /// The new value, or `None` if the key was removed.
    pub value: Option<Vec<u8>>,
}

/// The limits of a store, equal at all processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// The maximum number of sessions, at least 1.
    pub sessions: u16,
    /// The maximum size of a snapshot in bytes, including sessions.
    pub bytes: u32,
}

/// The key-value store.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct KvStore<R = AllRules> {
    limits: Limits,
    /// The values, each with the index of the entry that last changed it.
    values: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    /// An upper bound on the size of `values` in a snapshot, in bytes.
    bytes: usize,
    sessions: BTreeMap<Session, SessionState>,
    /// The number of sessions ever opened.
    opened: u64,
    /// The number of commands that have used a session.
    uses: u64,
    rules: PhantomData<R>,
}

/// The sequence number of a session's last command, and the reply to this command.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
struct SessionState {
    sequence: u64,
    reply: Reply,
    /// The value of `uses` after the last command. The session with the smallest `last_use` is the
    /// least recently used session.
    last_use: u64,
}

impl Request {
    /// Encodes the request as a command of the log.
    ///
    /// # Panics
    /// Never: every request can be encoded.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("every request can be encoded")
    }

    /// Decodes a command of the log.
    ///
    /// # Errors
    /// The bytes are not exactly one request.
    pub fn decode(bytes: &[u8]) -> postcard::Result<Request> {
        decode_exact(bytes)
    }
}

fn decode_exact<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> postcard::Result<T> {
    match postcard::take_from_bytes(bytes)? {
        (value, []) => Ok(value),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    }
}

impl<R: Rules> KvStore<R> {
    /// Creates an empty store.
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

    /// Applies a command of the log entry `index`. Returns the reply, and the change that the
    /// command made.
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

    /// Returns the local value of a key and the index of the entry that last changed the key. The
    /// value may be older than the latest committed value.
    pub fn get(&self, key: &[u8]) -> Option<&(Vec<u8>, u64)> {
        self.values.get(key)
    }

    /// Encodes the store. The encoding is equal at all processes that have applied the same
    /// entries.
    ///
    /// # Panics
    /// Never: every store can be encoded.
    pub fn snapshot(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("every store can be encoded")
    }

    /// Decodes a snapshot.
    ///
    /// # Errors
    /// The bytes are not exactly one snapshot.
    pub fn restore(bytes: &[u8]) -> postcard::Result<KvStore<R>> {
        let mut store: KvStore<R> = decode_exact(bytes)?;
        if Mutant::SessionsNotRestored.is_on() {
            store.sessions.clear();
        }
        Ok(store)
    }

    fn open(&mut self) -> Reply {
        if self.sessions.len() >= self.limits.sessions.max(1).into() {
            let oldest =
                self.sessions.iter().min_by_key(|(_, state)| state.last_use).map(|(&session, _)| session);
            oldest.map(|session| self.sessions.remove(&session));
        }
        self.opened += 1;
        let session = Session(self.opened);
        self.record(session, 0, Reply::SessionOpened(session))
    }

    fn record(&mut self, session: Session, sequence: u64, reply: Reply) -> Reply {
        self.uses += 1;
        self.sessions.insert(session, SessionState { sequence, reply: reply.clone(), last_use: self.uses });
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
            None if R::REFUSES_EXPIRED && !Mutant::ExpiredSessionUsed.is_on() => {
                return (Reply::SessionExpired, None);
            }
            Some(state)
                if sequence < state.sequence
                    && R::KEEPS_REPLIES
                    && !Mutant::EarlierCommandExecuted.is_on() =>
            {
                return (Reply::StaleSequence, None);
            }
            Some(state)
                if sequence == state.sequence
                    && R::KEEPS_REPLIES
                    && !Mutant::RepeatedCommandExecuted.is_on() =>
            {
                let reply = state.reply.clone();
                return (self.record(session, sequence, reply), None);
            }
            _ => {}
        }
        let (reply, event) = self.change(index, change);
        (self.record(session, sequence, reply), event)
    }

    fn change(&mut self, index: u64, change: Change) -> (Reply, Option<Event>) {
        let (key, value) = match change {
            Change::Put { key, value } => (key, Some(value)),
            Change::Delete { key } if self.values.contains_key(&key) => (key, None),
            Change::Cas { key, expected, value }
                if self.values.get(&key).map(|(value, _)| value) == expected.as_ref()
                    || Mutant::ExpectedValueIgnored.is_on() =>
            {
                (key, value)
            }
            Change::Delete { .. } | Change::Cas { .. } => return (Reply::Changed(false), None),
        };
        let entry_bytes = |value: &Vec<u8>| MAX_KEY_OVERHEAD + key.len() + value.len();
        let old_entry_bytes = self.values.get(&key).map_or(0, |(value, _)| entry_bytes(value));
        let new_bytes = self.bytes - old_entry_bytes + value.as_ref().map_or(0, entry_bytes);
        let max_bytes = (self.limits.bytes as usize)
            .saturating_sub(MAX_SESSION_BYTES * (1 + usize::from(self.limits.sessions.max(1))));
        if new_bytes > max_bytes && new_bytes > self.bytes {
            return (Reply::Full, None);
        }
        self.bytes = new_bytes;
        match &value {
            Some(value) => self.values.insert(key.clone(), (value.clone(), index)),
            None => self.values.remove(&key),
        };
        (Reply::Changed(true), Some(Event { index, key, value }))
    }
}
