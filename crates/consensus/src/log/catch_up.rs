//! The catch-up of a follower, which reads committed entries from a majority of the memories, or a
//! snapshot from one memory.

use super::layout::READ_HEADER;
use super::outstanding_ops::OpPurpose;
use super::{Cell, Committed, Delivery, Entry, Rules, SnapshotMeta, State};
use crate::process::majority;
use crate::{Action, Response};
use mitra_mutants::Mutant;

/// The catch-up of a follower, in rounds. Each round reads the entries of one window from every
/// memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct CatchUp {
    first: u64,
    /// The last index of the round. Its entry was committed before the reads began, so a majority
    /// of the memories holds that entry or a snapshot that includes it.
    end: u64,
    sources: Vec<Source>,
}

/// The state of the reads at one memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Source {
    /// The entries have not been read yet.
    Unread,
    /// The content of the registers of the round.
    Read(Vec<Cell>),
    /// The registers hold entries newer than the round, so the memory has a snapshot. The memory's
    /// header is to be read next.
    Recycled,
    /// The snapshot described by `meta` is being read. `chunks` is the number of chunks read so
    /// far, and `bytes` is their content.
    Partial { meta: SnapshotMeta, chunks: u16, bytes: Vec<u8> },
}

impl CatchUp {
    pub(super) fn new(memories: u8) -> CatchUp {
        CatchUp { first: 0, end: 0, sources: vec![Source::Unread; memories.into()] }
    }

    /// Begins a new round if the last round is complete and more entries are committed. Invokes the
    /// next read at each memory that has no operation outstanding.
    pub(super) fn drive(&mut self, state: &mut State, out: &mut Vec<Action<Cell, Committed>>) {
        if state.commit >= self.end {
            if state.known_commit <= state.commit {
                return;
            }
            if !Mutant::EarlierReadsCount.is_on() {
                state.outstanding.abandon();
            }
            self.first = state.commit + 1;
            self.end = state.known_commit.min(state.config.window_end(self.first));
            self.sources.fill(Source::Unread);
        }
        for (m, source) in self.sources.iter().enumerate() {
            let op = match source {
                _ if state.outstanding.at(m).len() > 0 => continue,
                Source::Unread => state.config.read_some(self.first, self.end),
                Source::Recycled => READ_HEADER,
                Source::Partial { meta, chunks, .. } => state.config.read_chunks(meta, *chunks),
                Source::Read(_) => continue,
            };
            state.outstanding.invoke(m, OpPurpose::Fetch, op, out);
        }
    }

    pub(super) fn on_response<R: Rules>(&mut self, m: usize, response: Response<Cell>, state: &mut State) {
        let Response::Cells(cells) = response else { return };
        self.sources[m] = match &mut self.sources[m] {
            Source::Recycled => match cells.first() {
                Some(Cell::Header(header)) if header.snapshot.index > state.commit => {
                    state.observe_header(header);
                    Source::Partial { meta: header.snapshot, chunks: 0, bytes: Vec::new() }
                }
                _ => Source::Unread,
            },
            Source::Partial { meta, chunks, bytes } => {
                let mut read = *chunks;
                let mut bytes = core::mem::take(bytes);
                for cell in &cells {
                    if let Cell::Chunk(chunk) = cell
                        && ((chunk.index, chunk.ballot) == (meta.index, meta.ballot)
                            || Mutant::SnapshotChunksMixed.is_on())
                    {
                        bytes.extend(&chunk.bytes);
                        read += 1;
                    }
                }
                // If a chunk is missing, a newer snapshot has overwritten the area since the header
                // was read.
                if read == *chunks + cells.len() as u16 {
                    Source::Partial { meta: *meta, chunks: read, bytes }
                } else {
                    Source::Recycled
                }
            }
            Source::Unread | Source::Read(_) => {
                cells.iter().filter_map(entry).for_each(|entry| state.observe_entry(entry));
                Source::Read(cells)
            }
        };
        self.install(m, state);
        self.deliver_shown::<R>(state);
    }

    /// If all chunks of a snapshot have been read from memory `m`, delivers the snapshot unless it
    /// is obsolete.
    fn install(&mut self, m: usize, state: &mut State) {
        if let Source::Partial { meta, chunks, bytes } = &mut self.sources[m]
            && *chunks == meta.chunks
        {
            if meta.index > state.commit || Mutant::ObsoleteSnapshotInstalled.is_on() {
                state.commit = meta.index;
                if !Mutant::LeadersNotInSnapshot.is_on() {
                    state.leaders = meta.leaders;
                }
                let bytes = core::mem::take(bytes);
                state.deliveries.push(Delivery::Snapshot { index: meta.index, bytes });
            }
            self.sources[m] = Source::Unread;
        }
    }

    /// Delivers, in order, the entries of the round that have been read from a majority of the
    /// memories. Marks a memory as recycled if its registers hold newer entries.
    fn deliver_shown<R: Rules>(&mut self, state: &mut State) {
        let enough = if R::FOLLOWER_READS_MAJORITY && !Mutant::FollowerReadsOneMemory.is_on() {
            majority(self.sources.len())
        } else {
            1
        };
        while state.commit < self.end {
            let index = state.commit + 1;
            let at = (index - self.first) as usize;
            for source in &mut self.sources {
                if matches!(source.entry(at), Some(entry) if entry.index > index)
                    && !Mutant::RecycledCountsAsRead.is_on()
                {
                    *source = Source::Recycled;
                }
            }
            let shown = self.sources.iter().filter(|source| matches!(source, Source::Read(_))).count();
            let entries = self.sources.iter().filter_map(|source| source.entry(at));
            let entries = entries.filter(|entry| entry.index == index);
            let last = entries.max_by_key(|entry| match Mutant::FollowerTakesLowestBallot.is_on() {
                true => u64::MAX - entry.ballot,
                false => entry.ballot,
            });
            match last {
                Some(entry) if shown >= enough => state.deliver(entry.payload.clone()),
                _ => return,
            }
        }
    }
}

impl Source {
    /// Returns the entry that was read at offset `at` of the round.
    fn entry(&self, at: usize) -> Option<&Entry> {
        match self {
            Source::Read(cells) => cells.get(at).and_then(entry),
            _ => None,
        }
    }
}

fn entry(cell: &Cell) -> Option<&Entry> {
    match cell {
        Cell::Entry(entry) => Some(entry),
        _ => None,
    }
}
