//! How a snapshot gets to a memory: chunk by chunk into the area beside the valid one, and then the recycling point.

use super::inflight::Asked;
use super::layout::write;
use super::leader::{LeaderState, MemoryProgress};
use super::{Cell, Chunk, Committed, Header, Rules, SnapshotMeta, State};
use crate::Action;

/// How far a snapshot is on its way to a memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum SnapshotTransfer {
    /// None is.
    Idle,
    /// So many chunks were sent, and so many acknowledged.
    Writing { stamp: SnapshotMeta, sent: u16, acked: u16 },
    /// All are there.
    Moving(SnapshotMeta),
}

impl LeaderState {
    /// Asks a memory for what is next, if there is a newer snapshot than its own.
    pub(super) fn write_snapshot<R: Rules>(
        &mut self,
        m: usize,
        state: &mut State,
        out: &mut Vec<Action<Cell, Committed>>,
    ) {
        let Some((newest, bytes)) = &self.snapshot else { return };
        let MemoryProgress { header, transfer, .. } = &mut self.progress[m];
        let chunks_under_way =
            |state: &State| state.inflight.at(m).filter(|&asked| asked == Asked::Chunk).count();
        let begins = match transfer {
            SnapshotTransfer::Idle => newest.index > header.snapshot.index,
            // What is under way could land on the newer one.
            SnapshotTransfer::Writing { stamp, .. } => {
                stamp.index < newest.index && chunks_under_way(state) == 0
            }
            SnapshotTransfer::Moving(_) => false,
        };
        if begins {
            let stamp = SnapshotMeta { area: header.snapshot.area ^ R::ALTERNATES_SNAPSHOT_AREAS, ..*newest };
            *transfer = SnapshotTransfer::Writing { stamp, sent: 0, acked: 0 };
        }
        let SnapshotTransfer::Writing { stamp, sent, acked } = transfer else { return };
        if stamp.index < newest.index {
            return;
        }
        while *sent < stamp.chunks && chunks_under_way(state) < state.config.window.into() {
            let size = state.config.chunk_bytes();
            let bytes = bytes.chunks(size).nth((*sent).into()).unwrap_or_default().to_vec();
            let chunk = Chunk { index: stamp.index, ballot: stamp.ballot, bytes };
            let op = write(state.config.chunk(stamp.area, *sent), Cell::Chunk(chunk));
            state.inflight.ask(m, Asked::Chunk, op, out);
            *sent += 1;
        }
        let there = if R::AWAITS_SNAPSHOT { *acked } else { *sent };
        if there == stamp.chunks {
            let stamp = *stamp;
            let op = write(0, Cell::Header(Header { snapshot: stamp, ..*header }));
            state.inflight.ask(m, Asked::Move, op, out);
            *transfer = SnapshotTransfer::Moving(stamp);
        }
    }
}
