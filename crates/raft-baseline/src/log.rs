//! The log, in memory only.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{LogId, LogState, RaftLogReader, StorageError, Vote};

use crate::raft::{Entry, Types};

type Done<T> = Result<T, StorageError<u64>>;

#[derive(Default)]
struct Held {
    vote: Option<Vote<u64>>,
    purged: Option<LogId<u64>>,
    entries: VecDeque<Entry>,
}

impl Held {
    /// Where the entry with this index would be.
    fn at(&self, index: u64) -> usize {
        let first = self.entries.front().map_or(index, |entry| entry.log_id.index);
        (index.saturating_sub(first) as usize).min(self.entries.len())
    }
}

#[derive(Clone, Default)]
pub(crate) struct Log(Rc<RefCell<Held>>);

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug>(
        &mut self,
        range: R,
    ) -> Done<Vec<Entry>> {
        let held = self.0.borrow();
        let from = match range.start_bound() {
            Bound::Included(&index) => index,
            Bound::Excluded(&index) => index + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&index) => index + 1,
            Bound::Excluded(&index) => index,
            Bound::Unbounded => u64::MAX,
        };
        Ok(held.entries.range(held.at(from)..held.at(to)).cloned().collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Done<LogState<Types>> {
        let held = self.0.borrow();
        let last = held.entries.back().map(|entry| entry.log_id).or(held.purged);
        Ok(LogState { last_purged_log_id: held.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Done<()> {
        self.0.borrow_mut().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Done<Option<Vote<u64>>> {
        Ok(self.0.borrow().vote)
    }

    async fn append<I: IntoIterator<Item = Entry>>(
        &mut self,
        entries: I,
        flushed: LogFlushed<Types>,
    ) -> Done<()> {
        self.0.borrow_mut().entries.extend(entries);
        flushed.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Done<()> {
        let mut held = self.0.borrow_mut();
        let at = held.at(from.index);
        held.entries.truncate(at);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId<u64>) -> Done<()> {
        let mut held = self.0.borrow_mut();
        let at = held.at(upto.index + 1);
        held.entries.drain(..at);
        held.purged = Some(upto);
        Ok(())
    }
}
