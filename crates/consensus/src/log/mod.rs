//! A replicated log on Protected Memory Paxos (consensus.md §2, §8; Mu, OSDI 2020): n ≥ fP + 1 processes, m ≥ 2fM + 1 memories, crashes
//! only. Who leads takes the right to write each memory once; from then on an entry is one write to each, and is decided when a
//! majority has it: two delays.
//!
//! Each memory holds one log: a [`Header`], a ring of entries and two areas for a snapshot. Memories are Paxos' acceptors: having my
//! ballot in the header is a promise, for all entries, because nobody else may write there any more; an acknowledged write of
//! an entry is a vote for it. An entry is *committed* when it and all before it have the votes of a majority.
//!
//! | phase on a memory | delays | once per |
//! |---|---|---|
//! | take the right | 2 | leader |
//! | read the header: end if a higher ballot is there | 2 | leader |
//! | write the ballot into it | 2 | leader |
//! | read the entries behind what I know, window by window | 2 each | leader |
//! | write an entry | 2 | entry |
//!
//! A memory that refuses a write was taken by another, or the connection broke. The leader takes it anew, and finds out: where there is
//! no higher ballot, it goes on in its own.
//!
//! - **Holes.** Several entries are under way at a time, and may be done in any order: nothing here rests on the order of operations
//!   on a memory. So a new leader may find an entry and none before it. Where a majority shows a hole, nothing from there on was
//!   committed, for what is committed has no hole before it: the new leader adopts, of each index, what has the highest ballot, up
//!   to the first hole, and writes it anew in its own ballot.
//! - **Laggards.** A memory that is ready late counts at once: each index is a Paxos of its own, and a promise is all that this takes.
//!   A memory that misses old entries gets what the leader still has, and the next snapshot in place of the rest; until then it has
//!   no room for entries that are more than a ring beyond its own recycling point.
//! - **Recycling** is each memory's own: its recycling point moves after the whole snapshot is there, never before; so a memory that
//!   has voted for an entry either has that, or a snapshot with it. A full ring makes submissions wait.
//! - **Followers** are told how far entries are committed, and read them: of each index what has the highest ballot at a majority. Who
//!   finds that entries are gone installs the snapshot.
//! - **Fates.** Who has submitted learns that the command is committed, or that the leader lost its office: then it cannot know.
//! - **Members.** An entry says which processes may lead. Any process that does it anyway does no harm, only delays: so nothing
//!   waits for everybody to know. The memories are fixed: to replace one, a new leader would have to find out over two electorates
//!   which of them is in charge of which entry, and what a snapshot has swallowed of that; not done.
//! - **Restarts.** A process that has lost its state may come back under its own id, if nothing that it had asked for before can be done
//!   any more: a memory ends its connection. It finds the ballots that it has used in the headers of any majority, and begins above.
//!
//! What is bounded, and by which numbers: [`Config`].

mod catch_up;
mod inflight;
mod layout;
mod leader;
mod output;
mod snapshot_transfer;
mod takeover;

use core::marker::PhantomData;

use catch_up::CatchUp;
use inflight::{Asked, Inflight};
pub use layout::{Cell, Chunk, Config, Entry, Header, Payload, SnapshotMeta};
use leader::{Deposed, LeaderState};
pub use output::{CommitOutcome, Committed, Delivery, LogError, Ticket};

use crate::process::{ballot_above, send_others};
use crate::{
    Action, Actions, AllRules, Input, MemoryId, OpId, Process, ProcessId, ProcessSet, Response, RuleSet,
};

/// The rules that safety rests on. Checkers switch them off one by one, to see that they notice.
pub trait Rules: RuleSet {
    /// A term ends where a higher ballot is found.
    const CHECKS_BALLOT: bool = true;
    /// Who finds its own ballot, and not of this term, has forgotten what it wrote in it, and takes another.
    const RESTARTS_ABOVE_OWN_BALLOT: bool = true;
    /// A memory is taken again only when it has answered all that it was asked for before.
    const AWAITS_OUTSTANDING: bool = true;
    /// Of what was written for an index, that of the highest ballot counts.
    const BY_BALLOT: bool = true;
    /// A new leader reads on until a hole. Else one window.
    const SCANS_UNTIL_HOLE: bool = true;
    /// A new leader looks into a majority, and an entry is committed when a majority has it.
    const BY_MAJORITY: bool = true;
    /// The recycling point moves when the snapshot is there.
    const AWAITS_SNAPSHOT: bool = true;
    /// A snapshot is written beside the one that is valid.
    const ALTERNATES_SNAPSHOT_AREAS: bool = true;
    /// Registers are written anew only up to the recycling point.
    const AWAITS_RECYCLING: bool = true;
    /// A register of the ring is written anew only when it was acknowledged before.
    const AWAITS_REGISTER: bool = true;
    /// A follower reads a majority.
    const FOLLOWER_READS_MAJORITY: bool = true;
}

impl Rules for AllRules {}

/// A process of the log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Log<R = AllRules> {
    /// Ω names me.
    elected: bool,
    terms: u64,
    tickets: u64,
    state: State,
    role: Role,
    rules: PhantomData<R>,
}

/// What a process knows, whatever its role.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    me: ProcessId,
    config: Config,
    leaders: ProcessSet,
    /// The highest ballot seen.
    seen: u64,
    /// The last entry that was delivered.
    commit: u64,
    /// All up to this one is committed: I may have to find out what it is.
    known: u64,
    /// The highest recycling point seen.
    recycled: u64,
    /// How many memories have refused a write, and were taken anew.
    retaken: u64,
    inflight: Inflight,
    deliveries: Vec<Delivery>,
    outcomes: Vec<(Ticket, CommitOutcome)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Role {
    Follower(CatchUp),
    Leader(LeaderState),
}

impl State {
    fn deliver(&mut self, payload: Payload) {
        self.commit += 1;
        if let Payload::EligibleLeaders(leaders) = payload {
            self.leaders = leaders;
        }
        self.deliveries.push(Delivery::Entry { index: self.commit, payload });
    }

    fn see_entry(&mut self, entry: &Entry) {
        self.seen = self.seen.max(entry.ballot);
        self.known = self.known.max(entry.commit);
    }

    fn see_header(&mut self, header: &Header) {
        self.seen = self.seen.max(header.ballot);
        self.known = self.known.max(header.snapshot.index);
        self.recycled = self.recycled.max(header.snapshot.index);
    }
}

impl<R: Rules> Log<R> {
    /// A process of the log. At first all may lead. None if the config's numbers do not fit.
    pub fn new(me: ProcessId, config: Config) -> Option<Log<R>> {
        if !config.is_valid() || me.0 >= config.processes {
            return None;
        }
        let state = State {
            me,
            config,
            leaders: ProcessSet::first(config.processes),
            seen: 0,
            commit: 0,
            known: 0,
            recycled: 0,
            retaken: 0,
            inflight: Inflight::new(config.memories),
            deliveries: Vec::new(),
            outcomes: Vec::new(),
        };
        let role = Role::Follower(CatchUp::new(config.memories));
        Some(Log { elected: false, terms: 0, tickets: 0, state, role, rules: PhantomData })
    }

    /// Submits a command. [`Log::take_outcomes`] says what becomes of it.
    ///
    /// # Errors
    /// This process does not lead, too much is waiting, or the command is too long: nothing was done.
    pub fn submit(&mut self, command: Vec<u8>, out: &mut Actions<Self>) -> Result<Ticket, LogError> {
        let ticket = self.enqueue_command(command);
        self.drive(out);
        ticket
    }

    /// Submits commands that go into one entry as far as there is room: each as of [`Log::submit`].
    pub fn submit_all(
        &mut self,
        commands: impl IntoIterator<Item = Vec<u8>>,
        out: &mut Actions<Self>,
    ) -> Vec<Result<Ticket, LogError>> {
        let tickets = commands.into_iter().map(|command| self.enqueue_command(command)).collect();
        self.drive(out);
        tickets
    }

    fn enqueue_command(&mut self, command: Vec<u8>) -> Result<Ticket, LogError> {
        if command.len() > self.state.config.max_command_bytes() {
            return Err(LogError::TooLarge);
        }
        self.enqueue(Payload::Commands(vec![command]))
    }

    /// Submits which processes may lead from then on.
    ///
    /// # Errors
    /// As of [`Log::submit`], or there would be none.
    pub fn set_eligible_leaders(
        &mut self,
        leaders: ProcessSet,
        out: &mut Actions<Self>,
    ) -> Result<Ticket, LogError> {
        let all = (0..self.state.config.processes).map(ProcessId);
        if !all.into_iter().any(|p| leaders.contains(p)) {
            return Err(LogError::NoEligibleLeader);
        }
        let ticket = self.enqueue(Payload::EligibleLeaders(leaders));
        self.drive(out);
        ticket
    }

    fn enqueue(&mut self, payload: Payload) -> Result<Ticket, LogError> {
        let Role::Leader(term) = &mut self.role else { return Err(LogError::NotLeader) };
        let ticket = Ticket(self.tickets);
        term.enqueue(ticket, payload, &self.state)?;
        self.tickets += 1;
        Ok(ticket)
    }

    /// Whether this process leads, and takes submissions. It may have been deposed, and not know.
    pub fn is_leader(&self) -> bool {
        matches!(&self.role, Role::Leader(term) if term.started())
    }

    /// Who may lead.
    pub fn eligible_leaders(&self) -> ProcessSet {
        self.state.leaders
    }

    /// The last entry that this process knows to be committed and what it says.
    pub fn commit_index(&self) -> u64 {
        self.state.commit
    }

    /// What was committed since the last time.
    pub fn take_committed(&mut self) -> Vec<Delivery> {
        core::mem::take(&mut self.state.deliveries)
    }

    /// What has become of this process's submissions, since the last time.
    pub fn take_outcomes(&mut self) -> Vec<(Ticket, CommitOutcome)> {
        core::mem::take(&mut self.state.outcomes)
    }

    /// Whether the leader needs a snapshot, for a memory whose ring fills up.
    pub fn needs_snapshot(&self) -> bool {
        matches!(&self.role, Role::Leader(term) if term.needs_snapshot(&self.state))
    }

    /// Hands over what the state machine is, now that it has been given all that was committed.
    ///
    /// # Errors
    /// This process does not lead, not all that was committed was taken, or nothing new, or the snapshot is too large.
    pub fn snapshot(&mut self, bytes: Vec<u8>, out: &mut Actions<Self>) -> Result<(), LogError> {
        let Role::Leader(term) = &mut self.role else { return Err(LogError::NotLeader) };
        term.snapshot(bytes, &self.state)?;
        self.drive(out);
        Ok(())
    }

    /// Asks for all that can be asked for now.
    fn drive(&mut self, out: &mut Actions<Self>) {
        loop {
            let state = &mut self.state;
            match &mut self.role {
                Role::Leader(term) => match term.drive::<R>(state, out) {
                    Ok(()) => return,
                    Err(Deposed) => self.depose(),
                },
                Role::Follower(fetch) => {
                    let behind = state.commit < state.recycled;
                    if !self.elected || !state.leaders.contains(state.me) || behind {
                        return fetch.drive(state, out);
                    }
                    self.terms += 1;
                    state.seen = ballot_above(state.seen, state.me, state.config.processes);
                    state.inflight.abandon();
                    self.role = Role::Leader(LeaderState::new(state));
                }
            }
        }
    }

    /// This process leads no more: nobody wants what it has asked for, and what was submitted may be committed or not.
    fn depose(&mut self) {
        let following = Role::Follower(CatchUp::new(self.state.config.memories));
        if let Role::Leader(term) = core::mem::replace(&mut self.role, following) {
            self.state.inflight.abandon();
            self.state.outcomes.extend(term.tickets().map(|ticket| (ticket, CommitOutcome::Unknown)));
        }
    }

    fn answered(&mut self, memory: MemoryId, id: OpId, response: Response<Cell>) {
        let m = usize::from(memory.0);
        match (self.state.inflight.answered(m, id), &mut self.role) {
            (None | Some(Asked::Stale), _) => {}
            (Some(_), Role::Follower(fetch)) => fetch.answered::<R>(m, response, &mut self.state),
            (Some(asked), Role::Leader(term)) => {
                if term.answered::<R>(m, asked, response, &mut self.state).is_err() {
                    self.depose();
                }
            }
        }
    }
}

impl<R: Rules> Process for Log<R> {
    type Cell = Cell;
    type Message = Committed;
    type Value = u64;

    fn handle(&mut self, input: Input<Cell, Committed>, out: &mut Actions<Self>) {
        match input {
            Input::Leader(p) => {
                self.elected = p == self.state.me;
                if !self.elected {
                    self.depose();
                }
            }
            Input::Message { message: Committed { ballot, index }, .. } => {
                // A later leader may have put other entries in the place of mine.
                if matches!(&self.role, Role::Leader(term) if term.ballot() < ballot) {
                    self.depose();
                }
                self.state.seen = self.state.seen.max(ballot);
                self.state.known = self.state.known.max(index);
            }
            Input::Response { memory, id, response } => self.answered(memory, id, response),
            Input::Start | Input::Wake | Input::Coin(_) => {}
        }
        self.drive(out);
    }

    /// None: a log goes on. Its output is [`Log::take_committed`].
    fn decision(&self) -> Option<&u64> {
        None
    }

    /// Counts terms begun, and memories taken anew in them.
    fn attempts(&self) -> u64 {
        self.terms + self.state.retaken
    }
}

/// Tells the others how far entries are committed.
fn announce(ballot: u64, state: &State, out: &mut Vec<Action<Cell, Committed>>) {
    send_others(state.me, state.config.processes, &Committed { ballot, index: state.commit }, out);
}
