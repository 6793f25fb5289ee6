//! The state of a leader. Once a leader has taken over a majority of the memories, it replicates
//! entries and snapshots to all memories that it has taken over.

use std::collections::VecDeque;

use super::layout::write;
use super::outstanding_ops::OpPurpose;
use super::snapshot_write::SnapshotWrite;
use super::takeover::{Phase, Takeover};
use super::{
    Cell, CommitOutcome, Committed, Entry, Header, LogError, Payload, Rules, SnapshotMeta, State, Ticket,
    announce,
};
use crate::process::majority;
use crate::{Action, Response};
use mitra_mutants::Mutant;

/// The error that this process must end its term.
pub(super) struct Deposed;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct LeaderState {
    pub(super) ballot: u64,
    /// The progress of the takeover, or `None` once a majority of the memories is taken over.
    pub(super) takeover: Option<Takeover>,
    /// The index before the first of `entries`.
    pub(super) floor: u64,
    /// All entries after `floor`: since the last snapshot of this term, or since the term began.
    entries: VecDeque<ProposedEntry>,
    pub(super) progress: Vec<MemoryProgress>,
    /// The last snapshot that the state machine provided in this term.
    pub(super) snapshot: Option<(SnapshotMeta, Vec<u8>)>,
    /// The submissions that are in no entry yet.
    queue: VecDeque<(Ticket, Payload)>,
    /// The commit index that the leader announced last.
    announced: Option<u64>,
}

/// An entry that this leader writes in its ballot. Bit m of `votes` is set if memory m has
/// acknowledged the write.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ProposedEntry {
    payload: Payload,
    tickets: Vec<Ticket>,
    votes: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct MemoryProgress {
    pub(super) phase: Phase,
    pub(super) header: Header,
    /// Whether the write of this term's ballot to the header has been invoked.
    pub(super) ballot_write_invoked: bool,
    /// The index of the next entry to write.
    next: u64,
    pub(super) snapshot_write: SnapshotWrite,
}

impl MemoryProgress {
    fn new() -> MemoryProgress {
        MemoryProgress {
            phase: Phase::Waiting,
            header: Header::default(),
            ballot_write_invoked: false,
            next: 0,
            snapshot_write: SnapshotWrite::Idle,
        }
    }
}

impl LeaderState {
    /// Begins a term with the ballot `state.highest_ballot`, which the caller has set to a new
    /// ballot of this process.
    pub(super) fn new(state: &State) -> LeaderState {
        LeaderState {
            ballot: state.highest_ballot,
            takeover: Some(Takeover::new(state.config.memories)),
            floor: state.commit,
            entries: VecDeque::new(),
            progress: vec![MemoryProgress::new(); state.config.memories.into()],
            snapshot: None,
            queue: VecDeque::new(),
            announced: None,
        }
    }

    pub(super) fn ballot(&self) -> u64 {
        self.ballot
    }

    pub(super) fn started(&self) -> bool {
        self.takeover.is_none()
    }

    /// Returns the tickets of the submissions that have no outcome yet.
    pub(super) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let entries = self.entries.iter().flat_map(|entry| &entry.tickets);
        entries.chain(self.queue.iter().map(|(ticket, _)| ticket)).copied()
    }

    pub(super) fn enqueue(
        &mut self,
        ticket: Ticket,
        payload: Payload,
        state: &State,
    ) -> Result<(), LogError> {
        if !self.started() {
            return Err(LogError::NotLeader);
        }
        if self.queue.len() >= state.config.queue_capacity.into() {
            return Err(LogError::QueueFull);
        }
        self.queue.push_back((ticket, payload));
        Ok(())
    }

    fn last_index(&self) -> u64 {
        self.floor + self.entries.len() as u64
    }

    fn snapshot_index(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |(meta, _)| meta.index)
    }

    /// Returns whether some memory needs a newer snapshot than the leader has. The entries after
    /// such a memory's recycling point fill half of its ring, its snapshot lacks committed entries,
    /// and the leader has no newer snapshot.
    pub(super) fn needs_snapshot(&self, state: &State) -> bool {
        let half = u64::from(state.config.ring()) / 2;
        let promised = self.progress.iter().filter(|memory| memory.phase == Phase::Promised);
        self.started()
            && promised.map(|memory| memory.header.snapshot.index).any(|base| {
                self.last_index() >= base + half && base < state.commit && base >= self.snapshot_index()
            })
    }

    pub(super) fn snapshot(&mut self, bytes: Vec<u8>, state: &State) -> Result<(), LogError> {
        if !self.started() {
            return Err(LogError::NotLeader);
        }
        let index = state.commit;
        if !state.deliveries.is_empty() || index <= self.snapshot_index() {
            return Err(LogError::NotReady);
        }
        if bytes.len() > state.config.max_snapshot_bytes() {
            return Err(LogError::TooLarge);
        }
        let chunks = bytes.len().div_ceil(state.config.chunk_bytes()) as u16;
        let meta = SnapshotMeta { index, ballot: self.ballot, area: false, chunks, leaders: state.leaders };
        self.snapshot = Some((meta, bytes));
        self.entries.drain(..(index - self.floor) as usize);
        self.floor = index;
        Ok(())
    }

    /// Advances the term: completes the takeover, commits entries, and invokes the next operations
    /// at each memory. Returns an error if this process is no longer eligible to lead.
    pub(super) fn drive<R: Rules>(
        &mut self,
        state: &mut State,
        out: &mut Vec<Action<Cell, Committed>>,
    ) -> Result<(), Deposed> {
        if let Some(found) = self.takeover_result::<R>(state) {
            self.takeover = None;
            let entry = |payload| ProposedEntry { payload, tickets: Vec::new(), votes: 0 };
            self.entries = found.into_iter().map(entry).collect();
        }
        if self.started() {
            self.commit::<R>(state);
            // While more entries are in flight and the process remains eligible, the leader
            // announces the commit index only once per window.
            let unannounced = self.announced.map_or(u64::MAX, |announced| state.commit - announced);
            let is_last = self.last_index() == state.commit || !state.leaders.contains(state.me);
            let enough = if is_last { 1 } else { u64::from(state.config.window) };
            if unannounced >= enough {
                self.announced = Some(state.commit);
                announce(self.ballot, state, out);
            }
            if !state.leaders.contains(state.me) {
                return Err(Deposed);
            }
            self.propose_queued(state);
        }
        for m in 0..self.progress.len() {
            self.drive_takeover::<R>(m, state, out);
            if self.started() && self.progress[m].phase == Phase::Promised {
                self.write_entries::<R>(m, state, out);
                self.write_snapshot::<R>(m, state, out);
            }
        }
        Ok(())
    }

    fn commit<R: Rules>(&mut self, state: &mut State) {
        let enough = if R::BY_MAJORITY && !Mutant::CommitsAtOneMemory.is_on() {
            majority(self.progress.len())
        } else {
            1
        };
        while let Some(entry) = self.entries.get_mut((state.commit - self.floor) as usize) {
            if state.commit >= state.known_commit && (entry.votes.count_ones() as usize) < enough {
                return;
            }
            state.deliver(entry.payload.clone());
            let index = state.commit;
            let tickets = core::mem::take(&mut entry.tickets).into_iter().enumerate();
            state.outcomes.extend(
                tickets.map(|(position, ticket)| (ticket, CommitOutcome::Committed { index, position })),
            );
        }
    }

    /// Creates entries from queued submissions until the maximum number of entries is in flight.
    fn propose_queued(&mut self, state: &State) {
        while self.last_index() < state.commit + u64::from(state.config.max_inflight) {
            let Some(entry) = self.next_entry(state) else { return };
            self.entries.push_back(entry);
        }
    }

    /// Creates the next entry from the first queued submission. If this submission is a command,
    /// the commands directly behind it share the entry as far as they fit.
    fn next_entry(&mut self, state: &State) -> Option<ProposedEntry> {
        let waiting = self.queue.iter().map_while(|(_, payload)| match payload {
            Payload::Commands(commands) => commands.first(),
            Payload::EligibleLeaders(_) => None,
        });
        let batch = state.config.batch(waiting);
        let (ticket, mut payload) = self.queue.pop_front()?;
        let mut tickets = vec![ticket];
        if let Payload::Commands(commands) = &mut payload {
            for (ticket, next) in self.queue.drain(..batch - 1) {
                if let Payload::Commands(next) = next {
                    tickets.push(ticket);
                    commands.extend(next);
                }
            }
        }
        Some(ProposedEntry { payload, tickets, votes: 0 })
    }

    pub(super) fn on_response<R: Rules>(
        &mut self,
        m: usize,
        purpose: OpPurpose,
        response: Response<Cell>,
        state: &mut State,
    ) -> Result<(), Deposed> {
        let memory = &mut self.progress[m];
        match (purpose, response, &mut memory.snapshot_write) {
            (OpPurpose::Entry(index), Response::Nak, _)
                if Mutant::RefusedWriteCounts.is_on() && index > self.floor =>
            {
                self.entries[(index - self.floor - 1) as usize].votes |= 1 << m;
            }
            // A NAK means that another process has taken the permission, or that the connection
            // broke. The leader takes the memory over again. The header then shows whether a higher
            // ballot has begun.
            (_, Response::Nak, _) => {
                *memory = MemoryProgress {
                    ballot_write_invoked: memory.ballot_write_invoked,
                    next: if Mutant::RefusedEntryNotRepeated.is_on() { memory.next } else { 0 },
                    ..MemoryProgress::new()
                };
                state.outstanding.abandon_at(m);
                state.retaken += 1;
            }
            (OpPurpose::Entry(index), Response::Ack, _) => {
                if let Some(nth) = index.checked_sub(self.floor + 1) {
                    self.entries[nth as usize].votes |= 1 << m;
                }
            }
            (OpPurpose::Chunk, Response::Ack, SnapshotWrite::Writing { acked, .. }) => *acked += 1,
            (OpPurpose::Chunk, Response::Ack, _) => {}
            (OpPurpose::Recycle, Response::Ack, SnapshotWrite::Moving(meta)) => {
                memory.header.snapshot = *meta;
                memory.snapshot_write = SnapshotWrite::Idle;
            }
            (_, response, _) => return self.on_takeover_response::<R>(m, purpose, response, state),
        }
        Ok(())
    }

    fn write_entries<R: Rules>(
        &mut self,
        m: usize,
        state: &mut State,
        out: &mut Vec<Action<Cell, Committed>>,
    ) {
        let memory = &mut self.progress[m];
        let ring = u64::from(state.config.ring());
        let base = memory.header.snapshot.index;
        memory.next = memory.next.max(self.floor + 1).max(base + 1);
        while let Some(entry) = self.entries.get((memory.next - self.floor - 1) as usize) {
            let index = memory.next;
            if entry.votes >> m & 1 == 1 {
                memory.next += 1;
                continue;
            }
            let outstanding_entries = state.outstanding.at(m).filter_map(|purpose| match purpose {
                OpPurpose::Entry(index) => Some(index),
                _ => None,
            });
            let recycled = index <= base + ring || !R::AWAITS_RECYCLING || Mutant::RingOverrun.is_on();
            let free = outstanding_entries.clone().all(|other| other + ring > index)
                || !R::AWAITS_REGISTER
                || Mutant::RegisterWrittenTwice.is_on();
            if !recycled || !free || outstanding_entries.count() >= state.config.window.into() {
                return;
            }
            let entry =
                Entry { ballot: self.ballot, index, commit: state.commit, payload: entry.payload.clone() };
            let op = write(state.config.slot(index), Cell::Entry(entry));
            state.outstanding.invoke(m, OpPurpose::Entry(index), op, out);
            memory.next += 1;
        }
    }
}
