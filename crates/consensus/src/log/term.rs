//! What a leader does once a majority of memories is its own: it writes entries to all of them, and snapshots.

use std::collections::VecDeque;

use super::cells::write;
use super::grab::{Grab, Phase};
use super::lane::Lane;
use super::links::Asked;
use super::{Cell, Committed, Entry, Fate, Header, Payload, Refused, Rules, Stamp, State, Ticket, announce};
use crate::process::majority;
use crate::{Action, Response};

/// This process leads no more.
pub(super) struct Deposed;

/// A process's time as the leader.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Term {
    pub(super) ballot: u64,
    /// Until a majority of the memories is mine.
    pub(super) grab: Option<Grab>,
    /// The index before the first of `entries`.
    pub(super) floor: u64,
    /// All since the last snapshot, or since the term began.
    entries: VecDeque<Held>,
    pub(super) tracks: Vec<Track>,
    pub(super) snapshot: Option<(Stamp, Vec<u8>)>,
    queue: VecDeque<(Ticket, Payload)>,
    announced: Option<u64>,
}

/// An entry, and which memories have it in this ballot, as bits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Held {
    payload: Payload,
    tickets: Vec<Ticket>,
    votes: u64,
}

/// How far a memory is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Track {
    pub(super) phase: Phase,
    /// What its header holds.
    pub(super) header: Header,
    /// It was asked in this term to write my ballot there.
    pub(super) asked: bool,
    /// The next entry to write.
    next: u64,
    pub(super) lane: Lane,
}

impl Track {
    /// Nothing is known of it.
    fn new() -> Track {
        Track { phase: Phase::Waiting, header: Header::default(), asked: false, next: 0, lane: Lane::Idle }
    }
}

impl Term {
    /// A term begins: no memory is mine yet. The ballot is the highest seen.
    pub(super) fn new(state: &State) -> Term {
        Term {
            ballot: state.seen,
            grab: Some(Grab::new(state.config.memories)),
            floor: state.commit,
            entries: VecDeque::new(),
            tracks: vec![Track::new(); state.config.memories.into()],
            snapshot: None,
            queue: VecDeque::new(),
            announced: None,
        }
    }

    pub(super) fn ballot(&self) -> u64 {
        self.ballot
    }

    pub(super) fn started(&self) -> bool {
        self.grab.is_none()
    }

    /// Whose fate is not known yet.
    pub(super) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        let entries = self.entries.iter().flat_map(|held| &held.tickets);
        entries.chain(self.queue.iter().map(|(ticket, _)| ticket)).copied()
    }

    pub(super) fn enqueue(&mut self, ticket: Ticket, payload: Payload, state: &State) -> Result<(), Refused> {
        if !self.started() {
            return Err(Refused::NotLeader);
        }
        if self.queue.len() >= state.config.queue.into() {
            return Err(Refused::Full);
        }
        self.queue.push_back((ticket, payload));
        Ok(())
    }

    fn tip(&self) -> u64 {
        self.floor + self.entries.len() as u64
    }

    fn snapshot_index(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |(stamp, _)| stamp.index)
    }

    /// Whether a memory has but half its ring left and the last snapshot, and that is not the newest there could be.
    pub(super) fn wants_snapshot(&self, state: &State) -> bool {
        let half = u64::from(state.config.ring()) / 2;
        let promised = self.tracks.iter().filter(|track| track.phase == Phase::Promised);
        self.started()
            && promised
                .map(|track| track.header.stamp.index)
                .any(|base| self.tip() >= base + half && base < state.commit && base >= self.snapshot_index())
    }

    pub(super) fn snapshot(&mut self, bytes: Vec<u8>, state: &State) -> Result<(), Refused> {
        if !self.started() {
            return Err(Refused::NotLeader);
        }
        let index = state.commit;
        if !state.deliveries.is_empty() || index <= self.snapshot_index() {
            return Err(Refused::NotNow);
        }
        if bytes.len() > state.config.most_snapshot_bytes() {
            return Err(Refused::TooLarge);
        }
        let chunks = bytes.len().div_ceil(state.config.chunk_bytes()) as u16;
        let stamp = Stamp { index, ballot: self.ballot, area: false, chunks, leaders: state.leaders };
        self.snapshot = Some((stamp, bytes));
        self.entries.drain(..(index - self.floor) as usize);
        self.floor = index;
        Ok(())
    }

    /// Begins what can begin: the term itself, entries, and what each memory is to be asked for.
    pub(super) fn drive<R: Rules>(
        &mut self,
        state: &mut State,
        out: &mut Vec<Action<Cell, Committed>>,
    ) -> Result<(), Deposed> {
        if let Some(found) = self.grabbed::<R>(state) {
            self.grab = None;
            let held = |payload| Held { payload, tickets: Vec::new(), votes: 0 };
            self.entries = found.into_iter().map(held).collect();
        }
        if self.started() {
            self.commit::<R>(state);
            // The others need not hear of each entry, as long as more are on their way, and this process stays to tell them.
            let unheard = self.announced.map_or(u64::MAX, |announced| state.commit - announced);
            let is_last = self.tip() == state.commit || !state.leaders.contains(state.me);
            let enough = if is_last { 1 } else { u64::from(state.config.window) };
            if unheard >= enough {
                self.announced = Some(state.commit);
                announce(self.ballot, state, out);
            }
            if !state.leaders.contains(state.me) {
                return Err(Deposed);
            }
            self.fill(state);
        }
        for m in 0..self.tracks.len() {
            self.grab_on::<R>(m, state, out);
            if self.started() && self.tracks[m].phase == Phase::Promised {
                self.write_entries::<R>(m, state, out);
                self.write_snapshot::<R>(m, state, out);
            }
        }
        Ok(())
    }

    fn commit<R: Rules>(&mut self, state: &mut State) {
        let enough = if R::BY_MAJORITY { majority(self.tracks.len()) } else { 1 };
        while let Some(held) = self.entries.get_mut((state.commit - self.floor) as usize) {
            if state.commit >= state.known && (held.votes.count_ones() as usize) < enough {
                return;
            }
            state.deliver(held.payload.clone());
            let index = state.commit;
            let tickets = core::mem::take(&mut held.tickets).into_iter().enumerate();
            state.fates.extend(tickets.map(|(nth, ticket)| (ticket, Fate::Committed { index, nth })));
        }
    }

    /// Makes entries of what is submitted, as many as may be on their way.
    fn fill(&mut self, state: &State) {
        while self.tip() < state.commit + u64::from(state.config.depth) {
            let Some(held) = self.next_entry(state) else { return };
            self.entries.push_back(held);
        }
    }

    /// Commands that had to wait go into one entry together, as many as there is room for.
    fn next_entry(&mut self, state: &State) -> Option<Held> {
        let waiting = self.queue.iter().map_while(|(_, payload)| match payload {
            Payload::Commands(commands) => commands.first(),
            Payload::Leaders(_) => None,
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
        Some(Held { payload, tickets, votes: 0 })
    }

    /// Takes what a memory answers.
    pub(super) fn answered<R: Rules>(
        &mut self,
        m: usize,
        asked: Asked,
        response: Response<Cell>,
        state: &mut State,
    ) -> Result<(), Deposed> {
        let track = &mut self.tracks[m];
        match (asked, response, &mut track.lane) {
            // Another has taken the right to write, or the connection broke: who looks again learns which.
            (_, Response::Nak, _) => {
                *track = Track { asked: track.asked, ..Track::new() };
                state.links.abandon_at(m);
                state.retaken += 1;
            }
            (Asked::Entry(index), Response::Ack, _) => {
                if let Some(nth) = index.checked_sub(self.floor + 1) {
                    self.entries[nth as usize].votes |= 1 << m;
                }
            }
            (Asked::Chunk, Response::Ack, Lane::Writing { acked, .. }) => *acked += 1,
            (Asked::Chunk, Response::Ack, _) => {}
            (Asked::Move, Response::Ack, Lane::Moving(stamp)) => {
                track.header.stamp = *stamp;
                track.lane = Lane::Idle;
            }
            (_, response, _) => return self.grab_answered::<R>(m, asked, response, state),
        }
        Ok(())
    }

    fn write_entries<R: Rules>(
        &mut self,
        m: usize,
        state: &mut State,
        out: &mut Vec<Action<Cell, Committed>>,
    ) {
        let track = &mut self.tracks[m];
        let ring = u64::from(state.config.ring());
        let base = track.header.stamp.index;
        track.next = track.next.max(self.floor + 1).max(base + 1);
        while let Some(held) = self.entries.get((track.next - self.floor - 1) as usize) {
            let index = track.next;
            if held.votes >> m & 1 == 1 {
                track.next += 1;
                continue;
            }
            let under_way = state.links.at(m).filter_map(|asked| match asked {
                Asked::Entry(index) => Some(index),
                _ => None,
            });
            let recycled = index <= base + ring || !R::AWAITS_RECYCLING;
            let free = under_way.clone().all(|other| other + ring > index) || !R::AWAITS_REGISTER;
            if !recycled || !free || under_way.count() >= state.config.window.into() {
                return;
            }
            let entry =
                Entry { ballot: self.ballot, index, commit: state.commit, payload: held.payload.clone() };
            let op = write(state.config.slot(index), Cell::Entry(entry));
            state.links.ask(m, Asked::Entry(index), op, out);
            track.next += 1;
        }
    }
}
