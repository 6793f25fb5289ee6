//! The replicated store at one process, without client connections: the log, its leader, the key-value state
//! machine, and the requests that wait for a commit.

use std::collections::{BTreeMap, HashMap};

use mitra_consensus::heartbeat::Heartbeat;
use mitra_consensus::kv_store::{Change, Event, KvStore, Reply, Request, Session};
use mitra_consensus::log::{CommitOutcome, Delivery, Log, LogError, Payload, Ticket};
use mitra_consensus::{Composite, Input, ProcessId};
use mitra_consensus_rdma::ProcessNode;

/// The state machine of a store process.
pub(crate) type Member = Composite<Log, Heartbeat>;

/// The client request that waits for an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Waiter {
    /// The id of the client connection.
    pub(crate) connection: usize,
    /// The number of the request on the connection.
    pub(crate) request: u64,
    /// Whether the request is one of the client's own session (`MITRA.*`). The reply to a read then contains the
    /// index of the log entry.
    pub(crate) in_session: bool,
}

/// The outcome of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The command was committed and applied.
    Reply(Reply),
    /// The command was not executed, because this process is not the leader or cannot queue it.
    Refused(LogError),
    /// This process is no longer the leader. The command may have been executed, or may be executed later.
    Unknown,
}

/// The session in which this process makes changes for clients without a session.
#[derive(Debug)]
enum ServerSession {
    None,
    /// The command that opens the session has no outcome yet.
    Opening,
    /// The session, and the sequence number of its last change.
    Open(Session, u64),
}

/// The origin of a submitted command.
#[derive(Clone, Debug)]
enum Submitter {
    Client(Waiter),
    /// A change for a client, in the server's session. If the reply is that the session has expired, the change
    /// is submitted again.
    InServerSession(Waiter, Change),
    /// The command that opens the server's session.
    ServerSession,
    /// The command exists only so that reads can wait for it.
    Nobody,
}

/// A read: the request that waits for it, and its key.
type PendingRead = (Waiter, Vec<u8>);

/// A request that waits until the server's session is open.
#[derive(Debug)]
enum QueuedRequest {
    Change(Change),
    /// A read that arrived after a change that waits.
    PendingRead(Vec<u8>),
}

pub(crate) struct ReplicatedStore {
    kv: KvStore,
    /// The leader that this process knows of.
    leader: Option<ProcessId>,
    session: ServerSession,
    /// Requests that wait for `session`.
    queued: Vec<(Waiter, QueuedRequest)>,
    /// The commands that the next [`ReplicatedStore::drive`] submits.
    commands: Vec<(Vec<u8>, Submitter)>,
    /// Reads, each with the number of `commands` that precede it.
    reads: Vec<(usize, PendingRead)>,
    /// The submitted commands without an outcome.
    submitters: HashMap<Ticket, Submitter>,
    /// For a submitted command, the reads to execute directly before it. The commit of the command shows that
    /// this process was the leader after the reads arrived. At that position in the log, the state machine
    /// includes all changes that were committed before the reads arrived, and none that the client requested
    /// after them.
    reads_by_ticket: HashMap<Ticket, Vec<PendingRead>>,
    /// The outcomes since the last [`ReplicatedStore::take_outcomes`].
    outcomes: Vec<(Waiter, Outcome)>,
    /// The key changes since the last [`ReplicatedStore::take_outcomes`].
    events: Vec<Event>,
    /// The index of the last applied entry.
    applied: u64,
    /// Whether a snapshot could not be decoded. If so, the state of the store is not valid.
    unreadable: bool,
}

/// Returns a command that has no effect and no client.
fn no_op() -> (Vec<u8>, Submitter) {
    (Request::Get { key: Vec::new() }.encode(), Submitter::Nobody)
}

impl ReplicatedStore {
    pub(crate) fn new(kv: KvStore) -> ReplicatedStore {
        ReplicatedStore {
            kv,
            leader: None,
            session: ServerSession::None,
            queued: Vec::new(),
            commands: Vec::new(),
            reads: Vec::new(),
            submitters: HashMap::new(),
            reads_by_ticket: HashMap::new(),
            outcomes: Vec::new(),
            events: Vec::new(),
            applied: 0,
            unreadable: false,
        }
    }

    /// Returns the leader that this process knows of.
    pub(crate) fn leader(&self) -> Option<ProcessId> {
        self.leader
    }

    /// Returns whether a snapshot could not be decoded. If so, the process cannot continue.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.unreadable
    }

    /// Returns the index of the last applied entry.
    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns the outcomes and key changes since the last call.
    pub(crate) fn take_outcomes(&mut self) -> (Vec<(Waiter, Outcome)>, Vec<Event>) {
        (std::mem::take(&mut self.outcomes), std::mem::take(&mut self.events))
    }

    /// Queues a request. [`ReplicatedStore::drive`] submits it.
    pub(crate) fn request(&mut self, waiter: Waiter, request: Request) {
        match request {
            Request::Get { key } if !self.queued.is_empty() => {
                self.queued.push((waiter, QueuedRequest::PendingRead(key)))
            }
            Request::Get { key } => self.reads.push((self.commands.len(), (waiter, key))),
            other => self.commands.push((other.encode(), Submitter::Client(waiter))),
        }
    }

    /// Queues a change in the server's session.
    pub(crate) fn change(&mut self, waiter: Waiter, change: Change) {
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
    fn submit(&mut self, node: &mut ProcessNode<Member>) {
        let reads = std::mem::take(&mut self.reads);
        if reads.last().is_some_and(|&(at, _)| at == self.commands.len()) {
            self.commands.push(no_op());
        }
        let commands = std::mem::take(&mut self.commands);
        let tickets = self.submit_all(node, commands);
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
        // The commands after these reads were refused, perhaps only because they were too large.
        match self.submit_all(node, vec![no_op()])[..] {
            [Ok(ticket)] => _ = self.reads_by_ticket.insert(ticket, unassigned),
            [Err(error)] => self.refuse(unassigned, error),
            _ => {}
        }
    }

    /// Submits commands to the log, and returns their tickets. Reports the refused commands.
    fn submit_all(
        &mut self,
        node: &mut ProcessNode<Member>,
        commands: Vec<(Vec<u8>, Submitter)>,
    ) -> Vec<Result<Ticket, LogError>> {
        if commands.is_empty() {
            return Vec::new();
        }
        let (commands, submitters): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
        let tickets =
            node.with_process(|member, out| member.with_first(|log, out| log.submit_all(commands, out), out));
        for (ticket, submitter) in tickets.iter().zip(submitters) {
            match *ticket {
                Ok(ticket) => _ = self.submitters.insert(ticket, submitter),
                Err(refused) => self.finish(submitter, Outcome::Refused(refused)),
            }
        }
        tickets
    }

    /// Reports that reads were refused.
    fn refuse(&mut self, reads: Vec<PendingRead>, error: LogError) {
        self.outcomes.extend(reads.into_iter().map(|(waiter, _)| (waiter, Outcome::Refused(error))));
    }

    /// Reports the outcome of a command to its submitter.
    fn finish(&mut self, submitter: Submitter, outcome: Outcome) {
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
    pub(crate) fn drive(&mut self, node: &mut ProcessNode<Member>) {
        let leader = node.process().second.leader(node.process().first.eligible_leaders());
        if leader != self.leader {
            self.leader = leader;
            if let Some(leader) = leader {
                node.handle_input(Input::Leader(leader));
            }
        }
        let (deliveries, outcomes) =
            node.with_process(|member, _| (member.first.take_committed(), member.first.take_outcomes()));
        let mut due_reads = HashMap::new();
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
                (submitter, None) => self.finish(submitter, Outcome::Unknown),
            }
        }
        self.submit(node);
        if !node.process().first.is_leader() {
            self.session = ServerSession::None;
        }
        if node.process().first.needs_snapshot() {
            let snapshot = self.kv.snapshot();
            // If the log cannot start the snapshot now, the next call tries again.
            let _ = node
                .with_process(|member, out| member.with_first(|log, out| log.snapshot(snapshot, out), out));
        }
    }

    /// Applies committed entries. Returns the replies of their commands by log index and position, if
    /// `keep_replies` is set. `due_reads` are the reads to execute directly before the command with an index and
    /// position.
    fn apply(
        &mut self,
        deliveries: Vec<Delivery>,
        keep_replies: bool,
        mut due_reads: HashMap<(u64, usize), Vec<PendingRead>>,
    ) -> BTreeMap<(u64, usize), Reply> {
        let mut replies = BTreeMap::new();
        for delivery in deliveries {
            match delivery {
                Delivery::Entry { index, payload: Payload::Commands(commands) } => {
                    self.applied = index;
                    for (position, command) in commands.iter().enumerate() {
                        for (waiter, key) in due_reads.remove(&(index, position)).into_iter().flatten() {
                            let reply = Reply::Value(self.kv.get(&key).cloned());
                            self.outcomes.push((waiter, Outcome::Reply(reply)));
                        }
                        let (reply, event) = self.kv.apply(index, command);
                        self.events.extend(event);
                        if keep_replies {
                            replies.insert((index, position), reply);
                        }
                    }
                }
                Delivery::Entry { index, .. } => self.applied = index,
                Delivery::Snapshot { index, bytes } => match KvStore::restore(&bytes) {
                    Ok(kv) => (self.kv, self.applied) = (kv, index),
                    Err(_) => self.unreadable = true,
                },
            }
        }
        replies
    }
}
