//! A replicated log on Protected Memory Paxos (IRA, section 5; Mu, OSDI 2020): n ≥ fP + 1 processes
//! and m ≥ 2fM + 1 memories, of which up to fP and fM may crash.
//!
//! A leader takes the exclusive permission to write each memory once per term. From then on, it
//! replicates an entry with one write to each memory. The entry has enough votes once a majority of
//! the memories has acknowledged its write, which takes two delays.
//!
//! Each memory holds a copy of the log: a [`Header`], a ring of entries, and two areas for
//! snapshots. The memories are the Paxos acceptors. The leader's ballot in the header is the
//! memory's promise for all entries, because no other process has the permission to write any more.
//! An acknowledged write of an entry is a vote for the entry. An entry is *committed* when the
//! entry and all earlier entries have the votes of a majority.
//!
//! | phase at a memory | delays | once per |
//! |---|---|---|
//! | take the permission | 2 | leader |
//! | read the header; end the term if it holds a higher ballot | 2 | leader |
//! | write the ballot into the header | 2 | leader |
//! | read the entries after the leader's commit index, window by window | 2 each | leader |
//! | write an entry | 2 | entry |
//!
//! A memory refuses a write if another process has taken the permission, or if the connection
//! broke. The leader then takes the permission again and reads the header. If the header holds no
//! higher ballot, the term continues.
//!
//! - **Holes.** Several entries are in flight at a time, and memories may execute their writes in
//!   any order. A new leader may therefore find an entry but not the one before it. Where a
//!   majority shows a hole, no entry from the hole on was committed, because a committed entry has
//!   no hole before it. The new leader adopts the entry of the highest ballot for each index up to
//!   the first hole, and writes this entry again in its own ballot.
//! - **Slow memories.** The votes of a memory that is taken over late are valid at once: each index
//!   is an independent Paxos instance, for which the memory's promise suffices. A memory that lacks
//!   old entries receives a snapshot and the entries that the leader still holds. Until the
//!   snapshot is in the memory, the entries that the leader writes to it are at most one ring
//!   beyond the memory's recycling point.
//! - **Recycling.** Each memory has its own *recycling point*: the entries up to this point may be
//!   overwritten. It moves only after the whole snapshot is in the memory. A memory that has voted
//!   for an entry therefore holds the entry or a snapshot that includes it. Submissions wait while
//!   the rings of a majority are full.
//! - **Followers.** The leader announces the commit index to the followers. A follower reads the
//!   entries from a majority of the memories, and uses the entry of the highest ballot for each
//!   index. If the entries have been recycled, it installs a snapshot.
//! - **Outcomes.** A submission is reported as committed, or, if the leader's term ends first, as
//!   unknown.
//! - **Eligible leaders.** An entry can restrict which processes may lead. A process that leads
//!   although it is not eligible does not violate safety, so no process waits until all processes
//!   have read the entry.
//! - **Fixed memories.** The set of memories does not change. If a memory could be replaced, a new
//!   leader would have to determine for each entry, including entries that a snapshot contains,
//!   which of two sets of memories decides it.
//! - **Restarts.** A process that has lost its state may rejoin under its own id if none of its
//!   earlier operations can take effect any more. The memories guarantee this by closing the
//!   process's old connections. The process reads its earlier ballots from the headers of a
//!   majority, and begins with a higher ballot.
//!
//! [`Config`] bounds all state.

mod catch_up;
mod cell;
mod layout;
mod leader;
mod output;
mod outstanding_ops;
mod snapshot_write;
mod state;
mod takeover;

use core::marker::PhantomData;

use catch_up::CatchUp;
pub use cell::{Cell, Chunk, Entry, Header, Payload, SnapshotMeta};
pub use layout::Config;
use leader::{Deposed, LeaderState};
use mitra_mutants::Mutant;
pub use output::{CommitOutcome, Committed, Delivery, LogError, Ticket};
use outstanding_ops::OpPurpose;
use state::State;

use crate::process::{ballot_above, send_others};
use crate::{
    Action, Actions, AllRules, Input, MemoryId, OpId, Process, ProcessId, ProcessSet, Response, RuleSet,
};

/// The rules that safety rests on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// A term ends if the leader reads a higher ballot in a memory.
    const CHECKS_BALLOT: bool = true;
    /// A leader takes a higher ballot if a header already holds its current ballot before the
    /// leader has written the header. The process used this ballot before it lost its state, and no
    /// longer knows which entries it wrote.
    const RESTARTS_ABOVE_OWN_BALLOT: bool = true;
    /// The leader takes a memory over only after the memory has answered all outstanding
    /// operations.
    const AWAITS_OUTSTANDING: bool = true;
    /// For each index, a reader uses the entry of the highest ballot.
    const BY_BALLOT: bool = true;
    /// A new leader reads entries until it finds a hole. Without the rule, it reads one window.
    const SCANS_UNTIL_HOLE: bool = true;
    /// A new leader reads a majority of the memories, and an entry is committed when a majority has
    /// voted for it. Without the rule, one memory suffices for both.
    const BY_MAJORITY: bool = true;
    /// The recycling point moves after all chunks of the snapshot are acknowledged.
    const AWAITS_SNAPSHOT: bool = true;
    /// The leader writes a snapshot to the area that does not hold the valid snapshot.
    const ALTERNATES_SNAPSHOT_AREAS: bool = true;
    /// The leader overwrites registers only up to the recycling point.
    const AWAITS_RECYCLING: bool = true;
    /// The leader overwrites a register of the ring only after the previous write of that register
    /// was acknowledged.
    const AWAITS_REGISTER: bool = true;
    /// A follower delivers an entry after it has read a majority of the memories. Without the rule,
    /// one memory suffices.
    const FOLLOWER_READS_MAJORITY: bool = true;
}

impl Rules for AllRules {}

/// A process of the log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Log<R = AllRules> {
    /// Whether Ω names this process as the leader.
    elected: bool,
    terms: u64,
    tickets: u64,
    state: State,
    role: Role,
    rules: PhantomData<R>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Role {
    Follower(CatchUp),
    Leader(LeaderState),
}

impl<R: Rules> Log<R> {
    /// Creates a process of the log. Initially, all processes may lead. Returns `None` if the
    /// configuration is not valid, or `me` is not below `config.processes`.
    pub fn new(me: ProcessId, config: Config) -> Option<Log<R>> {
        if !config.is_valid() || me.0 >= config.processes {
            return None;
        }
        let state = State::new(me, config);
        let role = Role::Follower(CatchUp::new(config.memories));
        Some(Log { elected: false, terms: 0, tickets: 0, state, role, rules: PhantomData })
    }

    /// Submits a command. [`Log::take_outcomes`] returns its outcome later.
    ///
    /// # Errors
    /// The command has not been submitted.
    /// - [`LogError::NotLeader`]: this process does not lead.
    /// - [`LogError::QueueFull`]: too many submissions are queued.
    /// - [`LogError::TooLarge`]: the command is longer than [`Config::max_command_bytes`].
    pub fn submit(&mut self, command: Vec<u8>, out: &mut Actions<Self>) -> Result<Ticket, LogError> {
        let ticket = self.enqueue_command(command);
        self.drive(out);
        ticket
    }

    /// Submits commands in order, each with the result of [`Log::submit`]. Commands that are queued
    /// together share entries as far as they fit.
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

    /// Submits an entry that restricts which processes may lead.
    ///
    /// # Errors
    /// Nothing has been submitted.
    /// - [`LogError::NoEligibleLeader`]: the set contains none of the processes.
    /// - [`LogError::NotLeader`], [`LogError::QueueFull`]: as in [`Log::submit`].
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
        let Role::Leader(leader) = &mut self.role else { return Err(LogError::NotLeader) };
        let ticket = Ticket(self.tickets);
        leader.enqueue(ticket, payload, &self.state)?;
        self.tickets += 1;
        Ok(ticket)
    }

    /// Returns whether this process considers itself the leader and accepts submissions. Another
    /// process may have taken over since.
    pub fn is_leader(&self) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.started())
    }

    /// Returns the processes that may lead, as of the last delivered entry.
    pub fn eligible_leaders(&self) -> ProcessSet {
        self.state.leaders
    }

    /// Returns the index of the last entry that this process has delivered.
    pub fn commit_index(&self) -> u64 {
        self.state.commit
    }

    /// Removes and returns the deliveries since the last call: committed entries and installed
    /// snapshots, in order.
    pub fn take_committed(&mut self) -> Vec<Delivery> {
        core::mem::take(&mut self.state.deliveries)
    }

    /// Removes and returns the outcomes of this process's submissions since the last call.
    pub fn take_outcomes(&mut self) -> Vec<(Ticket, CommitOutcome)> {
        core::mem::take(&mut self.state.outcomes)
    }

    /// Returns whether the leader needs a snapshot, because the ring of a memory fills up.
    pub fn needs_snapshot(&self) -> bool {
        matches!(&self.role, Role::Leader(leader) if leader.needs_snapshot(&self.state))
    }

    /// Provides a snapshot of the state machine, which must have applied all delivered entries.
    ///
    /// # Errors
    /// - [`LogError::NotLeader`]: this process does not lead.
    /// - [`LogError::NotReady`]: some deliveries have not been taken, or no entry was committed
    ///   since the last snapshot.
    /// - [`LogError::TooLarge`]: the snapshot is longer than [`Config::max_snapshot_bytes`].
    pub fn snapshot(&mut self, bytes: Vec<u8>, out: &mut Actions<Self>) -> Result<(), LogError> {
        let Role::Leader(leader) = &mut self.role else { return Err(LogError::NotLeader) };
        leader.snapshot(bytes, &self.state)?;
        self.drive(out);
        Ok(())
    }

    /// Invokes all operations that can be invoked now, and changes the role if necessary.
    fn drive(&mut self, out: &mut Actions<Self>) {
        loop {
            let state = &mut self.state;
            match &mut self.role {
                Role::Leader(leader) => match leader.drive::<R>(state, out) {
                    Ok(()) => return,
                    Err(Deposed) => self.depose(),
                },
                Role::Follower(catch_up) => {
                    let behind = state.commit < state.recycled;
                    if !self.elected || !state.leaders.contains(state.me) || behind {
                        return catch_up.drive(state, out);
                    }
                    self.terms += 1;
                    state.highest_ballot =
                        ballot_above(state.highest_ballot, state.me, state.config.processes);
                    state.outstanding.abandon();
                    self.role = Role::Leader(LeaderState::new(state));
                }
            }
        }
    }

    /// Makes this process a follower. If it was leading, abandons all outstanding operations, and
    /// reports the submissions without an outcome as unknown.
    fn depose(&mut self) {
        let following = Role::Follower(CatchUp::new(self.state.config.memories));
        if let Role::Leader(leader) = core::mem::replace(&mut self.role, following) {
            self.state.outstanding.abandon();
            self.state.outcomes.extend(leader.tickets().map(|ticket| (ticket, CommitOutcome::Unknown)));
        }
    }

    fn on_response(&mut self, memory: MemoryId, id: OpId, response: Response<Cell>) {
        let m = usize::from(memory.0);
        match (self.state.outstanding.complete(m, id), &mut self.role) {
            (None | Some(OpPurpose::Stale), _) => {}
            (Some(_), Role::Follower(catch_up)) => catch_up.on_response::<R>(m, response, &mut self.state),
            (Some(purpose), Role::Leader(leader)) => {
                if leader.on_response::<R>(m, purpose, response, &mut self.state).is_err() {
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
                // The sender leads in a higher ballot and may have replaced this leader's entries.
                let is_deposed = matches!(&self.role, Role::Leader(leader) if leader.ballot() < ballot);
                if is_deposed && !Mutant::HigherBallotIgnored.is_on() {
                    self.depose();
                }
                self.state.highest_ballot = self.state.highest_ballot.max(ballot);
                self.state.known_commit = self.state.known_commit.max(index);
            }
            Input::Response { memory, id, response } => self.on_response(memory, id, response),
            Input::Start | Input::Wake | Input::Coin(_) => {}
        }
        self.drive(out);
    }

    /// Returns `None`: a log has no single decision. [`Log::take_committed`] returns its output.
    fn decision(&self) -> Option<&u64> {
        None
    }

    fn awaits_responses(&self) -> bool {
        self.state.outstanding.any()
    }

    /// Returns the number of terms begun, plus the number of refusals after which a leader took a
    /// memory over again.
    fn attempts(&self) -> u64 {
        self.terms + self.state.retaken
    }
}

fn announce(ballot: u64, state: &State, out: &mut Vec<Action<Cell, Committed>>) {
    send_others(state.me, state.config.processes, &Committed { ballot, index: state.commit }, out);
}
