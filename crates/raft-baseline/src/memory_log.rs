//! openraft's log storage, in memory only.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{LogId, LogState as RaftLogState, RaftLogReader, StorageError, Vote};

use crate::raft_node::{Entry, Types};

type StorageResult<T> = Result<T, StorageError<u64>>;

#[derive(Default)]
struct MemoryLogState {
    vote: Option<Vote<u64>>,
    purged: Option<LogId<u64>>,
    entries: VecDeque<Entry>,
}

impl MemoryLogState {
    /// Returns the position of the entry with this index in `entries`.
    fn position(&self, index: u64) -> usize {
        let first = self.entries.front().map_or(index, |entry| entry.log_id.index);
        (index.saturating_sub(first) as usize).min(self.entries.len())
    }
}

#[derive(Clone, Default)]
pub(crate) struct Log(Rc<RefCell<MemoryLogState>>);

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug>(
        &mut self,
        range: R,
    ) -> StorageResult<Vec<Entry>> {
        let state = self.0.borrow();
        let start = match range.start_bound() {
            Bound::Included(&index) => index,
            Bound::Excluded(&index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&index) => index + 1,
            Bound::Excluded(&index) => index,
            Bound::Unbounded => u64::MAX,
        };
        Ok(state.entries.range(state.position(start)..state.position(end)).cloned().collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> StorageResult<RaftLogState<Types>> {
        let state = self.0.borrow();
        let last = state.entries.back().map(|entry| entry.log_id).or(state.purged);
        Ok(RaftLogState { last_purged_log_id: state.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> StorageResult<()> {
        self.0.borrow_mut().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> StorageResult<Option<Vote<u64>>> {
        Ok(self.0.borrow().vote)
    }

    async fn append<I: IntoIterator<Item = Entry>>(
        &mut self,
        entries: I,
        flushed: LogFlushed<Types>,
    ) -> StorageResult<()> {
        self.0.borrow_mut().entries.extend(entries);
        flushed.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, start: LogId<u64>) -> StorageResult<()> {
        let mut state = self.0.borrow_mut();
        let position = state.position(start.index);
        state.entries.truncate(position);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId<u64>) -> StorageResult<()> {
        let mut state = self.0.borrow_mut();
        let position = state.position(upto.index + 1);
        state.entries.drain(..position);
        state.purged = Some(upto);
        Ok(())
    }
}
