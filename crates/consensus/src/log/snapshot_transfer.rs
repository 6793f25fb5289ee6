//! The transfer of a snapshot to a memory: the leader writes its chunks to the area that does not hold the valid
//! snapshot, and then moves the recycling point.

use super::inflight::OpPurpose;
use super::layout::write;
use super::leader::{LeaderState, MemoryProgress};
use super::{Cell, Chunk, Committed, Header, Rules, SnapshotMeta, State};
use crate::Action;

/// The progress of a snapshot transfer to one memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum SnapshotTransfer {
    /// No transfer is in progress.
    Idle,
    /// `sent` chunks have been written, of which `acked` are acknowledged.
    Writing { meta: SnapshotMeta, sent: u16, acked: u16 },
    /// All chunks are acknowledged, and the header with the new recycling point is being written.
    Moving(SnapshotMeta),
}

impl LeaderState {
    /// Invokes the next writes of a transfer, or begins one if the memory holds an older snapshot than the leader.
    pub(super) fn write_snapshot<R: Rules>(
        &mut self,
        m: usize,
        state: &mut State,
        out: &mut Vec<Action<Cell, Committed>>,
    ) {
        let Some((newest, bytes)) = &self.snapshot else { return };
        let MemoryProgress { header, transfer, .. } = &mut self.progress[m];
        let inflight_chunks =
            |state: &State| state.inflight.at(m).filter(|&purpose| purpose == OpPurpose::Chunk).count();
        let begins = match transfer {
            SnapshotTransfer::Idle => newest.index > header.snapshot.index,
            // An outstanding chunk of the older snapshot could overwrite the newer one.
            SnapshotTransfer::Writing { meta, .. } => {
                meta.index < newest.index && inflight_chunks(state) == 0
            }
            SnapshotTransfer::Moving(_) => false,
        };
        if begins {
            let meta = SnapshotMeta { area: header.snapshot.area ^ R::ALTERNATES_SNAPSHOT_AREAS, ..*newest };
            *transfer = SnapshotTransfer::Writing { meta, sent: 0, acked: 0 };
        }
        let SnapshotTransfer::Writing { meta, sent, acked } = transfer else { return };
        if meta.index < newest.index {
            return;
        }
        while *sent < meta.chunks && inflight_chunks(state) < state.config.window.into() {
            let size = state.config.chunk_bytes();
            let bytes = bytes.chunks(size).nth((*sent).into()).unwrap_or_default().to_vec();
            let chunk = Chunk { index: meta.index, ballot: meta.ballot, bytes };
            let op = write(state.config.chunk(meta.area, *sent), Cell::Chunk(chunk));
            state.inflight.invoke(m, OpPurpose::Chunk, op, out);
            *sent += 1;
        }
        let written = if R::AWAITS_SNAPSHOT { *acked } else { *sent };
        if written == meta.chunks {
            let meta = *meta;
            let op = write(0, Cell::Header(Header { snapshot: meta, ..*header }));
            state.inflight.invoke(m, OpPurpose::Recycle, op, out);
            *transfer = SnapshotTransfer::Moving(meta);
        }
    }
}
