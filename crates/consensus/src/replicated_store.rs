//! The replicated store at one process, without client connections: the key-value state machine,
//! and the requests that wait for a commit of the log.

use std::collections::BTreeMap;

use mitra_mutants::Mutant;

use crate::kv_store::{Change, Event, KvStore, Reply, Request, Rules, Session};
use crate::log::{CommitOutcome, Delivery, Log, LogError, Payload, Ticket};
use crate::{Actions, AllRules};

/// The log of this process, and the driver that performs its actions.
pub trait LogHost {
    /// The log.
    fn log(&self) -> &Log;

    /// Calls `f` with the log, then performs the actions that `f` appended.
    fn with_log<T>(&mut self, f: impl FnOnce(&mut Log, &mut Actions<Log>) -> T) -> T;
}

/// The outcome of a command.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// The command was committed and applied.
    Reply(Reply),
    /// The command was not executed, because this process is not the leader or cannot queue it.
    Refused(LogError),
    /// This process is no longer the leader. The command may have been executed, or may be executed
    /// later.
    Unknown,
}

/// The session in which this process makes changes for clients without a session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum ServerSession {
    None,
    /// The command that opens the session has no outcome yet.
    Opening,
    /// The session, and the sequence number of its last change.
    Open(Session, u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Submitter<W> {
    Client(W),
    /// A change for a client, in the server's session. If the reply is that the session has
    /// expired, the change is submitted again.
    InServerSession(W, Change),
    /// The command that opens the server's session.
    ServerSession,
    /// The command exists only so that reads can wait for it.
    Nobody,
}

/// A read: the request that waits for it, and its key.
type PendingRead<W> = (W, Vec<u8>);

/// A request that waits until the server's session is open.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum QueuedRequest {
    Change(Change),
    /// A read that arrived while a change waited for the session.
    PendingRead(Vec<u8>),
}

/// The store at one process. A request comes with a value of the type `W`, which the outcome
/// returns.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReplicatedStore<W, R = AllRules> {
    kv: KvStore<R>,
    session: ServerSession,
    /// Requests that wait for `session`.
    queued: Vec<(W, QueuedRequest)>,
    /// The commands that the next [`ReplicatedStore::drive`] submits.
    commands: Vec<(Vec<u8>, Submitter<W>)>,
    /// Reads, each with the number of `commands` that precede it.
    reads: Vec<(usize, PendingRead<W>)>,
    /// The submitted commands without an outcome.
    submitters: BTreeMap<Ticket, Submitter<W>>,
    /// For a submitted command, the reads to execute directly before it. The commit of the command
    /// shows that this process was still the leader after the reads arrived. Directly before the
    /// command, the state machine includes all changes that were committed before the reads
    /// arrived, and no change that a client requested after its read.
    reads_by_ticket: BTreeMap<Ticket, Vec<PendingRead<W>>>,
    /// The outcomes since the last [`ReplicatedStore::take_outcomes`].
    outcomes: Vec<(W, Outcome)>,
    /// The key changes since the last [`ReplicatedStore::take_outcomes`].
    events: Vec<Event>,
    /// The index of the last applied entry.
    applied: u64,
    /// Whether a snapshot could not be decoded. If so, the state of the store is not valid.
    unreadable: bool,
}

/// Returns a command that has no effect and no client.
fn no_op<W>() -> (Vec<u8>, Submitter<W>) {
    (Request::Get { key: Vec::new() }.encode(), Submitter::Nobody)
}

impl<W, R: Rules> ReplicatedStore<W, R> {
    /// Creates the store of a process that has applied no entry.
    pub fn new(kv: KvStore<R>) -> ReplicatedStore<W, R> {
        ReplicatedStore {
            kv,
            session: ServerSession::None,
            queued: Vec::new(),
            commands: Vec::new(),
            reads: Vec::new(),
            submitters: BTreeMap::new(),
            reads_by_ticket: BTreeMap::new(),
            outcomes: Vec::new(),
            events: Vec::new(),
            applied: 0,
            unreadable: false,
        }
    }

    /// The state machine.
    pub fn kv(&self) -> &KvStore<R> {
        &self.kv
    }

    /// Returns whether a snapshot could not be decoded. If so, the process cannot continue.
    pub fn is_unreadable(&self) -> bool {
        self.unreadable
    }

    /// Returns the index of the last applied entry.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns the outcomes and key changes since the last call.
    pub fn take_outcomes(&mut self) -> (Vec<(W, Outcome)>, Vec<Event>) {
        (std::mem::take(&mut self.outcomes), std::mem::take(&mut self.events))
    }

    /// Queues a request. [`ReplicatedStore::drive`] submits it.
    pub fn request(&mut self, waiter: W, request: Request) {
        match request {
            Request::Get { key } if !self.queued.is_empty() => {
                self.queued.push((waiter, QueuedRequest::PendingRead(key)))
            }
            Request::Get { key } => self.reads.push((self.commands.len(), (waiter, key))),
            other => self.commands.push((other.encode(), Submitter::Client(waiter))),
        }
    }

    /// Queues a change in the server's session.
    pub fn change(&mut self, waiter: W, change: Change) {
        match &mut self.session {
            ServerSession::Open(session, last) => {
                *last += 1;
                let (session, sequence) = (*session, *last);
                let request = Request::Change { session, sequence, change: change.clone() };
                self.commands.push((request.encode(), Submitter::InServerSession(waiter, change)));
            }
            ServerSession::Opening => self.queued.push((waiter, QueuedRequest::Change(change))),
            ServerSession::None => {
                self.queued.push((waiter, QueuedRequest::Change(change)));
                self.session = ServerSession::Opening;
                self.commands.push((Request::OpenSession.encode(), Submitter::ServerSession));
            }
        }
    }

    /// Submits the queued commands. Reads after the last command wait for a command without effect.
    fn submit(&mut self, host: &mut impl LogHost) {
        let mut reads = std::mem::take(&mut self.reads);
        if Mutant::DeposedLeaderReads.is_on() && host.log().is_leader() {
            let due = std::mem::take(&mut reads);
            self.read(due.into_iter().map(|(_, read)| read).collect());
        }
        if reads.last().is_some_and(|&(at, _)| at == self.commands.len()) {
            self.commands.push(no_op());
        }
        let commands = std::mem::take(&mut self.commands);
        let tickets = self.submit_all(host, commands);
        let mut unassigned = Vec::new();
        for (at, read) in reads {
            match tickets[at..].iter().find_map(|ticket| ticket.ok()) {
                Some(ticket) => self.reads_by_ticket.entry(ticket).or_default().push(read),
                None => unassigned.push(read),
            }
        }
        if unassigned.is_empty() {
            return;
        }
        // All commands after these reads were refused. If they were only too large, the log accepts
        // a command without effect.
        match self.submit_all(host, vec![no_op()])[..] {
            [Ok(ticket)] => _ = self.reads_by_ticket.insert(ticket, unassigned),
            [Err(error)] => self.refuse(unassigned, error),
            _ => {}
        }
    }

    /// Submits commands to the log, and returns their tickets. Reports the refused commands.
    fn submit_all(
        &mut self,
        host: &mut impl LogHost,
        commands: Vec<(Vec<u8>, Submitter<W>)>,
    ) -> Vec<Result<Ticket, LogError>> {
        if commands.is_empty() {
            return Vec::new();
        }
        let (commands, submitters): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
        let tickets = host.with_log(|log, out| log.submit_all(commands, out));
        for (ticket, submitter) in tickets.iter().zip(submitters) {
            match *ticket {
                Ok(ticket) => _ = self.submitters.insert(ticket, submitter),
                Err(refused) => self.finish(submitter, Outcome::Refused(refused)),
            }
        }
        tickets
    }

    fn refuse(&mut self, reads: Vec<PendingRead<W>>, error: LogError) {
        self.outcomes.extend(reads.into_iter().map(|(waiter, _)| (waiter, Outcome::Refused(error))));
    }

    fn read(&mut self, reads: Vec<PendingRead<W>>) {
        let reply = |(waiter, key): PendingRead<W>| {
            (waiter, Outcome::Reply(Reply::Value(self.kv.get(&key).cloned())))
        };
        self.outcomes.extend(reads.into_iter().map(reply));
    }

    fn finish(&mut self, submitter: Submitter<W>, outcome: Outcome) {
        match submitter {
            Submitter::Client(waiter) | Submitter::InServerSession(waiter, _) => {
                self.outcomes.push((waiter, outcome))
            }
            Submitter::Nobody => {}
            Submitter::ServerSession => {
                self.session = ServerSession::None;
                // The requests that wait for the session were not submitted.
                let refused = if let Outcome::Refused(error) = outcome { error } else { LogError::NotLeader };
                let queued = self.queued.drain(..);
                self.outcomes.extend(queued.map(|(waiter, _)| (waiter, Outcome::Refused(refused))));
            }
        }
    }

    /// Applies committed entries, reports outcomes, and submits queued commands.
    pub fn drive(&mut self, host: &mut impl LogHost) {
        let (deliveries, outcomes) = host.with_log(|log, _| (log.take_committed(), log.take_outcomes()));
        let mut due_reads = BTreeMap::new();
        for (ticket, outcome) in &outcomes {
            match (self.reads_by_ticket.remove(ticket), outcome) {
                (None, _) => {}
                (Some(reads), &CommitOutcome::Committed { index, position }) => {
                    _ = due_reads.insert((index, position), reads)
                }
                // A read has no effect, so the client can repeat it safely.
                (Some(reads), CommitOutcome::Unknown) => self.refuse(reads, LogError::NotLeader),
            }
        }
        let mut replies = self.apply(deliveries, !outcomes.is_empty(), due_reads);
        for (ticket, outcome) in outcomes {
            let Some(submitter) = self.submitters.remove(&ticket) else { continue };
            let reply = match outcome {
                CommitOutcome::Committed { index, position } => replies.remove(&(index, position)),
                CommitOutcome::Unknown => None,
            };
            match (submitter, reply) {
                (Submitter::ServerSession, Some(Reply::SessionOpened(session))) => {
                    self.session = ServerSession::Open(session, 0);
                    for (waiter, request) in std::mem::take(&mut self.queued) {
                        match request {
                            QueuedRequest::Change(change) => self.change(waiter, change),
                            QueuedRequest::PendingRead(key) => self.request(waiter, Request::Get { key }),
                        }
                    }
                }
                (Submitter::InServerSession(waiter, change), Some(Reply::SessionExpired)) => {
                    if matches!(self.session, ServerSession::Open(..)) {
                        self.session = ServerSession::None;
                    }
                    self.change(waiter, change);
                }
                (submitter, Some(reply)) => self.finish(submitter, Outcome::Reply(reply)),
                (submitter, None) if Mutant::UnknownToldAsRefused.is_on() => {
                    self.finish(submitter, Outcome::Refused(LogError::NotLeader));
                }
                (submitter, None) => self.finish(submitter, Outcome::Unknown),
            }
        }
        self.submit(host);
        if !host.log().is_leader() {
            self.session = ServerSession::None;
        }
        if host.log().needs_snapshot() {
            let snapshot = self.kv.snapshot();
            // If the log cannot start the snapshot now, the next call tries again.
            let _ = host.with_log(|log, out| log.snapshot(snapshot, out));
        }
    }

    /// Applies committed entries. If `keep_replies` is set, returns the replies of their commands
    /// by log index and position. `due_reads` contains, by the same key, the reads to execute
    /// directly before a command.
    fn apply(
        &mut self,
        deliveries: Vec<Delivery>,
        keep_replies: bool,
        mut due_reads: BTreeMap<(u64, usize), Vec<PendingRead<W>>>,
    ) -> BTreeMap<(u64, usize), Reply> {
        let mut replies = BTreeMap::new();
        for delivery in deliveries {
            match delivery {
                Delivery::Entry { index, payload: Payload::Commands(commands) } => {
                    self.applied = index;
                    for (position, command) in commands.iter().enumerate() {
                        self.read(due_reads.remove(&(index, position)).unwrap_or_default());
                        let (reply, event) = self.kv.apply(index, command);
                        self.events.extend(event);
                        if keep_replies {
                            replies.insert((index, position), reply);
                        }
                    }
                }
                Delivery::Entry { index, .. } => self.applied = index,
                Delivery::Snapshot { .. } if Mutant::SnapshotDropped.is_on() && self.applied > 0 => {}
                Delivery::Snapshot { index, bytes } => match KvStore::restore(&bytes) {
                    Ok(kv) => (self.kv, self.applied) = (kv, index),
                    Err(_) => self.unreadable = true,
                },
            }
        }
        replies
    }
}
