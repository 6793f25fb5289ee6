//! One process of the store, without its clients: the log, who leads it, what it comes to, and who waits for which command.

use std::collections::{BTreeMap, HashMap};

use mitra_consensus::heartbeat::Heartbeat;
use mitra_consensus::kv_store::{Change, Event, KvStore, Reply, Request, Session};
use mitra_consensus::log::{CommitOutcome, Delivery, Log, LogError, Payload, Ticket};
use mitra_consensus::{Composite, Input, ProcessId};
use mitra_consensus_rdma::ProcessNode;

/// A process of the store.
pub(crate) type Member = Composite<Log, Heartbeat>;

/// Who waits for a reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Waiter {
    /// Its connection.
    pub(crate) connection: usize,
    /// Which of its requests.
    pub(crate) request: u64,
    /// Which part of that.
    pub(crate) part: usize,
}

/// What it is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// What the store says.
    Reply(Reply),
    /// It was not done: this process does not lead, or takes no more.
    Refused(LogError),
    /// It may have been done, and may yet be: this process lost the lead.
    Unknown,
}

/// The session in which this process makes changes for clients that have none.
#[derive(Debug)]
enum Own {
    None,
    Opening,
    Open(Session, u64),
}

#[derive(Clone, Debug)]
enum Asked {
    Client(Waiter),
    /// The same, of a change that is to be asked for again if the session has ended: then it was not done.
    InOwn(Waiter, Change),
    Own,
    /// Nobody: there are reads, and no change to wait for.
    Nothing,
}

/// Who wants to know the value of a key.
type Read = (Waiter, Vec<u8>);

/// What waits for the session of this process.
#[derive(Debug)]
enum Wanted {
    Change(Change),
    /// Asked for behind changes that wait.
    Read(Vec<u8>),
}

pub(crate) struct Store {
    kv: KvStore,
    leader: Option<ProcessId>,
    own: Own,
    /// What waits for that session.
    queued: Vec<(Waiter, Wanted)>,
    /// What is to be submitted together.
    commands: Vec<(Vec<u8>, Asked)>,
    /// Keys to be read, and how many of those commands come before.
    reads: Vec<(usize, Read)>,
    waiting: HashMap<Ticket, Asked>,
    /// Reads that are done just before a command. That it is committed shows that this process led after they were asked for, so
    /// all that had been committed by then is known here; and what a client asked for behind them is not done yet.
    reading: HashMap<Ticket, Vec<Read>>,
    outcomes: Vec<(Waiter, Outcome)>,
    events: Vec<Event>,
    applied: u64,
    /// A snapshot could not be read: what comes behind it must not be applied to what was before.
    unreadable: bool,
}

/// A command that does nothing.
fn nothing() -> (Vec<u8>, Asked) {
    (Request::Get { key: Vec::new() }.encode(), Asked::Nothing)
}

impl Store {
    pub(crate) fn new(kv: KvStore) -> Store {
        Store {
            kv,
            leader: None,
            own: Own::None,
            queued: Vec::new(),
            commands: Vec::new(),
            reads: Vec::new(),
            waiting: HashMap::new(),
            reading: HashMap::new(),
            outcomes: Vec::new(),
            events: Vec::new(),
            applied: 0,
            unreadable: false,
        }
    }

    /// Who leads, as far as this process knows.
    pub(crate) fn leader(&self) -> Option<ProcessId> {
        self.leader
    }

    /// Whether a snapshot could not be read: this process is of no use any more.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.unreadable
    }

    /// The last entry that was applied here.
    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    /// What has been found out since the last time.
    pub(crate) fn take(&mut self) -> (Vec<(Waiter, Outcome)>, Vec<Event>) {
        (std::mem::take(&mut self.outcomes), std::mem::take(&mut self.events))
    }

    /// Asks for something. It goes out with [`Store::drive`].
    pub(crate) fn ask(&mut self, waiter: Waiter, request: Request) {
        match request {
            Request::Get { key } if !self.queued.is_empty() => self.queued.push((waiter, Wanted::Read(key))),
            Request::Get { key } => self.reads.push((self.commands.len(), (waiter, key))),
            other => self.commands.push((other.encode(), Asked::Client(waiter))),
        }
    }

    /// Asks for a change in the session of this process.
    pub(crate) fn change(&mut self, waiter: Waiter, change: Change) {
        match &mut self.own {
            Own::Open(session, last) => {
                *last += 1;
                let (session, sequence) = (*session, *last);
                let request = Request::Change { session, sequence, change: change.clone() };
                self.commands.push((request.encode(), Asked::InOwn(waiter, change)));
            }
            Own::Opening => self.queued.push((waiter, Wanted::Change(change))),
            Own::None => {
                self.queued.push((waiter, Wanted::Change(change)));
                self.own = Own::Opening;
                self.commands.push((Request::OpenSession.encode(), Asked::Own));
            }
        }
    }

    /// Submits what was asked for. Reads behind the last command wait for one that does nothing.
    fn submit(&mut self, node: &mut ProcessNode<Member>) {
        let reads = std::mem::take(&mut self.reads);
        if reads.last().is_some_and(|&(at, _)| at == self.commands.len()) {
            self.commands.push(nothing());
        }
        let commands = std::mem::take(&mut self.commands);
        let tickets = self.submit_all(node, commands);
        let mut behind = Vec::new();
        for (at, read) in reads {
            match tickets[at..].iter().find_map(|ticket| ticket.ok()) {
                Some(ticket) => self.reading.entry(ticket).or_default().push(read),
                None => behind.push(read),
            }
        }
        if behind.is_empty() {
            return;
        }
        // What they were to wait for was refused, which may have been for its own sake.
        match self.submit_all(node, vec![nothing()])[..] {
            [Ok(ticket)] => _ = self.reading.insert(ticket, behind),
            [Err(why)] => self.refuse(behind, why),
            _ => {}
        }
    }

    fn submit_all(
        &mut self,
        node: &mut ProcessNode<Member>,
        commands: Vec<(Vec<u8>, Asked)>,
    ) -> Vec<Result<Ticket, LogError>> {
        if commands.is_empty() {
            return Vec::new();
        }
        let (commands, asked): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
        let tickets =
            node.with_process(|member, out| member.with_first(|log, out| log.submit_all(commands, out), out));
        for (ticket, asked) in tickets.iter().zip(asked) {
            match *ticket {
                Ok(ticket) => _ = self.waiting.insert(ticket, asked),
                Err(refused) => self.ended(asked, Outcome::Refused(refused)),
            }
        }
        tickets
    }

    fn refuse(&mut self, reads: Vec<Read>, why: LogError) {
        self.outcomes.extend(reads.into_iter().map(|(waiter, _)| (waiter, Outcome::Refused(why))));
    }

    /// A command of this process's own, or a client's, ends like this.
    fn ended(&mut self, asked: Asked, outcome: Outcome) {
        match asked {
            Asked::Client(waiter) | Asked::InOwn(waiter, _) => self.outcomes.push((waiter, outcome)),
            Asked::Nothing => {}
            Asked::Own => {
                self.own = Own::None;
                // What waits for the session was not asked for.
                let refused = if let Outcome::Refused(why) = outcome { why } else { LogError::NotLeader };
                let queued = self.queued.drain(..);
                self.outcomes.extend(queued.map(|(waiter, _)| (waiter, Outcome::Refused(refused))));
            }
        }
    }

    /// Goes on with what the log has come to, and submits what was asked for.
    pub(crate) fn drive(&mut self, node: &mut ProcessNode<Member>) {
        let leader = node.process().second.leader(node.process().first.eligible_leaders());
        if leader != self.leader {
            self.leader = leader;
            if let Some(leader) = leader {
                node.handle_input(Input::Leader(leader));
            }
        }
        let (deliveries, fates) =
            node.with_process(|member, _| (member.first.take_committed(), member.first.take_outcomes()));
        let mut due = HashMap::new();
        for (ticket, fate) in &fates {
            match (self.reading.remove(ticket), fate) {
                (None, _) => {}
                (Some(reads), &CommitOutcome::Committed { index, position }) => {
                    _ = due.insert((index, position), reads)
                }
                // What was only to be read, and is not, can be asked for again.
                (Some(reads), CommitOutcome::Unknown) => self.refuse(reads, LogError::NotLeader),
            }
        }
        let mut replies = self.apply(deliveries, !fates.is_empty(), due);
        for (ticket, fate) in fates {
            let Some(asked) = self.waiting.remove(&ticket) else { continue };
            let reply = match fate {
                CommitOutcome::Committed { index, position } => replies.remove(&(index, position)),
                CommitOutcome::Unknown => None,
            };
            match (asked, reply) {
                (Asked::Own, Some(Reply::SessionOpened(session))) => {
                    self.own = Own::Open(session, 0);
                    for (waiter, wanted) in std::mem::take(&mut self.queued) {
                        match wanted {
                            Wanted::Change(change) => self.change(waiter, change),
                            Wanted::Read(key) => self.ask(waiter, Request::Get { key }),
                        }
                    }
                }
                (Asked::InOwn(waiter, change), Some(Reply::SessionExpired)) => {
                    if matches!(self.own, Own::Open(..)) {
                        self.own = Own::None;
                    }
                    self.change(waiter, change);
                }
                (asked, Some(reply)) => self.ended(asked, Outcome::Reply(reply)),
                (asked, None) => self.ended(asked, Outcome::Unknown),
            }
        }
        self.submit(node);
        if !node.process().first.is_leader() {
            self.own = Own::None;
        }
        if node.process().first.needs_snapshot() {
            let snapshot = self.kv.snapshot();
            // Not now is later.
            let _ = node
                .with_process(|member, out| member.with_first(|log, out| log.snapshot(snapshot, out), out));
        }
    }

    /// Applies what was committed, and says what its clients are to be told, if any of them is here. Does the reads that are due before
    /// each command.
    fn apply(
        &mut self,
        deliveries: Vec<Delivery>,
        is_asked_for: bool,
        mut due: HashMap<(u64, usize), Vec<Read>>,
    ) -> BTreeMap<(u64, usize), Reply> {
        let mut replies = BTreeMap::new();
        for delivery in deliveries {
            match delivery {
                Delivery::Entry { index, payload: Payload::Commands(commands) } => {
                    self.applied = index;
                    for (nth, command) in commands.iter().enumerate() {
                        for (waiter, key) in due.remove(&(index, nth)).into_iter().flatten() {
                            let reply = Reply::Value(self.kv.get(&key).cloned());
                            self.outcomes.push((waiter, Outcome::Reply(reply)));
                        }
                        let (reply, event) = self.kv.apply(index, command);
                        self.events.extend(event);
                        if is_asked_for {
                            replies.insert((index, nth), reply);
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
