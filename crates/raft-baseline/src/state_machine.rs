//! openraft's state machine: a map from keys to values.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::Cursor;
use std::rc::Rc;

use openraft::storage::RaftStateMachine;
use openraft::{
    EntryPayload, LogId, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError, StoredMembership,
};

use crate::log_entry::{Command, decode, encode};
use crate::raft_node::{Entry, Node, Types};

type StorageResult<T> = Result<T, StorageError<u64>>;

/// The client server reads this map directly.
pub(crate) type Values = Rc<RefCell<HashMap<Vec<u8>, Vec<u8>>>>;

#[derive(Clone)]
struct StoredSnapshot {
    meta: SnapshotMeta<u64, Node>,
    bytes: Vec<u8>,
}

#[derive(Clone, Default)]
pub(crate) struct StateMachine {
    values: Values,
    applied: Rc<Cell<Option<LogId<u64>>>>,
    membership: Rc<RefCell<StoredMembership<u64, Node>>>,
    snapshot: Rc<RefCell<Option<StoredSnapshot>>>,
}

impl StateMachine {
    pub(crate) fn values(&self) -> Values {
        Rc::clone(&self.values)
    }

    /// Executes encoded commands, and returns the values that the reads found.
    fn execute(&self, bytes: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut values = self.values.borrow_mut();
        let mut read = Vec::new();
        for command in decode(bytes) {
            match command {
                Command::Get { key } => read.push(values.get(key).cloned()),
                Command::Set { key, value } => match values.get_mut(key) {
                    Some(old) => {
                        old.clear();
                        old.extend_from_slice(value);
                    }
                    None => _ = values.insert(key.to_vec(), value.to_vec()),
                },
            }
        }
        read
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotBuilder = StateMachine;

    async fn applied_state(&mut self) -> StorageResult<(Option<LogId<u64>>, StoredMembership<u64, Node>)> {
        Ok((self.applied.get(), self.membership.borrow().clone()))
    }

    async fn apply<I: IntoIterator<Item = Entry>>(
        &mut self,
        entries: I,
    ) -> StorageResult<Vec<Vec<Option<Vec<u8>>>>> {
        let mut replies = Vec::new();
        for entry in entries {
            self.applied.set(Some(entry.log_id));
            replies.push(match entry.payload {
                EntryPayload::Blank => Vec::new(),
                EntryPayload::Normal(batch) => self.execute(&batch.0),
                EntryPayload::Membership(membership) => {
                    *self.membership.borrow_mut() = StoredMembership::new(Some(entry.log_id), membership);
                    Vec::new()
                }
            });
        }
        Ok(replies)
    }

    async fn get_snapshot_builder(&mut self) -> StateMachine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> StorageResult<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, Node>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> StorageResult<()> {
        let bytes = snapshot.into_inner();
        self.values.borrow_mut().clear();
        self.execute(&bytes);
        self.applied.set(meta.last_log_id);
        *self.membership.borrow_mut() = meta.last_membership.clone();
        *self.snapshot.borrow_mut() = Some(StoredSnapshot { meta: meta.clone(), bytes });
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> StorageResult<Option<Snapshot<Types>>> {
        let stored = self.snapshot.borrow().clone();
        Ok(stored
            .map(|StoredSnapshot { meta, bytes }| Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }))
    }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    async fn build_snapshot(&mut self) -> StorageResult<Snapshot<Types>> {
        let mut bytes = Vec::new();
        for (key, value) in &*self.values.borrow() {
            encode(Command::Set { key, value }, &mut bytes);
        }
        let last = self.applied.get();
        let meta = SnapshotMeta {
            last_log_id: last,
            last_membership: self.membership.borrow().clone(),
            snapshot_id: last.map_or_else(String::new, |last| last.to_string()),
        };
        *self.snapshot.borrow_mut() = Some(StoredSnapshot { meta: meta.clone(), bytes: bytes.clone() });
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}
