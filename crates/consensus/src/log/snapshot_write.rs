//! The leader's write of a snapshot to a memory. The leader writes the snapshot's chunks to the
//! area that does not hold the memory's valid snapshot, and then moves the recycling point.

use super::layout::write;
use super::leader::{LeaderState, MemoryProgress};
use super::outstanding_ops::OpPurpose;
use super::{Cell, Chunk, Committed, Header, Rules, SnapshotMeta, State};
use crate::Action;
use mitra_mutants::Mutant;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum SnapshotWrite {
    /// No snapshot is being written.
    Idle,
    /// Writes of `sent` chunks have been invoked, of which `acked` are acknowledged.
    Writing { meta: SnapshotMeta, sent: u16, acked: u16 },
    /// All chunks are acknowledged. The header with this metadata, which moves the recycling point,
    /// is being written.
    Moving(SnapshotMeta),
}

impl LeaderState {
    /// Invokes the next writes of the snapshot that is being written to memory `m`. If no snapshot
    /// is being written and the leader has a newer snapshot than the memory, begins to write the
    /// leader's snapshot.
    pub(super) fn write_snapshot<R: Rules>(
        &mut self,
        m: usize,
        state: &mut State,
        out: &mut Vec<Action<Cell, Committed>>,
    ) {
        let Some((newest, bytes)) = &self.snapshot else { return };
        let MemoryProgress { header, snapshot_write, .. } = &mut self.progress[m];
        let outstanding_chunks =
            |state: &State| state.outstanding.at(m).filter(|&purpose| purpose == OpPurpose::Chunk).count();
        let begins = match snapshot_write {
            SnapshotWrite::Idle => newest.index > header.snapshot.index,
            // A newer snapshot replaces an older one only when no write of the older snapshot's
            // chunks is outstanding. Such a write could overwrite a chunk of the newer snapshot.
            SnapshotWrite::Writing { meta, .. } => {
                meta.index < newest.index && outstanding_chunks(state) == 0
            }
            SnapshotWrite::Moving(_) => false,
        };
        if begins {
            let meta = SnapshotMeta {
                area: header.snapshot.area
                    ^ (R::ALTERNATES_SNAPSHOT_AREAS && !Mutant::ValidSnapshotOverwritten.is_on()),
                ..*newest
            };
            *snapshot_write = SnapshotWrite::Writing { meta, sent: 0, acked: 0 };
        }
        let SnapshotWrite::Writing { meta, sent, acked } = snapshot_write else { return };
        if meta.index < newest.index {
            return;
        }
        while *sent < meta.chunks && outstanding_chunks(state) < state.config.window.into() {
            let size = state.config.chunk_bytes();
            let bytes = bytes.chunks(size).nth((*sent).into()).unwrap_or_default().to_vec();
            let chunk = Chunk { index: meta.index, ballot: meta.ballot, bytes };
            let op = write(state.config.chunk(meta.area, *sent), Cell::Chunk(chunk));
            state.outstanding.invoke(m, OpPurpose::Chunk, op, out);
            *sent += 1;
        }
        let written = if R::AWAITS_SNAPSHOT && !Mutant::SnapshotNotAwaited.is_on() { *acked } else { *sent };
        if written == meta.chunks {
            let meta = *meta;
            let earlier = if Mutant::RecyclingForgetsBallot.is_on() { Header::default() } else { *header };
            let op = write(0, Cell::Header(Header { snapshot: meta, ..earlier }));
            state.outstanding.invoke(m, OpPurpose::Recycle, op, out);
            *snapshot_write = SnapshotWrite::Moving(meta);
        }
    }
}
